"""Requests that belong to no episode, and the session ids that some servers demand even for those.

The catalogue demands one, and so do servers that say so. One id serves all requests of a deployment and is given back
once it is idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio

from ors_client._errors import SessionLost, StatusError
from ors_client._http.cookies import SessionCookies
from ors_client._http.transport import Transport
from ors_client._protocol.operations import Operation, create_session

from .deletion import TrackedSession
from .keepalive import Keepalive

T = TypeVar("T")

# Seconds after which an id that no request uses is given back. Pauses at a terminal, or between the parts of a program,
# should not cost another; where an account may open no more sessions, it is given back at once. Without an episode it
# can't be pinged, so where pings are frequent it goes after three intervals: such a server keeps it no longer.
_IDLE_SECONDS = 30.0
_IDLE_INTERVALS = 3


class DiscoverySession:
    """A session id without an episode, for requests that demand one; given back once it is idle.

    Args:
        tracked: As the keepalive knows it.
        idle_after: Seconds without use after which it is idle.
    """

    def __init__(self, tracked: TrackedSession, *, idle_after: float) -> None:
        self.tracked = tracked
        self.idle_after = idle_after
        self.lost = False
        self.users = 0
        self.used_at = time.monotonic()

    def __enter__(self) -> TrackedSession:
        self.users += 1
        return self.tracked

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        self.used_at = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether no request uses it, or has of late."""
        return self.users == 0 and time.monotonic() - self.used_at >= self.idle_after


class Discovery:
    """The requests of one client that belong to no episode.

    Args:
        transport: Sends them.
        keepalive: Knows the sessions that are open.
    """

    def __init__(self, transport: Transport, keepalive: Keepalive) -> None:
        self._transport = transport
        self._keepalive = keepalive
        self._demands_session = False
        self._creating = anyio.Lock()  # guards that one session id serves all requests of a deployment
        self._sessions: dict[str | None, DiscoverySession] = {}

    def needs_session_id(self, deployment: str | None) -> bool:
        """Tell whether a request takes a session's id: of the catalogue it is known, of others learnt."""
        return self._demands_session or self._transport.target.is_catalogue(deployment)

    async def send(self, make: Callable[[str | None], Operation[T]], deployment: str | None) -> T:
        """Send the request that `make` makes of a session id, or of `None` where the server demands none."""
        if not self.needs_session_id(deployment):
            try:
                return await self._transport.send(make(None))
            except StatusError as error:
                if error.status != 400 or "session" not in error.detail.lower():
                    raise
                self._demands_session = True
        try:
            return await self._send_with_session(make, deployment)
        except SessionLost:  # it expired, or was given back at this moment; another one serves as well
            return await self._send_with_session(make, deployment)

    def release_idle_sessions(self) -> None:
        """Give back the ids that no request uses now: an account may have few sessions."""
        for deployment, session in list(self._sessions.items()):
            if session.users == 0:
                session.lost = True
                self._discard(session, deployment)
                self._keepalive.delete_later(session.tracked)

    async def _send_with_session(self, make: Callable[[str | None], Operation[T]], deployment: str | None) -> T:
        session = self._sessions.get(deployment)
        if session is None:
            async with self._creating:
                session = self._sessions.get(deployment) or await self._create(deployment)
        try:
            with session as tracked:
                return await self._transport.send(tracked.own(make(tracked.session_id)))
        except SessionLost:
            session.lost = True
            self._discard(session, deployment)
            self._keepalive.unregister(session.tracked)
            raise

    async def _create(self, deployment: str | None) -> DiscoverySession:
        created: list[DiscoverySession] = []
        cookies = SessionCookies()

        def keep(session_id: str) -> None:  # also where the caller is cancelled meanwhile: the next one may use it
            idle_after = min(_IDLE_SECONDS, _IDLE_INTERVALS * self._keepalive.policy.interval)
            tracked = self._keepalive.register(session_id, deployment=deployment, cookies=cookies)
            session = self._sessions[deployment] = DiscoverySession(tracked, idle_after=idle_after)
            self._keepalive.later(idle_after, partial(self._delete_if_idle, session, deployment))
            created.append(session)

        self._keepalive.start()
        await self._transport.send(
            create_session(deployment=deployment).with_cookies(cookies),
            on_result=keep,
            on_capacity_error=self.release_idle_sessions,
        )
        return created[0]

    def _delete_if_idle(self, session: DiscoverySession, deployment: str | None) -> None:
        """Give an id back if it is idle, or look again later; on the keepalive's thread."""
        if session.lost:
            return
        if session.idle:
            self._discard(session, deployment)  # whoever has just taken it meets `SessionLost`, and takes another
            self._keepalive.delete_later(session.tracked)
        else:
            self._keepalive.later(session.idle_after, partial(self._delete_if_idle, session, deployment))

    def _discard(self, session: DiscoverySession, deployment: str | None) -> None:
        # Two threads do this, and another may have discarded it since the look. What took its place meanwhile is given
        # back by its own timer.
        if self._sessions.get(deployment) is session:
            self._sessions.pop(deployment, None)
