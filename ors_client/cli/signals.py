"""Being told to end as a cancellation, for commands that run an event loop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator

import anyio

from ors_client import ORSError

from .options import Misuse


async def until_told(work: Callable[[], Awaitable[None]]) -> bool:
    """Run `work` until it is done or the command is told to end; return whether it was told.

    A signal becomes a cancellation, which ends sessions in order; Python's own way would raise it anywhere.
    """
    told = False
    failed: list[Exception] = []  # not raised in the group, which would wrap it in a group of its own

    async def listen(signals: AsyncIterator[signal.Signals]) -> None:
        nonlocal told
        async for _ in signals:
            told = True
            group.cancel_scope.cancel()

    with _signals() as signals:
        async with anyio.create_task_group() as group:
            if signals is not None:
                group.start_soon(listen, signals)
            try:
                await work()
            except (ORSError, OSError, Misuse) as error:
                failed.append(error)
            group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return told


@contextlib.contextmanager
def _signals() -> Generator[AsyncIterator[signal.Signals] | None]:
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":  # where asyncio can't hear them
        yield None
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        yield signals
