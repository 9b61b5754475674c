"""A script written for `trl.experimental.openreward` runs with its import line changed, and sees the same.

The peer is the official server. Where both specs are asked the same, the same script is run with either import line;
the original needs its environment variables, ours none.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers import serve
from training import END, IGNORED, call, from_trl, make_trainer

from ors_client.record import read
from trl_bridge import OpenRewardSpec
from trl_bridge._datasets.tasks import RESERVED_COLUMNS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

ROOT = Path(__file__).parent.parent.parent
OURS = "from trl_bridge import OpenRewardSpec"
THEIRS = "from trl.experimental.openreward import OpenRewardSpec"

SCRIPT = r"""
import inspect, json, logging, sys, warnings
warnings.simplefilter("ignore")
{import_line}
from transformers.utils import get_json_schema

url = sys.argv[1]
seen = {{}}

# The constructor
try:
    OpenRewardSpec(url, num_tasks=2, indices=[0])
except ValueError as error:
    seen["both choices"] = type(error).__name__
spec = OpenRewardSpec(url)

# The dataset
def rows(spec):
    columns = set(spec.train_dataset.column_names) - {{"split"}}
    return [{{name: row[name] for name in sorted(columns)}} for row in spec.train_dataset]

seen["all"] = rows(spec)
seen["first two"] = rows(OpenRewardSpec(url, num_tasks=2))
seen["more than there are"] = len(rows(OpenRewardSpec(url, num_tasks=99)))
seen["some"] = rows(OpenRewardSpec(url, indices=[3, 1, 3], split="train"))
seen["no metadata"] = rows(OpenRewardSpec(url, include_metadata=False))
seen["cached"] = spec.train_dataset is spec.train_dataset

# The factory
factory = spec.environment_factory
seen["same factory"] = factory is spec.environment_factory
env = factory()
seen["one class"] = type(env) is type(factory())
seen["functions"] = [n for n, _ in inspect.getmembers(type(env), inspect.isfunction) if not n.startswith("_")]
schema = get_json_schema(type(env).echo)["function"]
seen["tool"] = schema["name"], list(schema["parameters"]["properties"]), schema["parameters"]["required"]
seen["doc"] = type(env).echo.__doc__.splitlines()[0]
ways = [{{"discover_task_tools": False}}]
ways += [{{"task_tools_discovery_index": 1}}, {{"indices": [0, 1]}}, {{"secrets": {{}}}}]
for arguments in ways:
    other = OpenRewardSpec(url, env_name="echoenvironment", **arguments).environment_factory()
    seen[f"functions with {{arguments}}"] = [
        n for n, _ in inspect.getmembers(type(other), inspect.isfunction) if not n.startswith("_")
    ]

# An episode
def state(env):
    return env.reward, list(env.rewards), list(env.metadata), env.finished, env.last_output

seen["before"] = state(env)
seen["prompt"] = env.reset(**spec.train_dataset[1])
seen["after reset"] = state(env)
seen["miss"] = env.echo(text="nothing")
seen["after miss"] = state(env)
seen["unscored or scored"] = spec.reward_funcs(environments=[env], prompts=[], completions=[], target=[])
seen["prompt again"] = env.reset(**spec.train_dataset[0])
seen["hit"] = env.echo(text="hello")
seen["after hit"] = state(env)
idle = factory()
idle.reset(task_index=2)
seen["rewards"] = spec.reward_funcs(environments=[env, idle], prompts=[], completions=[], trainer_state=None)
seen["reward function's identity"] = spec.reward_funcs is spec.reward_funcs
for each in (env, idle):
    each._close()
print("SEEN" + json.dumps(seen))
"""


@pytest.fixture(scope="module")
def echo():
    """The official server with the echo environment alone."""
    with serve("openreward", "--env", "echo") as server:
        yield server


def run(import_line, url, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENREWARD_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(import_line=import_line), url],
        cwd=ROOT,
        env=environment | {"TRL_EXPERIMENTAL_SILENCE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("SEEN")[2])


@pytest.mark.slow  # importing the SDK alone takes six seconds
@pytest.mark.timeout(240)
def test_script_sees_the_same_with_either_import_line(echo):
    variables = {
        "OPENREWARD_SESSION_URL": echo.url,
        "OPENREWARD_API_URL": echo.url,
        "OPENREWARD_API_KEY": "not looked at",
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    }
    ours = run(OURS, echo.url)
    assert ours["after hit"] == [1.0, [1.0], [None], True, "match"]
    assert ours == run(THEIRS, echo.url, **variables)
    assert echo.live() == []


def say_the_word(text):
    """Call `echo` with the word of the prompt, after a wrong one on every second task."""
    word = re.findall(r"text='(\w+)' to win", text)[-1]
    turn = text.count("<tool_response>")
    if "match\n</tool_response>" in text.replace("no match", ""):
        return "Done." + END
    return call("echo", text="wrong" if word in ("world", "openreward") and turn == 0 else word) + END


def test_trainer_trains_a_model_that_says_what_it_likes(echo, tmp_path):
    with OpenRewardSpec(echo.url, unscored=0.0) as spec:
        trainer = make_trainer(tmp_path, spec)
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "reward" in entry]
        assert len(steps) == 2
        for step in steps:
            assert 0.0 <= step["reward"] <= 1.0
            assert step["environment/failed"] == 0.0
    assert echo.live() == []


def test_trainer_rewards_a_model_that_says_the_word(echo, tmp_path, eventually):
    with OpenRewardSpec(echo.url, record=tmp_path / "episodes.jsonl") as spec:
        trainer = make_trainer(
            tmp_path / "trainer",
            spec,
            policy=say_the_word,
            rollouts=8,
            arguments={"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8},
            eval_dataset=spec.dataset("train", indices=[0]),
        )
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "reward" in entry]
        assert [step["reward"] for step in steps] == [1.0, 1.0]
        assert [step["environment/finished"] for step in steps] == [1.0, 1.0]
        assert [step["environment/calls"] for step in steps] == [1.5, 1.5]
        assert [step["tools/call_frequency"] for step in steps] == [1.5, 1.5]
        assert [step["tools/failure_frequency"] for step in steps] == [0.0, 0.0]
        (evaluation,) = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
        assert evaluation["eval_reward"] == 1.0
        eventually(lambda: echo.live() == [])  # at the end of training, not of the spec
    episodes = list(read(tmp_path / "episodes.jsonl"))  # whole once the spec is closed
    assert {episode.status for episode in episodes} == {"scored"}
    assert {len(episode.calls) for episode in episodes if episode.index in (1, 3)} == {2}
    assert {episode.index for episode in episodes} == {0, 1, 2, 3}


def test_trainer_takes_a_reward_that_environments_own(echo, tmp_path, eventually):
    with OpenRewardSpec(echo.url, owns_reward=True) as spec:
        trainer = make_trainer(
            tmp_path,
            policy=say_the_word,
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=None,
        )
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "reward" in entry]
        assert [step["reward"] for step in steps] == [1.0, 1.0]
        eventually(lambda: echo.live() == [])


def test_trainer_that_strips_columns_is_told_how_not_to(echo, tmp_path):
    with OpenRewardSpec(echo.url) as spec:
        trainer = make_trainer(tmp_path, spec, policy=say_the_word, arguments={"remove_unused_columns": True})
        with pytest.raises(ValueError, match="remove_unused_columns=False"):
            trainer.train()


def test_trl_refuses_groups_of_one_as_ors_check_says(tmp_path):
    with pytest.raises(ValueError, match="minimum"):
        from_trl("GRPOConfig")(
            str(tmp_path), use_cpu=True, bf16=False, activation_checkpointing=False, num_generations=1
        )


def test_spec_has_the_parameters_of_the_one_it_replaces():
    from trl.experimental.openreward import OpenRewardSpec as Theirs

    ours, theirs = (inspect.signature(spec.__init__).parameters for spec in (OpenRewardSpec, Theirs))
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind
    assert all(ours[name].kind == inspect.Parameter.KEYWORD_ONLY for name in ours.keys() - theirs.keys())


def test_reserved_columns_cover_what_trl_passes_to_reward_functions():
    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    passed = {line.split('"')[1] for line in source.splitlines() if line.strip().startswith('reward_kwargs["')}
    assert passed >= {"trainer_state", "log_extra", "log_metric", "environments"}
    assert passed <= RESERVED_COLUMNS
    assert {"prompts", "completions", "completion_ids"} <= RESERVED_COLUMNS
