"""Deletes sessions: what ends one on the server, and how often that is tried once nobody waits for it.

Knows which sessions of a client are open on the server and which could not be confirmed deleted. It runs on the thread
that keeps them alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ors_client._errors import ORSError, SessionLost, StatusError, TransportError
from ors_client._http.cookies import SessionCookies
from ors_client._http.redaction import get_logger
from ors_client._http.transport import Transport
from ors_client._protocol.operations import Operation, delete, delete_session, ping
from ors_client._protocol.retry import is_missing_route

_logger = get_logger("ors_client")

T = TypeVar("T")

# Seconds between the tries to delete a session in the background. A broken connection is no reason to wait; the last
# outlives a server's restart.
_DELETE_AGAIN = (0.0, 0.2, 0.8, 2.0, 5.0, 30.0)

# A constructor that runs when its session is deleted registers the session afterwards; these outlast most of them.
_DELETE_LATER = (3.0, 10.0, 30.0)
_BEGUN_TOGETHER = 32  # deletions, as many as the requests that a turn of the loop admits
_CHECK_EVERY = 0.5  # for such a session, or one whose deletion failed, while the client closes


@dataclass(slots=True, eq=False)
class TrackedSession:
    """A session that is open on the server.

    Args:
        session_id: Its id.
        deployment: Of the catalogue, where it belongs to one.
        on_lost: Called with the reason when the server no longer has it; set while it is pinged.
        due: When it is to be pinged next, on the monotonic clock.
        alive_at: When a ping last succeeded.
        failures: Pings that failed since.
        create_pending: Its `/create` is on its way and unanswered, so that the episode may begin after it was deleted.
        create_sent: Its `/create` was sent, so that there may be an episode to end.
        refused: Its `/create` was refused, so that there may be nothing but the id to give back.
        deleted: The server confirmed its deletion, whoever asked. It may be deleted again where it may yet begin.
        liveness_check: What tells a server without a ping route from one that is not there; set while it is pinged.
        cookies: What its answers have set, from the `/create_session` that made it on.
    """

    session_id: str
    deployment: str | None
    on_lost: Callable[[str], None] | None = None
    due: float = 0.0
    alive_at: float = 0.0
    failures: int = 0
    create_pending: bool = False
    create_sent: bool = False
    refused: bool = False
    deleted: bool = False
    liveness_check: Operation[object] | None = None
    cookies: SessionCookies = field(default_factory=SessionCookies)

    def own(self, operation: Operation[T]) -> Operation[T]:
        """Return an operation of this session with the session's cookies."""
        return operation.with_cookies(self.cookies)


async def end(tracked: TrackedSession, send: Callable[[Operation[None]], Awaitable[None]], *, split: bool) -> None:
    """End a session: its episode, and its id in the split layout or where no episode was begun.

    Single servers end the id with the episode, if they keep ids at all.
    """
    if tracked.create_sent or not split:
        with contextlib.suppress(SessionLost):
            await send(tracked.own(delete(tracked.session_id, deployment=tracked.deployment)))
    if split or tracked.refused or not tracked.create_sent:
        try:
            await send(tracked.own(delete_session(tracked.session_id, deployment=tracked.deployment)))
        except SessionLost:
            pass
        except StatusError as error:
            if not is_missing_route(error):  # a server without such a route keeps no ids
                raise
    tracked.deleted = True


class OpenSessions:
    """The sessions of one client that are open on the server, as far as is known.

    Args:
        split: Whether session ids are given back as well, which single servers ignore.
    """

    def __init__(self, *, split: bool) -> None:
        self.leaked = 0
        """How many sessions could not be confirmed deleted."""
        self._split = split
        self._sessions: dict[str, TrackedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[TrackedSession]:
        """Yield those that are open now; others may be added and removed meanwhile."""
        return iter(list(self._sessions.values()))

    def add(self, tracked: TrackedSession) -> None:
        """Track a session: it will be deleted, by its owner or here."""
        self._sessions[tracked.session_id] = tracked

    def remove(self, tracked: TrackedSession) -> None:
        """Stop tracking a session that the server confirmed deleted, or lost."""
        self._sessions.pop(tracked.session_id, None)

    async def delete(self, transport: Transport, tracked: TrackedSession) -> None:
        """Delete a session, more than once where it may yet begin; warn where that could not be confirmed."""
        problem = ""
        for delay in _DELETE_AGAIN:
            await asyncio.sleep(delay)
            try:
                await self._delete_once(transport, tracked)
            except ORSError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - the top of a thread: the session is still to be deleted
                problem = transport.show(repr(error))
            else:
                break
        else:
            self.leak(tracked, problem)
            return
        # It stays tracked meanwhile, so that a client which closes looks after it.
        for delay in _DELETE_LATER:
            if not tracked.create_pending:
                break
            await asyncio.sleep(delay)
            with contextlib.suppress(ORSError):
                await self._delete_once(transport, tracked)
        self.remove(tracked)

    async def _delete_once(self, transport: Transport, tracked: TrackedSession) -> None:
        if tracked.create_pending:
            # An episode that answers has begun, and does not begin again. Before, openreward answers 404.
            with contextlib.suppress(ORSError):
                await transport.send_once(tracked.own(ping(tracked.session_id, deployment=tracked.deployment)))
                tracked.create_pending = tracked.deleted = False  # a deletion before was of an id without an episode
        await end(tracked, transport.send_once, split=self._split)

    async def delete_all(self, transport: Transport, note_progress: Callable[[], None]) -> None:
        """Delete all that are open, over and over until the caller's time is up; tell of each that is deleted."""

        async def confirm(tracked: TrackedSession) -> None:
            with contextlib.suppress(Exception):  # the top of a thread: what is still tracked is reported
                await self._delete_until_confirmed(transport, tracked)
                while tracked.create_pending:
                    await asyncio.sleep(_CHECK_EVERY)
                    await self._delete_until_confirmed(transport, tracked)
                self.remove(tracked)
                note_progress()

        async with asyncio.TaskGroup() as group:
            for number, tracked in enumerate(self):
                group.create_task(confirm(tracked))
                if number % _BEGUN_TOGETHER == 0:
                    # Only to begin thousands takes seconds on a full machine, in which there would be no progress.
                    await asyncio.sleep(0)

    async def _delete_until_confirmed(self, transport: Transport, tracked: TrackedSession) -> None:
        """Delete a session, again after each fault of the network: while the client closes there is time for it."""
        for delay in itertools.chain([0.0], itertools.repeat(_CHECK_EVERY)):  # a broken connection may be stale
            try:
                await self._delete_once(transport, tracked)
            except TransportError:
                await asyncio.sleep(delay)
            else:
                return

    def leak(self, tracked: TrackedSession, problem: str) -> None:
        """Give a session up, and warn unless its deletion was confirmed."""
        if self._sessions.pop(tracked.session_id, None) is not None and not tracked.deleted:
            self.leaked += 1
            _logger.warning(
                "Session %s could not be confirmed deleted (%s); the server will end it when it is idle.",
                tracked.session_id,
                problem,
            )
