"""Records are whole whatever happens to their writers, and readable by whoever comes later."""

import base64
import json
import logging
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from ors_client import ImageBlock, TextBlock, ToolResultBlock, UnknownBlock
from ors_client._shared.block_recorder import dump_blocks
from ors_client.record import CallRecord, EpisodeRecord, RecordWriter, numbered, read

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


def test_record_reads_back_what_was_appended(path):
    RecordWriter(path).append(EPISODE)
    assert list(read(path)) == [EPISODE]


def test_record_line_has_exactly_the_fields_of_the_format(path):
    RecordWriter(path).append(EPISODE)
    line = json.loads(path.read_text())
    assert list(line) == [
        *("v", "environment", "target", "split", "index", "session_id", "prompt", "calls", "rewards", "reward"),
        *("status", "failure", "started", "seconds"),
    ]
    assert list(line["calls"][0]) == ["tool", "arguments", "output", "reward", "finished", "error", "seconds"]
    assert line["v"] == 1
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
    line |= {"v": 2, "tokens": 12}
    line["calls"][0]["queue_seconds"] = 0.1
    path.write_text(json.dumps(line) + "\n")
    assert list(read(path)) == [EPISODE.model_copy(update={"v": 2})]


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
    line = json.loads(path.read_text())
    assert line["calls"][0]["blocks"] == [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]
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
