"""An event loop on a thread of its own, for coroutines that any other thread may start and wait for.

Knows nothing of what runs on it. The thread is a daemon, so that an interpreter that wants to exit can, whatever a
server does; whoever owns the loop stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ors_client import ClientStateError

T = TypeVar("T")


class BackgroundLoop:
    """An asyncio event loop that runs from construction until `stop`.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        # Guards `_stopped`: nothing is handed to the loop once it may have stopped, since nobody would answer. It is
        # re-entrant as a garbage collection within it may run finalizers that submit.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop's thread and must not wait for it."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `coroutine` on the loop; cancelling the future cancels it.

        Raises:
            ClientStateError: The loop has stopped.
        """
        with self._lock:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise ClientStateError("This OpenRewardSpec is closed; make a new one.")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop and wait for it from another thread."""
        return wait(self.submit(coroutine))

    def stop(self, *, join_seconds: float) -> None:
        """Cancel what is running and end the thread; wait for its end for at most `join_seconds`."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join(join_seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for task in (tasks := asyncio.all_tasks(self._loop)):
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


def wait(future: Future[T]) -> T:
    """Wait for what runs on a loop; when the wait is interrupted, cancel it.

    Raises:
        ClientStateError: It was cancelled, as its loop stopped.
    """
    try:
        return future.result()
    except CancelledError:
        raise ClientStateError("This OpenRewardSpec was closed while it was in use.") from None
    except BaseException:
        # Ctrl-C in the waiting thread says nothing to the loop's.
        with contextlib.suppress(RuntimeError):
            future.cancel()
        raise
