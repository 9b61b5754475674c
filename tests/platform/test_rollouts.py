"""Events of rollouts arrive, in order and in batches, and are never in the way."""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio.to_thread
import httpx
import pytest
from platforms import KEY, NAME, forget_rollouts, platform, variables

from fixtures.proxy import DelayRequest, FaultProxy, Rule, Status, StatusAfterForward
from ors_client import (
    AsyncClient,
    Client,
    ClientStateError,
    ImageBlock,
    Layout,
    Message,
    ReasoningBlock,
    RetryPolicy,
    Task,
    TaskRef,
    TextBlock,
    Timeouts,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
)
from ors_client._rollouts.uploader import Event, Uploader

ROOT = Path(__file__).parents[2]
HELLO = Message(role="user", blocks=[TextBlock(text="hello")])
QUICK = RetryPolicy(first_delay=0.05, max_delay=0.1)


@pytest.fixture(scope="module")
def running():
    with platform() as server:
        yield server


@pytest.fixture
def server(running):
    """The platform, to which nothing was uploaded."""
    forget_rollouts(running)
    return running


def client_of(server, *, api=None, **more):
    layout = Layout(api=api or server.urls[0], sessions=server.urls[1])
    return Client(layout, **{"api_key": KEY, "retry": QUICK, **more})


def uploaded(server):
    return httpx.get(f"{server.urls[0]}/_rollouts", trust_env=False).json()


def kinds(server):
    return [event.get("type", event["eventType"]) for event in uploaded(server)["events"]]


def test_rollout_arrives_with_all_that_was_told(server):
    task = Task(environment="beta", spec={"id": "b-1"}, split="train", index=1)
    image = ImageBlock(data="aGVsbG8=", mime_type="image/png")
    with client_of(server) as client:
        rollouts = client.rollouts
        info = {"model_name": "m", "run_type": "train"}
        with rollouts.start("run 7", name="first", environment=NAME, variant="beta", task=task, run_info=info) as told:
            told.add(Message(role="system", blocks=[TextBlock(text="Be brief.")]))
            told.add(Message(role="user", blocks=[TextBlock(text="a"), image, TextBlock(text="b")]))
            call = ToolCallBlock(id="c-1", name="ask", input={"q": "é"})
            told.add(
                Message(
                    role="assistant", blocks=[ReasoningBlock(text="Hm.", signature="s"), TextBlock(text="I ask."), call]
                )
            )
            output = ToolOutput(blocks=[TextBlock(text="yes")], reward=0.5, finished=True, metadata={"k": 1, "n": None})
            told.add(output, call_id="c-1")
            told.update({"current_step": 3})
    assert (rollouts.uploaded, rollouts.failed, rollouts.dropped, rollouts.pending) == (9, 0, 0, 0)

    start, *events, step, end = uploaded(server)["events"]
    assert start.pop("timestamp") > 0
    assert start.pop("environment_id") != start.pop("variant_id")
    assert start == {
        "eventId": told.id,
        "eventType": "rollout",
        "runName": "run 7",
        "rolloutName": "first",
        "environment": NAME,
        "variant": "beta",
        "split": "train",
        "task_spec": {"id": "b-1"},
        "run_info": info,
    }
    assert [event["index"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert {event["rolloutEventId"] for event in events} == {told.id}
    assert [(event["type"], event["content"]) for event in events] == [
        ("system_message", "Be brief."),
        ("user_message", "a\n[image/png, 8 characters of base64]\nb"),
        ("reasoning", "Hm."),
        ("assistant_message", "I ask."),
        ("tool_call", '{"q":"\\u00e9"}'),
        ("tool_result", "yes"),
    ]
    assert (events[2]["contentReference"], events[4]["name"], events[4]["callId"]) == ("s", "ask", "c-1")
    result = {name: events[5][name] for name in ("callId", "reward", "isFinished", "metadata")}
    assert result == {"callId": "c-1", "reward": 0.5, "isFinished": True, "metadata": {"k": 1}}
    assert step["rollout_info"] == {"task_index": 1, "current_step": 3}
    assert end["rollout_info"].keys() == {"task_index", "current_step", "duration_ms"}
    assert step["eventId"] == end["eventId"] == told.id


def test_result_within_a_users_turn_is_told_as_one(server):
    with client_of(server) as client, client.rollouts.start("run") as told:
        told.add(Message(role="user", blocks=[ToolResultBlock(tool_call_id="c", blocks=[TextBlock(text="r")])]))
    assert kinds(server) == ["rollout", "tool_result", "rollout_update"]


def test_beginnings_go_alone_and_first_and_the_rest_in_batches(server):
    with client_of(server) as client:
        for _ in range(3):
            told = client.rollouts.start("run", environment=NAME)
            for _ in range(100):
                told.add(HELLO)
    state = uploaded(server)  # which refuses a beginning in company, and a message before its rollout's beginning
    assert len(state["events"]) == 303
    assert state["batches"].count(1) >= 3
    assert max(state["batches"]) <= 128
    assert len(state["batches"]) <= 8


def test_batch_holds_a_megabyte_at_most(server):
    with FaultProxy(server.urls[0]) as proxy:
        with client_of(server, api=proxy.url) as client:
            told = client.rollouts.start("run")
            for _ in range(6):
                told.add(Message(role="user", blocks=[TextBlock(text="x" * 400_000)]))
        sizes = [len(request.body) for request in proxy.find("POST", "/v1/rollouts")]
    assert len(uploaded(server)["events"]) == 7
    assert max(sizes) < 1_001_000


def test_what_was_told_arrives_without_closing(server, eventually):
    with client_of(server) as client:
        client.rollouts.start("run").add(HELLO)
        eventually(lambda: kinds(server) == ["rollout", "user_message"])


def test_flush_tells_when_everything_has_arrived(server):
    with client_of(server) as client:
        client.rollouts.start("run").add(HELLO)
        assert client.rollouts.flush()
        assert kinds(server) == ["rollout", "user_message"]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.anyio
async def test_rollouts_of_an_async_client_arrive(server):
    layout = Layout(api=server.urls[0], sessions=server.urls[1])
    async with AsyncClient(layout, api_key=KEY) as client:
        client.rollouts.start("run", task=TaskRef("train", 2)).finish()
        assert await anyio.to_thread.run_sync(client.rollouts.flush)
    assert uploaded(server)["events"][-1]["rollout_info"]["task_index"] == 2


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "fault", [Status(503), Status(500), Status(429, headers={"Retry-After": "0.1"}), StatusAfterForward(502)]
)
def test_upload_that_fails_is_repeated_and_counted_once(server, fault):
    with FaultProxy(server.urls[0]) as proxy:
        proxy.add(Rule("POST", "/v1/rollouts", fault, times=2))
        with client_of(server, api=proxy.url) as client:
            rollouts = client.rollouts
            rollouts.start("run").add(HELLO)
    assert kinds(server) == ["rollout", "user_message"]
    assert (rollouts.uploaded, rollouts.failed) == (2, 0)


@pytest.mark.slow
def test_batch_of_rollouts_reaches_an_api_host_that_is_far_away(server):
    with FaultProxy(server.urls[0]) as proxy:
        proxy.add(Rule("POST", "/v1/rollouts", DelayRequest(0.1), times=None))
        with client_of(server, api=proxy.url) as client:
            rollouts = client.rollouts
            started = [rollouts.start("run") for _ in range(64)]
            for _ in range(8):
                for told in started:
                    told.add(HELLO)
            for told in started:
                told.finish()
    assert (rollouts.uploaded, rollouts.failed) == (640, 0)
    events = uploaded(server)["events"]  # which refuses a message before its rollout's beginning
    for told in started:
        mine = [event["index"] for event in events if event.get("rolloutEventId") == told.id]
        assert mine == list(range(8))


def test_upload_that_goes_on_failing_is_counted_and_logged_once(server, caplog):
    with client_of(server, api_key="sk-wrong-99") as client:
        rollouts = client.rollouts
        for _ in range(3):
            rollouts.start("run").add(HELLO)
    assert (rollouts.uploaded, rollouts.failed, rollouts.pending) == (0, 6, 0)
    [record] = caplog.records
    assert "401" in record.getMessage()
    assert "sk-wrong" not in caplog.text


def test_api_host_that_never_answers_holds_up_neither_telling_nor_closing(server, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with client_of(server, api=url, timeout=Timeouts(close=0.3)) as client:
            rollouts = client.rollouts
            told = rollouts.start("run")
            for _ in range(1000):
                told.add(HELLO)
            with client.environment(NAME).session(TaskRef("train", 0)) as session:
                assert session.call_tool("who").text
    assert (rollouts.uploaded, rollouts.failed, rollouts.pending) == (0, 1001, 0)
    assert "1001 events" in caplog.text


def test_queue_without_room_drops_and_logs_once(server, caplog):
    with client_of(server) as client:
        uploader = Uploader(client._client._uploader._make_transport, close=10, queue_events=3)
        caplog.set_level(logging.WARNING)
        for number in range(8):
            uploader.put(event("r", number))
        uploader.close()
    assert uploader.dropped == 5
    assert uploader.uploaded == 3
    assert len(caplog.records) == 1


def test_rollout_whose_beginning_was_dropped_does_not_spoil_others(server):
    with client_of(server) as client:
        uploader = Uploader(client._client._uploader._make_transport, close=10, queue_bytes=900)
        uploader.put(event("a", 0))
        uploader.put(event("b", 0, size=1000))
        uploader.put(event("b", 1))
        uploader.put(event("a", 1))
        uploader.close()
    assert (uploader.uploaded, uploader.dropped, uploader.failed) == (2, 2, 0)


def test_event_that_is_refused_does_not_spoil_others(server):
    with client_of(server) as client:
        uploader = Uploader(client._client._uploader._make_transport, close=10)
        for number in range(9):
            uploader.put(event("r", number))
        bad = Event("message", "r", b'{"eventType":"message","index":-1}', (None, None))
        uploader.put(bad)
        uploader.put(event("r", 9))
        uploader.close()
    assert (uploader.uploaded, uploader.failed) == (10, 1)


def event(rollout, number, *, size=0):
    kind = "message" if number else "rollout"
    fields = {"eventId": f"{rollout}{number}", "timestamp": time.time_ns() // 10**6, "eventType": kind}
    if number:
        fields |= {"rolloutEventId": rollout, "index": number, "type": "user_message", "content": "x"}
    else:
        fields |= {"eventId": rollout, "runName": "run" + "n" * size}
    return Event(kind, rollout, json.dumps(fields).encode(), (None, None))


def test_text_that_json_or_a_database_can_not_hold_is_told_all_the_same(server):
    with client_of(server) as client:
        client.rollouts.start("run").add(Message(role="user", blocks=[TextBlock(text="a\x00b\ud800\u2028")]))
    assert uploaded(server)["events"][-1]["content"] == "ab\\ud800\u2028"


@pytest.mark.sample(3)
@pytest.mark.parametrize("metadata", [{"x": object()}, {"x": float("nan")}, {1: "x"}])
def test_metadata_that_is_not_json_is_the_callers_mistake(server, metadata):
    with client_of(server) as client:
        told = client.rollouts.start("run")
        with pytest.raises((TypeError, ValueError)):
            told.add(HELLO, metadata=metadata)
        told.add(HELLO)
    assert [event.get("index") for event in uploaded(server)["events"]] == [None, 0]


def test_finished_rollout_takes_no_more(server):
    with client_of(server) as client:
        told = client.rollouts.start("run")
        told.finish()
        told.finish()
        with pytest.raises(ClientStateError, match="finished"):
            told.add(HELLO)
    assert kinds(server) == ["rollout", "rollout_update"]


def test_closed_client_starts_no_rollout_and_drops_what_comes_late(server):
    with client_of(server) as client:
        rollouts = client.rollouts
        told = rollouts.start("run")
    told.add(HELLO)
    assert (rollouts.uploaded, rollouts.dropped) == (1, 1)
    with pytest.raises(ClientStateError, match="closed"):
        rollouts.start("run")


ABANDONED = """
from ors_client import Client, Message, TextBlock
client = Client().__enter__()
told = client.rollouts.start("run", environment="owner/name")
for number in range(500):
    told.add(Message(role="user", blocks=[TextBlock(text=str(number))]))
"""


def test_nothing_is_lost_when_the_interpreter_exits_without_closing(server):
    environ = {**os.environ, **variables(server)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ABANDONED],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["content"] for event in uploaded(server)["events"][1:]] == [str(number) for number in range(500)]
