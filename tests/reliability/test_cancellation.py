"""A session that is cancelled, however and at whatever await, is deleted on the server while its client goes on."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import anyio
import pytest
import trio
from aftermath import NO_PINGS, nothing_left, nothing_left_async, slow
from servers import Server

from fixtures.proxy import FaultProxy, ResetAfterForward, ResetAfterRead, ResetBeforeRead, Rule, Silence
from ors_client import AsyncClient, AsyncEnvironment, ORSError, RetryPolicy, Task, TaskRef, Timeouts

# httpx's own generators, where a request is cancelled while it is sent; trio alone complains.
pytestmark = [
    pytest.mark.both_loops,  # each cancels in its own way
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

CLOSE = 15.0  # the limit within which a session has to be gone
LIMITS = Timeouts(close=CLOSE)
FAST = RetryPolicy(attempts=5, first_delay=0.02, max_delay=0.1)

Episode = Callable[[], Awaitable[object]]
Reached = Callable[[], Awaitable[object]]


# --- The ways to be cancelled ----------------------------------------------------------------------------------------


class SomebodyFailedError(Exception):
    """Raised by the neighbour of a task."""


async def task_cancel(episode: Episode, reached: Reached) -> None:
    task = asyncio.ensure_future(episode())
    await reached()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def two_task_cancels(episode: Episode, reached: Reached) -> None:
    task = asyncio.ensure_future(episode())
    await reached()
    task.cancel()
    for _ in range(3):  # the second one strikes while the first is being cleaned up after
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def asyncio_timeout(episode: Episode, reached: Reached) -> None:
    async with asyncio.TaskGroup() as group:

        async def expire() -> None:
            await reached()
            scope.reschedule(asyncio.get_running_loop().time())

        with pytest.raises(TimeoutError):  # noqa: PT012 - the limit is around all of it
            async with asyncio.timeout(None) as scope:
                group.create_task(expire())
                await episode()


async def failing_task_group(episode: Episode, reached: Reached) -> None:
    async def fail() -> None:
        await reached()
        raise SomebodyFailedError

    with pytest.RaisesGroup(SomebodyFailedError):
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            group.start_soon(episode)


async def anyio_scope(episode: Episode, reached: Reached) -> None:
    async with anyio.create_task_group() as group:

        async def expire() -> None:
            await reached()
            scope.deadline = anyio.current_time()

        with anyio.move_on_after(60) as scope:
            group.start_soon(expire)
            await episode()
        assert scope.cancelled_caught


WAYS = [
    pytest.param("asyncio", task_cancel, id="asyncio-task_cancel"),
    pytest.param("asyncio", two_task_cancels, id="asyncio-two_task_cancels"),
    pytest.param("asyncio", asyncio_timeout, id="asyncio-asyncio_timeout"),
    pytest.param("asyncio", failing_task_group, id="asyncio-failing_task_group"),
    pytest.param("asyncio", anyio_scope, id="asyncio-move_on_after"),
    pytest.param("trio", failing_task_group, id="trio-failing_task_group"),
    pytest.param("trio", anyio_scope, id="trio-move_on_after"),
]

STAGES = {
    "create_session": ("POST", "/create_session", slow()),
    "create": ("POST", "/create", slow(constructor_seconds=1.0)),
    "setup": ("GET", "/prompt", slow(setup_seconds=30.0)),
    "call": ("POST", "/call", slow(tool_seconds=30.0)),
    "delete": ("POST", "/delete", slow(teardown_seconds=0.5)),
}


def _episode(client: AsyncClient, task: Task) -> Episode:
    async def run() -> None:
        async with client.environment("slowenvironment").session(task) as session:
            await session.get_prompt()
            await session.call_tool("count")

    return run


@pytest.mark.parametrize(("loop", "cancelled"), WAYS)
@pytest.mark.parametrize("stage", STAGES)
def test_cancelled_session_is_deleted(ours: Server, stage: str, loop: str, cancelled) -> None:
    method, path, task = STAGES[stage]

    async def main(proxy: FaultProxy) -> None:
        async with AsyncClient(proxy.url, timeout=LIMITS, keepalive=NO_PINGS) as client:
            with anyio.fail_after(CLOSE + 5):
                await cancelled(_episode(client, task), lambda: proxy.wait_for_async(method, path))
            await nothing_left_async(ours, within=CLOSE)
            assert client.leaked_sessions == 0

    with FaultProxy(ours.url) as proxy:
        if stage == "create_session":
            proxy.add(Rule(method, path, Silence(0.3)))
        anyio.run(main, proxy, backend=loop)
        assert proxy.count("POST", "/call") == int(stage in {"call", "delete"})


@pytest.mark.parametrize(("loop", "cancelled"), WAYS)
def test_id_whose_reply_outlives_its_request_is_given_back(ours: Server, loop: str, cancelled) -> None:
    """Cancelled before the id is known: the reply is awaited, and then there is an id to delete."""

    async def main(proxy: FaultProxy) -> None:
        async with AsyncClient(proxy.url, timeout=LIMITS, keepalive=NO_PINGS) as client:
            with anyio.fail_after(CLOSE + 5):
                await cancelled(_episode(client, slow()), lambda: proxy.wait_for_async("POST", "/create_session"))
                await proxy.wait_for_async("POST", "/delete")

    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/create_session", Silence(0.3)))
        anyio.run(main, proxy, backend=loop)
        [opened] = proxy.find("POST", "/create_session")
        assert opened.ending == "complete"
        [deleted] = {request.header("X-Session-ID") for request in proxy.find("POST", "/delete")}
        assert deleted
        assert proxy.count("POST", "/create") == 0


@pytest.mark.parametrize("count", range(1, 7))
def test_session_cancelled_at_its_nth_request_is_deleted(ours: Server, backend: str, count: int) -> None:
    async def main(proxy: FaultProxy) -> None:
        async with AsyncClient(proxy.url, timeout=LIMITS, keepalive=NO_PINGS) as client:
            with anyio.fail_after(CLOSE + 5):
                await anyio_scope(_episode(client, slow()), lambda: proxy.wait_for_async(None, None, count))
            await nothing_left_async(ours, within=CLOSE)
            assert client.leaked_sessions == 0

    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule(None, "", Silence(0.1), times=None, when=lambda _: True))
        anyio.run(main, proxy, backend=backend)


# --- At every step of the event loop ---------------------------------------------------------------------------------


class Stepwise:
    """Awaits something and cancels its own asyncio task at the nth suspension, and, where asked, at every later one."""

    def __init__(self, work: Awaitable[object], *, at: int, again: bool) -> None:
        self.steps = 0
        self._work = work.__await__()
        self._at = at
        self._again = again

    def __await__(self) -> Generator[Any, Any, object]:
        send, value = self._work.send, None
        while True:
            try:
                future = send(value)
            except StopIteration as stop:
                return stop.value
            if self.steps == self._at or (self._again and self.steps > self._at):
                asyncio.current_task().cancel()
            self.steps += 1
            try:
                send, value = self._work.send, (yield future)
            except BaseException as error:  # noqa: BLE001 - passed on to what is awaited
                send, value = self._work.throw, error


@pytest.mark.parametrize("again", [False, True], ids=["once", "again_and_again"])
def test_session_cancelled_at_any_step_is_deleted(ours: Server, *, again: bool) -> None:
    async def run(client: AsyncClient, at: int) -> bool:
        """Cancel an episode at a step; tell whether it had so many."""
        work = Stepwise(_episode(client, slow())(), at=at, again=again)

        async def drive() -> None:
            await work

        task = asyncio.ensure_future(drive())
        await asyncio.wait([task], timeout=CLOSE + 5)
        assert task.done(), f"hangs when cancelled at step {at}"
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        return work.steps > at

    assert anyio.run(_steps_until_the_end, ours, run) > 5


async def _steps_until_the_end(server: Server, run: Callable[[AsyncClient, int], Awaitable[bool]]) -> int:
    """Run an episode again and again, cancelled one step later each time; tell how many steps it has."""
    async with AsyncClient(server.url, timeout=LIMITS, keepalive=NO_PINGS) as client:
        await client.environment("slowenvironment").name()
        step = 0
        while await run(client, step):
            step += 1
        await nothing_left_async(server, within=CLOSE)
        assert client.leaked_sessions == 0
    return step


class _CancelAt(trio.abc.Instrument):
    def __init__(self, at: int) -> None:
        self.steps = 0
        self.task: trio.lowlevel.Task | None = None
        self.scope = trio.CancelScope()
        self._at = at

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            if self.steps == self._at:
                self.scope.cancel()
            self.steps += 1


def test_session_cancelled_at_any_step_under_trio_is_deleted(ours: Server) -> None:
    async def run(client: AsyncClient, at: int) -> bool:
        instrument = _CancelAt(at)
        trio.lowlevel.add_instrument(instrument)
        try:
            with anyio.fail_after(CLOSE + 5), instrument.scope:
                instrument.task = trio.lowlevel.current_task()
                await _episode(client, slow())()
        finally:
            trio.lowlevel.remove_instrument(instrument)
        return instrument.scope.cancelled_caught

    assert anyio.run(_steps_until_the_end, ours, run, backend="trio") > 10


@pytest.mark.slow
def test_episodes_that_are_cancelled_while_connections_break_leave_nothing(ours: Server, backend: str) -> None:
    """Three of ten connections are reset, and three hundred episodes are cancelled, each at a moment of its own."""
    moments = random.Random(11)

    async def play(environment: AsyncEnvironment, limiter: anyio.CapacityLimiter, seconds: float) -> None:
        async with limiter:
            with suppress(ORSError), anyio.move_on_after(seconds):
                async with environment.session(TaskRef("train", 0)) as session:
                    while True:
                        await session.call_tool("step")

    async def main(url: str) -> int:
        limiter = anyio.CapacityLimiter(24)
        async with AsyncClient(url, retry=FAST, timeout=Timeouts(close=30.0)) as client:
            environment = client.environment("counterenvironment")
            async with anyio.create_task_group() as group:
                for _ in range(300):
                    group.start_soon(play, environment, limiter, moments.uniform(0.0, 1.0))
        return client.leaked_sessions

    with FaultProxy(ours.url, seed=11) as proxy:
        for fault in (ResetBeforeRead(), ResetAfterRead(), ResetAfterForward()):
            proxy.add(Rule(None, None, fault, times=None, probability=0.11))
        assert anyio.run(main, proxy.url, backend=backend) == 0
        assert proxy.count("POST", "/create") > 30
    nothing_left(ours, within=30)
