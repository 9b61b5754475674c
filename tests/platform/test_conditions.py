"""The platform under load: backends that start slowly, sessions that expire, and no capacity."""

import anyio
import httpx
import pytest
from platforms import KEY, NAME, platform

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import (
    CapacityError,
    DeadlineExceeded,
    KeepalivePolicy,
    RetryPolicy,
    SessionLost,
    TaskRef,
    Timeouts,
)

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 1)
QUICK = RetryPolicy(first_delay=0.05, max_delay=0.2)
HEADERS = {"x-api-key": KEY, "x-deployment": NAME}


@pytest.fixture(scope="module")
def starting():
    with platform("--starting-requests", "2", "--starting-retry-after", "0.05") as server:
        yield server


@pytest.fixture(scope="module", params=[410, 404])
def fleeting(request):
    with platform("--session-ttl", "0.8", "--gone-status", str(request.param)) as server:
        yield server


@pytest.fixture(scope="module", params=[(), ("--capacity-retry-after", "0.1")], ids=["silent", "with Retry-After"])
def narrow(request):
    with platform("--capacity", "1", *request.param) as server:
        yield server


def neglect_one(server):
    """Have the platform make a session that nobody pings; return its id."""
    answer = httpx.post(f"{server.urls[1]}/create_session", json={}, headers=HEADERS, trust_env=False)
    return answer.text.split("data: ")[1].split("\r\n")[0]


def is_gone(server, session_id):
    """Tell whether the platform has ended a session, without a sign of life for it."""
    answer = httpx.get(
        f"{server.urls[1]}/alpha/splits", headers={**HEADERS, "x-session-id": session_id}, trust_env=False
    )
    return answer.status_code in {404, 410}


# starting backends


async def test_backend_that_starts_slowly_at_every_stage_costs_no_call(client_of, starting, state_of):
    before, ran = state_of(starting)["refused"].get("503", 0), starting.executions("ask")
    async with client_of(starting.urls, retry=QUICK) as client:
        environment = client.environment(NAME, variant="beta")
        assert await environment.num_tasks("train") == 10
        assert [tool.name for tool in await environment.list_tools()] == ["ask", "beta_only"]
        async with environment.session(TASK) as session:
            assert await session.get_prompt()
            assert (await session.call_tool("ask")).text == "beta: beta-train-1"
    assert client.leaked_sessions == 0
    assert starting.executions("ask") == ran + 1
    # Every route of each session says it twice: its environments, counts, tools, creation, prompt, call and deletion.
    assert state_of(starting)["refused"]["503"] >= before + 14


async def test_backend_that_never_starts_is_given_up_at_the_limit(client_of):
    with platform("--starting-requests", "1000", "--starting-retry-after", "0.05") as server:
        async with client_of(server.urls, retry=QUICK, timeout=Timeouts(start_up=0.5)) as client:
            with pytest.raises(DeadlineExceeded, match="still starting") as caught:
                await client.environment(NAME).list_splits()
    assert caught.value.limit == "start_up"


async def test_ping_that_is_told_to_come_later_loses_no_session(client_of, calm):
    with FaultProxy(calm.urls[1]) as proxy:
        proxy.add(Rule("POST", "/ping", Status.starting(), times=None))
        keepalive = KeepalivePolicy(interval=0.05, tolerance=0.2)
        async with (
            client_of((calm.urls[0], proxy.url), keepalive=keepalive) as client,
            client.environment(NAME).session(TASK) as session,
        ):
            await proxy.wait_for_async("POST", "/ping", count=12, timeout=20)
            assert session.lost is None
            assert (await session.call_tool("who")).text == "alpha: alpha-train-1"


# the time to live of a session


async def test_session_outlives_its_time_by_pings(client_of, fleeting, eventually):
    async with (
        client_of(fleeting.urls, keepalive=KeepalivePolicy(interval=0.1)) as client,
        client.environment(NAME).session(TASK) as session,
    ):
        neglected = neglect_one(fleeting)
        await anyio.to_thread.run_sync(lambda: eventually(lambda: is_gone(fleeting, neglected)))
        assert (await session.call_tool("who")).text == "alpha: alpha-train-1"


async def test_session_that_is_not_pinged_in_time_is_lost(client_of, fleeting, eventually):
    async with (
        client_of(fleeting.urls, keepalive=KeepalivePolicy(interval=60)) as client,
        client.environment(NAME).session(TASK) as session,
    ):
        await anyio.to_thread.run_sync(lambda: eventually(lambda: is_gone(fleeting, session.session_id)))
        with pytest.raises(SessionLost):
            await session.call_tool("who")
        assert session.lost
    assert client.leaked_sessions == 0


async def test_looking_around_goes_on_when_its_session_has_expired(client_of, fleeting, eventually):
    async with client_of(fleeting.urls) as client:
        environment = client.environment(NAME, variant="beta")
        assert await environment.num_tasks("train") == 10
        neglected = neglect_one(fleeting)
        await anyio.to_thread.run_sync(lambda: eventually(lambda: is_gone(fleeting, neglected)))
        assert await environment.num_tasks("train") == 10


async def test_session_that_expired_before_its_episode_began_is_replaced(client_of, fleeting):
    with FaultProxy(fleeting.urls[1]) as proxy:
        # Longer than the session's time: the first id has expired when its /create comes through.
        proxy.add(Rule("POST", "/create", Status.starting("1"), times=1))
        async with (
            client_of((fleeting.urls[0], proxy.url), keepalive=KeepalivePolicy(interval=0.1)) as client,
            client.environment(NAME).session(TASK) as session,
        ):
            assert (await session.call_tool("who")).text == "alpha: alpha-train-1"
        assert proxy.count("POST", "/create") == 3


# room

SOON = Timeouts(start_up=20)  # less than an id for looking around is kept for where there is room


async def test_looking_around_leaves_room_for_the_only_session(client_of, narrow):
    async with client_of(narrow.urls, retry=QUICK, timeout=SOON) as client:
        environment = client.environment(NAME, variant="beta")
        assert await environment.num_tasks("train") == 10
        async with environment.session(TASK) as session:
            assert (await session.call_tool("ask")).text == "beta: beta-train-1"


async def test_session_waits_until_there_is_room(client_of, narrow, state_of, eventually):
    async with client_of(narrow.urls, retry=QUICK, timeout=SOON) as client:
        environment = client.environment(NAME)
        await environment.name()
        first = environment.session(TASK)
        await first.__aenter__()
        refused = state_of(narrow)["refused"].get("429", 0)

        async def leave_when_another_waits():
            await anyio.to_thread.run_sync(lambda: eventually(lambda: state_of(narrow)["refused"]["429"] > refused))
            await first.__aexit__(None, None, None)

        async with anyio.create_task_group() as group:
            group.start_soon(leave_when_another_waits)
            async with environment.session(TASK) as second:
                assert (await second.call_tool("who")).text == "alpha: alpha-train-1"


async def test_no_room_at_the_limit_is_a_capacity_error(client_of, narrow):
    async with (
        client_of(narrow.urls, retry=QUICK) as one,
        one.environment(NAME).session(TASK),
        client_of(narrow.urls, retry=QUICK, timeout=Timeouts(start_up=0.5)) as other,
    ):
        with pytest.raises(CapacityError, match="Too many sessions"):
            await other.environment(NAME).list_splits()
