"""A rollout hands the model what the server says, keeps its score apart from failures, and leaves nothing behind."""

import fcntl
import inspect
import json
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
import pytest

from fixtures.proxy import ResetAfterForward, Rule, Status
from ors_client import ClientStateError, RetryPolicy, Timeouts
from ors_client.record import read
from ors_client.report import write_report
from trl_bridge import FailureRateExceeded
from trl_bridge._rollout.episode import NO_PROMPT, OVER, ToolCallError

FAST = RetryPolicy(attempts=2, first_delay=0.01, max_delay=0.05)
WORDS = ("hello", "world", "trl", "openreward")
SOUND, CONSTRUCTOR, SETUP = 0, 1, 2
"""Tasks of the failing environment."""


@pytest.fixture(autouse=True)
def no_session_is_left(ours, eventually):
    """Whatever a test does, its sessions are gone when its specs are closed."""
    yield
    eventually(lambda: ours.live() == [])


@pytest.fixture
def echo(make_spec, ours):
    """An environment with the first task of the echo environment."""
    environment = make_spec(ours.url, env_name="echoenvironment").environment_factory()
    environment.reset(task_index=0)
    return environment


@pytest.fixture
def failing(proxy, make_spec):  # in this order: specs close before the proxy
    """Make an environment with the sound task of the failing environment, behind the proxy."""

    def make(**options):
        environment = make_spec(
            proxy.url, env_name="failingenvironment", task_tools_discovery_index=0, retry=FAST, **options
        ).environment_factory()
        environment.reset(task_index=SOUND)
        return environment

    return make


def public_functions(environment):
    return {name for name, _ in inspect.getmembers(type(environment), inspect.isfunction) if not name.startswith("_")}


# --- The course of an episode


def test_reset_returns_the_prompt_of_the_rows_task(make_spec, server):
    environment = make_spec(server.url, env_name="echoenvironment").environment_factory()
    for index in (2, 0):
        prompt = environment.reset(prompt=[], task_index=index, split="train", target="a column that is not looked at")
        assert prompt == f"Call the `echo` tool with text='{WORDS[index]}' to win."


def test_reset_takes_the_split_of_the_row(make_spec, ours):
    environment = make_spec(ours.url, env_name="alpha").environment_factory()
    assert environment.reset(task_index=3, split="test") == "alpha: alpha-test-3"
    assert environment.reset(task_index=3) == "alpha: alpha-train-3"


def test_reset_takes_columns_of_any_name(make_spec, ours):
    environment = make_spec(ours.url, env_name="echoenvironment").environment_factory()
    assert "hello" in environment.reset(**{"task_index": 0, "self": 1, "row": 2, "from": 3, "task_spec": {"x": 4}})


def test_call_hands_over_text_reward_and_end(make_spec, server):
    environment = make_spec(server.url, env_name="echoenvironment").environment_factory()
    environment.reset(task_index=0)
    assert environment.echo(text="wrong") == "no match (got 'wrong')"
    assert (environment.reward, environment.finished, environment.status) == (0.0, False, "scored")
    assert environment.echo(text="hello") == "match"
    assert (environment.reward, environment.finished, environment.status) == (1.0, True, "scored")
    assert environment.rewards == [0.0, 1.0]
    assert environment.metadata == [None, None]
    assert environment.last_output == "match"


def test_call_hands_over_metadata(make_spec, ours):
    environment = make_spec(ours.url, env_name="slowenvironment", discover_task_tools=False).environment_factory()
    environment.reset(task_index=0)
    assert environment.count() == "1"
    assert environment.metadata == [{"count": 1}]
    assert (environment.reward, environment.status) == (None, "unscored")


def test_reset_starts_from_nothing(echo):
    echo.echo(text="hello")
    echo.reset(task_index=1)
    assert (echo.reward, echo.rewards, echo.metadata, echo.finished, echo.last_output) == (None, [], [], False, "")
    assert echo.status == "unscored"


def test_later_unscored_and_failing_calls_do_not_erase_a_score(failing):
    environment = failing()
    environment.step(reward=0.5)
    environment.null_reward()
    with pytest.raises(ToolCallError, match="boom"):
        environment.boom(message="boom")
    assert environment.reward == 0.5
    assert environment.rewards == [0.5, None, None]


def test_environment_shows_trl_nothing_but_reset_and_the_tools(echo, make_spec, ours):
    assert public_functions(echo) == {"reset", "echo"}
    owner = make_spec(ours.url, env_name="echoenvironment", owns_reward=True).environment_factory()
    assert public_functions(owner) == {"reset", "echo", "get_reward"}


def test_attributes_can_not_be_overwritten(echo):
    for name in ("reward", "rewards", "metadata", "finished", "last_output", "status"):
        with pytest.raises(AttributeError):
            setattr(echo, name, 1.0)


def test_environment_reads_as_empty_before_the_first_reset(make_spec, ours):
    environment = make_spec(ours.url, env_name="echoenvironment").environment_factory()
    assert (environment.reward, environment.rewards, environment.finished) == (None, [], False)
    assert (environment.status, environment.last_output) == ("unscored", "")


def test_call_before_reset_is_a_mistake_that_says_so(make_spec, ours):
    environment = make_spec(ours.url, env_name="echoenvironment").environment_factory()
    with pytest.raises(ClientStateError, match="reset"):
        environment.echo(text="hello")


def test_many_threads_run_many_environments_of_one_spec(make_spec, ours):
    factory = make_spec(ours.url, env_name="echoenvironment").environment_factory
    environments = [factory() for _ in range(64)]
    before = threading.active_count()
    threads = []

    def run(index):
        threads.append(threading.active_count())
        environments[index].reset(task_index=index % 4)
        return environments[index].echo(text=WORDS[index % 4])

    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(run, range(64))) == {"match"}
    assert max(threads) <= before + 64  # no loop and no thread per environment


# --- Rows


def test_row_without_its_index_is_an_error_that_names_the_way_out(echo):
    with pytest.raises(ValueError, match="remove_unused_columns=False"):
        echo.reset(prompt=[])


@pytest.mark.parametrize("index", [True, 1.0, "1"])
def test_row_with_another_kind_of_index_is_an_error(echo, index):
    with pytest.raises(ValueError, match=repr(index)):
        echo.reset(task_index=index)


def test_row_with_an_index_of_numpy_is_fine(echo):
    import numpy as np

    assert "world" in echo.reset(task_index=np.int64(1))


# --- What the model is told


def test_tool_that_raises_is_an_error_with_the_servers_own_words(failing):
    environment = failing()
    with pytest.raises(ToolCallError) as caught:
        environment.boom(message="  it broke,\n  badly")
    assert str(caught.value).endswith("  it broke,\n  badly")
    assert str(caught.value).startswith("EnvironmentBrokenError") or str(caught.value).startswith("  it")
    assert environment.last_output == str(caught.value)
    assert environment.status == "unscored"
    assert environment.step(reward=1.0) == "stepped"


def test_wrong_arguments_come_back_as_the_servers_own_words(failing):
    environment = failing()
    with pytest.raises(ToolCallError, match=r"(?s)reward.*number"):
        environment.step(reward="much")
    assert environment.rewards == [None]


def test_arguments_that_can_not_be_sent_are_an_error_to_the_model_and_no_failure(failing):
    environment = failing()
    with pytest.raises(ToolCallError, match="reward is nan"):
        environment.step(reward=float("nan"))
    assert environment.step(reward=1.0) == "stepped"
    assert environment.status == "scored"


def test_output_without_blocks_says_so(make_spec, ours):
    environment = make_spec(ours.url, env_name="imagesenvironment").environment_factory()
    prompt = environment.reset(task_index=0)
    assert isinstance(prompt, str)
    assert "image" in prompt  # a marker


def test_images_reach_a_model_that_sees_them(make_spec, ours):
    environment = make_spec(ours.url, env_name="imagesenvironment", images=True).environment_factory()
    prompt = environment.reset(task_index=0)
    assert [part["type"] for part in prompt] == ["text", "image"]
    assert prompt[1]["image"].getpixel((0, 0)) == (255, 0, 0)
    answer = environment.paint(red=255, green=0, blue=0)
    assert [part["type"] for part in answer] == ["text", "image"]
    assert environment.last_output.startswith("painted")


# --- The end


def test_call_after_the_end_is_answered_here_and_changes_nothing(echo, ours):
    echo.echo(text="hello")
    before = ours.stats()["requests"].get("POST /{env}/call", 0)
    assert echo.echo(text="wrong") == OVER
    assert ours.stats()["requests"]["POST /{env}/call"] == before
    assert (echo.reward, echo.rewards, echo.last_output) == (1.0, [1.0], "match")
    assert echo._slot.log.late_calls == 1


def test_call_that_is_under_way_at_the_end_changes_nothing(make_spec, ours, eventually, tmp_path):
    spec = make_spec(ours.url, env_name="slowenvironment", discover_task_tools=False, record=tmp_path / "record")
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    before = ours.executions("wait")
    said = []
    call = threading.Thread(target=lambda: said.append(environment.wait(seconds=60)))
    call.start()
    eventually(lambda: ours.executions("wait") > before)
    environment._slot.release()
    call.join(30)
    spec.close()
    assert (said, environment.status, environment.rewards) == ([OVER], "unscored", [])
    assert [episode.calls for episode in read(tmp_path / "record")] == [[]]


def test_session_is_deleted_when_the_episode_has_finished(echo, ours, eventually):
    session = echo._slot.log.session_id
    assert session in ours.live()
    echo.echo(text="hello")
    eventually(lambda: session not in ours.live())


def test_session_is_deleted_when_the_next_episode_starts(echo, ours, eventually):
    session = echo._slot.log.session_id
    echo.reset(task_index=1)
    eventually(lambda: session not in ours.live())


def test_session_is_deleted_when_the_environment_is_closed(echo, ours):
    session = echo._slot.log.session_id
    echo._close()
    assert session not in ours.live()
    assert echo.echo(text="hello") == OVER
    assert "hello" in echo.reset(task_index=0)


def test_session_is_deleted_when_the_environment_is_dropped(make_spec, ours, eventually):
    factory = make_spec(ours.url, env_name="echoenvironment").environment_factory
    environment = factory()
    environment.reset(task_index=0)
    session = environment._slot.log.session_id
    del environment
    eventually(lambda: session not in ours.live())


# --- Budgets


def test_episode_out_of_calls_ends_with_its_score(failing, proxy):
    environment = failing(max_calls=2)
    environment.step(reward=0.25)
    environment.step(reward=0.5)
    assert environment.status == "scored"
    assert environment.step(reward=0.75) == OVER
    assert (environment.reward, environment.status) == (0.5, "cut: calls")
    assert proxy.count("POST", "/call") == 2


def test_episode_out_of_time_ends_with_its_score_during_a_call(make_spec, ours, eventually):
    environment = make_spec(
        ours.url, env_name="slowenvironment", discover_task_tools=False, episode_timeout=1.0, unscored=0.0
    ).environment_factory()
    environment.reset(task_index=0)
    session = environment._slot.log.session_id
    assert environment.wait(seconds=60) == OVER
    assert (environment.reward, environment.status) == (0.0, "cut: seconds")
    eventually(lambda: session not in ours.live())


def test_opening_that_takes_an_episodes_time_has_failed(make_spec, ours):
    environment = make_spec(
        ours.url, env_name="slowenvironment", discover_task_tools=False, episode_timeout=0.3, max_failure_rate=1.0
    ).environment_factory()
    assert environment.reset(task_index=1) == NO_PROMPT  # its setup takes a second
    assert environment.status == "failed: DeadlineExceeded"


def test_episode_out_of_time_ends_while_it_waits_for_others(make_spec, ours):
    spec = make_spec(
        ours.url, env_name="slowenvironment", discover_task_tools=False, episode_timeout=1.0, max_concurrency=1
    )
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    runtime = spec._handle.runtime
    said = []
    call = threading.Thread(target=lambda: said.append(environment.count()))

    async def while_another_holds_the_place():
        async with runtime.request_slot():
            call.start()
            await anyio.to_thread.run_sync(call.join, 10)

    runtime.loop.run(while_another_holds_the_place())
    assert (said, environment.status) == ([OVER], "cut: seconds")


def test_episode_out_of_characters_ends_with_its_score(failing):
    environment = failing(max_episode_chars=20)
    assert environment.step(reward=0.25) == "stepped"
    assert environment.step(reward=0.5) == "stepped"
    assert len(environment.reject(message="x" * 100)) <= 6
    assert environment.step(reward=1.0) == OVER
    assert (environment.reward, environment.status) == (0.0, "cut: characters")


def test_long_output_is_cut_in_the_middle_for_the_model_alone(failing, tmp_path):
    environment = failing(max_output_chars=120, record=tmp_path / "episodes.jsonl")
    said = "rejected: " + "a" * 500 + "z" * 500
    shown = environment.reject(message=said.removeprefix("rejected: "))
    assert len(shown) <= 120
    assert shown.startswith("rejected: aaa")
    assert shown.endswith("zzz")
    assert "cut" in shown
    with pytest.raises(ToolCallError, match="cut") as caught:
        environment.boom(message=said)
    assert len(str(caught.value)) <= 120
    environment.finish(reward=1.0)
    environment._close()  # its line is written in the background
    (episode,) = read(tmp_path / "episodes.jsonl")
    assert episode.calls[0].output == said
    assert episode.calls[1].error.endswith(said)


# --- Failures


def test_failure_ends_the_episode_with_one_neutral_sentence_and_no_reward(failing, proxy, caplog):
    environment = failing()
    environment.step(reward=0.3)
    proxy.add(Rule("POST", "/call", ResetAfterForward()))
    with caplog.at_level(logging.WARNING, "trl_bridge"):
        assert environment.step(reward=0.4) == OVER
    assert environment.step(reward=1.0) == OVER
    assert environment.last_output == OVER
    assert (environment.reward, environment.status) == (None, "failed: OutcomeUnknown")
    assert environment.rewards == [0.3, None]
    assert proxy.count("POST", "/call") == 2
    assert "OutcomeUnknown" not in OVER
    assert [record.levelname for record in caplog.records if record.name == "trl_bridge._rollout.episode"] == [
        "WARNING"
    ]


def test_failure_after_the_end_changes_nothing(failing, proxy, eventually):
    environment = failing()
    proxy.add(Rule("POST", "/delete", Status(500)))
    deletions = proxy.count("POST", "/delete")
    environment.finish(reward=1.0)
    eventually(lambda: proxy.count("POST", "/delete") > deletions)
    assert (environment.reward, environment.status) == (1.0, "scored")


@pytest.mark.parametrize(("on_failure", "expected"), [("unscored", None), ("keep", 0.3), (-1.0, -1.0)])
def test_failure_is_worth_what_the_spec_says(failing, proxy, on_failure, expected):
    environment = failing(on_failure=on_failure)
    environment.step(reward=0.3)
    proxy.add(Rule("POST", "/call", Status(500)))
    assert environment.step(reward=0.4) == OVER
    assert environment.reward == expected


def test_failed_episodes_session_is_deleted(failing, proxy, ours, eventually):
    environment = failing()
    session = environment._slot.log.session_id
    proxy.add(Rule("POST", "/call", ResetAfterForward()))
    environment.step(reward=0.4)
    eventually(lambda: session not in ours.live())


def test_call_over_its_timeout_is_a_failure(make_spec, ours):
    environment = make_spec(
        ours.url, env_name="slowenvironment", discover_task_tools=False, call_timeout=0.5
    ).environment_factory()
    environment.reset(task_index=0)
    assert environment.wait(seconds=60) == OVER
    assert environment.status == "failed: DeadlineExceeded"


def test_server_that_dies_ends_its_episodes_as_failures(make_spec):
    from servers import serve

    with serve("ours", "--env", "failing") as server:
        spec = make_spec(server.url, retry=FAST, task_tools_discovery_index=0, timeout=Timeouts(start_up=1, close=1))
        environment = spec.environment_factory()
        environment.reset(task_index=SOUND)
        environment.step(reward=0.3)
    assert environment.step(reward=0.4) == OVER
    assert environment.reward is None
    assert environment.status.startswith("failed: ")
    assert environment.reset(task_index=SOUND) == NO_PROMPT
    assert environment.status.startswith("failed: ")


# --- Resets that fail


def test_reset_that_fails_once_is_made_again_on_a_fresh_session(failing, proxy, ours, eventually):
    environment = failing()
    first = proxy.count("POST", "/create_session")
    proxy.add(Rule("GET", "/prompt", Status(500)))
    assert environment.reset(task_index=SOUND) == "Break something."
    assert proxy.count("POST", "/create_session") == first + 2
    assert environment.status == "unscored"
    environment._close()
    eventually(lambda: ours.live() == [])


@pytest.mark.parametrize("task", [CONSTRUCTOR, SETUP])
def test_reset_that_fails_twice_gives_a_neutral_prompt_and_a_failed_episode(failing, proxy, ours, eventually, task):
    environment = failing(unscored=0.0)
    first = proxy.count("POST", "/create_session")
    assert environment.reset(task_index=task) == NO_PROMPT
    assert proxy.count("POST", "/create_session") == first + 2
    assert (environment.reward, environment.status) == (None, "failed: SetupFailed")
    assert environment.step(reward=1.0) == OVER
    assert environment.rewards == []
    eventually(lambda: ours.live() == [])
    assert environment.reset(task_index=SOUND) == "Break something."


def test_reset_without_permission_is_not_repeated(failing, proxy):
    environment = failing()
    first = proxy.count("POST", "/create_session")
    proxy.add(Rule("POST", "/create_session", Status(401), times=None))
    assert environment.reset(task_index=SOUND) == NO_PROMPT
    assert proxy.count("POST", "/create_session") == first + 1
    assert environment.status == "failed: AuthenticationError"


@pytest.mark.parametrize(("rate", "failures"), [(0.0, 1), (0.5, 17)])
def test_resets_that_fail_too_often_stop_the_run(failing, proxy, rate, failures):
    environment = failing(max_failure_rate=rate)
    proxy.add(Rule("POST", "/create_session", Status(401), times=None))
    for _ in range(failures - 1):
        assert environment.reset(task_index=SOUND) == NO_PROMPT
    with pytest.raises(FailureRateExceeded, match=f"AuthenticationError {failures}\\b"):
        environment.reset(task_index=SOUND)


# --- Foresight


def test_prefetched_reset_is_consumed_by_the_row_it_was_for(echo, ours):
    before = ours.stats()["requests"]["POST /create"]
    echo._slot.prefetch({"task_index": 2, "split": "train"})
    assert echo.echo(text="wrong") == "no match (got 'wrong')"  # the episode at hand goes on
    assert "trl" in echo.reset(task_index=2, prompt=[])
    assert ours.stats()["requests"]["POST /create"] == before + 1
    assert echo.echo(text="trl") == "match"


def test_prefetched_reset_of_another_row_is_given_up_and_not_recorded(make_spec, ours, eventually, tmp_path):
    path = tmp_path / "episodes.jsonl"
    environment = make_spec(ours.url, env_name="echoenvironment", record=path).environment_factory()
    environment._slot.prefetch({"task_index": 2})
    environment._slot.prefetch({"task_index": 3})
    assert "world" in environment.reset(task_index=1)
    assert environment.echo(text="world") == "match"
    eventually(lambda: ours.live() == [])
    assert [episode.index for episode in read(path)] == [1]


def test_only_what_a_rollout_takes_of_what_was_opened_ahead_counts_as_a_reset(make_spec, ours, tmp_path):
    spec = make_spec(ours.url, env_name="echoenvironment", max_failure_rate=0.0, record=tmp_path / "record")
    slot = spec.environment_factory()._slot
    rate = spec._handle.runtime.resets
    sound, broken = (slot.open_ahead({"task_index": index}) for index in (0, 99))
    assert (broken.prompt.result(30), sound.prompt.result(30).split("'")[1]) == (NO_PROMPT, "hello")
    assert not broken.claim()
    assert not rate._kinds
    assert sound.claim()
    assert list(rate._kinds) == [None]
    slot.prefetch({"task_index": 0}, ready=sound)
    assert "hello" in slot.reset({"task_index": 0})
    slot.close()
    assert [episode.index for episode in read(tmp_path / "record")] == [0]
    with pytest.raises(FailureRateExceeded):
        slot.reset({"task_index": 99})


def test_calls_started_ahead_run_in_order_and_are_answered_one_by_one(echo, ours):
    (tool,) = type(echo)._tools
    before = ours.executions("echo")
    for text in ("a", "b", "hello", "late"):
        echo._slot.dispatch(tool, {"text": text})
    answers = [echo.echo(text=text) for text in ("a", "b", "hello", "late")]
    assert answers == ["no match (got 'a')", "no match (got 'b')", "match", OVER]
    assert ours.executions("echo") == before + 3


def test_call_that_was_not_foreseen_is_made(echo, caplog):
    (tool,) = type(echo)._tools
    echo._slot.dispatch(tool, {"text": "a"})
    assert echo.echo(text="b") == "no match (got 'b')"
    assert "started ahead" in caplog.text


# --- The record


def test_record_has_the_whole_episode(make_spec, ours, tmp_path):
    path = tmp_path / "episodes.jsonl"
    environment = make_spec(ours.url, env_name="echoenvironment", record=path).environment_factory()
    environment.reset(task_index=1)
    session = environment._slot.log.session_id
    environment.echo(text="wrong")
    environment.echo(text="world")
    environment._close()
    episode = json.loads(path.read_text().splitlines()[-1])
    assert {name: episode[name] for name in ("v", "environment", "target", "split", "index", "session_id")} == {
        "v": 2,
        "environment": "echoenvironment",
        "target": ours.url,
        "split": "train",
        "index": 1,
        "session_id": session,
    }
    assert episode["prompt"] == "Call the `echo` tool with text='world' to win."
    assert [(call["tool"], call["arguments"], call["output"], call["reward"]) for call in episode["calls"]] == [
        ("echo", {"text": "wrong"}, "no match (got 'wrong')", 0.0),
        ("echo", {"text": "world"}, "match", 1.0),
    ]
    assert (episode["rewards"], episode["reward"], episode["status"], episode["failure"]) == (
        [0.0, 1.0],
        1.0,
        "scored",
        None,
    )


def test_record_tells_where_a_calls_seconds_went_and_the_page_shows_it(make_spec, ours, tmp_path, eventually):
    path = tmp_path / "episodes.jsonl"
    spec = make_spec(ours.url, env_name="slowenvironment", discover_task_tools=False, max_concurrency=1, record=path)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    runtime = spec._handle.runtime
    call = threading.Thread(target=environment.count)

    async def while_another_holds_the_place():
        async with runtime.request_slot():
            call.start()
            await anyio.to_thread.run_sync(eventually, lambda: runtime._limit._waiters)
            await anyio.sleep(0.3)  # what the call then has waited at least

    runtime.loop.run(while_another_holds_the_place())
    call.join(30)
    with pytest.raises(ToolCallError):
        environment.wait(seconds=math.nan)  # the client does not send it
    spec.close()
    (episode,) = read(path)
    sent, unsent = episode.calls
    assert sent.timing["queued"] >= 0.3
    assert sent.timing["server"] > 0
    assert sum(sent.timing.values()) == pytest.approx(sent.seconds + sent.timing["queued"], abs=0.25)
    assert set(unsent.timing) == {"queued"}
    write_report(path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "queued, each call" in page
    assert "server, each call" in page


def test_record_names_the_only_environment_where_no_name_was_given(make_spec, echo_server, tmp_path):
    path = tmp_path / "episodes.jsonl"
    environment = make_spec(echo_server.url, record=path).environment_factory()
    environment.reset(task_index=0)
    environment.echo(text="hello")
    assert [episode.environment for episode in read(path)] == ["echoenvironment"]


def test_record_tells_what_broke_an_episode(failing, proxy, tmp_path):
    path = tmp_path / "episodes.jsonl"
    environment = failing(record=path)
    environment.step(reward=0.3)
    proxy.add(Rule("POST", "/call", Status(500)))
    environment.step(reward=0.4)
    environment._close()
    (episode,) = read(path)
    assert (episode.status, episode.reward, episode.rewards) == ("failed: StatusError", None, [0.3, None])
    assert "500" in episode.failure
    assert episode.calls[1].error == episode.failure


def test_record_has_unfinished_episodes_once_they_are_let_go(make_spec, ours, tmp_path):
    path = tmp_path / "episodes.jsonl"
    spec = make_spec(ours.url, env_name="echoenvironment", record=path)
    environments = [spec.environment_factory() for _ in range(3)]
    for environment in environments:
        environment.reset(task_index=0)
    environments[0].reset(task_index=1)
    spec.close()
    assert sorted((episode.index, episode.status) for episode in read(path)) == [
        (0, "unscored"),
        (0, "unscored"),
        (0, "unscored"),
        (1, "unscored"),
    ]


def test_arguments_that_no_record_can_hold_cost_neither_the_score_nor_the_record(make_spec, ours, tmp_path, eventually):
    path = tmp_path / "episodes.jsonl"
    environment = make_spec(ours.url, env_name="echoenvironment", record=path).environment_factory()
    environment.reset(task_index=0)
    deep = []
    for _ in range(3000):
        deep = [deep]
    for argument in (deep, object()):
        with pytest.raises(ToolCallError):
            environment.echo(text=argument)
    assert environment.echo(text="hello") == "match"
    assert environment.rewards == [None, None, 1.0]
    environment._close()
    (episode,) = read(path)
    assert (episode.reward, [call.reward for call in episode.calls]) == (1.0, [None, None, 1.0])
    eventually(lambda: ours.live() == [])


@pytest.mark.slow
def test_record_that_another_process_holds_holds_up_one_answer_for_a_while(make_spec, ours, tmp_path, caplog):
    path = tmp_path / "episodes.jsonl"
    spec = make_spec(ours.url, env_name="echoenvironment", record=path)
    first, *others = (spec.environment_factory() for _ in range(9))
    for environment in (first, *others[1:]):
        environment.reset(task_index=0)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answers = []
        ending = threading.Thread(target=lambda: answers.append(first.echo(text="hello")), daemon=True)
        ending.start()
        others[0].reset(task_index=0)  # meanwhile others go on
        others[0].echo(text="x")
        ending.join(30)
        assert answers == ["match"]
        for environment in others[1:]:
            assert environment.echo(text="hello") == "match"
        assert not path.read_text()
        waited = [record for record in caplog.records if str(path) in record.getMessage()]
        assert [record.levelname for record in waited] == ["WARNING"]  # who waits says so, and one waited
    spec.close()
    assert len(list(read(path))) == 9


def test_record_that_can_not_be_written_does_not_end_the_run(make_spec, ours, tmp_path, caplog):
    spec = make_spec(ours.url, env_name="echoenvironment", record=tmp_path)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    assert environment.echo(text="hello") == "match"
    environment._close()
    assert str(tmp_path) in caplog.text
