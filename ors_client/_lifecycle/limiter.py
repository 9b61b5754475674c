"""How many sessions may be open at a time. It knows permits and who holds one, and nothing of sessions."""

from __future__ import annotations

import anyio

from ors_client._errors import DeadlineExceeded
from ors_client._http.deadline import Deadline, Loop


class SessionLimiter:
    """Hands out permits in the order of asking.

    A queue that moves may be of any length. One that stands still, as when a session waits for the one around it, ends
    in an error.

    Args:
        sessions: How many may be open.
        seconds: The longest wait without any permit becoming free, in seconds; `Timeouts.start_up`.
        url: For messages.
    """

    def __init__(self, sessions: int, *, seconds: float, url: str) -> None:
        self._sessions = sessions
        self._seconds = seconds
        self._url = url
        self._limiter = anyio.CapacityLimiter(sessions)
        self._waiting: set[Deadline] = set()
        self._loop: Loop | None = None

    async def acquire(self) -> SessionPermit:
        """Wait for a permit.

        Raises:
            DeadlineExceeded: None became free for too long.
        """
        permit = SessionPermit(self)
        self._loop = Loop.running()  # asked here, as a bare callback of asyncio's loop, which may leave, can't find it
        with Deadline(self._seconds, loop=self._loop) as deadline:
            self._waiting.add(deadline)
            try:
                await self._limiter.acquire_on_behalf_of(permit)
            finally:
                self._waiting.discard(deadline)
            return permit
        raise DeadlineExceeded(
            f"waiting for one of max_sessions={self._sessions} places",
            limit="start_up",
            seconds=self._seconds,
            url=self._url,
            advice="close a session first, raise max_sessions, or raise that limit if sessions last longer",
        )

    def release(self, permit: SessionPermit) -> None:
        """Give a permit to the next, on the event loop that it was taken on."""
        self._limiter.release_on_behalf_of(permit)
        if self._waiting and self._loop is not None:
            until = self._loop.now() + self._seconds
            for deadline in self._waiting:
                deadline.reschedule(until)


class SessionPermit:
    """One session's permit to be open; not the session, which it must not keep alive."""

    def __init__(self, limiter: SessionLimiter) -> None:
        self._limiter: SessionLimiter | None = limiter

    def release(self) -> None:
        """Give the permit back, if it is still held; on the event loop that took it."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.release(self)
