"""Sessions outlive a reaper of seconds, whatever their owner does meanwhile, and a lost one is told of at once."""

import collections
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import anyio
import anyio.to_thread
import pytest
from aftermath import slow, until
from servers import Server, serve

from fixtures.proxy import FaultProxy, ResetAfterForward, ResetAfterRead, Rule, Silence, Status
from ors_client import AsyncClient, AsyncSession, Client, KeepalivePolicy, SessionLost, Timeouts

REAPED = 1.5  # seconds after which the server forgets a session that nobody cares for
PAUSE = 2 * REAPED
PINGS = KeepalivePolicy(interval=0.3, tolerance=30.0)
NEVER = KeepalivePolicy(interval=3600.0, tolerance=3600.0)


@pytest.fixture(scope="module")
def reaper() -> Iterator[Server]:
    """A server that forgets a session within two seconds."""
    arguments = ("--session-timeout", str(REAPED), "--reap-every", "0.2", "--ready-wait", "1", "--env", "all")
    with serve("ours", *arguments) as server:
        yield server


async def _enter(sessions: Sequence[AsyncSession]) -> None:
    limiter = anyio.CapacityLimiter(20)  # one server process opens no more at a time, whatever is asked of it

    async def enter(session: AsyncSession) -> None:
        async with limiter:
            await session.__aenter__()

    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(enter, session)


def _pings(server: Server) -> list[list[float]]:
    return list(server.stats()["ping_times"].values())


def _since(start: float, moments: list[float]) -> list[float]:
    return [moment for moment in moments if moment > start]


def test_session_without_pings_is_reaped(reaper: Server) -> None:
    """The other tests of this module prove something only if the reaper works."""
    with (
        Client(reaper.url, keepalive=NEVER) as client,
        client.environment("slowenvironment").session(slow()) as session,
    ):
        session.get_prompt()
        until(lambda: session.session_id not in reaper.live(), within=REAPED + 5, what="The reaper")
        with pytest.raises(SessionLost):
            session.call_tool("count")


def test_session_outlives_a_blocked_event_loop(reaper: Server, backend: str) -> None:
    async def main() -> None:
        async with (
            AsyncClient(reaper.url, keepalive=PINGS) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()
            time.sleep(PAUSE)  # noqa: ASYNC251 - a training step
            assert (await session.call_tool("count")).text == "1"

    anyio.run(main, backend=backend)


def test_session_outlives_a_blocked_main_thread(reaper: Server) -> None:
    with (
        Client(reaper.url, keepalive=PINGS) as client,
        client.environment("slowenvironment").session(slow()) as session,
    ):
        session.get_prompt()
        time.sleep(PAUSE)
        assert session.call_tool("count").text == "1"


def test_session_outlives_a_setup_longer_than_the_reaper(reaper: Server, backend: str) -> None:
    async def main() -> None:
        async with (
            AsyncClient(reaper.url, keepalive=PINGS) as client,
            client.environment("slowenvironment").session(slow(setup_seconds=PAUSE)) as session,
        ):
            assert (await session.call_tool("count")).text == "1"

    anyio.run(main, backend=backend)


def test_session_outlives_a_call_longer_than_the_reaper(reaper: Server, backend: str) -> None:
    async def main() -> None:
        async with (
            AsyncClient(reaper.url, keepalive=PINGS) as client,
            client.environment("slowenvironment").session(slow(tool_seconds=PAUSE)) as session,
        ):
            assert (await session.call_tool("count")).text == "1"
            assert (await session.call_tool("count")).text == "2"

    anyio.run(main, backend=backend)


@pytest.mark.slow
def test_sessions_outlive_500_open_streams() -> None:
    streams, reaped = 500, 8.0
    done: list[str] = []

    async def main(url: str) -> None:
        policy = KeepalivePolicy(interval=1.5, tolerance=60.0)
        async with AsyncClient(url, keepalive=policy) as client:
            environment = client.environment()
            sessions = [environment.session(slow(tool_seconds=1.5 * reaped)) for _ in range(streams)]
            await _enter(sessions)

            async def call(session: AsyncSession) -> None:
                done.append((await session.call_tool("count")).text)

            async with anyio.create_task_group() as group:
                for session in sessions:
                    group.start_soon(call, session)

    with serve("ours", "--env", "slow", "--session-timeout", str(reaped), "--reap-every", "0.2") as server:
        anyio.run(main, server.url)
        assert server.stats()["peak"] >= streams
    assert done == ["1"] * streams


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "fault",
    [Status(503), Status(500), Status(429), ResetAfterRead(), ResetAfterForward(), Silence(None)],
    ids=["503", "500", "429", "reset", "reset_after_forward", "silent"],
)
def test_session_outlives_a_ping_route_that_fails_most_of_the_time(reaper: Server, fault) -> None:
    with FaultProxy(reaper.url) as proxy:
        proxy.add(Rule("POST", "/ping", fault, times=None, probability=0.6))
        policy = KeepalivePolicy(interval=0.2, tolerance=30.0)
        with (
            Client(proxy.url, keepalive=policy) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            session.get_prompt()
            time.sleep(PAUSE)
            assert session.lost is None
            assert session.call_tool("count").text == "1"


def test_five_dropped_pings_in_a_row_do_not_lose_a_session(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/ping", ResetAfterRead(), times=5))
        policy = KeepalivePolicy(interval=0.1, tolerance=30.0)
        with (
            Client(proxy.url, keepalive=policy) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            proxy.wait_for("POST", "/ping", 7, timeout=20)
            assert session.lost is None
            assert session.call_tool("count").text == "1"


def test_session_is_lost_after_the_tolerance_without_any_ping(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy:
        policy = KeepalivePolicy(interval=0.1, tolerance=1.0)
        with (
            Client(proxy.url, keepalive=policy) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            session.get_prompt()
            proxy.add(Rule("POST", "/ping", Status(503), times=None))
            with pytest.raises(SessionLost) as caught:
                session.call_tool("wait", {"seconds": 60})
            assert "no ping succeeded" in caught.value.reason
            failed = [ping for ping in proxy.find("POST", "/ping") if ping.rule is not None]
            assert failed[-1].arrived - failed[0].arrived > 0.8
        assert client.leaked_sessions == 0
    assert session.session_id not in ours.live()


def test_missing_ping_route_is_warned_of_once_and_left_alone(ours: Server, caplog: pytest.LogCaptureFixture) -> None:
    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/ping", Status(404, "Not Found"), times=None))
        policy = KeepalivePolicy(interval=0.1, tolerance=1.0)
        with Client(proxy.url, keepalive=policy) as client:
            environment = client.environment("slowenvironment")
            with environment.session(slow()) as first, environment.session(slow()) as second:
                for session in (first, second):
                    assert session.call_tool("wait", {"seconds": 1.5}).text == "1"
                    assert session.lost is None
        assert proxy.count("POST", "/ping") <= 4  # each session asks twice
    assert [record.levelname for record in caplog.records if "ping route" in record.getMessage()] == ["WARNING"]


def test_lost_session_ends_the_running_call_and_refuses_later_ones_at_once(ours: Server, backend: str) -> None:
    async def main(proxy: FaultProxy) -> None:
        policy = KeepalivePolicy(interval=0.1, tolerance=30.0)
        async with (
            AsyncClient(proxy.url, keepalive=policy) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()

            async def lose() -> None:
                await proxy.wait_for_async("POST", "/call")
                proxy.add(Rule("POST", "/ping", Status(410, "Session deleted"), times=None))

            async with anyio.create_task_group() as group:
                group.start_soon(lose)
                with anyio.fail_after(30), pytest.raises(SessionLost) as caught:
                    await session.call_tool("wait", {"seconds": 60})
            assert caught.value.session_id == session.session_id
            for ask in (session.get_prompt, session.list_tools, lambda: session.call_tool("count")):
                with pytest.raises(SessionLost):
                    await ask()
            assert proxy.count("POST", "/call") == 1

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy, backend=backend)


@pytest.mark.slow
def test_a_thousand_open_streams_hold_up_no_ping_and_cost_one_thread() -> None:
    count, interval = 1000, 4.0
    threads: list[int] = []
    names: list[str] = []
    moments: list[float] = []

    async def main(server: Server) -> None:
        policy = KeepalivePolicy(interval=interval, tolerance=120.0)
        async with AsyncClient(server.url, keepalive=policy, timeout=Timeouts(close=60.0)) as client:
            environment = client.environment()
            before = threading.active_count()
            sessions = [environment.session(slow()) for _ in range(count)]
            await _enter(sessions)
            threads.append(threading.active_count() - before)
            names.extend(thread.name for thread in threading.enumerate())
            async with anyio.create_task_group() as streams:
                for session in sessions:
                    streams.start_soon(session.call_tool, "wait", {"seconds": 600})
                await _eventually(lambda: server.stats()["active"] == count)
                opened = time.time()
                await _eventually(lambda: all(each[-1] > opened for each in server.stats()["ping_times"].values()))
                assert server.stats()["active"] == count
                pinged = server.stats()["ping_times"]
                assert len(pinged) == count
                moments.extend(moment for each in pinged.values() for moment in each if moment > opened)
                streams.cancel_scope.cancel()

    with serve("ours", "--env", "slow") as server:
        anyio.run(main, server)
        assert not server.live()
    assert threads[0] <= 1
    assert names.count("ors-client-keepalive") == 1
    # Evenly spread, a tenth of the interval holds a tenth of the pings; together, it would hold them all.
    tenths = collections.Counter(int(moment % interval / interval * 10) for moment in moments)
    assert max(tenths.values()) < count / 2


async def _eventually(holds: Callable[[], bool]) -> None:
    await anyio.to_thread.run_sync(lambda: until(holds, within=60, what="All of a thousand"))
