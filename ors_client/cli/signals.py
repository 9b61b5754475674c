"""The end of a command by a signal: Ctrl-C, a closed terminal, or a stopped job.

Both ways lead through the `with` blocks, which delete sessions: as an exception for a command that blocks, as a
cancellation for one that runs an event loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any

import anyio

from ors_client import ORSError

from .options import Misuse

_REPEAT_SECONDS = 0.1
_ECHO_SECONDS = 0.5  # a repetition may arrive just after the handler ran; later ones are a person's


@contextlib.contextmanager
def exit_on_signal() -> Generator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C, and `SystemExit` on other signals to end, for the length of the block."""
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    repeater = _SignalRepeater(receiver)
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, repeater.handle) for number in numbers}
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=repeater.watch, name="ors-signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        sender.close()  # which ends the thread
        watcher.join()
        receiver.close()


class _SignalRepeater:
    # Python runs a signal's handler between two steps of the main thread, and a signal that arrives just before the
    # thread begins to wait for a line is not seen until the line comes. So a second thread repeats a signal until its
    # handler has run.

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver
        self._main = threading.get_ident()
        self._handled = threading.Event()
        self._at = 0.0

    def handle(self, number: int, frame: object) -> None:
        """Raise what ends the command; called by Python on the main thread."""
        del frame
        if self._handled.is_set() and time.monotonic() - self._at < _ECHO_SECONDS:
            return
        self._at = time.monotonic()
        self._handled.set()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def watch(self) -> None:
        """Repeat the first signal that arrives until it is handled."""
        received = self._receiver.recv(1)
        while received and hasattr(signal, "pthread_kill") and not self._handled.wait(_REPEAT_SECONDS):
            signal.pthread_kill(self._main, received[0])


async def run_until_signal(
    work: Callable[[], Awaitable[None]], beside: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> bool:
    """Run `work`, and `beside` it, until it is done or a signal ends the command; return whether one did.

    A signal becomes a cancellation, which ends sessions in order; Python's own way would raise it anywhere.
    """
    interrupted = False
    failed: list[Exception] = []  # not raised in the group, which would wrap it in a group of its own

    async def listen(signals: AsyncIterator[signal.Signals]) -> None:
        nonlocal interrupted
        async for _ in signals:
            interrupted = True
            group.cancel_scope.cancel()

    with _signals() as signals:
        async with anyio.create_task_group() as group:
            if signals is not None:
                group.start_soon(listen, signals)
            if beside is not None:
                group.start_soon(beside)
            try:
                await work()
            except (ORSError, OSError, Misuse) as error:
                failed.append(error)
            group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return interrupted


@contextlib.contextmanager
def _signals() -> Generator[AsyncIterator[signal.Signals] | None]:
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":  # where asyncio can't hear them
        yield None
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        yield signals
