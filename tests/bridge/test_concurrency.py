"""An attached trainer makes the calls that it makes anyway, and waits for the slowest rollout instead of the sum."""

import logging
import os
import re
import subprocess
import sys
import time
from collections import UserList
from pathlib import Path

import pytest
from servers import serve
from training import END, IGNORED, call, from_trl, make_trainer, raw_call

from fixtures.proxy import FaultProxy
from trl_bridge import OpenRewardSpec
from trl_bridge._rollout.environment import slot_of
from trl_bridge._trainer.attachment import attach

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

SOUND, SETUP_FAILS = 0, 2
"""Tasks of the failing environment."""

SCRIPTS = (
    ("no call",),
    (call("step", reward=0.5), "done"),
    (call("step", reward=0.1) + "\n" + call("boom", message="m") + "\n" + call("step", reward=0.3), "done"),
    tuple(call("reject", message=f"again {turn}") for turn in range(9)),  # more than any limit
    (call("nothing", x=1), call("step", reward=0.7), "done"),
    (raw_call({"name": "step", "arguments": ["list"]}), call("step", wrong=1), "done"),
    (call("reject", message="long " * 60), call("step", reward=1.0)),  # its output does not fit
    (call("step", reward=0.2) + "\n" + call("step", reward=0.2), call("step", reward=0.2), "done"),
    (call("finish", reward=1.0) + "\n" + call("step", reward=0.0), call("step", reward=0.0), "done"),
    (raw_call("not a call"), "done"),
    (call("null_reward"), call("no_output"), "done"),
)
"""What each rollout says, turn by turn; the last goes on for ever."""

CONFIGURATIONS = (
    {},
    {"max_tool_calling_iterations": 1},
    {"max_tool_calling_iterations": 0},
    {"max_tool_calling_iterations": 100, "max_completion_length": 900},
    {"max_tool_calling_iterations": 3, "max_completion_length": 300},
)


def follow_the_script(text):
    number = int(re.search(r"#(\d+) ", text)[1])
    turn = text.count("<|im_start|>assistant") - 1
    script = SCRIPTS[number % len(SCRIPTS)]
    return script[min(turn, len(script) - 1)] + END


def run(folder, url, *, attached, rollouts=16, first=0, options=None, **arguments):
    """Run one batch, of the scripts from the first one on; return all that can be told apart afterwards."""
    with OpenRewardSpec(
        url, env_name="failingenvironment", task_tools_discovery_index=SOUND, **(options or {})
    ) as spec:
        trainer = make_trainer(
            folder,
            spec,
            policy=follow_the_script,
            rollouts=rollouts,
            generations=4,
            arguments={"max_completion_length": 1500, **arguments},
            train_dataset=spec.dataset("train", indices=[0] * rollouts),
        )
        if attached:
            spec.attach(trainer)
        rows = [
            {"prompt": [{"role": "user", "content": f"#{i} "}], "task_index": SETUP_FAILS if i == 13 else SOUND}
            for i in range(first, first + rollouts)
        ]
        trainer.model.train()
        scored = trainer._generate_and_score_completions(rows)
        rollouts = [slot_of(environment).log for environment in trainer.environments]
        metrics = trainer._metrics["train"]
        return {
            "calls": [[(c.tool, c.arguments, c.output, c.error, c.reward) for c in r.calls] for r in rollouts],
            "late calls": [rollout.late_calls for rollout in rollouts],
            "status": [rollout.status for rollout in rollouts],
            "rewards": [environment.reward for environment in trainer.environments],
            "metrics": {name: values[-1] for name, values in metrics.items() if name.startswith("tools/")},
            "ids": scored["completion_ids"].tolist(),
            "mask": scored["tool_mask"].tolist(),
            "advantages": scored["advantages"].tolist(),
            "transcripts": list(trainer._logs["completion"]),
        }


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_attached_trainer_does_what_the_plain_one_does(ours, tmp_path, configuration, caplog):
    plain = run(tmp_path / "plain", ours.url, attached=False, **configuration)
    attached = run(tmp_path / "attached", ours.url, attached=True, **configuration)
    for what, expected in plain.items():
        assert attached[what] == expected, what
    assert "started ahead" not in caplog.text
    if configuration.get("max_tool_calling_iterations") != 0:
        assert sum(map(len, plain["calls"])) > 10
    if "max_completion_length" in configuration:
        answered = [sum(message["role"] == "tool" for message in messages) for messages in plain["transcripts"]]
        made = list(map(len, plain["calls"]))
        assert any(calls > answers for calls, answers in zip(made, answered, strict=True))  # outputs were taken back


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_attached_trainer_does_what_the_plain_one_does_in_two_processes(ours, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("two_processes.py")
    done = subprocess.run(
        [*command, str(script), ours.url, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        results = (tmp_path / f"result-{rank}").read_text().splitlines()
        assert len(results) == len(CONFIGURATIONS)
        for result, configuration in zip(results, CONFIGURATIONS, strict=True):
            assert result.endswith("differing: []"), results
            assert int(result.split()[0]) > 3 or configuration.get("max_tool_calling_iterations") == 0, results


# --- Together


def say_wrong_then_right(text):
    """Call twice, in two turns."""
    if "match\n</tool_response>" in text.replace("no match", ""):
        return "Done." + END
    word = re.search(r"text='(\w+)' to win", text)[1]
    return call("echo", text=word if "<tool_response>" in text else "wrong") + END


def most_at_once(entries):
    """How many calls ran at one time, at most."""
    running = most = 0
    for entry in entries:
        running += 1 if entry["event"] == "call" else -1
        most = max(most, running)
    return most


@pytest.fixture(scope="module")
def slow():
    """The echo environment, in which a reset and a call take a while."""
    with serve("ours", "--env", "echo", "--tool-seconds", "0.5", "--reset-seconds", "0.5") as server:
        yield server


def echo_trainer(folder, spec, **slots):
    return make_trainer(folder, spec, policy=say_wrong_then_right, rollouts=8, **slots)


def test_attached_trainer_opens_and_calls_together_from_the_first_batch(slow, tmp_path):
    ended = []
    with (
        FaultProxy(slow.url, on_exchange=lambda request: ended.append((request.path, time.monotonic()))) as proxy,
        OpenRewardSpec(proxy.url, discover_task_tools=False) as spec,
    ):
        trainer = echo_trainer(tmp_path, spec, arguments={"max_steps": 1})
        spec.attach(trainer)
        before = len(slow.journal.entries("call", "call_done"))
        trainer.train()
        calls = slow.journal.entries("call", "call_done")[before:]
        assert len(calls) == 2 * 2 * 8
        assert most_at_once(calls) == 8
        asked = [request.arrived for request in proxy.requests if request.path.endswith("/prompt")]
        assert len(asked) == 8
        assert max(asked) < min(moment for path, moment in ended if path.endswith("/prompt"))
        spec.close()


def test_trainer_that_nobody_attached_calls_together_after_the_first_batch(slow, tmp_path):
    with OpenRewardSpec(slow.url, discover_task_tools=False) as spec:
        trainer = echo_trainer(tmp_path, spec)
        before = len(slow.journal.entries("call", "call_done"))
        trainer.train()
        calls = slow.journal.entries("call", "call_done")[before:]
        assert len(calls) == 2 * 2 * 2 * 8
        assert most_at_once(calls[: len(calls) // 2]) == 1
        assert most_at_once(calls[len(calls) // 2 :]) == 8


def test_calls_mixed_with_a_users_own_function_stay_in_the_order_of_the_message(ours, tmp_path):
    order = []

    def note(text: str) -> str:
        """Take a note.

        Args:
            text: The note.
        """
        order.append(len(ours.executions_of_step()))
        return text

    def mixed(text):
        if "<tool_response>" in text:
            return "Done." + END
        return "\n".join([call("step", reward=0.1), call("note", text="a"), call("step", reward=0.2)]) + END

    ours = Counted(ours)
    with OpenRewardSpec(ours.url, env_name="failingenvironment", indices=[0] * 4) as spec:
        trainer = make_trainer(tmp_path, spec, policy=mixed, tools=[note], arguments={"max_steps": 1})
        spec.attach(trainer)
        trainer.train()
        assert order == [1, 3, 5, 7]
        assert [environment.rewards for environment in trainer.environments] == [[0.1, 0.2]] * 4


class Counted:
    """A server, and how many of its `step` calls ran since."""

    def __init__(self, server):
        self.url = server.url
        self._journal = server.journal
        self._before = len(server.journal.executions("step"))

    def executions_of_step(self):
        return self._journal.executions("step")[self._before :]


# --- What is not recognised


class Unknown:
    """A trainer of some other release."""

    environment_factories = None

    def _tool_call_loop(self, messages):
        return messages


def test_trainer_that_is_not_recognised_stays_as_it_is_with_one_warning(caplog):
    trainer = Unknown()
    with caplog.at_level(logging.WARNING, "trl_bridge"):
        attach(trainer)
        attach(trainer)
    assert vars(trainer) == {"_trl_bridge_attached": False}
    assert [record.getMessage() for record in caplog.records] == [
        "Unknown has no _tool_call_loop(completions) as trl 1.16 has it; its resets and calls stay one after the other."
    ]


def test_trainer_that_keeps_its_tools_elsewhere_calls_as_before_with_one_warning(ours, tmp_path, caplog):
    class Elsewhere(from_trl("GRPOTrainer")):
        """Keeps what the look-up of tools reads in a list of its own kind."""

        def __setattr__(self, name, value):
            super().__setattr__(name, UserList(value) if name == "_sync_tool_dicts" else value)

    with OpenRewardSpec(ours.url, env_name="echoenvironment") as spec:
        trainer = echo_trainer(tmp_path, spec, trainer=Elsewhere)
        spec.attach(trainer)
        with caplog.at_level(logging.WARNING, "trl_bridge"):
            trainer.train()
        assert [entry["reward"] for entry in trainer.state.log_history if "reward" in entry] == [1.0, 1.0]
    assert [record.getMessage() for record in caplog.records] == [
        "Scripted has no _sync_tool_dicts as trl 1.16 has it; its calls stay one after the other."
    ]


def test_attaching_twice_is_attaching_once(ours, tmp_path):
    with OpenRewardSpec(ours.url, env_name="echoenvironment") as spec:
        trainer = echo_trainer(tmp_path, spec)
        spec.attach(trainer)
        loop = trainer._tool_call_loop
        spec.attach(trainer)
        assert trainer._tool_call_loop is loop


def test_attaching_names_both_numbers_when_a_batch_can_not_be_filled(ours, tmp_path):
    with OpenRewardSpec(ours.url, env_name="echoenvironment", num_tasks=3) as spec:
        trainer = echo_trainer(tmp_path, spec)
        with pytest.raises(ValueError, match=r"3 tasks.* 4 prompts"):
            spec.attach(trainer)


def test_row_without_its_index_is_the_same_error_when_attached_and_leaves_no_session(ours, tmp_path, eventually):
    with OpenRewardSpec(ours.url, env_name="echoenvironment") as spec:
        trainer = echo_trainer(tmp_path, spec)
        spec.attach(trainer)
        rows = [{"prompt": [{"role": "user", "content": ""}], "task_index": index} for index in (0, 1, None, 3)]
        with pytest.raises(ValueError, match="remove_unused_columns=False"):
            trainer._generate_and_score_completions([*rows, *rows])
        eventually(lambda: len(ours.live()) <= 2)  # those that were reset before the error
    assert ours.live() == []
