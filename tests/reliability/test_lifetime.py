"""Nothing is left on a server by sessions that could not be opened, or whose process is told to end."""

import logging
import os
import signal
import subprocess
import sys
import time

import anyio
import pytest
from aftermath import NO_PINGS, nothing_left, slow, until
from servers import ROOT, Server

from fixtures.proxy import FaultProxy, ResetAfterForward, Rule, Silence, Status
from ors_client import (
    AsyncClient,
    Client,
    ORSError,
    RetryPolicy,
    SetupFailed,
    StatusError,
    Task,
    TaskRef,
    Timeouts,
)

FAST = RetryPolicy(attempts=3, first_delay=0.02, max_delay=0.1)
CLOSE = 20.0


def broken(stage: str) -> Task:
    return Task(environment="failingenvironment", spec={"raises": stage})


def made(server: Server, sid: str) -> int:
    """Tell how often an episode was constructed under an id."""
    return sum(entry["sid"] == sid for entry in server.journal.entries("construct"))


# --- Failed to open --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (TaskRef("nosuch", 0), StatusError),
        (TaskRef("train", 999), StatusError),
        (broken("constructor"), SetupFailed),
        (broken("setup"), SetupFailed),
    ],
    ids=["split", "index", "constructor", "setup"],
)
def test_session_that_fails_to_open_leaves_nothing(server: Server, task, error: type[ORSError]) -> None:
    with FaultProxy(server.url) as proxy, Client(proxy.url, keepalive=NO_PINGS) as client:
        with pytest.raises(error), client.environment("failingenvironment").session(task) as session:
            session.get_prompt()
        assert client.open_sessions == 0
        assert proxy.count("POST", "/delete") == 1
        assert not {request.header("X-Session-ID") for request in proxy.find("POST", "/create")} & set(server.live())


def test_teardown_that_raises_does_not_disturb(server: Server) -> None:
    with Client(server.url, keepalive=NO_PINGS) as client:
        with client.environment("failingenvironment").session(broken("teardown")) as session:
            session.get_prompt()
        assert session.session_id not in server.live()
        assert client.leaked_sessions == 0


# --- A lost reply ----------------------------------------------------------------------------------------------------

SLOW_CONSTRUCTOR = slow(constructor_seconds=3.0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["ours", "openreward"])
@pytest.mark.parametrize("then", ["goes_on", "closes"])
def test_session_whose_constructor_outlasts_its_request_is_deleted(
    request: pytest.FixtureRequest, kind: str, then: str
) -> None:
    """The reply is lost at once; three seconds later the server registers a session that nobody asked for any more."""
    server: Server = request.getfixturevalue(kind)
    with FaultProxy(server.url) as proxy:
        proxy.add(Rule("POST", "/create", ResetAfterForward("sent")))
        proxy.add(Rule("POST", "/create", Status(400), times=None))  # so that no fresh one is opened beside it
        client = Client(proxy.url, retry=FAST, timeout=Timeouts(close=CLOSE), keepalive=NO_PINGS)
        with client:
            with pytest.raises(StatusError):
                client.environment("slowenvironment").session(SLOW_CONSTRUCTOR).__enter__()
            lost = proxy.find("POST", "/create")[0].header("X-Session-ID")
            if then == "goes_on":
                until(lambda: made(server, lost) == 1, within=15, what="The session")
                until(lambda: lost not in server.live(), within=15, what="Its deletion")
        until(lambda: made(server, lost) == 1, within=15, what="The session")
        until(lambda: lost not in server.live(), within=15, what="Its deletion")
    assert client.leaked_sessions == 0


def test_cancelled_create_with_a_slow_constructor_is_deleted(openreward: Server, backend: str) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url, keepalive=NO_PINGS) as client:
            session = client.environment("slowenvironment").session(SLOW_CONSTRUCTOR)
            async with anyio.create_task_group() as group:
                group.start_soon(session.__aenter__)
                await proxy.wait_for_async("POST", "/create")
                group.cancel_scope.cancel()
            sid = proxy.find("POST", "/create")[0].header("X-Session-ID")
            await anyio.to_thread.run_sync(
                lambda: until(
                    lambda: made(openreward, sid) == 1 and sid not in openreward.live(), within=15, what="Its deletion"
                )
            )
            assert client.leaked_sessions == 0

    with FaultProxy(openreward.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)


def test_lost_create_reply_opens_a_fresh_session_and_only_one_is_used(server: Server) -> None:
    with FaultProxy(server.url) as proxy, Client(proxy.url, retry=FAST, keepalive=NO_PINGS) as client:
        proxy.add(Rule("POST", "/create", ResetAfterForward()))
        with client.environment("counterenvironment").session(TaskRef("train", 0)) as session:
            assert session.call_tool("step").text == "1"
            lost, used = (request.header("X-Session-ID") for request in proxy.find("POST", "/create"))
            assert used == session.session_id
            until(lambda: lost not in server.live(), within=15, what="The deletion of the lost session")


# --- What can't be deleted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status(503), Status(500), Status(401)], ids=["503", "500", "401"])
def test_session_that_cannot_be_deleted_is_logged_once_with_its_id(
    ours: Server, caplog: pytest.LogCaptureFixture, status: Status
) -> None:
    with caplog.at_level(logging.WARNING, logger="ors_client"), FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/delete", status, times=None))
        client = Client(proxy.url, retry=FAST, timeout=Timeouts(close=1.0), keepalive=NO_PINGS)
        with client, client.environment("counterenvironment").session(TaskRef("train", 0)) as session:
            sid = session.session_id
        assert client.leaked_sessions == 1
        assert client.open_sessions == 0
    assert [sid in record.getMessage() for record in caplog.records] == [True]
    with Client(ours.url) as other:  # its own words for the server, so that the next test finds it empty
        other._client._server.keepalive.delete_later(other._client._server.keepalive.register(sid))
    assert sid not in ours.live()


def test_delete_that_fails_is_repeated_in_the_background(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy, Client(proxy.url, retry=FAST, keepalive=NO_PINGS) as client:
        proxy.add(Rule("POST", "/delete", Status(500), times=2))
        with client.environment("counterenvironment").session(TaskRef("train", 0)) as session:
            session.get_prompt()
        until(lambda: session.session_id not in ours.live(), within=15, what="The deletion")
        until(lambda: client.open_sessions == 0, within=15, what="No tracked session")
        assert client.leaked_sessions == 0


def test_close_is_bounded_when_the_server_has_gone_silent(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy:
        client = Client(proxy.url, retry=FAST, timeout=Timeouts(close=1.0), keepalive=NO_PINGS)
        client.__enter__()
        session = client.environment("counterenvironment").session(TaskRef("train", 0)).__enter__()
        proxy.add(Rule(None, "/delete", Silence(None), times=None))

        began = time.monotonic()
        session.close()
        client.close()

        # Two seconds, on a machine that is not busy; a request of its own would be waited for for a minute.
        assert time.monotonic() - began < Timeouts().response / 2
        assert client.leaked_sessions == 1
    nothing_left(ours, within=30)


# --- The end of the process ------------------------------------------------------------------------------------------

_BLOCKING = """
import signal, sys, time, ors_client
{first}
client = ors_client.Client(sys.argv[1]).__enter__()
session = client.environment("slowenvironment").session(
    ors_client.Task(environment="slowenvironment", spec={{"teardown_seconds": 0.5}})
).__enter__()
session.get_prompt()
print("open", flush=True)
{then}
"""
_ASYNC = """
import signal, sys, asyncio, anyio, time, ors_client
{first}
async def main():
    client = await ors_client.AsyncClient(sys.argv[1]).__aenter__()
    session = await client.environment("slowenvironment").session(
        ors_client.Task(environment="slowenvironment", spec={{"teardown_seconds": 0.5}})
    ).__aenter__()
    await session.get_prompt()
    print("open", flush=True)
    {then}
anyio.run(main, backend={backend!r})
"""
_CALL = "session.call_tool('wait', {'seconds': 60})"
# What the documentation tells to put at the top of a program that is ended by SIGTERM.
_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))"

PROGRAMS = {
    "blocking-exit": (_BLOCKING.format(first="", then=""), None, 0),
    "asyncio-exit": (_ASYNC.format(first="", then="", backend="asyncio"), None, 0),
    "trio-exit": (_ASYNC.format(first="", then="", backend="trio"), None, 0),
    "blocking-exception": (_BLOCKING.format(first="", then="raise SystemExit(3)"), None, 3),
    "blocking-sigterm": (
        _BLOCKING.format(first=_HANDLER, then=_CALL),
        signal.SIGTERM,
        -signal.SIGINT,
    ),
    "asyncio-sigterm": (
        _ASYNC.format(first=_HANDLER, then=f"await {_CALL}", backend="asyncio"),
        signal.SIGTERM,
        -signal.SIGINT,
    ),
    "trio-sigterm": (
        _ASYNC.format(first=_HANDLER, then=f"await {_CALL}", backend="trio"),
        signal.SIGTERM,
        1,  # trio wraps the interrupt in a group
    ),
    "blocking-sigint": (
        _BLOCKING.format(first="", then=_CALL),
        signal.SIGINT,
        -signal.SIGINT,
    ),
    "asyncio-sigint": (
        _ASYNC.format(first="", then=f"await {_CALL}", backend="asyncio"),
        signal.SIGINT,
        -signal.SIGINT,
    ),
}


def test_handler_of_sigterm_is_the_documented_one() -> None:
    assert _HANDLER in (ROOT / "docs" / "failures.md").read_text()
    assert _HANDLER in (AsyncClient.__doc__ or "")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_that_ends_with_an_open_session_leaves_nothing(ours: Server, name: str) -> None:
    program, sent, status = PROGRAMS[name]
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", program, ours.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "open\n"
        if sent is not None:
            until(lambda: ours.stats()["active"] > 0, within=30, what="The call")
            process.send_signal(sent)
        _, complaints = process.communicate(timeout=30)  # it does not wait for the call
    assert process.returncode == status, complaints
    # Development mode tells of slow callbacks too, such as imports; they are none of the end's business.
    assert "Warning" not in complaints
    assert "Unclosed" not in complaints
    assert "never" not in complaints
    nothing_left(ours, within=10)  # at once, unless the machine is too busy for the seconds that an exit may take
