"""One rollout's place in a trainer's batches: the episode at hand, the one opened ahead, the calls started ahead.

A trainer asks for one thing after the other and waits each time; a seat can be told beforehand what it will ask for,
and has it ready. What was not foreseen is done when it is asked for, so that foresight changes when things happen and
never what happens. Any thread may use a seat, one at a time; the work is done on the connection's loop.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ors_client import ClientStateError, TaskRef
from trl_bridge._chat.tools import BoundTool
from trl_bridge._runtime.loop import wait
from trl_bridge._runtime.runtime import Connection, Live

from .episode import Episode, Shown
from .log import Rollout

logger = logging.getLogger(__name__)


class Opening:
    """An episode that is being opened or is open, and the future of its prompt."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.prompt: Future[Shown] = episode.live.loop.submit(episode.open())

    def claim(self) -> bool:
        """Make it a rollout's, whose time begins now; `False` if it has failed or was lost in the meantime."""
        return self.episode.live.pid == os.getpid() and self.episode.claim()

    def discard(self) -> Future[None] | None:
        """Release an episode that no rollout took."""
        self.episode.unwanted = True
        return self.release()

    def release(self) -> Future[None] | None:
        """Stop opening, delete what was opened; return the future of that, or `None` where there is nothing to do."""
        if self.episode.live.pid != os.getpid():
            return None
        self.prompt.cancel()
        try:
            return self.episode.live.loop.submit(self.episode.close())
        except ClientStateError:  # the connection was closed, and deleted the session
            return None


class Held:
    """What a seat holds on the server. Apart from it, so that a finalizer can let go without keeping the seat."""

    def __init__(self) -> None:
        self.now: Opening | None = None
        self.next: Opening | None = None

    def release(self) -> None:
        """Let go of everything, without waiting."""
        if self.now is not None:
            self.now.release()
        if self.next is not None:
            self.next.discard()


class Seat:
    """The place of one rollout after another.

    Args:
        connection: What the spec's rollouts share.
        tools: The server's names of the tools that the model was told of.
    """

    def __init__(self, connection: Connection, *, tools: frozenset[str]) -> None:
        self.connection = connection
        self.held = Held()
        self._tools = tools
        self._ahead: deque[tuple[BoundTool, Mapping[str, Any], Future[Shown]]] = deque()

    @property
    def rollout(self) -> Rollout:
        """What happened in the episode at hand; nothing yet, before the first reset."""
        now = self.held.now
        return now.episode.rollout if now is not None else Rollout(split="", index=0)

    @property
    def reward(self) -> float | None:
        """What the episode at hand is worth."""
        return self.rollout.reward(self.connection.settings.scoring)

    @property
    def seconds(self) -> float:
        """How long the episode at hand took, or has taken so far."""
        now = self.held.now
        return now.episode.seconds if now is not None else 0.0

    @property
    def live(self) -> Live | None:
        """What is open in this process, if anything is."""
        return self.connection.current()

    def reset(self, row: Mapping[str, Any]) -> Shown | None:
        """Let go of the episode at hand and open that of a dataset row; return its prompt.

        Raises:
            ValueError: The row names no task.
            FailureRateExceeded: Too many resets failed for the run to go on.
        """
        task, live = self.connection.settings.task(row), self.connection.live
        live.resets.check()
        ready, self.held.next = self.held.next, None
        if ready is not None and (ready.episode.task != task or ready.episode.live is not live):
            ready.discard()
            ready = None
        self.release()
        self.held.now = opening = ready or self._open(live, task)
        if self.connection.settings.prompts != "reset":
            return None  # the row holds the prompt, and the first call waits for the session
        return wait(opening.prompt)

    def call(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Shown:
        """Make a call, or take the answer of the same call that was started ahead.

        Raises:
            SpokenError: The tool raised, or the call was rejected.
            ClientStateError: There is no episode to call in.
        """
        if self._ahead:
            expected, given, future = self._ahead.popleft()
            if expected is tool and given == kwargs:
                return wait(future)
            logger.error("A call of %r was started ahead, but %r was called.", expected.name, tool.name)
            self._ahead.clear()
        return wait(self._start(tool, kwargs))

    @property
    def is_open(self) -> bool:
        """Whether a call would reach an episode of this process."""
        now = self.held.now
        return now is not None and now.episode.live is self.live

    def can_reset(self, row: Mapping[str, Any]) -> bool:
        """Whether a reset to this row would open an episode; if not, `reset` says why."""
        try:
            self.connection.settings.task(row)
            _ = self.connection.live
        except (ValueError, ClientStateError):
            return False
        return True

    def prefetch(self, row: Mapping[str, Any], *, ready: Opening | None = None) -> None:
        """Start opening the episode that the next `reset` will ask for; the one at hand goes on until then.

        Args:
            row: The dataset row.
            ready: An episode of its task that is opened already.
        """
        task, live = self.connection.settings.task(row), self.connection.live
        self.drop_prefetched()
        self.held.next = ready or self._open(live, task)

    def open_ahead(self, row: Mapping[str, Any]) -> Opening:
        """Start opening an episode of a row's task for whichever seat will claim it; it is in no record until then."""
        return self._open(self.connection.live, self.connection.settings.task(row), unwanted=True)

    def drop_prefetched(self) -> None:
        """Let go of an episode that was opened ahead and not asked for."""
        ready, self.held.next = self.held.next, None
        if ready is not None:
            ready.discard()

    def dispatch(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> None:
        """Start a call that the trainer is about to make. Calls run in the order in which they were started."""
        self._ahead.append((tool, kwargs, self._start(tool, kwargs)))

    def answer(self, message: str) -> Future[None] | None:
        """Hand the model's last message to the terminal tool, if there is an episode that goes on."""
        now = self.held.now
        if now is None or now.episode.rollout.over or now.episode.live.pid != os.getpid():
            return None
        return now.episode.live.loop.submit(now.episode.answer(message))

    def release(self) -> Future[None] | None:
        """End the episode at hand as it stands; return the future of its deletion, which runs in the background."""
        self._ahead.clear()
        return self.held.now.release() if self.held.now is not None else None

    def close(self) -> None:
        """End the episode at hand and the one ahead, and wait until the sessions are deleted."""
        ready, self.held.next = self.held.next, None
        for released in (self.release(), ready.discard() if ready is not None else None):
            if released is not None:
                wait(released)

    def _open(self, live: Live, task: TaskRef, *, unwanted: bool = False) -> Opening:
        return Opening(Episode(live, task, tools=self._tools, unwanted=unwanted))

    def _start(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Future[Shown]:
        now = self.held.now
        if now is None:
            raise ClientStateError(f"{tool.name!r} was called before reset(), which opens the episode.")
        if now.episode.live.pid != os.getpid():
            raise ClientStateError(f"{tool.name!r} was called in a forked process; its episode is the parent's.")
        return now.episode.live.loop.submit(now.episode.call(tool, kwargs))
