"""Forked, spawned, threaded, and from one event loop to the next: it works, or says clearly and at once why not."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import anyio
import pytest
from aftermath import NO_PINGS, nothing_left, slow, until
from process_work import COUNT, count_once, count_once_async, fail, raise_it
from servers import ROOT, Server, serve

from fixtures.proxy import FaultProxy
from ors_client import AsyncClient, Client, ClientStateError, OutcomeUnknown, ToolFailed

# httpx's own generators, where a request is cancelled while it is sent; trio alone complains.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")

LIMIT = 30.0  # seconds for a process, on a busy machine


# --- Processes -------------------------------------------------------------------------------------------------------

_FORK = """
import os, sys, anyio, ors_client
url = sys.argv[1]
TASK = ors_client.TaskRef("train", 0)

def step(client):
    with client.environment("counterenvironment").session(TASK) as session:
        return session.call_tool("step").text

async def step_async(client):
    async with client.environment("counterenvironment").session(TASK) as session:
        return (await session.call_tool("step")).text

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except ors_client.ClientStateError as error:
        return type(error).__name__

def in_child(function):
    child = os.fork()
    if child == 0:
        print(function(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)

"""
FORKS = {
    "made_before": (
        (
            "client = ors_client.Client(url)\n"
            "def child():\n    with client: return step(client)\n"
            "in_child(child)\n"
            "with client: print(step(client))\n"
        ),
        ["1", "1"],
    ),
    "made_before_async": (
        (
            "client = ors_client.AsyncClient(url)\n"
            "async def run():\n    async with client: return await step_async(client)\n"
            "in_child(lambda: anyio.run(run))\n"
            "print(anyio.run(run))\n"
        ),
        ["1", "1"],
    ),
    "entered_before_first_use": (
        (
            "with ors_client.Client(url) as client:\n"
            "    in_child(lambda: attempt(step, client))\n"
            "    print(step(client))\n"
        ),
        ["ClientStateError", "1"],
    ),
    "used_before": (
        (
            "with ors_client.Client(url) as client:\n"
            "    with client.environment('counterenvironment').session(TASK) as session:\n"
            "        session.call_tool('step')\n"
            "        in_child(lambda: attempt(lambda: session.call_tool('step').text))\n"
            "        in_child(lambda: attempt(step, client))\n"
            "        print(session.call_tool('step').text)\n"
        ),
        ["ClientStateError", "ClientStateError", "2"],
    ),
    "used_before_async": (
        (
            "async def run():\n"
            "    async with ors_client.AsyncClient(url) as client:\n"
            "        async with client.environment('counterenvironment').session(TASK) as session:\n"
            "            await session.call_tool('step')\n"
            "            child = os.fork()\n"
            "            if child == 0:\n"
            "                try:\n"
            "                    await session.call_tool('step')\n"
            "                except ors_client.ClientStateError as error:\n"
            "                    print(type(error).__name__, flush=True)\n"
            "                os._exit(0)\n"
            "            os.waitpid(child, 0)\n"
            "            print((await session.call_tool('step')).text)\n"
            "anyio.run(run)\n"
        ),
        ["ClientStateError", "2"],
    ),
    "child_that_exits_normally": (
        (
            "with ors_client.Client(url) as client:\n"
            "    with client.environment('counterenvironment').session(TASK) as session:\n"
            "        session.call_tool('step')\n"
            "        child = os.fork()\n"
            "        if child == 0: sys.exit(0)\n"
            "        print(os.waitpid(child, 0)[1])\n"
            "        print(session.call_tool('step').text)\n"
        ),
        ["0", "2"],
    ),
}


@pytest.mark.sample(3)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", FORKS)
def test_fork(ours: Server, name: str) -> None:
    program, expected = FORKS[name]
    done = subprocess.run(
        [sys.executable, "-c", _FORK + program, ours.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == (expected, 0), done.stderr
    nothing_left(ours, within=5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_process_pool_of_each_kind_works(ours: Server, method: str) -> None:
    if method == "fork":
        assert count_once(ours.url) == "1"  # a parent that has used a client itself
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(count_once, [ours.url] * 3, timeout=LIMIT)) == ["1"] * 3
        with pytest.raises(ToolFailed) as caught:
            pool.submit(fail, ours.url).result(LIMIT)
    assert caught.value.detail == "a\nb"
    nothing_left(ours, within=5)


def test_error_travels_through_a_multiprocessing_pool(ours: Server) -> None:
    error = OutcomeUnknown("POST /echo/call", reason="reset", url=ours.url, session_id="s")
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(OutcomeUnknown) as caught:
        pool.apply_async(raise_it, (error,)).get(LIMIT)
    assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


# --- Threads ---------------------------------------------------------------------------------------------------------


def test_64_threads_share_one_blocking_client(ours: Server) -> None:
    with Client(ours.url) as client:
        environment = client.environment("counterenvironment")

        def run(_: int) -> list[str]:
            with environment.session(COUNT) as session:
                return [session.call_tool("step").text for _ in range(3)]

        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(run, range(64), timeout=60)) == [["1", "2", "3"]] * 64
        assert client.leaked_sessions == 0
    nothing_left(ours, within=5)


def test_threads_that_share_one_session_take_turns(ours: Server) -> None:
    with Client(ours.url) as client, client.environment("counterenvironment").session(COUNT) as session:
        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda _: session.call_tool("step").text, range(32), timeout=60))
        assert sorted(map(int, texts)) == list(range(1, 33))


def test_client_that_another_thread_closes_ends_the_call_with_a_clear_error(ours: Server) -> None:
    client = Client(ours.url)
    client.__enter__()
    session = client.environment("slowenvironment").session(slow()).__enter__()
    session.get_prompt()
    raised: list[Exception] = []

    def call() -> None:
        try:
            session.call_tool("wait", {"seconds": 60})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: ours.executions("wait") > 0 and ours.live() != [], within=5, what="The call")
    client.close()
    thread.join(LIMIT)
    assert [type(error) for error in raised] == [ClientStateError]
    with pytest.raises(ClientStateError):
        session.call_tool("count")
    nothing_left(ours, within=5)


# --- Event loops -----------------------------------------------------------------------------------------------------


def test_one_client_is_entered_by_one_event_loop_after_another(ours: Server) -> None:
    client = AsyncClient(ours.url)

    async def run() -> str:
        async with client:
            return await count_once_async(client)

    assert [anyio.run(run, backend=loop) for loop in ("asyncio", "trio", "asyncio")] == ["1"] * 3


def test_one_client_left_open_serves_a_second_event_loop(ours: Server, backend: str) -> None:
    client = AsyncClient(ours.url)

    async def first() -> str:
        await client.__aenter__()
        return await count_once_async(client)

    async def last() -> str:
        text = await count_once_async(client)
        await client.aclose()
        return text

    assert [anyio.run(first, backend=backend), anyio.run(last, backend=backend)] == ["1", "1"]


def test_client_of_a_running_event_loop_refuses_another(ours: Server) -> None:
    async def main() -> None:
        async with AsyncClient(ours.url) as client:
            await count_once_async(client)

            def elsewhere() -> None:
                with pytest.raises(ClientStateError, match="another event loop"):
                    asyncio.run(count_once_async(client))

            await anyio.to_thread.run_sync(elsewhere)
            assert await count_once_async(client) == "1"

    anyio.run(main)


def test_asyncio_and_trio_work_beside_each_other_in_one_process(ours: Server) -> None:
    async def main() -> list[str]:
        async with AsyncClient(ours.url) as client:
            return [await count_once_async(client) for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(anyio.run, main, backend=loop) for loop in ("asyncio", "trio")]
        assert [run.result(LIMIT) for run in runs] == [["1"] * 3] * 2


# --- Connections -----------------------------------------------------------------------------------------------------


def test_pool_works_after_a_storm_of_cancellations(ours: Server, backend: str) -> None:
    """httpcore loses a slot of a limited pool with each request that is cancelled at the wrong moment."""

    async def main(url: str) -> None:
        async with AsyncClient(url, keepalive=NO_PINGS) as client:
            environment = client.environment("counterenvironment")
            await environment.name()

            async def storm(number: int) -> None:
                for turn in range(40):
                    with anyio.move_on_after((number * 7 + turn) % 40 / 10_000):
                        await environment.num_tasks("train")

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(storm, number)
            with anyio.fail_after(30):
                assert await environment.num_tasks("train") == 1
                assert await count_once_async(client) == "1"

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)


@pytest.mark.slow
def test_600_calls_run_at_a_time(ours: Server) -> None:
    count = 600

    async def main() -> None:
        async with AsyncClient(ours.url) as client:
            environment = client.environment("slowenvironment")
            sessions = [environment.session(slow()) for _ in range(count)]
            texts: list[str] = []
            limiter = anyio.CapacityLimiter(20)

            async def prepare(session) -> None:
                async with limiter:
                    await session.__aenter__()
                    await session.get_prompt()

            async def call(session) -> None:
                texts.append((await session.call_tool("wait", {"seconds": 8.0})).text)

            for step in (prepare, call):
                async with anyio.create_task_group() as group:
                    for session in sessions:
                        group.start_soon(step, session)
            assert texts == ["1"] * count

    anyio.run(main)
    assert ours.stats()["peak"] >= count
    nothing_left(ours, within=10)


@pytest.mark.sample(4)
@pytest.mark.parametrize("idle", [1, 5])
def test_connection_that_the_server_closed_while_the_loop_was_blocked_loses_no_call(backend: str, idle: int) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url, keepalive=NO_PINGS) as client:
            environment = client.environment()
            sessions = [environment.session(COUNT) for _ in range(20)]
            for session in sessions:
                await session.__aenter__()

            async def step(session, expected: str) -> None:
                assert (await session.call_tool("step")).text == expected

            for expected in ("1", "2", "3") if idle == 1 else ("1", "2"):
                async with anyio.create_task_group() as group:
                    for session in sessions:
                        group.start_soon(step, session, expected)
                time.sleep(idle + 0.5)  # noqa: ASYNC251 - a model that generates in the same thread

    with serve("ours", "--env", "counter", "--idle-seconds", str(idle)) as server:
        anyio.run(main, server.url, backend=backend)


def test_connection_that_was_closed_while_idle_loses_no_call(backend: str) -> None:
    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment().session(COUNT) as session,
        ):
            for expected in ("1", "2", "3"):
                assert (await session.call_tool("step")).text == expected
                await anyio.sleep(1.2)

    with serve("ours", "--env", "counter") as server, FaultProxy(server.url, idle_timeout=1.0) as proxy:
        anyio.run(main, proxy.url, backend=backend)


@pytest.mark.slow
def test_call_never_goes_out_on_a_connection_that_was_idle_for_four_seconds(backend: str) -> None:
    """Nobody closed it here; a server that closes after five seconds may be about to."""

    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment().session(COUNT) as session,
        ):
            await session.get_prompt()
            for idle in (0.0, 4.5, 0.0):
                await session.call_tool("step")
                await anyio.sleep(idle)

    with serve("ours", "--env", "counter", "--idle-seconds", "60") as server, FaultProxy(server.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)
        first, second, third = (call.connection for call in proxy.find("POST", "/call"))
        assert first == second  # idle connections are used otherwise
        assert third != second
