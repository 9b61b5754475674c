"""Keeps sessions alive, and deletes those that nobody else can, on a thread with connections of its own.

A running tool call does not refresh a session on the servers, a training step can block the caller's event loop for
minutes, and a busy pool would let a ping wait. So each client has one thread with one event loop, which pings all of
its sessions, each at a moment of its own. The same thread tracks which sessions are open on the server: it still runs
when the caller's loop was cancelled, closed or interrupted, so what was not deleted there is deleted here, at the
latest when the client is closed or the interpreter exits.

It judges one thing, when a session counts as lost. What is called back is called on this thread.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ors_client._config import KeepalivePolicy
from ors_client._errors import (
    CLIENT_CLOSED,
    ClientStateError,
    ORSError,
    ProtocolError,
    SessionLost,
    StatusError,
    TransportError,
)
from ors_client._http.background import EXIT_SECONDS, Background
from ors_client._http.cookies import SessionCookies
from ors_client._http.process import OwnProcess
from ors_client._http.redaction import get_logger
from ors_client._http.transport import RetryLater, Transport
from ors_client._protocol.operations import Operation, delete, delete_session, ping
from ors_client._protocol.retry import is_missing_route

_logger = get_logger("ors_client")

T = TypeVar("T")

# Seconds between the tries to delete a session in the background. A broken connection is no reason to wait; the last
# outlives a server's restart.
_DELETE_AGAIN = (0.0, 0.2, 0.8, 2.0, 5.0, 30.0)

# A constructor that runs when its session is deleted registers the session afterwards; these outlast most of them.
_DELETE_LATER = (3.0, 10.0, 30.0)
_LOOK_EVERY = 0.5  # for such a session, or one whose deletion failed, while the client closes

# Multiples of the golden ratio, modulo one, are spread evenly however many there are.
_GOLDEN = 0.618033988749895

# Pings that are due within this share of an interval go together, since waking up for one costs more than the ping. A
# thousand sessions are pinged by twenty, which is no load for a server.
_TOGETHER = 0.02

# Intervals that one ping may take: the next goes out regardless.
_MOST_BEATS = 2

# After this process was stopped for minutes, the time since the last ping says nothing; several failures do.
_FAILURES = 3


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


class Keepalive:
    """The sessions of one client, which must be closed.

    Args:
        make_transport: Makes the transport of the thread; calls have another.
        policy: How often to ping, and how long to bear silence.
        split: Whether session ids are given back as well, which single servers ignore.
        close: Seconds that the deletions at the end may take.
    """

    def __init__(
        self, make_transport: Callable[[], Transport], *, policy: KeepalivePolicy, split: bool, close: float
    ) -> None:
        self.leaked = 0
        """How many sessions could not be confirmed deleted."""
        self.policy = policy
        self._split = split
        self._close = close
        self._make_transport = make_transport
        self._sessions: dict[str, TrackedSession] = {}
        self._numbers = itertools.count(1)
        # Deployments: those that answered a ping, so that they have a route for it, and those found to have none.
        self._pinged: set[str | None] = set()
        self._unpingable: set[str | None] = set()
        self._thread: Background | None = None
        self._closed = False
        self._process = OwnProcess()
        # Guards that one thread is started, and that nothing is registered once the last deletions are chosen. It is
        # re-entrant, as a garbage collection within it may finalize a session.
        self._guard = threading.RLock()

    def __len__(self) -> int:
        """Return how many sessions are open, as far as is known."""
        return len(self._sessions)

    @property
    def running(self) -> bool:
        """Whether there is a thread to end."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread. Asked before an id is, as there may be no file left to open for it afterwards.

        Raises:
            ClientStateError: It can't be started here.
        """
        self._running()

    def register(
        self, session_id: str, *, deployment: str | None = None, cookies: SessionCookies | None = None
    ) -> TrackedSession:
        """Track a session: from now on it will be deleted, by its owner or here."""
        tracked = TrackedSession(session_id, deployment, cookies=cookies or SessionCookies())
        with self._guard:
            self._running()
            self._sessions[session_id] = tracked
        return tracked

    def watch(
        self,
        tracked: TrackedSession,
        on_lost: Callable[[str], None],
        *,
        liveness_check: Operation[object] | None = None,
    ) -> None:
        """Ping a session until it is unwatched; call `on_lost` with the reason if the server loses it.

        Args:
            tracked: The session.
            on_lost: Called on the thread.
            liveness_check: A request that a server which is there answers; without it, no ping route is held to be
                missing.
        """
        tracked.on_lost = on_lost
        tracked.liveness_check = liveness_check
        tracked.alive_at = time.monotonic()
        tracked.due = tracked.alive_at + self.policy.interval * (next(self._numbers) * _GOLDEN % 1.0)
        self._running().post(lambda thread: self._schedule_ping(tracked.due, thread, tracked))

    def unregister(self, tracked: TrackedSession) -> None:
        """Stop tracking a session that the server confirmed deleted, or lost."""
        tracked.on_lost = None
        self._sessions.pop(tracked.session_id, None)

    def delete_later(self, tracked: TrackedSession) -> None:
        """Delete a session in the background; more than once where it may yet begin."""
        tracked.on_lost = None
        with contextlib.suppress(ClientStateError):  # after a fork the session is the parent's to delete
            self._running().post(lambda thread: thread.spawn(self._delete(thread.transport, tracked)))

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call `function` on the thread after `seconds`, unless the client is closed before."""
        with contextlib.suppress(ClientStateError):
            self._running().post(lambda thread: thread.later(seconds, function))

    def close(self, within: float | None = None) -> None:
        """Delete what is open and end the thread; blocks for about the close limit at most."""
        atexit.unregister(self._at_exit)
        with self._guard:
            thread, self._thread = self._thread, None
            self._closed = True
        if thread is None or not self._process.is_current:
            return
        seconds = self._close if within is None else within
        for tracked in list(self._sessions.values()):  # others unregister theirs meanwhile
            tracked.on_lost = None
        thread.finish(self._delete_all, within=seconds)
        for tracked in list(self._sessions.values()):
            self._report(tracked, "the client was closed")

    # --- On the thread -----------------------------------------------------------------------------------------------

    def _running(self) -> Background:
        self._process.check()
        with self._guard:
            if self._closed:
                raise ClientStateError(CLIENT_CLOSED)
            if self._thread is None:
                self._thread = Background(self._make_transport, name="ors-client-keepalive")
                atexit.register(self._at_exit)
            return self._thread

    def _at_exit(self) -> None:
        self.close(min(self._close, EXIT_SECONDS))

    def _schedule_ping(self, moment: float, thread: Background, tracked: TrackedSession) -> None:
        early = moment % (self.policy.interval * _TOGETHER)
        thread.later(moment - early - time.monotonic(), partial(self._start_ping, thread, tracked))

    def _start_ping(self, thread: Background, tracked: TrackedSession) -> None:
        if tracked.on_lost is not None and tracked.deployment not in self._unpingable:
            thread.spawn(self._ping(thread, tracked))

    async def _ping(self, thread: Background, tracked: TrackedSession) -> None:
        began = time.monotonic()
        failed = False
        try:
            if not await self._find_ping_route(thread.transport, tracked):
                return
        except SessionLost as error:
            self._lose(tracked, error.reason)
            self.unregister(tracked)
            return
        except Exception as error:  # noqa: BLE001 - the top of a thread: without another ping the session is reaped
            # A server that asks for patience is there; whether the session is, a call tells.
            if not isinstance(error, RetryLater):
                failed = True
                tracked.failures += 1
            foreseen = isinstance(error, ORSError)
            problem = error.message if foreseen else thread.transport.show(repr(error))
            silent = time.monotonic() - tracked.alive_at
            if tracked.failures >= _FAILURES and silent >= self.policy.tolerance:
                self._lose(tracked, f"no ping succeeded for {silent:.0f} seconds; the last: {problem}")
                return
            _logger.log(logging.DEBUG if foreseen else logging.WARNING, "A ping failed: %s", problem)
        else:
            tracked.alive_at = began
            tracked.failures = 0
        interval, now = self.policy.interval, time.monotonic()
        together = interval * _TOGETHER
        # Each keeps its own beat: those that were late together, as after a stall, must not stay together.
        if (behind := now + together - tracked.due) >= 0.0:
            tracked.due += interval * (1 + behind // interval)
        rest = tracked.due - now
        if failed:  # not one beat is skipped for it, and the others that it takes must fail while the tolerance lasts
            left = self.policy.tolerance - (now - tracked.alive_at)
            rest = min(
                rest, interval - (now - began) + together, left / max(_FAILURES - tracked.failures, 1) + together
            )
        self._schedule_ping(now + max(rest, interval / 10), thread, tracked)

    def _lose(self, tracked: TrackedSession, reason: str) -> None:
        on_lost, tracked.on_lost = tracked.on_lost, None
        if on_lost is not None:
            on_lost(reason)

    async def _find_ping_route(self, transport: Transport, tracked: TrackedSession) -> bool:
        """Ping, and tell whether there is a route for it.

        A proxy that was restarted and has not found its server yet answers 404 to everything, with a page or with the
        words of a web framework; the sessions behind it may be alive or gone. So the route is missing only where no
        ping was ever answered, the server answers another request now, and a second ping gets a 404 after it. Otherwise
        the 404 is a fault like others: the session is lost if it goes on for `KeepalivePolicy.tolerance` seconds.
        """
        asked = tracked.own(ping(tracked.session_id, deployment=tracked.deployment))
        try:
            await transport.send_once(asked, within=_MOST_BEATS * self.policy.interval)
        except StatusError as error:
            if not self._may_be_missing(tracked, error) or tracked.liveness_check is None:
                raise
            await _check_alive(transport, tracked.liveness_check)
            try:
                await transport.send_once(asked, within=_MOST_BEATS * self.policy.interval)
            except StatusError as again:
                if not self._may_be_missing(tracked, again):
                    raise
            else:
                self._pinged.add(tracked.deployment)
                return True
            if tracked.deployment not in self._unpingable:
                self._unpingable.add(tracked.deployment)
                _logger.warning(
                    "The server has no ping route, so sessions can't be kept alive between calls and end when it "
                    "decides: %s",
                    error,
                )
            return False
        self._pinged.add(tracked.deployment)
        return True

    def _may_be_missing(self, tracked: TrackedSession, error: StatusError) -> bool:
        return tracked.deployment not in self._pinged and is_missing_route(error)

    async def _delete(self, transport: Transport, tracked: TrackedSession) -> None:
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
            self._report(tracked, problem)
            return
        # It stays tracked meanwhile, so that a client which closes looks after it.
        for delay in _DELETE_LATER:
            if not tracked.create_pending:
                break
            await asyncio.sleep(delay)
            with contextlib.suppress(ORSError):
                await self._delete_once(transport, tracked)
        self.unregister(tracked)

    async def _delete_once(self, transport: Transport, tracked: TrackedSession) -> None:
        if tracked.create_pending:
            # An episode that answers has begun, and does not begin again. Before, openreward answers 404.
            with contextlib.suppress(ORSError):
                await transport.send_once(tracked.own(ping(tracked.session_id, deployment=tracked.deployment)))
                tracked.create_pending = tracked.deleted = False  # a deletion before was of an id without an episode
        await end(tracked, transport.send_once, split=self._split)

    async def _delete_all(self, transport: Transport) -> None:
        async def confirm(tracked: TrackedSession) -> None:
            with contextlib.suppress(Exception):  # the top of a thread: what is still tracked is reported
                await self._delete_until_confirmed(transport, tracked)
                while tracked.create_pending:
                    await asyncio.sleep(_LOOK_EVERY)
                    await self._delete_until_confirmed(transport, tracked)
                self.unregister(tracked)

        await asyncio.gather(*(confirm(tracked) for tracked in list(self._sessions.values())))

    async def _delete_until_confirmed(self, transport: Transport, tracked: TrackedSession) -> None:
        """Delete a session, again after each fault of the network: while the client closes there is time for it."""
        for delay in itertools.chain([0.0], itertools.repeat(_LOOK_EVERY)):  # a broken connection may be stale
            try:
                await self._delete_once(transport, tracked)
            except TransportError:
                await asyncio.sleep(delay)
            else:
                return

    def _report(self, tracked: TrackedSession, problem: str) -> None:
        if self._sessions.pop(tracked.session_id, None) is not None and not tracked.deleted:
            self.leaked += 1
            _logger.warning(
                "Session %s could not be confirmed deleted (%s); the server will end it when it is idle.",
                tracked.session_id,
                problem,
            )


async def _check_alive(transport: Transport, liveness_check: Operation[object]) -> None:
    """Ask for an answer that only a server gives; its author's error is one, a missing route and a gateway's are not.

    Raises:
        ORSError: There was none; `RetryLater` where there may be one once the setup is done.
    """
    try:
        await transport.send_once(liveness_check)
    except ProtocolError:
        pass
    except StatusError as error:
        if is_missing_route(error):
            raise
