"""An event loop on a thread of its own, beside the caller's.

A caller's loop may be blocked by a training step, cancelled or closed, or there may be none; what must go on regardless
runs here. The thread is a daemon, so that an interpreter that wants to exit can, whatever a server does; whoever owns
it stops it. It knows nothing of what runs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar

from ors_client._errors import ClientStateError

from .process import OwnProcess, explain_open_files
from .transport import Transport

T = TypeVar("T")

LastWork = Callable[[Transport, Callable[[], None]], Coroutine[Any, Any, None]]

EXIT_SECONDS = 4.0  # for what is left to do at interpreter exit, which should not take five


class _ExitSafeLoop(asyncio.SelectorEventLoop):
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


class LoopThread:
    """An asyncio event loop that runs from construction until `stop`.

    Args:
        name: The thread's.
        owner: What was closed when the loop has stopped, for messages.
    """

    def __init__(self, name: str, *, owner: str = "client") -> None:
        self.process = OwnProcess()
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._stopped = False
        # Guards `_stopped`: nothing is handed to the loop once it may have stopped, since nobody would answer. It is
        # re-entrant as a garbage collection within it may run finalizers that submit.
        self._lock = threading.RLock()
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name=name, daemon=True)
        self._thread.start()
        ready.result()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread and must not wait for it."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` from any thread; cancelling the future cancels it.

        Raises:
            ClientStateError: The loop has stopped, or is another process's.
        """
        if self.process.is_current:  # asked before the lock, which another thread of the parent may have held
            with self._lock:
                if not self._stopped:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        self.process.check()
        raise ClientStateError(f"This {self._owner} is closed; make a new one.")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and wait for it from another thread, as `wait` does."""
        return wait(self.submit(work))

    def post(self, function: Callable[[Self], object]) -> None:
        """Call `function` on the thread; never blocks, and does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            # In a context of its own: the caller's would live as long as what is begun here.
            self._loop.call_soon_threadsafe(function, self, context=contextvars.Context())

    def later(self, delay: float, function: Callable[[], object]) -> None:
        """Call `function` after `delay` seconds; on the thread only."""
        self._loop.call_later(delay, function)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` beside all else; on the thread only."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self, *, join_seconds: float | None = None) -> None:
        """Cancel what is running and end the thread; wait for its end for at most `join_seconds`."""
        if not self.process.is_current:
            return
        with self._lock:
            self._stopped = True
            self.post(lambda thread: thread._end.set())  # noqa: SLF001 - its own class
        if not self.is_current:
            self._thread.join(join_seconds)

    async def _begin(self) -> None:
        """Make what belongs to the loop."""

    async def _finish(self) -> None:
        """Close what belongs to the loop."""

    def _serve(self, ready: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=_ExitSafeLoop) as runner:
                runner.run(self._main(ready))
        except Exception as error:
            if ready.done():
                raise
            problem = explain_open_files(error)
            ready.set_exception(ClientStateError(f"No event loop can be made: {problem}.") if problem else error)

    async def _main(self, ready: Future[None]) -> None:
        sniffio: Any = sys.modules.get("sniffio")  # which anyio imports where it relies on it
        if sniffio is not None:  # a caller's context comes along with its coroutine, and may say that trio runs
            sniffio.thread_local.name = "asyncio"
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        await self._begin()
        ready.set_result(None)
        await self._end.wait()
        await self._finish()


class Background(LoopThread):
    """A loop on a thread with a transport of its own.

    Args:
        make_transport: Called on the thread.
        name: The thread's.
    """

    transport: Transport

    def __init__(self, make_transport: Callable[[], Transport], *, name: str) -> None:
        self._make_transport = make_transport
        super().__init__(name)

    def finish(self, last: LastWork, *, within: float, at_most: float | None = None) -> None:
        """End all work, do the `last`, and end the thread.

        Args:
            last: Gets the transport, and what it calls to tell of progress.
            within: Seconds until it is cut, from the last progress on.
            at_most: Seconds until it is cut in any case; by default there is no such extension.
        """
        seconds = within if at_most is None else at_most

        async def end() -> None:
            until = self._loop.time() + seconds
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within) as limit:
                        await last(self.transport, lambda: limit.reschedule(min(self._loop.time() + within, until)))
            finally:
                self._end.set()

        self.post(lambda thread: thread.spawn(end()))
        self._thread.join(seconds + 1.0)

    async def _begin(self) -> None:
        self.transport = self._make_transport()

    async def _finish(self) -> None:
        await self.transport.aclose()


def wait(future: Future[T]) -> T:
    """Wait for what runs on such a thread; when the wait is interrupted, cancel it.

    Raises:
        ClientStateError: It was cancelled, as its loop stopped.
    """
    try:
        return future.result()
    except CancelledError:
        raise ClientStateError("The client or spec behind this was closed while it was in use.") from None
    except BaseException:
        # Ctrl-C in the waiting thread says nothing to the loop's.
        with contextlib.suppress(RuntimeError):
            future.cancel()
        raise
