"""Several servers of one environment in a run: one dies in the middle, and the run goes on."""

import re

import pytest
from servers import serve, stop
from training import END, IGNORED, call, make_trainer

from ors_client import RetryPolicy, Timeouts, TransportError
from ors_client.record import read
from trl_bridge import OpenRewardSpec

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

NOWHERE = "http://127.0.0.1:1"
FAST = RetryPolicy(attempts=1, first_delay=0.01, max_delay=0.05)


def test_first_server_that_is_down_from_the_start_is_asked_nothing_more(make_spec, echo_server):
    spec = make_spec([NOWHERE, echo_server.url], retry=FAST)
    assert len(spec.train_dataset) == 4
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    assert environment.echo(text="hello") == "match"


def test_servers_that_are_all_down_are_an_error(make_spec):
    with pytest.raises(TransportError):
        _ = make_spec([NOWHERE, "http://127.0.0.1:2"], retry=FAST).train_dataset


def test_question_that_a_server_answers_with_a_refusal_is_not_asked_elsewhere(make_spec, echo_server, ours):
    spec = make_spec([echo_server.url, ours.url], env_name="alpha")
    # The first server has echo alone, and a wrong name reaches the only one.
    assert "target" in spec.train_dataset.column_names


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_run_goes_on_when_one_of_two_servers_dies(tmp_path, eventually, together):
    with (
        serve("ours", "--env", "echo") as dying,
        serve("openreward", "--env", "echo") as lasting,
        OpenRewardSpec(
            [dying.url, lasting.url],
            retry=FAST,
            timeout=Timeouts(start_up=2, close=1),  # an address that has answered before is given `start_up` seconds
            record=tmp_path / "record",
        ) as spec,
    ):
        sessions = {dying.url: set(), lasting.url: set()}
        turns = []

        def kill_before_the_calls_of_the_second_batch(text):
            turns.append(text)
            word = re.findall(r"text='(\w+)' to win", text)[-1]
            if "<tool_response>" in text:
                return "Done." + END
            if len(turns) == 9:  # two turns in each of the first batch's four rollouts
                sessions[dying.url] = {entry["sid"] for entry in dying.journal.entries("construct")}
                stop(dying.process)
            return call("echo", text=word) + END

        trainer = make_trainer(
            tmp_path, spec, policy=kill_before_the_calls_of_the_second_batch, arguments={"max_steps": 4}
        )
        if together:
            spec.attach(trainer)
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "reward" in entry]
        eventually(lambda: lasting.live() == [])
        sessions[lasting.url] = {entry["sid"] for entry in lasting.journal.entries("construct")}
    episodes = list(read(tmp_path / "record"))  # whole once the spec is closed
    assert [step["environment/failed"] for step in steps] == [0.0, 0.5, 0.0, 0.0]
    assert [step["environment/scored"] for step in steps] == [1.0, 0.5, 1.0, 1.0]
    assert [step["reward"] for step in steps] == [1.0, 1.0, 1.0, 1.0]  # of those that were scored
    kinds = {name: steps[1][name] for name in steps[1] if name.startswith("environment/failed/")}
    assert sum(kinds.values()) == 0.5
    # Both had two sessions of each batch while both were alive, and every session's call went where it was opened.
    failed = [episode for episode in episodes if episode.status.startswith("failed")]
    assert {episode.session_id for episode in failed} <= sessions[dying.url]
    scored = {episode.session_id for episode in episodes if episode.status == "scored"}
    assert len(scored & sessions[dying.url]) == 2
    assert len(scored & sessions[lasting.url]) == 12
