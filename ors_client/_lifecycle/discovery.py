"""Session ids without an episode, for servers that demand one even of who looks around.

One serves all questions to a deployment; it is given back once it is idle, and forgotten where the server lost it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio

from ors_client._errors import SessionLost
from ors_client._http.transport import Transport
from ors_client._protocol.operations import Operation, create_session

from .keepalive import Keepalive, TrackedSession

T = TypeVar("T")

# Seconds after which an id that nobody looks around with is given back. Pauses at a terminal, or between the parts of a
# program, should not cost another; where an account has no place left, it is given back at once. Without an episode it
# can't be pinged, so where pings are frequent it goes after three intervals: such a server keeps it no longer.
_IDLE_SECONDS = 30.0
_IDLE_INTERVALS = 3


class DiscoverySession:
    """A session id without an episode, for requests that demand one; given back once it is idle.

    Args:
        tracked: Of the ledger.
        rest: Seconds without use after which it is idle.
    """

    def __init__(self, tracked: TrackedSession, *, rest: float) -> None:
        self.tracked = tracked
        self.rest = rest
        self.lost = False
        self.users = 0
        self.used_at = time.monotonic()

    def __enter__(self) -> str:
        self.users += 1
        return self.tracked.session_id

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        self.used_at = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether nobody uses it, or has of late."""
        return self.users == 0 and time.monotonic() - self.used_at >= self.rest


class DiscoverySessions:
    """The ids for looking around, one for each deployment, made when one is first needed.

    Args:
        transport: For the requests.
        keepalive: The ledger of open sessions; ids are given back on its thread.
    """

    def __init__(self, transport: Transport, keepalive: Keepalive) -> None:
        self._transport = transport
        self._keepalive = keepalive
        self._obtaining = anyio.Lock()  # guards that one session id serves all who look around
        self._sessions: dict[str | None, DiscoverySession] = {}

    async def send(self, make: Callable[[str | None], Operation[T]], deployment: str | None) -> T:
        """Send a request under the id of its deployment.

        Raises:
            SessionLost: The id was no longer good; the next call gets another.
        """
        known = self._sessions.get(deployment)
        if known is None:
            async with self._obtaining:
                known = self._sessions.get(deployment) or await self._obtain(deployment)
        try:
            with known as session_id:
                return await self._transport.send(make(session_id))
        except SessionLost:
            self._forget(known, deployment)
            raise

    def release_idle(self) -> None:
        """Give back the ids for looking around that nobody looks around with now: an account may have few places."""
        for deployment, known in list(self._sessions.items()):
            if known.users == 0:
                known.lost = True
                self._discard(known, deployment)
                self._keepalive.delete_later(known.tracked)

    async def _obtain(self, deployment: str | None) -> DiscoverySession:
        made: list[DiscoverySession] = []

        def keep(session_id: str) -> None:  # also where the caller is cancelled meanwhile: the next one may use it
            rest = min(_IDLE_SECONDS, _IDLE_INTERVALS * self._keepalive.policy.interval)
            known = DiscoverySession(self._keepalive.register(session_id, deployment=deployment), rest=rest)
            self._sessions[deployment] = known
            self._keepalive.later(rest, partial(self._give_back, known, deployment))
            made.append(known)

        await self._transport.send(
            create_session(deployment=deployment), on_result=keep, on_capacity_error=self.release_idle
        )
        return made[0]

    def _give_back(self, known: DiscoverySession, deployment: str | None) -> None:
        """Give an id back if it is idle, or look again later; on the keepalive's thread."""
        if known.lost:
            return
        if known.idle:
            self._discard(known, deployment)  # whoever has just taken it meets `SessionLost`, and takes another
            self._keepalive.delete_later(known.tracked)
        else:
            self._keepalive.later(known.rest, partial(self._give_back, known, deployment))

    def _forget(self, known: DiscoverySession, deployment: str | None) -> None:
        known.lost = True
        self._discard(known, deployment)
        self._keepalive.unregister(known.tracked)

    def _discard(self, known: DiscoverySession, deployment: str | None) -> None:
        # Two threads do this, and another may have struck it since the look. What was put there meanwhile is given back
        # by its own timer.
        if self._sessions.get(deployment) is known:
            self._sessions.pop(deployment, None)
