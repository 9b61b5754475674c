"""A training's record is as whole as an evaluation's: images, tasks and kinds of errors, for a report and a replay."""

import asyncio
import base64
import contextlib
import gc
import json
import logging
import multiprocessing
import os
import re
import socket
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from anyio.from_thread import start_blocking_portal
from episodes import say
from training import END, IGNORED, call, make_trainer

from fixtures.environments.images import png
from fixtures.proxy import BadJson, Custom, FaultProxy, ReplaceBody, Rule, Silence, Status
from ors_client import ClientStateError, TaskRef
from ors_client._shared import BlockRecorder
from ors_client.record import read
from ors_client.replay import Replay
from ors_client.report import write_report
from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec
from trl_bridge._rollout.episode import ToolCallError
from trl_bridge._runtime import task_specs
from trl_bridge._runtime.servers import Servers
from trl_bridge._runtime.task_specs import TaskSpecCache

ECHO = "echoenvironment"
IMAGES = "imagesenvironment"
RED = {"id": "red", "colour": [255, 0, 0]}
GREEN = {"id": "green", "colour": [0, 255, 0]}
LEFT_OUT = {"type": "text", "text": "[1 image left out: image/png]"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "episodes.jsonl"


def picture(*colour):
    """The block that the images environment shows of a colour."""
    return {"type": "image", "data": base64.b64encode(png(*colour)).decode(), "mimeType": "image/png"}


def opening(*colour):
    return [{"role": "user", "blocks": [{"type": "text", "text": "Paint this colour."}, picture(*colour)]}]


def play(environment, **row):
    """Look at the red task's colour and paint it."""
    environment.reset(**row)
    environment.look()
    environment.paint(red=255, green=0, blue=0)
    environment._close()


@contextlib.contextmanager
def replaying(path):
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Replay(path)) as replay:
        yield replay.url


# --- Images


@pytest.mark.parametrize("images", [False, True])
def test_record_has_the_images_whether_the_model_sees_them_or_not(make_spec, server, path, images):
    spec = make_spec(server.url, env_name=IMAGES, images=images, record=path)
    play(spec.environment_factory(), task_index=0)
    (episode,) = read(path)
    assert episode.prompt == "Paint this colour.\n[1 image]"
    assert episode.messages == opening(255, 0, 0)
    look, paint = episode.calls
    assert (look.output, look.blocks) == ("", [picture(255, 0, 0)])
    assert paint.blocks == [{"type": "text", "text": "painted"}, picture(255, 0, 0)]


def test_record_that_wants_no_images_says_what_is_left_out(make_spec, ours, path):
    spec = make_spec(ours.url, env_name=IMAGES, images=True, record=path, record_images=False)
    environment = spec.environment_factory()
    assert environment.reset(task_index=0)[1]["type"] == "image"  # the model sees it all the same
    environment._close()
    play(environment, task_index=0)
    assert "iVBOR" not in path.read_text()
    episode = list(read(path))[1]
    assert episode.messages[0]["blocks"][1] == LEFT_OUT
    assert episode.calls[0].blocks == [LEFT_OUT]


def test_prompt_that_stands_in_the_dataset_is_in_the_record_with_its_image(make_spec, ours, path):
    spec = make_spec(ours.url, env_name=IMAGES, prompts="dataset", record=path)
    row = spec.train_dataset[0]
    assert row["prompt"][0]["content"].endswith("[1 image left out: image/png]")
    play(spec.environment_factory(), **row)
    (episode,) = read(path)
    assert episode.messages == opening(255, 0, 0)


def test_conversation_that_stands_in_the_dataset_is_in_the_record(make_spec, ours, path):
    spec = make_spec(ours.url, env_name="chatenvironment", prompts="messages", record=path)
    environment = spec.environment_factory()
    environment.reset(**spec.train_dataset[0])
    environment.note(note="thinking")  # waits for the session
    environment._close()
    (episode,) = read(path)
    assert len(episode.messages) > 1
    assert [turn["role"] for turn in episode.messages] == [
        turn["role"] for turn in spec.train_dataset[0]["prompt"] if turn["role"] != "tool"
    ]


def test_episode_that_was_opened_ahead_is_in_the_record_with_its_image(make_spec, ours, path):
    environment = make_spec(ours.url, env_name=IMAGES, record=path).environment_factory()
    environment._slot.prefetch({"task_index": 1})
    environment._slot.prefetch({"task_index": 0})
    play(environment, task_index=0)
    (episode,) = read(path)
    assert (episode.messages, episode.spec) == (opening(255, 0, 0), RED)


def images_held():
    """Count what in memory is an image as a record writes it; those of other tests may be among them."""
    gc.collect()
    containers = [each for each in gc.get_objects() if type(each) in (list, tuple)]
    parts = [part for container in containers for part in container if type(part) is dict]
    return sum(part.get("type") == "image" and "data" in part for part in parts)


def test_images_are_let_go_with_the_episode(make_spec, ours, path, eventually):
    before = images_held()
    environment = make_spec(ours.url, env_name=IMAGES, record=path).environment_factory()
    environment.reset(task_index=0)
    environment.look()
    assert images_held() == before + 2
    environment.paint(red=255, green=0, blue=0)
    eventually(lambda: images_held() == before)
    assert environment._slot.log.finished  # which the trainer still has
    assert [call.tool for call in environment._slot.log.calls] == ["look", "paint"]


def test_nothing_is_held_for_a_record_that_is_not_written(make_spec, ours):
    before = images_held()
    environment = make_spec(ours.url, env_name=IMAGES).environment_factory()
    environment.reset(task_index=0)
    environment.look()
    assert images_held() == before


@pytest.mark.parametrize(
    "block", [{"type": "tool_result", "blocks": None}, {"type": "tool_result", "blocks": "text"}, {"type": "image"}, 5]
)
def test_block_that_breaks_the_rules_costs_no_reward(make_spec, proxy, path, block):
    spec = make_spec(proxy.url, env_name="echoenvironment", record=path)
    environment = spec.environment_factory()
    proxy.add(Rule("GET", "/prompt", ReplaceBody(json.dumps([block]).encode())))
    environment.reset(task_index=0)
    answer = {"ok": True, "output": {"blocks": [block], "reward": 1.0, "finished": True}}
    proxy.add(Rule("POST", "/call", BadJson(json.dumps(answer).encode())))
    environment.echo(text="x")
    environment._close()
    assert (environment.status, environment.reward) == ("scored", 1.0)
    (episode,) = read(path)
    kept = [block if isinstance(block, dict) else {"type": "unknown", "raw": block}]
    assert (episode.reward, episode.messages) == (1.0, [{"role": "user", "blocks": kept}])
    assert [call.blocks for call in episode.calls] == [kept]


def test_nothing_about_a_record_costs_a_reward(make_spec, ours, path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no record")

    monkeypatch.setattr(BlockRecorder, "blocks", fail)
    environment = make_spec(ours.url, env_name="echoenvironment", record=path).environment_factory()
    environment.reset(task_index=0)
    with pytest.raises(RuntimeError, match="no record"):
        environment.echo(text="hello")
    assert (environment.reward, environment.finished) == (1.0, True)
    environment._close()


def test_prompt_of_the_record_has_all_text_of_a_conversation(make_spec, ours, path):
    spec = make_spec(ours.url, env_name="chatenvironment", prompts="messages", record=path)
    environment = spec.environment_factory()
    environment.reset(**spec.train_dataset[0])
    environment.note(note="thinking")
    environment._close()
    (episode,) = read(path)
    assert episode.prompt.split("\n\n")[2:] == [
        'A greeting.\nHello; one moment.\n[call of note with {"note": "greeted"}]',
        "noted\nAnswer with 'Paris'.",
    ]


# --- Tasks


@pytest.fixture
def counted(ours):
    """A proxy that counts what is asked of the server."""
    with FaultProxy(ours.url) as proxy:
        yield proxy


def test_record_has_the_specification_of_a_task_that_was_listed_and_asks_for_it_no_more(make_spec, counted, path):
    spec = make_spec(counted.url, env_name=IMAGES, record=path)
    environment = spec.environment_factory()
    for row in spec.train_dataset.select([0, 1]):
        play(environment, **row)
    assert [episode.spec for episode in read(path)] == [RED, GREEN]
    assert counted.count("POST", "/task") == 0


def test_specification_that_was_not_listed_is_asked_for_once(make_spec, counted, path):
    environment = make_spec(counted.url, env_name=IMAGES, record=path).environment_factory()
    for index in (1, 1, 0):
        play(environment, task_index=index)
    assert [episode.spec for episode in read(path)] == [GREEN, GREEN, RED]
    assert counted.count("POST", "/task") == 2


def test_specification_is_asked_for_where_there_is_a_record_only(make_spec, counted):
    play(make_spec(counted.url, env_name=IMAGES).environment_factory(), task_index=0)
    assert counted.count("POST", "/task") == 0


@pytest.mark.slow
def test_record_written_by_another_process_has_the_specification(make_spec, ours, path):
    spec = make_spec(ours.url, env_name="echoenvironment", num_tasks=1, record=path)
    factory = spec.environment_factory
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(say, factory, "hello").result(60)[1] == 1.0
    (episode,) = read(path)
    assert episode.spec == spec._tasks[0].spec


def say_as_rank(factory, rank):
    """Say a text in a process that is one of a training's."""
    os.environ["RANK"] = str(rank)
    return say(factory, "hello")


def test_record_with_the_rank_and_the_host_in_its_name_is_one_for_each_process(make_spec, ours, tmp_path):
    spec = make_spec(ours.url, env_name=ECHO, record=tmp_path / "{host}" / "episodes-{rank}.jsonl")
    spec.environment_factory  # noqa: B018 - read first, so that the workers need not ask
    for rank in range(2):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
            workers.submit(say_as_rank, spec.environment_factory, rank).result(timeout=60)
    say(spec.environment_factory, "hello")  # of no training
    spec.close()
    records = {path.name: len(list(read(path))) for path in (tmp_path / socket.gethostname()).iterdir()}
    assert records == {"episodes-0.jsonl": 2, "episodes-1.jsonl": 1}


def test_record_with_something_else_in_braces_is_refused_with_what_may_stand_there(make_spec, ours):
    with pytest.raises(ValueError, match=re.escape("may hold {rank} and {host}, and '{node}' is neither: 'a-{node}'")):
        make_spec(ours.url, record="a-{node}")


def test_server_that_will_not_tell_a_specification_costs_no_episode(make_spec, counted, path, caplog):
    caplog.set_level(logging.INFO, "trl_bridge")
    counted.add(Rule("POST", "/task", Status(500), times=None))
    environment = make_spec(counted.url, env_name=IMAGES, record=path).environment_factory()
    play(environment, task_index=0)
    assert (environment.status, environment.reward) == ("scored", 1.0)
    (episode,) = read(path)
    assert (episode.spec, episode.messages) == (None, opening(255, 0, 0))
    assert "The record will not tell the specification of task 0 in 'train'" in caplog.text


def test_specification_is_asked_for_beside_the_opening_and_waited_for_there(make_spec, counted, path, caplog):
    async def wait_for_prompt(exchange):
        prompted = await counted.wait_for_async("GET", "/prompt", timeout=30)
        assert prompted
        await exchange.sleep(0.3)  # for longer than the episode's calls take
        await exchange.pass_on()

    counted.add(Rule("POST", "/task", Custom(wait_for_prompt)))
    environment = make_spec(counted.url, env_name=IMAGES, record=path).environment_factory()
    environment.reset(task_index=0)
    assert counted.count("POST", "/task") == 1
    environment.paint(red=255, green=0, blue=0)
    environment._close()
    (episode,) = read(path)
    assert episode.spec == RED
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_specification_is_not_asked_for_before_the_episode_has_its_place(make_spec, counted, path):
    asked_first = []

    async def create(exchange):
        await exchange.sleep(0.5)  # long enough for a question that goes out beside it
        asked_first.append(counted.count("POST", "/task"))
        await exchange.pass_on()

    counted.add(Rule("POST", "/create", Custom(create)))
    spec = make_spec(counted.url, env_name=IMAGES, record=path, discover_task_tools=False)
    play(spec.environment_factory(), task_index=0)
    assert asked_first == [0]
    assert counted.count("POST", "/task") == 1


def test_specification_that_does_not_come_is_waited_for_once_and_holds_up_no_line(
    make_spec, counted, path, caplog, monkeypatch
):
    caplog.set_level(logging.INFO, "trl_bridge")
    counted.add(Rule("POST", "/task", Silence(None), times=None))
    environment = make_spec(counted.url, env_name=IMAGES, record=path).environment_factory()
    monkeypatch.setattr(task_specs, "_TIMEOUT", 0.2)
    environment.reset(task_index=0)
    environment.paint(red=255, green=0, blue=0)
    (episode,) = read(path)  # at once, and without a specification
    assert (episode.reward, episode.spec) == (1.0, None)
    monkeypatch.setattr(task_specs, "_TIMEOUT", 3600.0)  # nobody waits a second time
    play(environment, task_index=0)
    assert len(list(read(path))) == 2
    assert counted.count("POST", "/task") == 1
    assert "was not told within 0.2 s" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_specification_that_does_not_come_takes_a_part_of_an_episodes_time(make_spec, counted, path, monkeypatch):
    monkeypatch.setattr(task_specs, "_TIMEOUT", 3600.0)
    counted.add(Rule("POST", "/task", Silence(None), times=None))
    spec = make_spec(counted.url, env_name=IMAGES, record=path, episode_timeout=20)
    environment = spec.environment_factory()
    play(environment, task_index=0)
    assert (environment.status, environment.reward) == ("scored", 1.0)


def test_spec_is_closed_while_an_opening_waits_for_a_specification(make_spec, counted, path, monkeypatch):
    monkeypatch.setattr(task_specs, "_TIMEOUT", 3600.0)
    counted.add(Rule("POST", "/task", Silence(None), times=None))
    spec = make_spec(counted.url, env_name=IMAGES, record=path)
    environment = spec.environment_factory()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(environment.reset, task_index=0)
        counted.wait_for("GET", "/prompt", timeout=30)
        counted.wait_for("POST", "/task", timeout=30)
        spec.close()
        with contextlib.suppress(ClientStateError):
            opening.result(30)
    (episode,) = read(path)
    assert episode.status == "unscored"


def test_lines_stand_in_the_order_in_which_episodes_ended(make_spec, counted, path, monkeypatch):
    monkeypatch.setattr(task_specs, "_TIMEOUT", 0.5)
    counted.add(Rule("POST", "/task", Silence(None)))  # of the first task
    spec = make_spec(counted.url, env_name=IMAGES, record=path)
    environments = [spec.environment_factory() for _ in range(2)]
    for index, environment in enumerate(environments):
        environment.reset(task_index=index)
    for environment in environments:
        environment._slot.release()
    spec.close()
    assert [(episode.index, episode.spec) for episode in read(path)] == [(0, None), (1, GREEN)]


def test_any_error_on_the_way_to_a_specification_is_message_text(caplog):
    class Broken(Servers):
        async def ask(self, question):
            raise RuntimeError(question)

    async def ask():
        cache = TaskSpecCache()
        cache.ask(TaskRef("train", 3), Broken([]))
        await cache.wait(TaskRef("train", 3))
        await cache.close()

    caplog.set_level(logging.INFO, "trl_bridge")
    asyncio.run(ask())
    assert "the specification of task 3 in 'train': RuntimeError" in caplog.text


def test_secret_in_a_specification_is_not_in_the_record(make_spec, ours, path):
    spec = make_spec(ours.url, env_name=IMAGES, secrets={"colour": "green"}, record=path)
    play(spec.environment_factory(), task_index=1)
    (episode,) = read(path)
    assert episode.spec == {"id": "***", "colour": [0, 255, 0]}


def test_each_of_several_environments_has_its_tasks_in_its_record(ours, tmp_path):
    specs = {
        "images": OpenRewardSpec(ours.url, env_name=IMAGES, num_tasks=1, record=tmp_path / "images"),
        "echo": OpenRewardSpec(ours.url, env_name="echoenvironment", num_tasks=1, record=tmp_path / "echo"),
    }
    with MultiEnvironmentSpec(specs) as spec:
        for row in spec.train_dataset:
            environment = spec.environment_factory[row["environment"]]()
            environment.reset(**row)
            environment._close()
        listed = specs["echo"]._tasks[0].spec
    (images,), (echo,) = read(tmp_path / "images"), read(tmp_path / "echo")
    assert (images.spec, images.messages) == (RED, opening(255, 0, 0))
    assert (echo.spec, echo.messages) == (listed, None)


# --- From a training to a report and a replay


def look_then_paint(text):
    """Look at the picture, then paint it in red."""
    turns = text.count("\n<tool_response>")
    return (call("look"), call("paint", red=255, green=0, blue=0), "Done.")[min(turns, 2)] + END


def train(folder, url, record=None):
    """Train a text model for a step on the tasks red and green; return its rewards."""
    with OpenRewardSpec(url, env_name=IMAGES, num_tasks=2, record=record) as spec:
        trainer = make_trainer(
            folder, spec, policy=look_then_paint, arguments={"shuffle_dataset": False, "max_steps": 1}
        )
        spec.attach(trainer)
        trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


@pytest.mark.slow
@pytest.mark.filterwarnings(*IGNORED)
def test_record_of_a_training_gives_a_page_with_images_and_a_replay_with_images_and_tasks(make_spec, ours, tmp_path):
    path = tmp_path / "episodes.jsonl"
    rewards = train(tmp_path, ours.url, path)
    write_report(path, tmp_path / "page.html")
    shown = re.findall(r'src="data:image/png;base64,([^"]+)"', (tmp_path / "page.html").read_text())
    red, green = (picture(*spec["colour"])["data"] for spec in (RED, GREEN))
    # Of four episodes each shows its prompt's image, that of the look, and the red one that was painted.
    assert (shown.count(red), shown.count(green)) == (2 + 2 + 4, 2 + 2)
    with replaying(path) as url:
        assert train(tmp_path, url) == rewards == [0.5]
        environment = make_spec(url, images=True).environment_factory()
        prompt = environment.reset(task_index=1)
        assert [part.get("text") or part["image"].getpixel((0, 0)) for part in prompt] == [
            "Paint this colour.",
            (0, 255, 0),
        ]
        assert [part["image"].getpixel((0, 0)) for part in environment.look()] == [(0, 255, 0)]
        environment._close()
        listed = make_spec(url, num_tasks=2).train_dataset
        assert [(row["id"], row["colour"]) for row in listed] == [
            ("red", RED["colour"]),
            ("green", GREEN["colour"]),
        ]


def test_replay_of_a_training_refuses_raises_and_tells_as_it_was_then(make_spec, ours, path):
    def course(environment):
        environment.reset(task_index=0)
        said = []
        for call_of in (
            lambda: environment.boom(message="no"),
            lambda: environment.step(reward="many"),  # which the server refuses
            lambda: environment.step(reward=0.5),
        ):
            try:
                said.append(call_of())
            except ToolCallError as error:
                said.append(type(error.__cause__).__name__)
        environment._close()
        return said

    options = {"task_tools_discovery_index": 0, "record": path}
    environment = make_spec(ours.url, env_name="failingenvironment", **options).environment_factory()
    first = course(environment)
    with contextlib.suppress(ToolCallError):
        environment.reset(task_index=1)
    (episode,) = (each for each in read(path) if each.index == 0)
    assert [call.kind for call in episode.calls] == ["ToolFailed", "ToolRejected", None]
    with replaying(path) as url:
        assert course(make_spec(url, task_tools_discovery_index=0).environment_factory()) == first
    assert first == ["ToolFailed", "ToolRejected", "stepped"]


def test_metadata_of_calls_is_in_the_record(make_spec, ours, path):
    environment = make_spec(ours.url, env_name="slowenvironment", record=path).environment_factory()
    environment.reset(task_index=0)
    environment.count()
    environment._close()
    (episode,) = read(path)
    assert [call.metadata for call in episode.calls] == [{"count": 1}]


# --- What the model wrote


def say_then_echo(text):
    return ("Done." if "\n<tool_response>" in text else "I say it." + call("echo", text="hello")) + END


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("attached", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_record_of_a_training_holds_what_the_model_wrote_and_at_which_step(ours, tmp_path, attached):
    path = tmp_path / "episodes.jsonl"
    with OpenRewardSpec(ours.url, env_name="echoenvironment", num_tasks=2, record=path, max_calls=4) as spec:
        trainer = make_trainer(tmp_path, spec, policy=say_then_echo, arguments={"max_steps": 2})
        if attached:
            spec.attach(trainer)
        trainer.train()
    episodes = list(read(path))
    assert {episode.step for episode in episodes} == {0, 1}
    for episode in episodes:
        opening, asked, answered, last = episode.conversation
        assert opening["blocks"] == [{"type": "text", "text": episode.prompt}]
        assert [block["type"] for block in asked["blocks"]] == ["text", "tool_call"]
        assert asked["blocks"][0]["text"] == "I say it."
        (result,) = answered["blocks"]
        assert result["tool_call_id"] == asked["blocks"][1]["id"]
        assert result["blocks"] == [{"type": "text", "text": episode.calls[0].output}]
        assert last == {"role": "assistant", "blocks": [{"type": "text", "text": "Done."}]}
        assert episode.reward == episode.rewards[-1]
        assert (episode.run.kind, episode.run.settings["max_calls"]) == ("training", 4)
        assert [tool.name for tool in episode.tools.tools] == ["echo"]
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    kinds = [line["type"] for line in lines]
    assert (kinds.count("run"), kinds.count("tools"), kinds.count("words")) == (1, 1, len(episodes))
    write_report(path, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("I say it.") == len(episodes)
