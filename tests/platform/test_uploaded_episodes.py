"""The bridge uploads its episodes to the catalogue, where it is asked to."""

import httpx
import pytest
from platforms import KEY, NAME, forget_rollouts, platform, variables

from fixtures.proxy import FaultProxy
from ors_client import Client, ImageBlock, Message, TextBlock, UnknownBlock
from ors_client.record import CallRecord, EpisodeRecord, runs
from trl_bridge import OpenRewardSpec
from trl_bridge._runtime.rollout_upload import redactable, text_only, upload


@pytest.fixture(scope="module")
def running():
    with platform(env="many,secrets,chat,images,slow") as server:
        yield server


@pytest.fixture
def server(running, monkeypatch):
    """The catalogue of this process, to which nothing was uploaded."""
    forget_rollouts(running)
    for name, value in variables(running).items():
        monkeypatch.setenv(name, value)
    return running


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


def test_record_of_a_training_in_the_catalogue_has_the_version_of_the_deployment(server, tmp_path):
    play(server, "ask", env_name="beta", record=tmp_path / "record.jsonl")
    assert [run.versions["server"] for run in runs(tmp_path / "record.jsonl")] == ["0.1.167"]


def test_ids_that_anybody_may_read_are_asked_for_without_the_key(server, monkeypatch):
    with FaultProxy(server.urls[0]) as proxy:
        monkeypatch.setenv("OPENREWARD_API_URL", proxy.url)
        play(server, "ask", env_name="beta", rollouts="run")
        asked = [*proxy.find("GET", f"/v1/environments/{NAME}"), *proxy.find("GET", "/variants")]
        uploads = proxy.find("POST", "/v1/rollouts")
    assert [request.header("X-API-Key") for request in asked] == [None, None]
    assert {request.header("X-API-Key") for request in uploads} == {KEY}


def test_episode_is_told_without_its_secrets(server):
    secrets = {"K": ("vv-secret", ["example.com"])}
    events = play(server, "reveal", env_name="secretsenvironment", secrets=secrets, rollouts="run")
    assert events[3]["content"] == '{"K": "***"}'


def test_conversation_is_told_turn_by_turn(server, tmp_path):
    with OpenRewardSpec(
        NAME, env_name="chatenvironment", prompts="messages", rollouts="run", record=tmp_path / "record"
    ) as spec:
        environment = spec.environment_factory()
        environment.reset(**spec.train_dataset[0])
        environment.note(note="thinking")
    opening = told(server)[1:8]
    assert [(event["type"], event["content"]) for event in opening[:4]] == [
        ("system_message", "Be brief."),
        ("user_message", "Hello."),
        ("reasoning", "A greeting."),
        ("assistant_message", "Hello; one moment."),
    ]
    assert [(event["type"], event["content"]) for event in opening[4:]] == [
        ("tool_call", '{"note":"greeted"}'),
        ("tool_result", "noted"),
        ("user_message", "Answer with 'Paris'."),
    ]


def test_episode_is_told_without_images_though_they_are_recorded(server, tmp_path):
    path = tmp_path / "record"
    events = play(server, "look", env_name="imagesenvironment", rollouts="run", record=path)
    assert events[1]["content"] == "Paint this colour.\n[1 image left out: image/png]"
    assert "iVBOR" in path.read_text()
    assert "iVBOR" not in str(events)


def test_metadata_of_calls_is_not_told(server):
    events = play(server, "count", env_name="slowenvironment", rollouts="run")
    assert [event["type"] for event in events[1:4]] == ["user_message", "tool_call", "tool_result"]
    assert [event.get("metadata") for event in events[1:4]] == [None] * 3


def test_episode_with_numbers_that_json_has_not_is_told_to_its_end(server):
    nan, infinity = float("nan"), float("inf")
    opening = [Message(role="tool", blocks=[ImageBlock(data="aGk=", mime_type="image/png")])]
    opening[0].blocks.append(UnknownBlock(type="sound", raw={"type": "sound", "level": nan}))
    opening[0].blocks.append(TextBlock(text="x", detail={"level": nan}))
    calls = [
        CallRecord(tool="a", arguments={"x": nan, "y": [infinity]}, error="no"),
        CallRecord(tool="b", output="b", reward=1.0, metadata={"x": nan}, blocks=[{"type": "sound", "level": nan}]),
    ]
    episode = EpisodeRecord(split="train", index=0, calls=calls, reward=infinity, spec={"x": nan})
    with Client() as client:
        upload(client.rollouts, "run", redactable(episode, text_only(opening)), variant=None)
    start, prompt, *events, end = told(server)
    assert prompt["content"] == "[1 image left out: image/png]\n[block of type 'sound' left out]\nx"
    assert [event["content"] for event in events] == ['{"x":null,"y":[null]}', "no", "{}", "b"]
    assert "reward" not in start["metadata"]
    assert end["eventType"] == "rollout_update"


def test_nothing_is_told_unasked(server):
    assert play(server, "ask", env_name="beta") == []


def test_rollouts_of_a_server_outside_the_catalogue_are_refused():
    with pytest.raises(ValueError, match="not in it"):
        OpenRewardSpec("http://127.0.0.1:1", rollouts="run")
