"""How many sessions may be open at a time, and the wait of those for which there is no place yet.

It knows places and who has one, and nothing of what is done there.
"""

from __future__ import annotations

import anyio

from ors_client._errors import DeadlineExceeded
from ors_client._http.deadline import Deadline, Loop


class Room:
    """Places that are handed out in the order of asking.

    A queue that moves may be as long as it likes. One that stands still, as when a session waits for the one around
    it, ends in an error.

    Args:
        places: How many there are.
        seconds: The longest wait without any place becoming free, in seconds; `Timeouts.start_up`.
        url: For messages.
    """

    def __init__(self, places: int, *, seconds: float, url: str) -> None:
        self._places = places
        self._seconds = seconds
        self._url = url
        self._limiter = anyio.CapacityLimiter(places)
        self._waiting: set[Deadline] = set()
        self._loop: Loop | None = None

    async def enter(self, seat: Seat) -> None:
        """Wait for a place.

        Raises:
            DeadlineExceeded: None became free for too long.
        """
        self._loop = Loop.running()  # asked here, as a bare callback of asyncio's loop, which may leave, can't find it
        with Deadline(self._seconds, loop=self._loop) as deadline:
            self._waiting.add(deadline)
            try:
                await self._limiter.acquire_on_behalf_of(seat)
            finally:
                self._waiting.discard(deadline)
            return
        raise DeadlineExceeded(
            f"waiting for one of max_sessions={self._places} places",
            limit="start_up",
            seconds=self._seconds,
            url=self._url,
            advice="close a session first, raise max_sessions, or raise that limit if sessions last longer",
        )

    def leave(self, seat: Seat) -> None:
        """Give a place to the next, on the event loop that it was taken on."""
        self._limiter.release_on_behalf_of(seat)
        if self._waiting and self._loop is not None:
            until = self._loop.now() + self._seconds
            for deadline in self._waiting:
                deadline.reschedule(until)


class Seat:
    """One session's place among those that may be open at a time; not the session, which it must not keep alive.

    Args:
        room: All places; `None` is room without end.
    """

    def __init__(self, room: Room | None) -> None:
        self._room = room
        self._taken = False

    async def take(self) -> None:
        """Wait for a place.

        Raises:
            DeadlineExceeded: None became free for too long.
        """
        if self._room is not None:
            await self._room.enter(self)
            self._taken = True

    def give_back(self) -> None:
        """Leave the place, if it is held; on the event loop that took it."""
        if self._room is not None and self._taken:
            self._taken = False
            self._room.leave(self)
