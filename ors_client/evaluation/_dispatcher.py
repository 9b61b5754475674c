"""The attempts of an evaluation -> workers -> their episodes, each once.

The queue is here. A worker is sent as many attempts as it may play at a time, and what it was sent is its own until it
tells how that ended. Where a worker dies, Ray starts it anew, and what it had goes back into the queue: as new
episodes, since nothing was told of the old ones. Knows nothing of records, asks no model, and imports no Ray.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import anyio

from ors_client._errors import ORSError, one_line
from ors_client._http.redaction import get_logger
from ors_client.record import EpisodeRecord

from ._ray_worker import Outcome, Stopped
from ._shard import Attempt

logger = get_logger(__name__)

Finished = Callable[[Attempt, EpisodeRecord], Awaitable[None]]

_START_SECONDS = 300.0  # for a worker's process, on a node that may have to be started first
_STOP_SECONDS = 30.0  # for a worker to delete its sessions, each of which has `Timeouts.close`
_AGAIN_SECONDS = 0.5  # before a worker that can't be reached is tried again; its process takes longer to start
_MOST_DEATHS = 3  # of workers that were playing one attempt: it may be what kills them


class WorkerDied(ORSError):
    """Raised when no worker on Ray is left, or none could be started.

    Cause: The processes were killed, often for their memory, their nodes were lost, or `ors-client` is not installed
    there.

    Tried: To start each anew. What a worker was playing is played again; an attempt that saw three workers die counts
    as broken.

    Do: Look at the memory of the nodes and at Ray's logs, and use a lower `concurrency`.
    """


class WorkerHandle(Protocol):
    """What calls a `Worker` in its process: `handle.start.remote(...)` returns what is awaited."""

    start: Any
    exchange: Any
    stop: Any


class Ray(Protocol):
    """The package, as far as a dispatcher uses it."""

    exceptions: Any

    def kill(self, actor: Any) -> Any:
        """End a worker's process."""


class Dispatcher:
    """The queue, and who plays what of it.

    Args:
        ray: What raises errors of workers, and ends them.
        settings: Those of the workers, pickled.
        attempts: In the order in which they are begun.
        finished: Awaited for each with its episode.
        concurrency: How many a worker plays together.
        on_leaked: Called with a number of sessions that were, or may have been, left on the server.
    """

    def __init__(
        self,
        ray: Ray,
        settings: bytes,
        attempts: Iterable[Attempt],
        finished: Finished,
        *,
        concurrency: int,
        on_leaked: Callable[[int], None],
    ) -> None:
        self._ray = ray
        self._settings = settings
        self._concurrency = concurrency
        self._on_leaked = on_leaked
        self._finished = finished
        self._queue = deque(attempts)
        self._returned = anyio.Event()  # set, and replaced, when attempts come back into the queue
        self._left = len(self._queue)
        self._ended: deque[Outcome] = deque()  # and not finished yet
        self._playing: dict[WorkerHandle, set[Attempt]] = {}  # of the workers that are open
        self._deaths: Counter[Attempt] = Counter()
        self._retired = 0
        self._error: Exception | None = None  # not raised in the group, which would wrap it in a group of its own

    async def play(self, workers: Sequence[WorkerHandle]) -> None:
        """Feed workers until each attempt is finished, and end them.

        Raises:
            WorkerDied: No worker is left.
        """
        try:
            async with anyio.create_task_group() as self._group:
                for number, worker in enumerate(workers, start=1):
                    self._group.start_soon(self._feed, worker, f"Worker {number} of {len(workers)}", len(workers))
            if self._error is not None:
                raise self._error
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop(workers)

    async def _stop(self, workers: Sequence[WorkerHandle]) -> None:
        """End the workers and what they are playing; keep what had ended by then."""

        async def stop(worker: WorkerHandle, playing: set[Attempt]) -> None:
            leaked = len(playing)
            with anyio.move_on_after(_STOP_SECONDS), suppress(self._ray.exceptions.RayActorError):
                stopped: Stopped = await worker.stop.remote()
                leaked = stopped.leaked
                self._ended += [outcome for outcome in stopped.outcomes if outcome[0] in playing]
            if leaked:
                self._on_leaked(leaked)

        async with anyio.create_task_group() as group:
            for worker, playing in self._playing.items():
                group.start_soon(stop, worker, playing)
        for worker in workers:
            self._ray.kill(worker)
        for attempt, outcome in self._ended:
            if isinstance(outcome, EpisodeRecord) and not isinstance(self._error, OSError):
                await self._finished(attempt, outcome)

    async def _feed(self, worker: WorkerHandle, name: str, count: int) -> None:
        """Keep one worker playing, and start it again when it died; return when that is in vain."""
        died: type[Exception] = self._ray.exceptions.RayActorError
        while True:
            token, reason = await self._open(worker)
            if token is None:
                break
            playing = self._playing[worker] = set()
            with suppress(died):
                await self._exchange(worker, token, playing)
            self._lose(worker, name)
        self._retired += 1
        if self._retired == count:
            self._fail(WorkerDied(f"No worker on Ray is left; the last one could not be started: {one_line(reason)}"))
        else:
            logger.warning("%s could not be started, and the others go on: %s", name, one_line(reason))

    async def _open(self, worker: WorkerHandle) -> tuple[str | None, str]:
        """Return the token of a worker that was opened, or `None` and why there is none."""
        exceptions = self._ray.exceptions
        reason = f"it was not ready after {_START_SECONDS:g} s"
        with anyio.move_on_after(_START_SECONDS):
            while True:
                try:
                    answer: str | Exception = await worker.start.remote(self._settings)
                except exceptions.ActorDiedError as error:  # for good
                    return None, str(error)
                except exceptions.RayActorError as error:
                    reason = str(error)
                    await anyio.sleep(_AGAIN_SECONDS)
                    continue
                if isinstance(answer, Exception):
                    self._fail(answer)
                    await anyio.sleep_forever()  # the group was cancelled
                return cast("str", answer), ""
        return None, reason

    async def _exchange(self, worker: WorkerHandle, token: str, playing: set[Attempt]) -> None:
        """Send a worker what it may play, and take what ended; return when it plays nothing of that any more."""
        while True:
            room = self._concurrency - len(playing)
            new = [self._queue.popleft() for _ in range(min(room, len(self._queue)))]
            if not new and not playing:
                await self._finish_ended()
                await self._returned.wait()
                continue
            playing.update(new)
            call = worker.exchange.remote(token, new)
            await self._finish_ended()  # while the worker goes on
            outcomes: list[Outcome] | None = await call
            if outcomes is None:  # it died before, and nobody has begun them
                playing.difference_update(new)
                self._queue.extendleft(reversed(new))
                return
            playing.difference_update(attempt for attempt, _ in outcomes)
            self._ended += outcomes

    def _lose(self, worker: WorkerHandle, name: str) -> None:
        """Put back what a worker was playing when it died."""
        lost = self._playing.pop(worker)
        if not lost:
            return
        self._deaths.update(lost)
        deadly = [attempt for attempt in lost if self._deaths[attempt] >= _MOST_DEATHS]
        again = [attempt for attempt in lost if attempt not in deadly]
        self._queue.extendleft(again)  # first, as their tasks were begun first
        self._ended += [(attempt, _broken(attempt)) for attempt in deadly]
        self._returned.set()
        self._returned = anyio.Event()
        self._on_leaked(len(lost))
        logger.warning(
            "%s died with %s under way: %d of them are played again. Its sessions are left to the server, which ends "
            "what is idle.",
            name,
            f"{len(lost)} episodes" if len(lost) > 1 else "1 episode",
            len(again),
        )

    async def _finish_ended(self) -> None:
        while self._ended:
            attempt, outcome = self._ended.popleft()
            if isinstance(outcome, Exception):
                self._fail(outcome)
                return
            try:
                await self._finished(attempt, outcome)
            except OSError as error:
                self._fail(error)
                return
            self._left -= 1
            if not self._left:
                self._group.cancel_scope.cancel()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._group.cancel_scope.cancel()


def _broken(attempt: Attempt) -> EpisodeRecord:
    task, _ = attempt
    return EpisodeRecord(
        split=task.split,
        index=task.index,
        status=f"failed: {WorkerDied.__name__}",
        failure=f"{_MOST_DEATHS} workers died while they played it",
        started=datetime.now(UTC),
        seconds=0.0,
    )
