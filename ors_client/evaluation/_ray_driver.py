"""The attempts of an evaluation -> workers on Ray -> their episodes, each once.

The driver holds the queue. A worker is sent as many attempts as it may play at a time, and what it was sent is its own
until it tells how that ended. Where a worker dies, Ray starts it anew, and what it had goes back into the queue: as new
episodes, since nothing was told of the old ones. Knows nothing of records, and asks no model.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, cast

import anyio

from ors_client._errors import ORSError, one_line
from ors_client._http.redaction import Redactor, get_logger
from ors_client.record import EpisodeRecord

from ._ray_worker import Outcome, Stopped, Worker, WorkerSettings
from ._shard import Attempt

logger = get_logger(__name__)

Finished = Callable[[Attempt, EpisodeRecord], Awaitable[None]]

_START_SECONDS = 300.0  # for a worker's process, on a node that may have to be started first
_STOP_SECONDS = 30.0  # for a worker to delete its sessions, each of which has `Timeouts.close`
_CONNECT_SECONDS = 10.0  # for a cluster's node to accept a connection
_AGAIN_SECONDS = 0.5  # before a worker that can't be reached is tried again; its process takes longer to start
_MOST_DEATHS = 3  # of workers that were playing one attempt: it may be what kills them
_EXCERPT = 500  # characters of why Ray can't be used, as that its versions differ
_MOST_BYTES = 100 * 1024  # of an argument that goes from process to process; Ray stores others, also on a disk


class WorkerDied(ORSError):
    """Raised when no worker on Ray is left, or none could be started.

    Cause: The processes were killed, often for their memory, their nodes were lost, or `ors-client` is not installed
    there.

    Tried: To start each anew. What a worker was playing is played again; an attempt that saw three workers die counts
    as broken.

    Do: Look at the memory of the nodes and at Ray's logs, and use a lower `concurrency`.
    """


class RayActor(Protocol):
    """The handle of a `Worker`, as far as it is used."""

    start: Any
    exchange: Any
    stop: Any


@dataclass(kw_only=True, repr=False)
class RayWorkers:
    """The workers of one evaluation.

    Args:
        settings: What each plays with.
        count: How many there are; `None` is one a node.
        concurrency: How many episodes each plays together.
        address: Of the cluster, as `ray.init` takes it.
        hide: What the cluster must not be shown of this program's command line.
        on_leaked: Called with a number of sessions that were, or may have been, left on the server.
    """

    settings: WorkerSettings
    count: int | None
    concurrency: int
    address: str | None
    hide: Sequence[str]
    on_leaked: Callable[[int], None]

    async def play(self, attempts: Iterable[Attempt], finished: Finished) -> None:
        """Play attempts until each is finished.

        Args:
            attempts: In the order in which they are begun.
            finished: Awaited for each with its episode.

        Raises:
            ModuleNotFoundError: Ray is not installed.
            TypeError: A setting can't be sent to the workers.
            WorkerDied: No worker is left.
        """
        ray = import_ray()
        pickled = _pickled(ray, self.settings)
        async with _connected(ray, self.address, Redactor(self.hide)):
            actors = await anyio.to_thread.run_sync(partial(_create, ray, self.count))
            dispatcher = _Dispatcher(self, ray, pickled, attempts, finished)
            try:
                await dispatcher.play(actors)
            finally:
                with anyio.CancelScope(shield=True):
                    await dispatcher.stop(actors)


def import_ray(address: str | None = None) -> Any:
    """Return the package `ray`, where an evaluation can use it at an address.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to do that.
        ValueError: The address can't be used.
    """
    if address is not None and address.startswith("ray://"):
        raise ValueError(f"The address of Ray Client ({address!r}) can't be used; start this on a node of the cluster.")
    try:
        import ray  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "An evaluation on Ray needs ray: pip install 'ors-client[ray]'.", name="ray"
        ) from None
    if address is not None and ray.is_initialized():
        raise ValueError(f"Ray is initialised already, so there is no address to connect to: {address!r}.")
    return ray


class _Dispatcher:
    """The queue, and who plays what of it."""

    def __init__(
        self, workers: RayWorkers, ray: Any, pickled: bytes, attempts: Iterable[Attempt], finished: Finished
    ) -> None:
        self._workers = workers
        self._ray = ray
        self._pickled = pickled
        self._finished = finished
        self._queue = deque(attempts)
        self._returned = anyio.Event()  # set, and replaced, when attempts come back into the queue
        self._left = len(self._queue)
        self._ended: deque[Outcome] = deque()  # and not finished yet
        self._playing: dict[RayActor, set[Attempt]] = {}  # of the workers that are open
        self._deaths: Counter[Attempt] = Counter()
        self._retired = 0
        self._error: Exception | None = None  # not raised in the group, which would wrap it in a group of its own

    async def play(self, actors: Sequence[RayActor]) -> None:
        """Feed the workers until nothing is left."""
        async with anyio.create_task_group() as self._group:
            for number, actor in enumerate(actors, start=1):
                self._group.start_soon(self._feed, actor, f"Worker {number} of {len(actors)}", len(actors))
        if self._error is not None:
            raise self._error

    async def stop(self, actors: Sequence[RayActor]) -> None:
        """End the workers and what they are playing; keep what had ended by then."""

        async def stop(actor: RayActor, playing: set[Attempt]) -> None:
            leaked = len(playing)
            with anyio.move_on_after(_STOP_SECONDS), suppress(self._ray.exceptions.RayActorError):
                stopped: Stopped = await actor.stop.remote()
                leaked = stopped.leaked
                self._ended += [outcome for outcome in stopped.outcomes if outcome[0] in playing]
            if leaked:
                self._workers.on_leaked(leaked)

        async with anyio.create_task_group() as group:
            for actor, playing in self._playing.items():
                group.start_soon(stop, actor, playing)
        for actor in actors:
            self._ray.kill(actor)
        for attempt, outcome in self._ended:
            if isinstance(outcome, EpisodeRecord) and not isinstance(self._error, OSError):
                await self._finished(attempt, outcome)

    async def _feed(self, actor: RayActor, name: str, count: int) -> None:
        """Keep one worker playing, and start it again when it died; return when that is in vain."""
        died: type[Exception] = self._ray.exceptions.RayActorError
        while True:
            token, reason = await self._open(actor)
            if token is None:
                break
            playing = self._playing[actor] = set()
            with suppress(died):
                await self._exchange(actor, token, playing)
            self._lose(actor, name)
        self._retired += 1
        if self._retired == count:
            self._fail(WorkerDied(f"No worker on Ray is left; the last one could not be started: {one_line(reason)}"))
        else:
            logger.warning("%s could not be started, and the others go on: %s", name, one_line(reason))

    async def _open(self, actor: RayActor) -> tuple[str | None, str]:
        """Return the token of a worker that was opened, or `None` and why there is none."""
        exceptions = self._ray.exceptions
        reason = f"it was not ready after {_START_SECONDS:g} s"
        with anyio.move_on_after(_START_SECONDS):
            while True:
                try:
                    answer: str | Exception = await actor.start.remote(self._pickled)
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

    async def _exchange(self, actor: RayActor, token: str, playing: set[Attempt]) -> None:
        """Send a worker what it may play, and take what ended; return when it plays nothing of that any more."""
        while True:
            room = self._workers.concurrency - len(playing)
            new = [self._queue.popleft() for _ in range(min(room, len(self._queue)))]
            if not new and not playing:
                await self._finish_ended()
                await self._returned.wait()
                continue
            playing.update(new)
            call = actor.exchange.remote(token, new)
            await self._finish_ended()  # while the worker goes on
            outcomes: list[Outcome] | None = await call
            if outcomes is None:  # it died before, and nobody has begun them
                playing.difference_update(new)
                self._queue.extendleft(reversed(new))
                return
            playing.difference_update(attempt for attempt, _ in outcomes)
            self._ended += outcomes

    def _lose(self, actor: RayActor, name: str) -> None:
        """Put back what a worker was playing when it died."""
        lost = self._playing.pop(actor)
        if not lost:
            return
        self._deaths.update(lost)
        deadly = [attempt for attempt in lost if self._deaths[attempt] >= _MOST_DEATHS]
        again = [attempt for attempt in lost if attempt not in deadly]
        self._queue.extendleft(again)  # first, as their tasks were begun first
        self._ended += [(attempt, _broken(attempt)) for attempt in deadly]
        self._returned.set()
        self._returned = anyio.Event()
        self._workers.on_leaked(len(lost))
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


def _pickled(ray: Any, settings: WorkerSettings) -> bytes:
    for name in ("client", "model", "secrets"):
        try:
            ray.cloudpickle.dumps(getattr(settings, name))
        except Exception as error:  # noqa: BLE001 - whatever its class does to be pickled
            raise TypeError(
                f"{name}= can't be sent to the workers ({type(error).__name__}: {one_line(error)}). Pass what each of "
                "them calls to make its own: a function of a module, or functools.partial(...) of a class and what can "
                "be pickled."
            ) from None
    pickled: bytes = ray.cloudpickle.dumps(settings)
    if len(pickled) > _MOST_BYTES:
        raise TypeError(
            f"client=, model= and secrets= take {len(pickled):,} bytes when they are pickled, and {_MOST_BYTES:,} is "
            "the most that Ray sends without storing it. Load what is large in the function that makes it."
        )
    return pickled


@asynccontextmanager
async def _connected(ray: Any, address: str | None, redactor: Redactor) -> AsyncGenerator[None]:
    """Connect to a cluster, or start one, for the length of the block; where Ray is initialised, use it as it is."""
    if ray.is_initialized():
        yield
        return
    _hide_command_line(ray, redactor)
    no_cluster = f"There is no Ray cluster at {address!r}. Start one with `ray start --head`, or leave the address out"
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal():  # Ray would wait for minutes, and not be interrupted
        with anyio.move_on_after(_CONNECT_SECONDS) as scope:
            try:
                await (await anyio.connect_tcp(host.strip("[]"), int(port))).aclose()
            except OSError as error:
                raise ORSError(f"{no_cluster} ({one_line(error)}).") from None
        if scope.cancelled_caught:
            raise ORSError(f"{no_cluster} (it did not accept a connection within {_CONNECT_SECONDS:g} s).")
    try:
        try:
            # In a thread: it takes seconds, and sets handlers of signals in the main one.
            await anyio.to_thread.run_sync(_initialise, ray, address)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, ConnectionError):
                raise ORSError(f"{no_cluster} ({one_line(error)}).") from None
            where = "" if address is None else f" at {address!r}"
            raise ORSError(f"Ray can't be used{where}: {one_line(error, _EXCERPT)}") from None
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(ray.shutdown)


def _initialise(ray: Any, address: str | None) -> None:
    log = logging.getLogger("ray")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of the signals that it does not handle in a thread
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    finally:
        log.setLevel(level)


def _hide_command_line(ray: Any, redactor: Redactor) -> None:
    # Ray shows the command line of each program to the whole cluster; this is what it and `ps` read from now on.
    line = " ".join(sys.orig_argv)
    shown = redactor.redact(line)
    if shown != line:
        try:
            ray._raylet.setproctitle(shown)  # noqa: SLF001 - it has no public name
        except AttributeError:  # as in 2.40
            raise ORSError(
                f"Ray {ray.__version__} shows a program's command line to its cluster, and there is a key or a secret "
                "on this one. Give it by its variable, or use a newer Ray."
            ) from None


def _create(ray: Any, count: int | None) -> list[RayActor]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as `ray` itself

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    # A worker waits for servers and takes a share of a core, so it is told to take none: its count is the caller's. The
    # byte is there because Ray puts an actor that takes nothing on a node by chance, whatever node it is told.
    actor = ray.remote(num_cpus=0, memory=1, max_restarts=-1, max_task_retries=0)(Worker)
    return [
        actor.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True)
        ).remote()
        for number in range(count or len(nodes))
    ]
