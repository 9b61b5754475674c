"""A limit ends each wait, whatever the peer sends and however busy the event loop is."""

import contextlib
import time
from collections.abc import AsyncIterator

import anyio
import pytest
from hostile_server import HONEST, HostileServer, answer, dripping

from ors_client import (
    AsyncClient,
    AsyncSession,
    DeadlineExceeded,
    KeepalivePolicy,
    ORSError,
    OutcomeUnknown,
    RetryPolicy,
    StatusError,
    TaskRef,
    Timeouts,
    TransportError,
)

NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)
SHORT = Timeouts(response=0.5, silence=0.3, start_up=1.5, close=0.5)
BOUND = 15.0  # seconds within which all of a test's waits are over; without a limit they never are

# Generators of httpx and httpcore, where an answer is left in the middle; trio alone complains.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
    pytest.mark.timeout(60),  # what is tested here goes on for ever where it fails
]


@contextlib.asynccontextmanager
async def busy(seconds: float) -> AsyncIterator[None]:
    """Let each turn of the event loop take that long."""

    async def burn() -> None:
        while True:
            time.sleep(seconds)  # noqa: ASYNC251 - what a busy program does to its event loop
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(burn)
        yield
        group.cancel_scope.cancel()


async def list_environments(client: AsyncClient) -> object:
    return await client.list_environments()


async def list_tools(client: AsyncClient) -> object:
    return await client.environment("env").list_tools()


async def get_prompt(client: AsyncClient) -> object:
    async with client.environment("env").session(TaskRef("train", 0)) as session:
        return await session.get_prompt()


async def call(client: AsyncClient) -> object:
    async with client.environment("env").session(TaskRef("train", 0)) as session:
        await session.get_prompt()
        return await session.call_tool("go", timeout=1.0)


ASKING = {
    "list_environments": list_environments,
    "tools": list_tools,
    "prompt": get_prompt,
    "create_session": get_prompt,
    "create": get_prompt,
    "call": call,
}


def silent(_: int):
    return [60.0]


@pytest.mark.parametrize("turn", [0.06, 0.5])
@pytest.mark.parametrize("name", ["list_environments", "call"])
def test_deadline_fires_while_every_turn_of_the_loop_is_long(backend: str, name: str, turn: float) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url, timeout=SHORT, keepalive=NO_PINGS) as client, busy(turn):
            with anyio.fail_after(BOUND), pytest.raises((DeadlineExceeded, OutcomeUnknown)):
                await ASKING[name](client)

    with HostileServer(**{name: silent}) as server:
        anyio.run(main, server.url, backend=backend)


def flooding(_: int):
    while True:
        yield b"HTTP/1.1 102 Processing\r\n\r\n" * 1000


def test_flood_of_interim_answers_does_not_put_off_the_deadline(backend: str) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url, timeout=SHORT, keepalive=NO_PINGS) as client:
            with anyio.fail_after(BOUND), pytest.raises((DeadlineExceeded, TransportError)):
                await client.list_environments()

    with HostileServer(list_environments=flooding) as server:
        anyio.run(main, server.url, backend=backend)


@pytest.mark.parametrize("name", ASKING)
def test_body_that_drips_is_due_within_the_limit_of_its_head(backend: str, name: str) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url, timeout=SHORT, keepalive=NO_PINGS, retry=RetryPolicy(attempts=2)) as client:
            with anyio.fail_after(BOUND), pytest.raises(ORSError):
                await ASKING[name](client)

    with HostileServer(**{name: lambda _: dripping()}) as server:
        anyio.run(main, server.url, backend=backend)


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize("name", ASKING)
def test_body_of_an_error_that_drips_is_read_for_a_moment(backend: str, name: str, status: int) -> None:
    async def main(url: str) -> None:
        retry = RetryPolicy(attempts=2, first_delay=0.01)
        async with AsyncClient(url, timeout=SHORT, keepalive=NO_PINGS, retry=retry) as client:
            with anyio.fail_after(BOUND), pytest.raises(StatusError if status == 400 else ORSError):
                await ASKING[name](client)

    with HostileServer(**{name: lambda _: dripping(status)}) as server:
        anyio.run(main, server.url, backend=backend)


def test_long_answer_that_arrived_while_the_loop_was_blocked_is_read(backend: str) -> None:
    """It takes more turns of the loop than a deadline waits for, as a socket holds a part of it alone."""
    text = "x" * 4_000_000

    async def main(url: str) -> None:
        blocks = []

        async def ask(session: AsyncSession) -> None:
            blocks.extend(await session.get_prompt())

        async with (
            AsyncClient(url, timeout=SHORT, keepalive=NO_PINGS) as client,
            client.environment("env").session(TaskRef("train", 0)) as session,
        ):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, session)
                await server.wait_for("prompt")
                time.sleep(1.0)  # noqa: ASYNC251 - longer than the limit
            assert blocks[0].text == text
        assert server.count("prompt") == 1

    with HostileServer(prompt=lambda _: [0.1, answer([{"type": "text", "text": text}])]) as server:
        anyio.run(main, server.url, backend=backend)


def test_ping_that_drips_does_not_keep_the_next_from_going_out(backend: str) -> None:
    async def main(url: str) -> None:
        keepalive = KeepalivePolicy(interval=0.3, tolerance=60.0)
        async with (
            AsyncClient(url, keepalive=keepalive) as client,
            client.environment("env").session(TaskRef("train", 0)) as session,
        ):
            await server.wait_for("ping", 4)
            assert session.lost is None

    def ping(nth: int):
        return [HONEST["ping"]] if nth else dripping()

    with HostileServer(ping=ping) as server:
        anyio.run(main, server.url, backend=backend)
