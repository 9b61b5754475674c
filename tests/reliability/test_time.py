"""Every wait has a named timeout, and none of them is used up by a program that blocked its own event loop."""

import time

import anyio
import pytest
from servers import Server

from fixtures.proxy import FaultProxy, Rule, Silence
from ors_client import AsyncClient, AsyncSession, DeadlineExceeded, KeepalivePolicy, ORSError, Task, TaskRef, Timeouts

pytestmark = pytest.mark.both_loops  # each measures time and cancels in its own way

NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)
LONG = 2_000_000  # more than a socket holds, so that reading it takes many turns of the event loop


def slow(**seconds: float) -> Task:
    return Task(environment="slowenvironment", spec=dict(seconds))


async def _call_while_blocked(
    proxy: FaultProxy, session: AsyncSession, tool: str, arguments: dict | None = None, *, limit: float | None = None
):
    """Call, and block the loop from the moment the server has the call until well after it has answered."""
    outputs = []

    async def call() -> None:
        try:
            outputs.append(await session.call_tool(tool, arguments, timeout=limit))
        except ORSError as error:
            outputs.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await proxy.wait_for_async("POST", "/call")
        time.sleep(1.2)  # noqa: ASYNC251 - what a training step does to its event loop
    return outputs[0]


@pytest.mark.parametrize("stage", ["before_headers", "after_headers", "after_task_id"])
def test_blocked_loop_longer_than_a_limit_does_not_lose_the_answer(ours: Server, backend: str, stage: str) -> None:
    limits = Timeouts(response=0.7, silence=0.7)

    async def main(url: str) -> None:
        async with (
            AsyncClient(url, timeout=limits, keepalive=NO_PINGS) as client,
            client.environment("awkwardenvironment").session(TaskRef("train", 0)) as session,
        ):
            await session.get_prompt()
            proxy.add(Rule("POST", "/call", Silence(0.3, stage)))

            output = await _call_while_blocked(proxy, session, "spaces", {"count": LONG})

            assert output.text == " " * LONG

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)
        assert proxy.count("POST", "/call") == 1


def test_blocked_loop_longer_than_the_timeout_of_a_call_does_not_lose_the_answer(ours: Server, backend: str) -> None:
    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow(tool_seconds=0.3)) as session,
        ):
            await session.get_prompt()

            output = await _call_while_blocked(proxy, session, "count", limit=0.7)

            assert output.text == "1"

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)


def test_silence_while_the_loop_is_blocked_still_ends_the_wait(ours: Server, backend: str) -> None:
    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow(tool_seconds=30)) as session,
        ):
            await session.get_prompt()
            with anyio.fail_after(20):
                error = await _call_while_blocked(proxy, session, "count", limit=0.7)
            assert isinstance(error, DeadlineExceeded)
            assert error.limit == "timeout"

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)
