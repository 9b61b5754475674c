"""More than a server can take: sessions queue, calls tell where their time went, and an absence is waited out."""

import asyncio
import contextlib
import time
from typing import Any

import anyio
import pytest
from aftermath import NO_PINGS, nothing_left, slow
from servers import Server, serve

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import (
    AsyncClient,
    CapacityError,
    Client,
    OutcomeUnknown,
    RetryPolicy,
    SessionLost,
    StatusError,
    TaskRef,
    Timeouts,
    TransportError,
)

COUNT = TaskRef("train", 0)
FAST = RetryPolicy(attempts=3, first_delay=0.05, max_delay=0.2)


# --- A limit on sessions ---------------------------------------------------------------------------------------------


def most_at_a_time(server: Server) -> int:
    """Tell how many episodes a server had at most, by its journal."""
    most = now = 0
    for entry in server.journal.entries("construct", "teardown"):
        now += 1 if entry["event"] == "construct" else -1
        most = max(most, now)
    return most


def test_sessions_beyond_the_limit_wait_for_room(backend: str) -> None:
    done: list[str] = []

    async def main(url: str) -> None:
        async with AsyncClient(url, max_sessions=4, keepalive=NO_PINGS) as client:

            async def run() -> None:
                async with client.environment().session(slow()) as session:
                    done.append((await session.call_tool("wait", {"seconds": 0.05})).text)

            async with anyio.create_task_group() as group:
                for _ in range(16):
                    group.start_soon(run)

    with serve("ours", "--env", "slow") as server:
        anyio.run(main, server.url, backend=backend)
        assert most_at_a_time(server) == 4
    assert done == ["1"] * 16


def test_room_is_given_back_by_sessions_that_fail_or_are_cancelled_or_forgotten(ours: Server, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(ours.url, max_sessions=1, keepalive=NO_PINGS) as client:
            environment = client.environment("slowenvironment")
            with pytest.raises(StatusError, match="Invalid split"):
                await environment.session(TaskRef("nosuch", 0)).__aenter__()
            with anyio.move_on_after(0.2):
                async with environment.session(slow(tool_seconds=30)) as session:
                    await session.call_tool("count")
            async with environment.session(slow()):
                with anyio.move_on_after(0.1) as waiting:  # in the queue
                    await environment.session(slow()).__aenter__()
                assert waiting.cancelled_caught
            await environment.session(slow()).__aenter__()  # nobody holds it
            with anyio.fail_after(30):
                async with environment.session(slow()) as session:
                    assert (await session.call_tool("count")).text == "1"

    anyio.run(main, backend=backend)
    nothing_left(ours, within=30)


def test_forgotten_session_leaves_its_place_to_those_that_wait_already(ours: Server, backend: str) -> None:
    unforeseen: list[dict[str, Any]] = []

    async def main() -> None:
        if backend == "asyncio":
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unforeseen.append(context))
        async with AsyncClient(ours.url, max_sessions=1, keepalive=NO_PINGS) as client:
            environment = client.environment("slowenvironment")
            held = [await environment.session(slow()).__aenter__()]

            async def play() -> None:
                async with environment.session(slow()) as session:
                    assert (await session.call_tool("count")).text == "1"

            with anyio.fail_after(30):
                async with anyio.create_task_group() as group:
                    for _ in range(2):
                        group.start_soon(play)
                    await anyio.wait_all_tasks_blocked()
                    held.clear()  # nobody holds it

    if backend == "asyncio":
        asyncio.run(main())  # callbacks of a loop that anyio began would know of anyio
    else:
        anyio.run(main, backend=backend)
    assert unforeseen == []
    nothing_left(ours, within=30)


def test_limit_on_sessions_holds_for_the_blocking_client_too(ours: Server) -> None:
    with Client(ours.url, max_sessions=1, keepalive=NO_PINGS) as client:
        environment = client.environment("counterenvironment")
        for _ in range(3):
            with environment.session(COUNT) as session:
                assert session.call_tool("step").text == "1"


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_of_no_session_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="max_sessions"):
        Client("http://127.0.0.1:1", max_sessions=limit)


# --- Where the time went ---------------------------------------------------------------------------------------------


def test_call_tells_its_time_at_the_server(ours: Server, backend: str) -> None:
    async def main() -> None:
        async with (
            AsyncClient(ours.url, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow(setup_seconds=0.4)) as session,
        ):
            assert session.last_call is None
            await session.call_tool("wait", {"seconds": 0.3})
            first = session.last_call
            await session.call_tool("wait", {"seconds": 0.3})
            second = session.last_call
        assert first.setup >= 0.3
        assert second.setup < first.setup
        for times in (first, second):
            assert times.server >= 0.3
            assert times.queued < times.server

    anyio.run(main, backend=backend)


def test_call_tells_its_time_in_the_queue_of_its_session(ours: Server) -> None:
    async def main() -> None:
        async with (
            AsyncClient(ours.url, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()
            seen = []

            async def call() -> None:
                await session.call_tool("wait", {"seconds": 0.2})
                seen.append(session.last_call)

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(call)
            queued = sorted(times.queued for times in seen)
            assert all(times.server >= 0.2 for times in seen)
            assert queued[0] < queued[1] < queued[2] < queued[3]
            assert queued[3] >= 0.6

    anyio.run(main)


def test_call_tells_how_long_the_server_had_no_room(ours: Server, backend: str) -> None:
    async def main(proxy: FaultProxy) -> None:
        async with (
            AsyncClient(proxy.url, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()
            proxy.add(Rule("POST", "/call", Status(429, headers={"Retry-After": "1"})))
            began = time.monotonic()
            await session.call_tool("count")
            took, times = time.monotonic() - began, session.last_call
            assert times.queued >= 1.0
            assert times.queued + times.server <= took  # and not in both

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy, backend=backend)


def test_call_tells_its_time_without_a_connection(ours: Server, backend: str) -> None:
    async def main(proxy: FaultProxy) -> None:
        async with (
            AsyncClient(proxy.url, retry=FAST, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()
            began, took = time.monotonic(), []

            async def call() -> None:
                sent.set()
                await session.call_tool("count")
                took.append(time.monotonic() - began)

            sent = anyio.Event()
            async with anyio.create_task_group() as group:
                with proxy.refusing():
                    group.start_soon(call)
                    await sent.wait()
                    await anyio.sleep(1.0)
            times = session.last_call
            assert times.connecting >= 0.5  # of at least one second
            assert times.connecting + times.server <= took[0]  # and not in both

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy, backend=backend)


# --- A server that is away for a while -------------------------------------------------------------------------------


def test_rollouts_wait_for_a_server_that_is_away(ours: Server, backend: str) -> None:
    """Nothing was under way when it went; with five attempts alone they would all have failed within a second."""
    texts: list[str] = []

    async def main(proxy: FaultProxy) -> None:
        async with AsyncClient(proxy.url, retry=FAST, keepalive=NO_PINGS) as client:
            environment = client.environment("counterenvironment")
            sessions = [environment.session(COUNT) for _ in range(10)]
            for session in sessions:
                await session.__aenter__()
                await session.get_prompt()

            begun: list[str] = []

            async def go_on(session) -> None:
                begun.append("a call")
                texts.append((await session.call_tool("step")).text)

            async def begin() -> None:
                begun.append("a session")
                async with environment.session(COUNT) as session:
                    texts.append((await session.call_tool("step")).text)

            async with anyio.create_task_group() as group:
                with proxy.refusing():
                    for session in sessions:
                        group.start_soon(go_on, session)
                        group.start_soon(begin)
                    while len(begun) < 20:  # noqa: ASYNC110 - as many events would say no more
                        await anyio.sleep(0.01)
                    await anyio.sleep(2.0)  # longer than all attempts take

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy, backend=backend)
    assert texts == ["1"] * 20


def test_server_that_stays_away_ends_the_wait_at_its_limit(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy:
        limits = Timeouts(start_up=2.0)
        client = Client(proxy.url, retry=FAST, timeout=limits, keepalive=NO_PINGS)
        with client, client.environment("counterenvironment").session(COUNT) as session:
            session.get_prompt()
            with proxy.refusing(), pytest.raises(TransportError) as caught:
                session.call_tool("step")
            assert not isinstance(caught.value, OutcomeUnknown)
            assert caught.value.attempts > FAST.attempts
            assert session.call_tool("step").text == "1"


def test_server_without_room_for_ever_says_so(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy:
        client = Client(proxy.url, retry=FAST, timeout=Timeouts(start_up=2.0), keepalive=NO_PINGS)
        proxy.add(Rule("POST", "/create", Status(429, headers={"Retry-After": "0.1"}), times=None))
        with client, pytest.raises(CapacityError) as caught:
            client.environment("counterenvironment").session(COUNT).__enter__()
        assert caught.value.retry_after == pytest.approx(0.1)
    nothing_left(ours, within=30)


def test_restarted_server_loses_sessions_clearly_and_serves_new_ones() -> None:
    with serve("ours", "--env", "counter") as server:
        port = server.url.rpartition(":")[2]
        client = Client(server.url, retry=FAST, keepalive=NO_PINGS).__enter__()
        session = client.environment().session(COUNT).__enter__()
        assert session.call_tool("step").text == "1"
    with serve("ours", "--env", "counter", "--port", port) as server, contextlib.closing(client):
        with pytest.raises(SessionLost):
            session.call_tool("step")
        with client.environment().session(COUNT) as fresh:
            assert fresh.call_tool("step").text == "1"
        assert not server.live()
