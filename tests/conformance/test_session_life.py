"""A session lives while it is held, whatever the caller does meanwhile, and is gone when it is let go."""

import asyncio
import time

import anyio
import pytest
from waiting import eventually

from ors_client import (
    AsyncClient,
    Client,
    ClientStateError,
    KeepalivePolicy,
    SessionLost,
    Task,
    TaskRef,
    Timeouts,
)

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
OFTEN = KeepalivePolicy(interval=0.1, tolerance=30)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def pings(server, session_id):
    return server.stats()["ping_times"].get(session_id, [])


# --- Opened and closed -----------------------------------------------------------------------------------------------


@BACKENDS
async def test_left_session_is_gone_from_the_server(client, server):
    async with client.environment("echoenvironment").session(TASK) as session:
        await session.get_prompt()
        assert session.session_id in server.live()
        assert client.open_sessions == 1
    assert session.session_id not in server.live()
    assert (client.open_sessions, client.leaked_sessions) == (0, 0)


@BACKENDS
async def test_session_may_be_entered_in_one_task_and_left_in_another(client, server):
    session = client.environment("echoenvironment").session(TASK)

    async def enter():
        await session.__aenter__()
        await session.get_prompt()

    async def leave():
        await session.__aexit__(None, None, None)

    for step in (enter, leave):
        async with anyio.create_task_group() as group:
            group.start_soon(step)
    assert session.session_id not in server.live()
    with pytest.raises(ClientStateError):
        await session.get_prompt()


@BACKENDS
async def test_sessions_may_be_closed_in_any_order(client, server):
    environment = client.environment("counterenvironment")
    first, second = environment.session(TASK), environment.session(TASK)
    await first.__aenter__()
    await second.__aenter__()
    await first.aclose()
    assert (await second.call_tool("step")).metadata["session"] == 1
    await second.aclose()
    await second.aclose()
    assert not {first.session_id, second.session_id} & set(server.live())


@BACKENDS
async def test_closing_the_client_ends_its_sessions(server):
    async with AsyncClient(server.url) as client:
        environment = client.environment("echoenvironment")
        sessions = [environment.session(TASK) for _ in range(3)]
        for session in sessions:
            await session.__aenter__()
            await session.get_prompt()
        assert {session.session_id for session in sessions} <= set(server.live())
    assert not {session.session_id for session in sessions} & set(server.live())
    assert client.leaked_sessions == 0


@BACKENDS
async def test_sessions_side_by_side_do_not_mix(client):
    environment = client.environment("echoenvironment")
    heard = {}

    async def episode(index, word):
        async with environment.session(TaskRef("train", index)) as session:
            heard[word] = await session.call_tool("echo", {"text": word})

    async with anyio.create_task_group() as group:
        for index, word in enumerate(("hello", "world", "trl", "openreward") * 4):
            group.start_soon(episode, index % 4, word)
    assert [output.reward for output in heard.values()] == [1.0] * 4


@BACKENDS
async def test_calls_of_one_session_run_one_after_another(client, server):
    async with client.environment("slowenvironment").session(TASK) as session:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(session.call_tool, "wait", {"seconds": 0.1})
        events = [entry for entry in server.journal.entries("call", "call_done") if entry["sid"] == session.session_id]
    assert [entry["event"] for entry in events] == ["call", "call_done"] * 3


async def test_twenty_calls_use_one_connection(watched, proxy):
    async with watched.environment("counterenvironment").session(TASK) as session:
        for _ in range(20):
            await session.call_tool("step")
    calls = proxy.find("POST", "/call")
    assert len(calls) == 20
    assert len({call.connection for call in calls}) <= 2


# --- Kept alive ------------------------------------------------------------------------------------------------------


@BACKENDS
async def test_pings_go_on_during_a_long_call(server):
    async with (
        AsyncClient(server.url, keepalive=OFTEN) as client,
        client.environment("slowenvironment").session(TASK) as session,
    ):
        await session.call_tool("wait", {"seconds": 0.6})
        start, end = (
            next(entry["time"] for entry in server.journal.entries(event) if entry["sid"] == session.session_id)
            for event in ("call", "call_done")
        )
        assert sum(start < moment < end for moment in pings(server, session.session_id)) >= 2


@BACKENDS
async def test_pings_go_on_while_the_event_loop_is_blocked(server):
    async with (
        AsyncClient(server.url, keepalive=OFTEN) as client,
        client.environment("echoenvironment").session(TASK) as session,
    ):
        start = time.time()
        time.sleep(0.6)  # noqa: ASYNC251 - as a training step does
        end = time.time()
        assert sum(start < moment < end for moment in pings(server, session.session_id)) >= 2


def test_pings_go_on_while_a_blocking_user_thinks(server):
    with Client(server.url, keepalive=OFTEN) as client, client.environment("echoenvironment").session(TASK) as session:
        start = time.time()
        time.sleep(0.6)
        end = time.time()
        assert sum(start < moment < end for moment in pings(server, session.session_id)) >= 2


@pytest.mark.slow
async def test_pings_get_through_beside_more_streams_than_pools_allow(ours):
    async with AsyncClient(ours.url, keepalive=KeepalivePolicy(interval=0.5)) as client:
        environment = client.environment("slowenvironment")
        sessions = [environment.session(TASK) for _ in range(110)]

        async def run(session):
            async with session:
                await session.call_tool("wait", {"seconds": 1.0})

        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(run, session)
    pinged = ours.stats()["pings"]
    assert all(pinged.get(session.session_id) for session in sessions)


async def test_closed_session_is_pinged_no_more(server):
    async with AsyncClient(server.url, keepalive=OFTEN) as client:
        environment = client.environment("echoenvironment")
        async with environment.session(TASK) as session:
            await eventually(lambda: pings(server, session.session_id))
        async with environment.session(TASK) as other:
            await eventually(lambda: len(pings(server, other.session_id)) >= 3)
            deleted = next(
                entry["time"] for entry in server.journal.entries("teardown") if entry["sid"] == session.session_id
            )
            # One may have been on its way.
            assert sum(moment > deleted for moment in pings(server, session.session_id)) <= 1


# --- Lost ------------------------------------------------------------------------------------------------------------


@BACKENDS
async def test_call_on_a_session_that_the_server_lost_says_so_and_the_next_asks_nothing(watched, proxy, stranger):
    async with watched.environment("echoenvironment").session(TASK) as session:
        await session.get_prompt()
        await stranger.post("/delete", headers={"x-session-id": session.session_id})
        for _ in range(2):
            with pytest.raises(SessionLost) as caught:
                await session.call_tool("echo", {"text": "hello"})
            assert caught.value.session_id == session.session_id
        assert session.lost
    assert proxy.count("POST", "/call") == 1
    assert watched.open_sessions == 0


@BACKENDS
async def test_running_call_ends_at_once_when_a_ping_finds_the_session_lost(server, stranger):
    async with (
        AsyncClient(server.url, keepalive=OFTEN) as client,
        client.environment("slowenvironment").session(TASK) as session,
        anyio.create_task_group() as group,
    ):

        async def lose():
            await eventually(lambda: server.journal.executions("wait", sid=session.session_id))
            await stranger.post("/delete", headers={"x-session-id": session.session_id})

        group.start_soon(lose)
        with anyio.fail_after(30), pytest.raises(SessionLost):
            await session.call_tool("wait", {"seconds": 60})


# --- Cancelled -------------------------------------------------------------------------------------------------------


class Sibling(Exception):
    """What another task of the group raises."""


async def by_task_cancel(episode, running):
    task = asyncio.create_task(episode())
    await running()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_two_task_cancels(episode, running):
    task = asyncio.create_task(episode())
    await running()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_asyncio_timeout(episode, running):
    async def expire(timeout):  # noqa: ASYNC109 - the context, not a number
        await running()
        timeout.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):  # noqa: PT012 - the way of cancelling is what this is about
        async with asyncio.timeout(None) as timeout:
            expiring = asyncio.create_task(expire(timeout))
            await episode()
    await expiring


async def by_task_group(episode, running):
    async def fail():
        await running()
        raise Sibling

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(episode())
            group.create_task(fail())
    assert caught.group_contains(Sibling)


async def by_scope(episode, running):
    async with anyio.create_task_group() as group:

        async def expire(scope):
            await running()
            scope.cancel()

        with anyio.move_on_after(60) as scope:
            group.start_soon(expire, scope)
            await episode()
        assert scope.cancelled_caught


WAYS = [
    pytest.param("asyncio", by_task_cancel, id="task.cancel"),
    pytest.param("asyncio", by_two_task_cancels, id="task.cancel-twice"),
    pytest.param("asyncio", by_asyncio_timeout, id="asyncio.timeout"),
    pytest.param("asyncio", by_task_group, id="TaskGroup"),
    pytest.param("asyncio", by_scope, id="move_on_after-asyncio"),
    pytest.param("trio", by_scope, id="move_on_after-trio"),
]


@pytest.mark.parametrize(("anyio_backend", "cancel"), WAYS)
async def test_cancelled_call_ends_in_a_deletion(watched, proxy, server, cancel):
    session = watched.environment("slowenvironment").session(TASK)

    async def episode():
        async with session:
            await session.call_tool("wait", {"seconds": 2.0})

    async def running():
        await proxy.wait_for_async("POST", "/create", timeout=15)
        await eventually(lambda: session._id and server.journal.executions("wait", sid=session.session_id))

    await cancel(episode, running)
    assert proxy.count("POST", "/call") == 1
    assert [request.header("x-session-id") for request in proxy.find("POST", "/delete")] == [session.session_id]
    assert session.session_id not in server.live()
    assert watched.open_sessions == 0


@pytest.mark.parametrize(("anyio_backend", "cancel"), WAYS)
@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
async def test_cancelled_opening_leaves_nothing_behind(watched, proxy, server, cancel):
    slow = Task(environment="slowenvironment", spec={"constructor_seconds": 0.4})
    session = watched.environment("slowenvironment").session(slow)

    async def episode():
        async with session:
            raise AssertionError("It was cancelled before.")

    async def running():
        await proxy.wait_for_async("POST", "/create", timeout=15)

    await cancel(episode, running)
    session_id = proxy.find("POST", "/create")[0].header("x-session-id")
    await eventually(lambda: proxy.count("POST", "/delete"))
    await eventually(
        lambda: (
            session_id in {entry["sid"] for entry in server.journal.entries("teardown")}
            and session_id not in server.live()
        )
    )


@BACKENDS
@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
async def test_opening_whose_answer_was_not_waited_for_is_deleted_when_the_client_closes(proxy, server):
    slow = Task(environment="slowenvironment", spec={"constructor_seconds": 0.8})
    async with AsyncClient(proxy.url, timeout=Timeouts(close=0.2)) as client, anyio.create_task_group() as group:

        async def open_session():
            async with client.environment("slowenvironment").session(slow):
                raise AssertionError("It was cancelled before.")

        group.start_soon(open_session)
        await proxy.wait_for_async("POST", "/create", timeout=15)
        group.cancel_scope.cancel()
    session_id = proxy.find("POST", "/create")[0].header("x-session-id")
    with anyio.CancelScope(shield=True):
        await eventually(lambda: session_id in {entry["sid"] for entry in server.journal.entries("construct")})
    assert proxy.count("POST", "/delete") >= 1
    server.set_aside(seconds=0)  # the constructor outlasted the client, which had 0.2 seconds to close
