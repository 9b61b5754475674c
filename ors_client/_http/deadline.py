"""A limit on waiting that a blocked event loop does not use up.

While a program computes, its event loop stands still: answers arrive and nobody reads them. When it runs again, a plain
deadline is over in the same moment in which the answer could be read, and a call that succeeded would be given up. So
a deadline fires only after the loop had another chance to process I/O: in its third turn since. However long its turns
take, there is no further chance. It knows clocks, nothing of requests.
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

# Seconds from the first notice of a deadline until it fires. Turns of an idle loop take no time, and packets some.
_GRACE = 0.05
# The same, while something that was sent before it is still being read.
_LONGEST_GRACE = 0.9


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

    def cancel(self, scope: anyio.CancelScope) -> Timer | None:
        """Cancel a scope from within a timer; what is returned can still prevent it."""
        if not self.is_asyncio:
            scope.cancel()
            return None
        # anyio does not interrupt a task whose wait is over, and tries again in each turn. Where something comes in
        # every turn, it would always find it so. asyncio runs timers after it has read, so what they put off to the
        # next turn finds the task waiting again.
        return self.native.call_soon(scope.cancel, context=self._context)


class Deadline:
    """A cancel scope with a deadline that may be moved at little cost.

    Args:
        seconds: From its making on; `None` waits for ever.
        loop: The running one, where it is at hand.
        soonest: Seconds after which a nearer deadline may be set, as is foreseen; saves setting a second timer then.
    """

    __slots__ = ("_deadline", "_due", "_grace", "_loop", "_noticed", "_soonest", "_timer", "scope")

    def __init__(self, seconds: float | None, *, loop: Loop | None = None, soonest: float = math.inf) -> None:
        self.scope = anyio.CancelScope()
        self._loop = loop or Loop.running()
        now = self._loop.now()
        self._deadline = math.inf if seconds is None else now + seconds
        self._soonest = now + soonest
        self._due = math.inf  # when the timer rings; never, while there is none
        self._noticed: float | None = None  # when it was first seen that the deadline is over
        self._grace = 0.0  # until when it does not fire all the same
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
        # A later one costs nothing: it is found when the timer rings.
        if deadline < self._due or self._noticed is not None:
            self._noticed = None
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer(deadline)

    def note_progress(self) -> None:
        """Note that something was read: what has arrived while the loop was blocked is read in several pieces."""
        if self._noticed is not None:
            self._grace = min(self._loop.now() + _GRACE, self._noticed + _LONGEST_GRACE)

    def _set_timer(self, due: float) -> None:
        self._due = due
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.now()
        if now < self._deadline:
            self._set_timer(self._deadline)
        elif self._noticed is None:
            self._noticed, self._grace = now, now + _GRACE
            self._set_timer(self._grace)
        elif now < self._grace:
            self._set_timer(self._grace)
        else:
            self._timer = self._loop.cancel(self.scope)
