"""Lets requests begin a few at a time, so that thousands that are asked for at once do not stand in each other's way.

If ten thousand requests begin in one turn of an event loop, each makes a connection of its own, and the loop comes to
read none of them before their limits are over; all that was done for them is done again. So a few begin in each turn.
Those that began before are served in the same turn, and their connections are there for the next. Nothing waits for the
network or for a time: a server that does not answer holds nobody up, and a loop with little to do lets a thousand in
within a few milliseconds. It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context

from .deadline import Loop

# A turn in which so many begin takes 10 to 20 ms, in which a server nearby has answered those of the turn before.
_EACH_TURN = 32


class Admission:
    """The queue of one event loop; on trio there is none, as its connections cost more than any queue saves."""

    def __init__(self, loop: Loop) -> None:
        self._loop: asyncio.AbstractEventLoop | None = loop.native if loop.is_asyncio else None
        self._left = _EACH_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False
        self._context = Context()  # not a caller's, which would live on

    async def wait(self) -> None:
        """Return when the next may begin."""
        loop = self._loop
        if loop is None:
            return
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn, loop, context=self._context)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = _EACH_TURN
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # it was not cancelled
                turn.set_result(None)
                self._left -= 1
        self._turning = self._left < _EACH_TURN
        if self._turning:
            loop.call_soon(self._turn, loop, context=self._context)
