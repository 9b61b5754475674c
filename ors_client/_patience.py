"""A limit on waiting that a blocked event loop does not use up.

While a program computes, its event loop stands still: answers arrive and nobody reads them. When it runs again, a plain
deadline is over in the same moment in which the answer could be read, and a call that succeeded would be given up. So
the end of a wait is believed only after the loop was free to listen once more. It knows clocks, nothing of requests.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel

# Seconds between the end of a wait and the last look. What lies in a socket is read within a few turns of the loop; a
# look that itself is later than this shows that the loop was blocked again, and is repeated.
_LAST_LOOK = 0.05


class Patience:
    """A cancel scope with a deadline that may be moved at little cost.

    Args:
        seconds: From its making on; `None` waits for ever.
    """

    __slots__ = ("_cancel_timer", "_deadline", "_due", "_looked", "_loop", "scope")

    def __init__(self, seconds: float | None) -> None:
        self.scope = anyio.CancelScope()
        # Kept, as anyio finds no event loop from within a callback of asyncio's.
        self._loop = anyio.lowlevel.current_token().native_token
        self._deadline = math.inf if seconds is None else anyio.current_time() + seconds
        self._due = math.inf  # when the timer rings; never, while there is none
        self._looked = False
        self._cancel_timer: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        self.scope.__enter__()
        if self._deadline < math.inf:
            self._look_at(self._deadline)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._cancel_timer is not None:
            self._cancel_timer()
        return bool(self.scope.__exit__(kind, error, traceback))

    def until(self, deadline: float) -> None:
        """Move the deadline, on anyio's clock."""
        self._deadline = deadline
        self._looked = False
        # A later one costs nothing: it is found when the timer rings.
        if deadline < self._due:
            if self._cancel_timer is not None:
                self._cancel_timer()
            self._look_at(deadline)

    def _look_at(self, due: float) -> None:
        self._due = due
        self._cancel_timer = _call_at(self._loop, due, self._look)

    def _look(self) -> None:
        now = self._loop.time() if isinstance(self._loop, asyncio.AbstractEventLoop) else anyio.current_time()
        if now < self._deadline:
            self._look_at(self._deadline)
        elif self._looked and now - self._due < _LAST_LOOK:
            self.scope.cancel()
        else:
            self._looked = True
            self._look_at(now + _LAST_LOOK)


def _call_at(loop: object, moment: float, function: Callable[[], None]) -> Callable[[], None]:
    """Call `function` at a moment of anyio's clock, on the running event loop `loop`; return what prevents it."""
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.call_at(moment, function).cancel
    trio: Any = sys.modules["trio"]  # it runs this code
    scope = trio.CancelScope()

    async def wait() -> None:
        with scope:
            await trio.sleep_until(moment)
            function()

    trio.lowlevel.spawn_system_task(wait)
    return scope.cancel
