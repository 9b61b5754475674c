"""A thread with an event loop and connections of its own, beside the caller's.

A caller's loop may be blocked by a training step, cancelled or closed; what must go on regardless runs here. It knows
nothing of what runs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from .transport import Transport

EXIT_SECONDS = 4.0  # for what is left to do at interpreter exit, which should not take five


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that can still look up names while the interpreter exits, when no thread can be started."""

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the parent's name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        try:
            return await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)
        except RuntimeError:
            return socket.getaddrinfo(host, port, family, type, proto, flags)


class Background:
    """An event loop on a daemon thread, with a transport of its own.

    Args:
        make_transport: Called on the thread.
        name: The thread's.
    """

    transport: Transport

    def __init__(self, make_transport: Callable[[], Transport], *, name: str) -> None:
        self._make_transport = make_transport
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=name, daemon=True)
        self._thread.start()
        ready.result()

    def post(self, function: Callable[[Background], object]) -> None:
        """Call `function` on the thread; never blocks."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: the client is, too
            # In a context of its own: the caller's says which event loop runs, and that may be trio's.
            self._loop.call_soon_threadsafe(function, self, context=contextvars.Context())

    def later(self, delay: float, function: Callable[[], object]) -> None:
        """Call `function` after `delay` seconds; on the thread only."""
        self._loop.call_later(delay, function)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside all else; on the thread only."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self, last: Callable[[Transport], Coroutine[Any, Any, None]], *, within: float) -> None:
        """End all work, do the `last` for at most `within` seconds, and end the thread."""

        async def finish() -> None:
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        await last(self.transport)
            finally:
                self._stopped.set()

        self.post(lambda thread: thread.spawn(finish()))
        self._thread.join(within + 1.0)

    def _run(self, ready: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(self._main(ready))
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _main(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.transport = self._make_transport()
        ready.set_result(None)
        await self._stopped.wait()
        await self.transport.aclose()
