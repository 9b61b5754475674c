"""Uploads the events of rollouts in the background: a bounded queue, and the thread that empties it.

Handing over an event puts it in the queue: no request, no wait, no error of a server's. Events that did not fit in the
queue (`dropped`) and failed uploads (`failed`) are counted and logged once. What is queued when the client closes or
the interpreter exits is still sent, within the limit on closing.

A rollout's beginning is sent alone and before all else of it, as the platform takes no event of a rollout that it does
not know. The rest of one rollout is sent in its order, one request after another; what belongs to different rollouts is
sent together, since the API host may be far away. Knows nothing of what events say. Source of the limits: openreward
0.1.167.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ors_client._errors import CLIENT_CLOSED, CapacityError, ClientStateError, ORSError, StatusError
from ors_client._http.background import EXIT_SECONDS, Background
from ors_client._http.process import OwnProcess
from ors_client._http.redaction import get_logger
from ors_client._http.transport import Transport
from ors_client._protocol.operations import environment_id, upload_rollouts, variant_ids

_logger = get_logger("ors_client")

# Of one request. The last two are openreward 0.1.167's; a single event may be longer.
_AGE_SECONDS, _BATCH_EVENTS, _BATCH_BYTES = 1.0, 128, 1_000_000
# Of the queue: some minutes of a busy training run, while the catalogue is away.
_QUEUE_EVENTS, _QUEUE_BYTES = 100_000, 64 * 2**20
# Requests at one time. Rollouts begin and end hundreds at once; with an API host 100 ms away, a thousand of ten events
# take three seconds so, which is less than there is when the interpreter exits.
_BEGINNINGS, _BATCHES = 64, 16
_EXTENSIONS = 5  # of the limit on closing, each as long, while the last one brought something
_MOST_UNKNOWN = 10_000  # many times the rollouts of one step; their ids are less than 2 MB
_ID_BYTES = 100  # what an event grows by when it is sent

# The ids that each kind of event has.
_IDS = {"rollout": ("environment_id", "variant_id"), "message": ("environment_id",), "rollout_update": ()}

# What a request gets for one bad event among good ones.
_BAD_EVENT = frozenset({400, 404, 413, 422})

RolloutSource = tuple[str | None, str | None]
"""The environment and the variant of a rollout, whose ids are added to its events."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, ready to be sent.

    Args:
        kind: A rollout begins with the first; the last says more of the whole.
        rollout: The id of the rollout that it belongs to.
        body: A JSON object.
        ends: Nothing of the rollout follows.
    """

    kind: Literal["rollout", "message", "rollout_update"]
    rollout: str
    body: bytes
    source: RolloutSource
    ends: bool = False

    @property
    def begins(self) -> bool:
        """Whether the rollout begins with it."""
        return self.kind == "rollout"


class Uploader:
    """The queue and the thread of one client; the thread starts with the first event. Safe from many threads.

    Args:
        make_transport: Makes the transport of the thread.
        close: Seconds that the last uploads may take; up to six times as many while they make progress.
        queue_events: How many events may wait.
        queue_bytes: How many bytes they may hold.
        most_unknown: Of how many rollouts without a beginning the events are held back; beyond, those of the oldest are
            sent, and refused.

    Attributes:
        uploaded: How many events the catalogue has taken.
        dropped: How many did not fit in the queue, or came too late.
        failed: How many could not be uploaded.
    """

    def __init__(
        self,
        make_transport: Callable[[], Transport],
        *,
        close: float,
        queue_events: int = _QUEUE_EVENTS,
        queue_bytes: int = _QUEUE_BYTES,
        most_unknown: int = _MOST_UNKNOWN,
    ) -> None:
        self.uploaded = self.dropped = self.failed = 0
        self._make_transport = make_transport
        self._close = close
        self._queue_events = queue_events
        self._queue_bytes = queue_bytes
        self._process = OwnProcess()
        self._lock = threading.Lock()  # guards the queue, the rollouts held back, and that one thread is started
        self._quiet = threading.Condition(self._lock)  # nothing waits any more
        self._queue: deque[Event] = deque()
        self._bytes = 0
        self._since = 0.0  # when the oldest event in the queue came, on the monotonic clock
        self._sending = 0
        self._hurry = False
        self._closed = self._ended = False
        self._thread: Background | None = None
        self._wake: asyncio.Event | None = None
        self._most_unknown = most_unknown
        # Rollouts whose beginning the catalogue has not got, the oldest first. One whose last event was dropped, or
        # never came, would stay for good; hence the bound.
        self._unknown: dict[str, None] = {}
        self._ids: dict[RolloutSource, dict[str, str]] = {}
        self._logged: set[str] = set()

    @property
    def running(self) -> bool:
        """Whether there is a thread to end."""
        return self._thread is not None

    @property
    def pending(self) -> int:
        """How many events wait or are on their way."""
        return len(self._queue) + self._sending

    def check(self) -> None:
        """Raise `ClientStateError` where nothing can be uploaded any more."""
        self._process.check()
        if self._closed:
            raise ClientStateError(CLIENT_CLOSED)

    def put(self, event: Event) -> None:
        """Queue an event, or count it as dropped."""
        if not self._process.is_current:
            return  # a forked child: its parent tells of the rollout
        with self._lock:
            problem = self._problem(event)
            if problem:
                self.dropped += 1
                if event.begins:
                    self._hold_back(event.rollout)
                elif event.ends:
                    self._unknown.pop(event.rollout, None)
            else:
                if not self._queue:
                    self._since = time.monotonic()
                self._queue.append(event)
                self._bytes += len(event.body)
                if self._thread is None:
                    self._thread = Background(self._make_transport, name="ors-client-rollouts")
                    self._thread.post(lambda thread: thread.spawn(self._work(thread.transport)))
                    atexit.register(self._at_exit)
            due = len(self._queue) in {1, _BATCH_EVENTS} or self._bytes >= _BATCH_BYTES
        if problem:
            self._log("dropped", "Events of rollouts are dropped and counted: %s.", problem)
        elif due:
            self._notify()

    def flush(self, within: float) -> bool:
        """Send what waits without waiting for more, and block until it is sent; tell whether nothing is left."""
        with self._lock:
            self._hurry = True
            self._notify()
            try:
                return self._quiet.wait_for(lambda: not self.pending, within)
            finally:
                self._hurry = False

    def close(self, within: float | None = None) -> None:
        """Send what waits and end the thread; may be called again.

        Args:
            within: Seconds at most; by default the close limit, and longer while there is progress.
        """
        atexit.unregister(self._at_exit)
        if not self._process.is_current:
            return
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            return
        self._finish(within)
        with self._lock:
            left = self.pending
            self._ended = True
            self._queue.clear()
            self._sending = 0
            self._thread = None
            self.failed += left
        thread.finish(_nothing_more, within=0.1)
        if left:
            self._log("left", "%d events of rollouts were not uploaded before the client was closed.", left)

    def _finish(self, within: float | None) -> None:
        if within is not None:
            self.flush(within)
            return
        for _ in range(_EXTENSIONS + 1):
            before = self.uploaded
            if self.flush(self._close) or self.uploaded == before:
                return
            waiting = "%d events of rollouts are still to be uploaded, and closing the client waits while it goes on."
            self._log("slow", waiting, self.pending)

    def _problem(self, event: Event) -> str:
        if self._closed:
            return "the client is closed"
        # While others of its rollout may wait, the last event goes after them, so that they are not sent either.
        if event.rollout in self._unknown and not (event.ends and self.pending):
            return "their rollout's beginning was"
        if len(self._queue) >= self._queue_events or self._bytes + len(event.body) > self._queue_bytes:
            return f"{len(self._queue)} wait to be uploaded already"
        return ""

    def _hold_back(self, rollout: str) -> None:
        """Send no event of a rollout; the lock is held."""
        self._unknown[rollout] = None
        while len(self._unknown) > self._most_unknown:
            del self._unknown[next(iter(self._unknown))]

    def _notify(self) -> None:
        thread, wake = self._thread, self._wake
        if thread is not None and wake is not None:
            thread.post(lambda _: wake.set())

    def _at_exit(self) -> None:
        self.close(min(self._close, EXIT_SECONDS))

    def _log(self, kind: str, message: str, *values: object) -> None:
        if kind not in self._logged:
            self._logged.add(kind)
            _logger.warning(message, *values)

    # --- On the thread -----------------------------------------------------------------------------------------------

    async def _work(self, transport: Transport) -> None:
        self._wake = asyncio.Event()
        while True:
            await self._await_batch(self._wake)
            await self._send(transport, *self._next_batches())

    async def _await_batch(self, wake: asyncio.Event) -> None:
        """Wait until there is a full batch, or the oldest event is old enough."""
        while True:
            wake.clear()
            with self._lock:
                count, size, since = len(self._queue), self._bytes, self._since
            if count and (self._hurry or count >= _BATCH_EVENTS or size >= _BATCH_BYTES):
                return
            rest = since + _AGE_SECONDS - time.monotonic() if count else None
            if rest is not None and rest <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await wake.wait()

    def _next_batches(self) -> tuple[list[Event], list[list[Event]]]:
        """Take beginnings, and batches of other events of which no two tell of the same rollout."""
        beginnings: list[Event] = []
        rest: dict[str, list[Event]] = {}
        with self._lock:
            for _ in range(min(len(self._queue), _BATCHES * _BATCH_EVENTS)):
                event = self._queue.popleft()
                if event.begins:
                    beginnings.append(event)
                else:
                    rest.setdefault(event.rollout, []).append(event)
            batches, left = _pack(rest.values())
            self._queue.extendleft(reversed(left))
            taken = [*beginnings, *(event for batch in batches for event in batch)]
            self._bytes -= sum(len(event.body) for event in taken)
            self._sending = len(taken)
        return beginnings, batches

    async def _send(
        self, transport: Transport, beginnings: Sequence[Event], batches: Sequence[Sequence[Event]]
    ) -> None:
        for source in dict.fromkeys(event.source for batch in (beginnings, *batches) for event in batch):
            await self._learn(transport, source)
        limiter = asyncio.Semaphore(_BEGINNINGS)

        async def begin(event: Event) -> None:
            async with limiter:
                if not await self._upload(transport, [event]):
                    with self._lock:
                        self._hold_back(event.rollout)

        async def upload(batch: Sequence[Event]) -> None:
            with self._lock:
                accepted = [event for event in batch if event.rollout not in self._unknown]
                for event in batch:
                    if event.ends:
                        self._unknown.pop(event.rollout, None)
            self._count_results(failed=len(batch) - len(accepted))
            if accepted:
                await self._upload(transport, accepted)

        await asyncio.gather(*map(begin, beginnings))
        await asyncio.gather(*map(upload, batches))

    def _count_results(self, *, uploaded: int = 0, failed: int = 0) -> None:
        """Count events whose fate is known."""
        with self._lock:
            if self._ended:  # and they are counted
                return
            self.uploaded += uploaded
            self.failed += failed
            self._sending -= uploaded + failed
            if not self.pending:
                self._quiet.notify_all()

    async def _learn(self, transport: Transport, source: RolloutSource) -> None:
        """Ask for the ids of an environment and its variant, until it is answered; rollouts are taken without, too."""
        environment, variant = source
        if source in self._ids or environment is None or "/" not in environment:
            return
        ids: dict[str, str] = {}
        try:
            ids["environment_id"] = await transport.send(environment_id(environment))
            if variant is not None:
                found = (await transport.send(variant_ids(environment))).get(variant)
                ids.update({} if found is None else {"variant_id": found})
        except StatusError as error:
            if not 400 <= error.status < 500 or isinstance(error, CapacityError):
                return
        except Exception as error:  # noqa: BLE001 - a task of the thread, whose events wait
            if not isinstance(error, ORSError):
                self._log("ids", "The ids of an environment could not be asked for: %s", transport.show(repr(error)))
            return
        self._ids[source] = ids

    async def _upload(self, transport: Transport, events: Sequence[Event]) -> bool:
        try:
            await transport.send(upload_rollouts([self._with_ids(event) for event in events]))
        except Exception as error:  # noqa: BLE001 - a task of the thread, which has more to upload
            if isinstance(error, StatusError) and error.status in _BAD_EVENT and len(events) > 1:
                half = len(events) // 2
                first = await self._upload(transport, events[:half])
                return await self._upload(transport, events[half:]) and first
            self._count_results(failed=len(events))
            problem = str(error) if isinstance(error, ORSError) else transport.show(repr(error))
            self._log("failed", "Events of rollouts could not be uploaded and are counted; the first: %s", problem)
            return False
        self._count_results(uploaded=len(events))
        return True

    def _with_ids(self, event: Event) -> bytes:
        found = self._ids.get(event.source, {})
        ids = {name: value for name, value in found.items() if name in _IDS[event.kind]}
        # The body is ours, a JSON object; writing into its end spares parsing it.
        return event.body[:-1] + b"," + json.dumps(ids).encode("ascii")[1:] if ids else event.body


def _pack(rollouts: Iterable[Sequence[Event]]) -> tuple[list[list[Event]], list[Event]]:
    """Put each rollout's events, as many as one request holds, into a batch; return what is left over, too."""
    batches: list[list[Event]] = []
    left: list[Event] = []
    free = 0  # bytes that the last batch can still hold
    for events in rollouts:
        fitting, size = _fitting(events)
        if batches and len(batches[-1]) + fitting <= _BATCH_EVENTS and size <= free:
            batches[-1].extend(events[:fitting])
            free -= size
        elif len(batches) < _BATCHES:
            batches.append(list(events[:fitting]))
            free = _BATCH_BYTES - size
        else:
            fitting = 0
        left.extend(events[fitting:])
    return batches, left


def _fitting(events: Sequence[Event]) -> tuple[int, int]:
    """Return how many of these events one request holds, one at least, and their size."""
    total = 0
    for count, event in enumerate(events):
        size = len(event.body) + _ID_BYTES
        if count == _BATCH_EVENTS or (count and total + size > _BATCH_BYTES):
            return count, total
        total += size
    return len(events), total


async def _nothing_more(_: Transport, __: Callable[[], None]) -> None:
    """Do nothing: what was left has been sent."""
