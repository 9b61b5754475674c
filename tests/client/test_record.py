"""Records are whole whatever happens to their writers, and readable by whoever comes later."""

import base64
import json
import logging
import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from ors_client import ImageBlock, TextBlock, ToolResultBlock, ToolSpec, UnknownBlock
from ors_client._shared.block_recorder import dump_blocks
from ors_client.record import (
    CallRecord,
    EpisodeRecord,
    RecordWriter,
    RunRecord,
    ToolsRecord,
    WordsRecord,
    numbered,
    read,
)

EPISODE = EpisodeRecord(
    environment="echo",
    target="http://localhost:8000",
    split="train",
    index=3,
    session_id="s-1",
    prompt="Say\u2028it.",
    calls=[CallRecord(tool="echo", arguments={"text": "hé"}, output="match", reward=1.0, finished=True, seconds=0.25)],
    rewards=[1.0],
    reward=1.0,
    status="scored",
    started=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    seconds=1.5,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "episodes.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def kinds(path):
    return [line.get("type") for line in lines(path)]


def test_record_reads_back_what_was_appended(path):
    RecordWriter(path).append(EPISODE)
    assert list(read(path)) == [EPISODE]


def test_record_line_has_exactly_the_fields_of_the_format(path):
    RecordWriter(path).append(EPISODE)
    line = json.loads(path.read_text())
    assert list(line) == [
        *("type", "v", "environment", "target", "split", "index", "session_id", "prompt", "calls", "rewards", "reward"),
        *("status", "failure", "started", "seconds"),
    ]
    assert list(line["calls"][0]) == ["tool", "arguments", "output", "reward", "finished", "error", "seconds"]
    assert (line["type"], line["v"]) == ("episode", 2)
    assert line["started"] == "2030-01-02T03:04:05Z"


def test_record_appends_to_what_an_earlier_run_wrote(path):
    for index in range(2):
        RecordWriter(path).append(EPISODE.model_copy(update={"index": index}))
    assert [episode.index for episode in read(path)] == [0, 1]


def test_record_after_half_a_line_of_a_crashed_writer_is_whole(path, caplog):
    writer = RecordWriter(path)
    writer.append(EPISODE)
    with path.open("ab") as file:
        file.write(b'{"v":1,"prompt":"half')
    writer.append(EPISODE)
    with caplog.at_level(logging.WARNING, "ors_client.record"):
        assert list(read(path)) == [EPISODE, EPISODE]
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["Line 2"]


def test_record_reader_ignores_fields_it_does_not_know(path):
    RecordWriter(path).append(EPISODE)
    line = json.loads(path.read_text())
    line |= {"v": 3, "tokens": 12}
    line["calls"][0]["queue_seconds"] = 0.1
    path.write_text(json.dumps(line) + "\n")
    assert list(read(path)) == [EPISODE.model_copy(update={"v": 3})]


def test_record_reader_fills_in_fields_that_are_not_there(path):
    path.parent.mkdir()
    path.write_text('{"v":1,"calls":[{"tool":"echo"}]}\n\n')
    (episode,) = read(path)
    assert (episode.reward, episode.status, episode.calls[0].arguments) == (None, "unscored", {})


@pytest.mark.parametrize("line", ['{"tool":"echo","arguments":{}}', '{"v":1}', '{"calls":[]}', "[]", "1"])
def test_record_reader_takes_no_other_json_for_an_episode(path, line, caplog):
    path.parent.mkdir()
    path.write_text(f"{line}\n")
    assert list(read(path)) == []
    assert "Line 1 of" in caplog.text


def test_record_reader_does_not_warn_of_each_line_of_another_kind_of_file(path, caplog):
    path.parent.mkdir()
    path.write_text("no\n" * 1000)
    assert list(read(path)) == []
    assert len(caplog.records) < 10
    assert caplog.records[-1].getMessage().startswith("995 lines more of ")


def test_record_writer_hides_secrets_wherever_they_turn_up(path):
    episode = EPISODE.model_copy(
        update={
            "prompt": "the key is sk-12345",
            "failure": "sk-12345 was refused",
            "calls": [CallRecord(tool="echo", arguments={"sk-12345": ["sk-12345"]}, output="sk-12345!")],
        }
    )
    RecordWriter(path, hide=["sk-12345", "", "1"]).append(episode)
    assert "sk-12345" not in path.read_text()
    (written,) = read(path)
    assert written.calls[0].output == "***!"
    assert written.session_id == "s-1"


def test_record_writer_hides_a_secret_however_it_is_written(path):
    secret = 'pass"word\n1'
    echoed = [json.dumps({"env": secret}), base64.b64encode(f"user:{secret}".encode()).decode()]
    calls = [CallRecord(tool="echo", output=text) for text in echoed]
    RecordWriter(path, hide=[secret]).append(EPISODE.model_copy(update={"calls": calls}))
    (written,) = read(path)
    assert [call.output for call in written.calls] == ['{"env": "***"}', "***"]


def test_record_writer_leaves_images_as_they_are_where_a_short_secret_stands_in_them_by_chance(path):
    short, long = "test", "sk-12345"
    image = dump_blocks([ImageBlock(data="iVBORtest/dGVzdA==", mime_type="image/png", detail={"by": "test"})])[0]
    shown = dump_blocks([ImageBlock(data=base64.b64encode(b"\0" + long.encode()).decode(), mime_type="image/test")])[0]
    nested = {"type": "tool_result", "blocks": [image]}
    calls = [CallRecord(tool="look", output="a test", blocks=[image, shown, nested])]
    RecordWriter(path, hide=[short, long]).append(EPISODE.model_copy(update={"calls": calls}))
    (episode,) = read(path)
    (call,) = episode.calls
    kept = {**image, "detail": {"by": "***"}}
    assert call.output == "a ***"
    assert call.blocks == [kept, {**shown, "data": "***", "mimeType": "image/***"}, {**nested, "blocks": [kept]}]


def test_record_keeps_text_that_utf8_can_not_carry(path):
    RecordWriter(path).append(EPISODE.model_copy(update={"prompt": "half \ud83d of a pair"}))
    (episode,) = read(path)
    assert "half" in episode.prompt


def test_record_keeps_numbers_that_json_can_not_carry_readable(path):
    call = CallRecord(tool="echo", arguments={"x": float("nan"), "y": 2**80})
    RecordWriter(path).append(EPISODE.model_copy(update={"calls": [call]}))
    (episode,) = read(path)
    assert episode.calls[0].arguments == {"x": None, "y": 2**80}


def test_record_names_what_json_can_not_hold(path):
    deep = []
    for _ in range(300):
        deep = [deep]
    call = CallRecord(tool="echo", arguments={"deep": deep, "set": {7}})
    RecordWriter(path).append(EPISODE.model_copy(update={"calls": [call]}))
    (episode,) = read(path)
    assert "nested more than 100 deep" in str(episode.calls[0].arguments["deep"])
    assert episode.calls[0].arguments["set"] == "{7}"


def test_record_lines_of_many_threads_do_not_mix(path):
    writer = RecordWriter(path)
    episodes = [EPISODE.model_copy(update={"index": index, "prompt": str(index) * 20_000}) for index in range(64)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(writer.append, episodes))
    assert sorted(read(path), key=lambda episode: episode.index) == episodes


def _append_many(path, first):
    writer = RecordWriter(path)
    for index in range(first, first + 20):
        writer.append(EPISODE.model_copy(update={"index": index, "prompt": str(index) * 20_000}))


def test_record_lines_of_several_processes_do_not_mix(path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(path, first)) for first in (0, 20, 40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(episode.index for episode in read(path)) == list(range(60))


def test_record_holds_what_only_some_writers_know_where_it_is_known(path):
    image = ImageBlock(data="aGk=", mime_type="image/png")
    call = CallRecord(tool="look", blocks=dump_blocks([image]), said="I look.", timing={"queued": 0.5})
    episode = EPISODE.model_copy(update={"calls": [call], "model": "m", "attempt": 0, "usage": {"requests": 1}})
    RecordWriter(path).append(episode)
    assert list(read(path)) == [episode]
    picture, line = lines(path)
    reference = {"type": "image", "image": picture["id"], "mimeType": "image/png"}
    assert picture == {"type": "image", "id": picture["id"], "mimeType": "image/png", "data": "aGk="}
    assert line["calls"][0]["blocks"] == [reference]
    assert {"model", "attempt", "usage"} <= set(line)
    assert {"messages", "said", "timing"}.isdisjoint(line)


def test_written_blocks_are_those_of_the_standard_however_deep():
    video = {"type": "video", "url": "x"}
    result = ToolResultBlock(tool_call_id="c", blocks=[TextBlock(text="a"), UnknownBlock(type="video", raw=video)])
    assert dump_blocks([result])[0]["blocks"] == [{"type": "text", "text": "a"}, video]


def test_record_lines_can_be_read_by_their_numbers(path, caplog):
    for index in range(3):
        RecordWriter(path).append(EPISODE.model_copy(update={"index": index}))
    with path.open("ab") as file:
        file.write(b"half")
    assert [(number, episode.index) for number, episode in numbered(path, only={1, 3})] == [(1, 0), (3, 2)]
    assert caplog.records == []


# --- What episodes share


PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
SHARING = EPISODE.model_copy(
    update={
        "id": "e1",
        "run": RunRecord(environment="echo", model="m", parameters={"temperature": 0}),
        "tools": ToolsRecord(tools=[ToolSpec(name="echo", input_schema={"type": "object", "x": None})]),
        "messages": [
            {"role": "user", "blocks": [{"type": "text", "text": "Look:"}, PICTURE]},
            {"role": "assistant", "blocks": [{"type": "tool_call", "id": "1", "name": "echo", "input": {"a": None}}]},
            {"role": "user", "blocks": [{"type": "tool_result", "tool_call_id": "1", "blocks": [PICTURE]}]},
        ],
        "opening": 1,
        "finish_reasons": ["tool_calls"],
    }
)


def test_what_episodes_share_stands_once_in_a_file_whoever_wrote_it(path):
    episodes = [SHARING.model_copy(update={"id": f"e{index}"}) for index in range(4)]
    writers = [RecordWriter(path), RecordWriter(path)]
    for episode, writer in zip(episodes, writers * 2, strict=True):
        writer.append(episode)
    assert kinds(path) == ["run", "tools", "image", *["episode"] * 4]
    assert list(read(path)) == episodes


def test_other_lines_than_episodes_have_neither_version_nor_calls(path):
    writer = RecordWriter(path)
    writer.append(SHARING)
    writer.append_words(WordsRecord(id="e1", step=3))
    assert [kind for kind, line in zip(kinds(path), lines(path), strict=True) if {"v", "calls"} & set(line)] == [
        "episode"
    ]


def test_images_are_read_back_where_they_stood_however_many_there_are(path):
    images = [{**PICTURE, "data": base64.b64encode(bytes([number])).decode()} for number in range(100)]
    episode = SHARING.model_copy(update={"messages": [{"role": "user", "blocks": images}], "opening": None})
    RecordWriter(path).append(episode)
    assert list(read(path)) == [episode]


def test_image_that_the_file_has_lost_is_told_in_its_place(path):
    RecordWriter(path).append(SHARING)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b'"data"' not in line))
    (episode,) = read(path)
    assert episode.messages[0]["blocks"][1] == {"type": "text", "text": "[1 image missing: image/png]"}


def test_shared_line_that_a_crash_left_unfinished_is_written_again(path):
    RecordWriter(path).append(SHARING)
    whole = path.read_bytes()
    torn = whole.index(b'{"type":"tools"') + 60
    path.write_bytes(whole[:torn])
    RecordWriter(path).append(SHARING)
    RecordWriter(path).append(SHARING)
    assert [line["type"] for line in map(_parsed, path.read_bytes().splitlines()) if line] == [
        *("run", "tools", "image", "episode", "episode")
    ]
    assert list(read(path)) == [SHARING, SHARING]


def _parsed(line):
    try:
        return json.loads(line)
    except ValueError:
        return None


def test_file_that_was_moved_away_gets_the_shared_lines_again(path):
    writer = RecordWriter(path)
    writer.append(SHARING)
    path.rename(path.with_suffix(".old"))
    writer.append(SHARING)
    assert list(read(path)) == [SHARING]


def test_words_are_joined_to_their_episode_wherever_they_stand(path):
    writer = RecordWriter(path)
    training = SHARING.model_copy(update={"messages": SHARING.messages[:1], "opening": None})
    said = {"role": "assistant", "blocks": [{"type": "text", "text": "Hello."}, PICTURE]}
    writer.append_words(WordsRecord(id="e2", step=7, completion=[said], reward=0.5, status="scored"))
    for identity in ("e1", "e2"):
        writer.append(training.model_copy(update={"id": identity}))
    first, second = read(path)
    assert first == training
    assert second.messages == second.conversation == [*training.messages, said]
    assert (second.opening, second.step, second.reward) == (1, 7, 0.5)
    assert kinds(path).count("image") == 1


def test_prompt_that_a_trainer_showed_stands_beside_the_environments(path):
    writer = RecordWriter(path)
    writer.append(SHARING)
    shown = [{"role": "system", "blocks": []}, {"role": "user", "blocks": []}]
    writer.append_words(WordsRecord(id="e1", prompt=shown))
    (episode,) = read(path)
    assert (episode.shown, episode.opening_messages) == (shown, SHARING.messages[:1])


def test_conversation_of_an_episode_without_words_is_its_opening_and_its_calls():
    calls = [
        CallRecord(tool="look", said="I look.", output="", blocks=[PICTURE]),
        CallRecord(tool="echo", arguments={"text": "a"}, error="no"),
    ]
    episode = EpisodeRecord(prompt="Go.", calls=calls, said="Done.")
    roles = [message["role"] for message in episode.conversation]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    look, seen, _, refused, last = [message["blocks"] for message in episode.conversation[1:]]
    assert [block["type"] for block in look] == ["text", "tool_call"]
    assert seen == [{"type": "tool_result", "tool_call_id": look[1]["id"], "blocks": [PICTURE]}]
    assert refused[0]["is_error"]
    assert last == [{"type": "text", "text": "Done."}]


def test_kinds_of_lines_that_are_not_known_are_ignored_without_a_word(path, caplog):
    RecordWriter(path).append(EPISODE)
    with path.open("a") as file:
        file.write('{"type":"score","id":"x","v":3,"calls":[]}\n{"id":"y","type":"note"}\n')
    RecordWriter(path).append(EPISODE)
    assert list(read(path)) == [EPISODE, EPISODE]
    assert caplog.records == []


def test_lines_of_other_writers_are_understood_in_any_order_of_fields(path):
    path.parent.mkdir()
    tools = {"tools": [{"name": "echo"}], "id": "t", "type": "tools"}
    picture = {"id": "p", "data": "aGk=", "mimeType": "image/png", "type": "image"}
    reference = {"image": "p", "type": "image", "mimeType": "image/png"}
    call = {"tool": "echo", "blocks": [reference]}
    episode = {"calls": [call], "v": 2, "type": "episode", "tools": "t"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (episode, tools, picture)))
    (found,) = read(path)
    assert found.tools == ToolsRecord(tools=[ToolSpec(name="echo")])
    assert found.calls[0].blocks == [PICTURE]


def test_record_of_version_1_is_read(path):
    path.parent.mkdir()
    old = json.loads(EPISODE.model_dump_json()) | {"v": 1, "messages": [{"role": "user", "blocks": [PICTURE]}]}
    path.write_text(json.dumps(old) + "\n")
    RecordWriter(path).append(SHARING)
    first, second = read(path)
    assert (first.v, first.messages, first.run, second) == (1, old["messages"], None, SHARING)
    assert [message["role"] for message in first.conversation] == ["user", "assistant", "user"]


def test_settings_and_tools_are_redacted_too(path):
    run = RunRecord(parameters={"user": "sk-12345"}, base_url="http://sk-12345.invalid")
    tools = ToolsRecord(tools=[ToolSpec(name="echo", description="sk-12345")])
    writer = RecordWriter(path, hide=["sk-12345"])
    writer.append(EPISODE.model_copy(update={"id": "e", "run": run, "tools": tools}))
    said = {"role": "assistant", "blocks": [{"type": "text", "text": "sk-12345"}]}
    writer.append_words(WordsRecord(id="e", completion=[said]))
    assert "sk-12345" not in path.read_text()
    (episode,) = read(path)
    assert episode.tools.tools[0].description == "***"


def _append_sharing(path, first):
    writer = RecordWriter(path)
    for index in range(first, first + 20):
        writer.append(SHARING.model_copy(update={"id": f"e{index}", "index": index}))


def test_several_processes_write_what_they_share_once(path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_sharing, args=(path, first)) for first in (0, 20, 40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert Counter(kinds(path)) == {"run": 1, "tools": 1, "image": 1, "episode": 60}
    assert all(episode.messages == SHARING.messages for episode in read(path))
