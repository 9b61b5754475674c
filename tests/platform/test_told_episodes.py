"""The bridge tells the catalogue of its episodes, where it is asked to."""

import httpx
import pytest
from platforms import NAME, platform, variables

from trl_bridge import OpenRewardSpec


@pytest.fixture
def server(monkeypatch):
    with platform() as server:
        for name, value in variables(server).items():
            monkeypatch.setenv(name, value)
        yield server


def told(server):
    return httpx.get(f"{server.urls[0]}/_rollouts", trust_env=False).json()["events"]


def play(server, tool, **arguments):
    with OpenRewardSpec(NAME, discover_task_tools=False, **arguments) as spec:
        environment = spec.environment_factory()
        environment.reset(**spec.train_dataset[0])
        getattr(environment, tool)()
    return told(server)


def test_episode_is_told_from_its_prompt_to_its_end(server):
    start, prompt, call, result, end = play(server, "ask", env_name="beta", rollouts="run 7")
    assert (start["runName"], start["environment"], start["variant"], start["split"]) == (
        "run 7",
        NAME,
        "beta",
        "train",
    )
    assert prompt["type"] == "user_message"
    assert (call["type"], call["name"], call["callId"]) == ("tool_call", "ask", result["callId"])
    assert result["content"] == "beta: beta-train-0"
    assert end["rollout_info"]["task_index"] == 0


def test_episode_is_told_without_its_secrets(server):
    secrets = {"K": ("vv-secret", ["example.com"])}
    events = play(server, "reveal", env_name="secretsenvironment", secrets=secrets, rollouts="run")
    assert events[3]["content"] == '{"K": "***"}'


def test_nothing_is_told_unasked(server):
    assert play(server, "ask", env_name="beta") == []


def test_rollouts_of_a_server_outside_the_catalogue_are_refused():
    with pytest.raises(ValueError, match="not in it"):
        OpenRewardSpec("http://127.0.0.1:1", rollouts="run")
