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
from contextvars import Context
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import anyio.lowlevel

# Seconds between the end of a wait and the last look. What lies in a socket is read within a few turns of the loop; a
# look that itself is later than this shows that the loop was blocked again, and is repeated.
_LAST_POLL = 0.05


class Timer(Protocol):
    """What was set to ring."""

    def cancel(self) -> object:
        """Prevent it."""
        ...


@dataclass(frozen=True, slots=True)
class Loop:
    """An event loop and its clock, which are dear to find again for every reading.

    Args:
        native: asyncio's event loop, or what names trio's.
        is_asyncio: Whether it is asyncio's.
        now: anyio's clock on it.
    """

    native: Any
    is_asyncio: bool
    now: Callable[[], float]
    _context: Context = field(default_factory=Context)  # of all timers, which need none, and else would each copy one

    @classmethod
    def running(cls) -> Loop:
        """Return the one that runs this code."""
        native: Any = anyio.lowlevel.current_token().native_token
        is_asyncio = isinstance(native, asyncio.AbstractEventLoop)
        return cls(native, is_asyncio, native.time if is_asyncio else anyio.current_time)

    def is_running(self) -> bool:
        """Whether it runs this code."""
        if not self.is_asyncio:
            return anyio.lowlevel.current_token().native_token is self.native
        try:
            return asyncio.get_running_loop() is self.native
        except RuntimeError:  # it is trio that runs
            return False

    def is_closed(self) -> bool:
        """Whether it is known that it will not run again."""
        return self.is_asyncio and self.native.is_closed()

    def call_at(self, moment: float, function: Callable[[], None]) -> Timer:
        """Call `function` at a moment of its clock, while it runs; it can't rely on context variables."""
        if self.is_asyncio:
            return self.native.call_at(moment, function, context=self._context)
        trio: Any = sys.modules["trio"]  # it runs this code
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await trio.sleep_until(moment)
                function()

        trio.lowlevel.spawn_system_task(wait)
        return scope

    async def poll_io(self) -> None:
        """Let it take notice of what has arrived at sockets while it was blocked, which takes two turns."""
        if self.is_asyncio:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()


class Deadline:
    """A cancel scope with a deadline that may be moved at little cost.

    Args:
        seconds: From its making on; `None` waits for ever.
        loop: The running one, where it is at hand.
        soonest: Seconds after which a nearer deadline may be set, as is foreseen; saves setting a second timer then.
    """

    __slots__ = ("_deadline", "_due", "_loop", "_polled", "_soonest", "_timer", "scope")

    def __init__(self, seconds: float | None, *, loop: Loop | None = None, soonest: float = math.inf) -> None:
        self.scope = anyio.CancelScope()
        self._loop = loop or Loop.running()
        now = self._loop.now()
        self._deadline = math.inf if seconds is None else now + seconds
        self._soonest = now + soonest
        self._due = math.inf  # when the timer rings; never, while there is none
        self._polled = False
        self._timer: Timer | None = None

    def __enter__(self) -> Self:
        self.scope.__enter__()
        if self._deadline < math.inf:
            self._set_timer(min(self._deadline, self._soonest))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return bool(self.scope.__exit__(kind, error, traceback))

    def reschedule(self, deadline: float) -> None:
        """Move the deadline, on the loop's clock."""
        self._deadline = deadline
        self._polled = False
        # A later one costs nothing: it is found when the timer rings.
        if deadline < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer(deadline)

    def _set_timer(self, due: float) -> None:
        self._due = due
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.now()
        if now < self._deadline:
            self._set_timer(self._deadline)
        elif self._polled and now - self._due < _LAST_POLL:
            self.scope.cancel()
        else:
            self._polled = True
            self._set_timer(now + _LAST_POLL)
