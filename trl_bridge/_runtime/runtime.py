"""What all rollouts of a spec share in one process: an event loop, the servers, counts and the record.

`RuntimeHandle` is the handle that specs, factories and environments hold. It opens on first use, opens anew in a forked
child, and travels between processes as its settings alone. `Runtime` is what is open. Neither knows of tasks, tools or
rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

import anyio

from ors_client import AsyncClient, ClientStateError, Layout, Message, Rollouts, Secret, TaskRef
from ors_client._shared import (
    LoopThread,
    OwnProcess,
    Secrets,
    credentials_in,
    get_logger,
    known_versions,
    secret_values,
)
from ors_client.record import EpisodeRecord, RecordWriter, RunRecord, WordsRecord, redacted
from trl_bridge._settings import Settings, record_path

from .failure_rate import ResetRate
from .rollout_upload import redactable, upload
from .servers import Server, Servers
from .task_specs import TaskSpecCache

logger = get_logger(__name__)

# Settings of rollouts that a record tells, beside those of their scores: they explain an episode.
_RECORDED = (
    *("split", "variant", "toolset", "prompts", "images", "terminal_tool", "max_calls", "max_output_chars"),
    *("max_episode_chars", "call_timeout", "episode_timeout"),
)
_RECORD_SECONDS = 5.0  # an answer waits for its episode's line, which takes milliseconds unless something is wrong
_UPLOAD_LIMITS = 6  # what the client takes for its uploads as long as they arrive, in lengths of `Timeouts.close`
_JOIN_SECONDS = 2.0  # for a loop that has nothing left to do; it is a daemon, so nothing depends on it


class Running(Protocol):
    """An episode that has not ended."""

    def end(self) -> None:
        """End it as it stands."""


class Runtime:
    """What is open in one process. Its coroutines and its plain attributes belong to its loop.

    Attributes:
        process: The one that may use it.
        resets: The outcomes of the last resets.
        tasks_seen: Tasks whose tools were compared with those that the model knows.
        tools_logged: Names of tools that the model does not know.
        endings: Kinds of failures and cuts that occurred.
        unscored_warned: Whether a batch without any reward was warned of.
        unattached_warned: Whether it was said that a failed rollout's other rewards count.
        turns_warned: Whether it was said that the model was asked for turns after the end of episodes.
        running: Episodes that have not ended.
        task_specs: The specifications of tasks, for the record.
        environment: Its name on the servers; where it was not given, it is known once a session was opened.
        server_version: Of a server, for the record.
        version_asked: Whether one was asked for it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.process = OwnProcess()
        self.loop = LoopThread("trl-bridge", owner="OpenRewardSpec")
        self.resets = ResetRate(settings.max_failure_rate)
        self.tasks_seen: set[TaskRef] = set()
        self.tools_logged: set[str] = set()
        self.endings: set[str] = set()
        self.unscored_warned = False
        self.unattached_warned = False
        self.turns_warned = False
        self._reward_warned = False
        self.running: set[Running] = set()
        self.task_specs = TaskSpecCache()
        self.environment = settings.name
        self.server_version: str | None = None
        self.version_asked = False
        self.secrets = settings.secrets
        self._servers: Servers | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()  # guards that records stand in the order in which episodes ended
        self._limit = asyncio.Semaphore(settings.max_concurrency) if settings.max_concurrency else None
        self._record: RecordWriter | None = None
        self._record_path = record_path(settings.record or "")
        self._record_is_late = False  # a line did not come in time; nobody waits until one is written again
        self._rollouts: Rollouts | None = None
        self._run: RunRecord | None = None

    async def open(self) -> None:
        """Make a client for every server and enter it."""
        settings = self.settings
        servers: list[Server] = []
        for target in settings.servers:
            client = AsyncClient(
                *(() if target is None else (target,)),  # left out, it is the catalogue
                api_key=settings.api_key,
                retry=settings.retry,
                keepalive=settings.keepalive,
                timeout=settings.timeout,
                limits=settings.limits,
                headers=settings.headers,
            )
            await client.__aenter__()
            servers.append(Server(client, client.environment(settings.name, variant=settings.variant)))
            if target is None and settings.secrets is None and settings.forward_api_key:
                self.secrets = _catalogue_secrets(settings.api_key, client.layout)
        self._servers = Servers(servers)
        if settings.rollouts:
            self._rollouts = servers[0].client.rollouts
        if settings.record:
            self._record = RecordWriter(self._record_path, hide=self._hidden_values())

    async def close(self) -> None:
        """End the episodes, finish what runs in the background, and close the clients, which deletes what is left."""
        for episode in list(self.running):
            episode.end()
        self.spawn(self.task_specs.close())
        await asyncio.wait(self._tasks, timeout=self.settings.timeout.close)
        await self.servers.close()

    @property
    def servers(self) -> Servers:
        """The servers, once `open` has run."""
        if self._servers is None:
            raise ClientStateError("This runtime was not opened.")
        return self._servers

    @asynccontextmanager
    async def request_slot(self, *, within: float | None = None) -> AsyncGenerator[bool]:
        """Wait until `max_concurrency` allows one more request, and tell whether it did `within` so many seconds."""
        if self._limit is None:
            yield True
            return
        with anyio.move_on_after(within) as waiting:
            await self._limit.acquire()
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield True
        finally:
            self._limit.release()

    def warn_of_reward(self, tool: str, reward: float) -> None:
        """Say once that a reward can't be used."""
        if not self._reward_warned:
            self._reward_warned = True
            logger.warning(
                "%r gave the reward %g, which float32 can't hold; it counts as none. Said once; the metric "
                "environment/unusable_rewards has the share of such rollouts.",
                tool,
                reward,
            )

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` in the background; closing waits for it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def record(self, episode: EpisodeRecord, opening: Sequence[Message]) -> asyncio.Task[None] | None:
        """Append an episode to the record and upload it to the catalogue, in the background and as far as wanted.

        Args:
            episode: As the record holds it.
            opening: The conversation that it began with, as it is uploaded.
        """
        if self._rollouts is None and self._record is None:
            return None
        return self.spawn(self._in_order(partial(self._write, episode, opening)))

    def record_words(self, words: Callable[[], WordsRecord]) -> None:
        """Append the model's words of a rollout to the record, in the background.

        Args:
            words: Makes the line, on a thread of its own: images may be many.
        """
        if self._record is not None:
            self.spawn(self._in_order(partial(self._write_words, words)))

    def run_record(self) -> RunRecord:
        """Return what the record says of the settings."""
        if self._run is None or self._run.environment != self.environment:
            settings = asdict(self.settings.scoring) | {name: getattr(self.settings, name) for name in _RECORDED}
            self._run = RunRecord(
                kind="training",
                environment=self.environment,
                target=self.settings.target,
                settings=settings,
                versions=known_versions("ors-client", "trl", server=self.server_version),
            )
        return self._run

    async def recorded(self, recording: asyncio.Task[None]) -> None:
        """Wait until what `record` started is done, so that no crash loses it; but not long, and once in a row."""
        if recording.done() or self._record_is_late:
            return
        await asyncio.wait([recording], timeout=_RECORD_SECONDS)
        if not recording.done() and not self._record_is_late:
            self._record_is_late = True
            logger.warning(
                "Writing an episode to %r takes more than %g seconds. Rollouts go on, and a crash would lose the "
                "episodes that wait to be written.",
                self._record_path or "the catalogue",
                _RECORD_SECONDS,
            )

    async def _in_order(self, write: Callable[[], None]) -> None:
        try:
            async with self._write_lock:
                try:
                    # Another process may hold the file, and a disk may be slow: the rollouts must not wait for either.
                    written = _run_on_daemon_thread(write)
                except RuntimeError:  # no thread can be started while the interpreter exits
                    write()
                else:
                    await written
                self._record_is_late = False
        except asyncio.CancelledError:
            if self._record is not None:
                logger.error("An episode was not written to %r before the spec was closed.", self._record_path)  # noqa: TRY400 - there is nothing to trace
            raise

    def _write(self, episode: EpisodeRecord, opening: Sequence[Message]) -> None:
        """Write an episode down; a full disk does not end a run."""
        if self._record is not None:
            try:
                self._record.append(episode)
            except OSError as error:
                logger.error("An episode could not be written to %r: %s", self._record_path, error)  # noqa: TRY400 - the error's text says it all
        if self._rollouts is not None and self.settings.rollouts is not None:
            try:
                hidden = redacted(redactable(episode, opening), self._hidden_values())
                upload(self._rollouts, self.settings.rollouts, hidden, variant=self.settings.variant)
            except (ClientStateError, TypeError, ValueError) as error:  # closed, or nested too deeply to be sent
                logger.warning("An episode could not be uploaded to the catalogue: %s", error)

    def _write_words(self, words: Callable[[], WordsRecord]) -> None:
        if self._record is None:
            return
        try:
            self._record.append_words(words())
        except (OSError, ValueError) as error:
            logger.error("The words of a rollout could not be written to %r: %s", self._record_path, error)  # noqa: TRY400 - the error's text says it all

    def _hidden_values(self) -> list[str]:
        """Return what no record and no upload shows."""
        settings = self.settings
        return [*credentials_in(settings.headers or {}), settings.api_key or "", *secret_values(self.secrets)]


class RuntimeHandle:
    """Opens what a spec's rollouts share, once per process, and closes it.

    It closes with `close`, when nothing refers to it any more, and when the interpreter exits. A copy made by
    pickling is the same object in the same process, and a fresh one in another.

    Attributes:
        environment_classes: The classes of this process's rollouts by name, made once, as TRL compares exact types.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.environment_classes: dict[str, type[Any]] = {}
        self._lock = threading.Lock()  # guards `_runtime`: the first two rollouts must not open two clients
        self._lock_process = OwnProcess()
        self._runtime: Runtime | None = None
        self._parents: list[Runtime] = []
        self._closed = False
        self._finalizer: weakref.finalize[..., RuntimeHandle] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return connect, (self.settings,)

    def __copy__(self) -> RuntimeHandle:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> RuntimeHandle:
        return self

    @property
    def runtime(self) -> Runtime:
        """What is open; opened here if nothing is.

        Raises:
            ClientStateError: The spec was closed.
        """
        runtime = self._runtime
        if runtime is not None and runtime.process.is_current:
            return runtime
        if not self._lock_process.is_current:
            # Forked: another thread of the parent may have held the lock, and its loop's thread did not come along.
            self._lock, self._lock_process = threading.Lock(), OwnProcess()
        with self._lock:
            if self._closed:
                raise ClientStateError("This OpenRewardSpec is closed; make a new one.")
            if self._runtime is None or not self._runtime.process.is_current:
                if self._runtime is not None and self._finalizer is not None:
                    # The parent's loop shares its selector with this process: it must not even be collected here.
                    self._finalizer.detach()
                    self._parents.append(self._runtime)
                runtime = Runtime(self.settings)
                try:
                    runtime.loop.run(runtime.open())
                except BaseException:
                    runtime.loop.stop(join_seconds=_JOIN_SECONDS)
                    raise
                self._runtime = runtime
                self._finalizer = weakref.finalize(self, _close_runtime, runtime)
                if self._closed and self._finalizer.detach() is not None:
                    # Closed while it opened, when there was nothing to close yet: whichever comes last sees the other.
                    _close_runtime(runtime, wait=True)
                    raise ClientStateError("This OpenRewardSpec was closed while it was opened.")
            return self._runtime

    def current(self) -> Runtime | None:
        """Return what is open in this process, if anything is."""
        runtime = self._runtime
        return runtime if runtime is not None and runtime.process.is_current and not self._closed else None

    def close(self) -> None:
        """Delete all sessions and close the clients, within the `close` limit of `Timeouts`. May be called again."""
        self._closed = True
        finalizer = self._finalizer
        if self._runtime is not None and finalizer is not None and finalizer.detach() is not None:
            _close_runtime(self._runtime, wait=True)


def connect(settings: Settings) -> RuntimeHandle:
    """Return this process's handle for `settings`."""
    with _handles_lock:
        handle = _handles.get(settings.key)
        if handle is None:
            handle = _handles[settings.key] = RuntimeHandle(settings)
        return handle


# What makes copies of a spec, unpickled one after the other in a worker, share one loop and one pool.
_handles: weakref.WeakValueDictionary[str, RuntimeHandle] = weakref.WeakValueDictionary()
_handles_lock = threading.RLock()


def _close_runtime(runtime: Runtime, *, wait: bool = False) -> None:
    """Close what is open.

    Without `wait`, the garbage collector may have called, and it runs on any thread: one that the closing itself may
    need must not wait for it. The main thread, which exits last, is none of these.
    """
    if not runtime.process.is_current:
        return  # a forked child: the sessions and sockets are its parent's
    try:
        closing = runtime.loop.submit(runtime.close())
    except ClientStateError:
        return
    if runtime.loop.is_current or not (wait or threading.current_thread() is threading.main_thread()):
        closing.add_done_callback(lambda _: runtime.loop.stop(join_seconds=0))
        return
    settings = runtime.settings
    limits = 2 if settings.rollouts is None else 2 + _UPLOAD_LIMITS
    try:
        closing.result(limits * settings.timeout.close + _JOIN_SECONDS)
    except TimeoutError:
        logger.warning(
            "Closing %s took more than %d times the close limit: sessions may not have been deleted%s.",
            settings.target,
            limits,
            "" if settings.rollouts is None else ", and not all episodes may have been uploaded to the catalogue",
        )
    finally:
        runtime.loop.stop(join_seconds=_JOIN_SECONDS)


def _run_on_daemon_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` on a thread that the interpreter's exit does not wait for, unlike an executor's.

    Raises:
        RuntimeError: No thread can be started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def set_outcome(error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the top of a thread: whoever waits meets it
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has stopped, and nobody waits
            loop.call_soon_threadsafe(set_outcome, failure)

    threading.Thread(target=run, name="trl-bridge-record", daemon=True).start()
    return done


def _catalogue_secrets(api_key: str | None, layout: Layout) -> Secrets | None:
    """Return the catalogue's key as a secret for the catalogue's own hosts; most of its environments need it."""
    key = api_key or os.environ.get("OPENREWARD_API_KEY", "").strip()
    return {"api_key": Secret(key, layout.hosts)} if key else None
