"""Keeps sessions alive on a thread with connections of its own.

A running tool call does not refresh a session on the servers, a training step can block the caller's event loop for
minutes, and a busy pool would let a ping wait. So each client has one thread with one event loop, which pings all of
its sessions, each at a moment of its own. It still runs when the caller's loop was cancelled, closed or interrupted, so
what was not deleted there is deleted on this thread (`deletion`), at the latest when the client is closed or the
interpreter exits.

It judges one thing, when a session counts as lost. What is called back is called on this thread.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from ors_client._config import KeepalivePolicy
from ors_client._errors import (
    CLIENT_CLOSED,
    ClientStateError,
    ORSError,
    ProtocolError,
    SessionLost,
    StatusError,
)
from ors_client._http.background import EXIT_SECONDS, Background
from ors_client._http.cookies import SessionCookies
from ors_client._http.process import OwnProcess
from ors_client._http.redaction import get_logger
from ors_client._http.transport import RetryLater, Transport
from ors_client._protocol.operations import Operation, ping
from ors_client._protocol.retry import is_missing_route

from .deletion import OpenSessions, TrackedSession

_logger = get_logger("ors_client")

# Multiples of the golden ratio, modulo one, are spread evenly however many there are.
_GOLDEN = 0.618033988749895

# Pings that are due within this share of an interval go together, since waking up for one costs more than the ping. A
# thousand sessions are pinged by twenty, which is no load for a server.
_TOGETHER = 0.02

# Intervals that one ping may take: the next goes out regardless.
_MOST_BEATS = 2

# Close limits that the last deletions may take in all while there is progress: ten thousand take ten seconds of CPU.
_MOST_LIMITS = 6

# After this process was stopped for minutes, the time since the last ping says nothing; several failures do.
_FAILURES = 3


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
        self.policy = policy
        self._close = close
        self._make_transport = make_transport
        self._open = OpenSessions(split=split)
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
        return len(self._open)

    @property
    def leaked(self) -> int:
        """How many sessions could not be confirmed deleted."""
        return self._open.leaked

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
            self._open.add(tracked)
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
        self._open.remove(tracked)

    def delete_later(self, tracked: TrackedSession) -> None:
        """Delete a session in the background; more than once where it may yet begin."""
        tracked.on_lost = None
        with contextlib.suppress(ClientStateError):  # after a fork the session is the parent's to delete
            self._running().post(lambda thread: thread.spawn(self._open.delete(thread.transport, tracked)))

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call `function` on the thread after `seconds`, unless the client is closed before."""
        with contextlib.suppress(ClientStateError):
            self._running().post(lambda thread: thread.later(seconds, function))

    def close(self, within: float | None = None) -> None:
        """Delete what is open and end the thread; blocks meanwhile.

        Args:
            within: Seconds at most; by default the close limit, and up to six times as long while there is progress.
        """
        atexit.unregister(self._at_exit)
        with self._guard:
            thread, self._thread = self._thread, None
            self._closed = True
        if thread is None or not self._process.is_current:
            return
        for tracked in self._open:
            tracked.on_lost = None
        if within is None:
            thread.finish(self._open.delete_all, within=self._close, at_most=self._close * _MOST_LIMITS)
        else:
            thread.finish(self._open.delete_all, within=within)
        for tracked in self._open:
            self._open.leak(tracked, "the client was closed")

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
