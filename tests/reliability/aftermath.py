"""What is left of a client on a server, and waiting for it to be nothing."""

import time
from collections.abc import Callable

import anyio
import anyio.to_thread
from servers import Server

from ors_client import KeepalivePolicy, Task

NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)


def slow(**seconds: float) -> Task:
    """A task of the environment in which each stage takes as long as its task says."""
    return Task(environment="slowenvironment", spec=dict(seconds))


def until(holds: Callable[[], bool], *, within: float, what: str) -> None:
    """Block until something holds.

    Raises:
        TimeoutError: It does not within so many seconds.
    """
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {within} s.")
        time.sleep(0.02)


def nothing_left(server: Server, *, within: float) -> None:
    """Block until the server has no session.

    Raises:
        TimeoutError: It still has one.
    """
    until(lambda: not server.live(), within=within, what="A server without sessions")


async def nothing_left_async(server: Server, *, within: float) -> None:
    """Wait as `nothing_left` does, while the event loop goes on."""
    await anyio.to_thread.run_sync(lambda: nothing_left(server, within=within))
