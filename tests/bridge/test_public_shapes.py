"""Environments in the shapes of public ones, twelve on one server: each is trained for two steps, and its best wins."""

import pytest
from servers import serve
from training import END, IGNORED, call, make_trainer

from trl_bridge import OpenRewardSpec
from trl_bridge._rollout.environment import slot_of

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(warning) for warning in IGNORED)]

SCRIPTS = {
    "patch": [
        call(
            "apply_changes",
            changes=[
                {"path": "a.py", "span": {"start": 0, "end": None}, "text": "x"},
                {"path": "b", "span": {"start": 1}},
            ],
        )
    ],
    "portfolio": [call("allocate", weights={"a": 0.25, "b": 0.5}), call("allocate", weights={"a": 0.5, "b": 0.5})],
    "button": [call("press"), call("press")],
    "grid": [call("mark", row=0, column=1)],
    "keyed": [call("submit_answer", answer="2")],
    "picture": [],
    "shell": [
        call("bash_run", command="ls -l", timeout=1.5),
        call("str_replace_editor", path="/a", view_range=[1, 2], **{"from": "x"}),
    ],
    "quiz": [call("think", answer="hm"), call("choose", option="B", confidence=0.5, reasons=["it fits"])],
    "images": [call("look"), call("paint", red=255, green=0, blue=0)],
    "chat": [call("note", note="thinking")],
    "tasktools": [call("look"), call("open_0", key="0")],
    "schemas": [call("edit", path="/a", lines=[{"line": 1, "text": "x"}]), call("tree", name="a", children=[])],
}
"""The calls of each, one a turn, by the name of the environment."""
LAST = {"picture": "It is red.", "chat": "It is Paris."}
OPTIONS = {
    "picture": {"images": True, "terminal_tool": True},
    "images": {"images": True},
    "chat": {"terminal_tool": True, "group_scoring": True, "prompts": "messages"},
}
INDICES = {"tasktools": [0, 0], "schemas": [0, 0]}  # one task, of which a batch has two


@pytest.fixture(scope="module")
def server():
    with serve("ours", "--env", "public,images,chat,tasktools,schemas") as server:
        yield server


def follow(name):
    script = SCRIPTS[name]
    said = 1 if name == "chat" else 0  # the conversation begins with a call and its result

    def policy(text):
        turn = text.count("\n<tool_response>") - said
        return (script[turn] if turn < len(script) else LAST.get(name, "Done.")) + END

    return policy


@pytest.mark.parametrize("name", SCRIPTS)
def test_environment_in_the_shape_of_a_public_one_is_trained_for_two_steps(server, tmp_path, name):
    options = OPTIONS.get(name, {})
    seen = {}
    if options.get("images"):
        from vision import build_processor, build_vision_model

        seen["processor"] = build_processor([call("look"), "Which colour is this?"])
        seen["model"] = build_vision_model(seen["processor"])
    with OpenRewardSpec(
        server.url, env_name=f"{name}environment", record=tmp_path / "record", indices=INDICES.get(name), **options
    ) as spec:
        trainer = make_trainer(
            tmp_path,
            spec,
            policy=follow(name),
            arguments={"max_completion_length": 900, "generation_batch_size": 4}
            | ({"chat_template_kwargs": {}} if seen else {}),
            **seen,
        )
        spec.check(trainer.args)
        spec.attach(trainer)
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "environment/scored" in entry]
        calls = [call for environment in trainer.environments for call in slot_of(environment).log.calls]
    assert len(steps) == 2
    for step in steps:
        assert step["environment/failed"] == 0.0
        assert step["environment/calls"] == len(SCRIPTS[name]) + (name in LAST)
        assert step["environment/scored"] == float(name != "schemas")  # which only echoes
        if name != "schemas":
            assert step["rewards/environment_reward/mean"] > 0.0
    assert [call.error for call in calls if call.error] == []
