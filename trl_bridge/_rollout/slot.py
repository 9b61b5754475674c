"""A rollout slot of a trainer's batches: its current episode, the prefetched one, and the calls started early.

A trainer asks for one thing after the other and waits each time; a slot can start early what it will ask for. What was
not started early is done when it is asked for: prefetching changes timing, never results. Any thread may use a slot,
one at a time; the work is done on the runtime's loop.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from ors_client import ClientStateError, TaskRef
from ors_client._shared import BlockRecorder, EpisodeLog, get_logger, is_one_text, wait
from ors_client.record import ToolsRecord, WordsRecord
from trl_bridge._chat.conversation import as_chat, from_chat
from trl_bridge._chat.tools import BoundTool
from trl_bridge._runtime.runtime import Runtime, RuntimeHandle

from .episode import Episode, Shown, reward

logger = get_logger(__name__)


class PendingEpisode:
    """An episode that is being opened or is open, and the future of its prompt."""

    def __init__(self, runtime: Runtime, task: TaskRef, *, tools: ToolsRecord, speculative: bool = False) -> None:
        self.episode = Episode(runtime, task, tools=tools, speculative=speculative)
        self.prompt: Future[Shown] = runtime.loop.submit(self.episode.open())

    def claim(self) -> bool:
        """Make it a rollout's, whose time begins now; `False` if it has failed or was lost in the meantime."""
        return self.episode.runtime.process.is_current and self.episode.claim()

    def discard(self) -> Future[None] | None:
        """Release an episode that no rollout took."""
        self.episode.speculative = True
        return self.release()

    def release(self) -> Future[None] | None:
        """Stop opening, delete what was opened; return the future of that, or `None` where there is nothing to do."""
        if not self.episode.runtime.process.is_current:
            return None
        self.prompt.cancel()
        try:
            return self.episode.runtime.loop.submit(self.episode.close())
        except ClientStateError:  # the runtime was closed, and deleted the session
            return None


class SlotState:
    """What a slot holds on the server; a finalizer releases it without keeping the slot."""

    def __init__(self) -> None:
        self.now: PendingEpisode | None = None
        self.next: PendingEpisode | None = None

    def release(self) -> None:
        """Release everything, without waiting."""
        if self.now is not None:
            self.now.release()
        if self.next is not None:
            self.next.discard()


class RolloutSlot:
    """Holds one episode after another for a trainer.

    Args:
        handle: What the spec's rollouts share.
        tools: What the model knows of the tools.
    """

    def __init__(self, handle: RuntimeHandle, *, tools: ToolsRecord) -> None:
        self.handle = handle
        self.state = SlotState()
        self.attached = False  # whether the trainer was made to ask for this slot's rollouts as `attach` wants
        self._tools = tools
        self._dispatched: deque[tuple[BoundTool, Mapping[str, Any], Future[Shown]]] = deque()

    @property
    def log(self) -> EpisodeLog:
        """What happened in the current episode; nothing yet, before the first reset."""
        now = self.state.now
        return now.episode.log if now is not None else EpisodeLog(split="", index=0)

    @property
    def reward(self) -> float | None:
        """What the current episode is worth."""
        return reward(self.log, self.handle.settings.scoring)

    @property
    def unusable_rewards(self) -> int:
        """How many rewards of the episode at hand count as none, as float32 can't hold them."""
        now = self.state.now
        return now.episode.unusable_rewards if now is not None else 0

    @property
    def teaches_nothing(self) -> bool:
        """Whether the infrastructure broke the episode at hand, and no reward function's value of it may count."""
        return self.log.failure is not None and self.handle.settings.scoring.on_failure == "unscored"

    def warn_unless_attached(self) -> None:
        """Say once that other reward functions' values of a failed rollout count, where nothing leaves them out."""
        runtime = self.runtime
        if self.attached or runtime is None or runtime.unattached_warned or not self.teaches_nothing:
            return
        runtime.unattached_warned = True
        logger.warning(
            "A rollout %s, and its trainer is not attached: if there are other reward functions, what they gave it "
            "counts in this batch. spec.attach(trainer) before training leaves failed rollouts out. Said once.",
            self.log.status,
        )

    @property
    def stops(self) -> bool:
        """Whether the model is asked for no turn after the end of an episode."""
        return self.handle.settings.stop_at_finish

    def warn_unless_stopped(self) -> None:
        """Say once that the model was asked for a turn after the end of an episode, where nothing prevents it."""
        runtime = self.runtime
        if self.attached or not self.stops or runtime is None or runtime.turns_warned or not self.log.is_over:
            return
        runtime.turns_warned = True
        logger.warning(
            "stop_at_finish=True, but the trainer is not attached: the model was asked for another turn after the end "
            "of an episode. Call spec.attach(trainer) before training. Said once."
        )

    @property
    def seconds(self) -> float:
        """How long the current episode took, or has taken so far."""
        now = self.state.now
        return now.episode.seconds if now is not None else 0.0

    @property
    def runtime(self) -> Runtime | None:
        """What is open in this process, if anything is."""
        return self.handle.current()

    def reset(self, row: Mapping[str, Any]) -> Shown | None:
        """Release the current episode and open that of a dataset row; return its prompt.

        Raises:
            ValueError: The row names no task.
            FailureRateExceeded: Too many resets failed for the run to go on.
        """
        task, runtime = self.handle.settings.task(row), self.handle.runtime
        runtime.resets.check()
        ready, self.state.next = self.state.next, None
        if ready is not None and (ready.episode.task != task or ready.episode.runtime is not runtime):
            ready.discard()
            ready = None
        self.release()
        self.state.now = pending = ready or PendingEpisode(runtime, task, tools=self._tools)
        if self.handle.settings.prompts != "reset":
            return None  # the row holds the prompt, and the first call waits for the session
        return wait(pending.prompt)

    def call(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Shown:
        """Make a call, or take the answer of the same call that was started ahead.

        Raises:
            ToolCallError: The tool raised, or the call was rejected.
            ClientStateError: There is no episode to call in.
        """
        if self._dispatched:
            expected, given, answer = self._dispatched.popleft()
            if expected is tool and given == kwargs:
                return wait(answer)
            logger.error("A call of %r was started ahead, but %r was called.", expected.name, tool.name)
            self._dispatched.clear()
        return wait(self._start(tool, kwargs))

    @property
    def is_open(self) -> bool:
        """Whether a call would reach an episode of this process."""
        now = self.state.now
        return now is not None and now.episode.runtime is self.runtime

    def can_reset(self, row: Mapping[str, Any]) -> bool:
        """Whether a reset to this row would open an episode; if not, `reset` says why."""
        try:
            self.handle.settings.task(row)
            _ = self.handle.runtime
        except (ValueError, ClientStateError):
            return False
        return True

    def prefetch(self, row: Mapping[str, Any], *, ready: PendingEpisode | None = None) -> None:
        """Start opening the episode that the next `reset` will ask for; the one at hand goes on until then.

        Args:
            row: The dataset row.
            ready: An episode of its task that is opened already.
        """
        task, runtime = self.handle.settings.task(row), self.handle.runtime
        self.drop_prefetched()
        self.state.next = ready or PendingEpisode(runtime, task, tools=self._tools)

    def open_ahead(self, row: Mapping[str, Any]) -> PendingEpisode:
        """Start opening an episode of a row's task for whichever slot will claim it; it is in no record until then."""
        task = self.handle.settings.task(row)
        return PendingEpisode(self.handle.runtime, task, tools=self._tools, speculative=True)

    def drop_prefetched(self) -> None:
        """Discard an episode that was opened ahead and not asked for."""
        ready, self.state.next = self.state.next, None
        if ready is not None:
            ready.discard()

    def dispatch(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> None:
        """Start a call that the trainer is about to make. Calls run in the order in which they were started."""
        self._dispatched.append((tool, kwargs, self._start(tool, kwargs)))

    def answer(self, message: str) -> Future[None] | None:
        """Hand the model's last message to the terminal tool, if there is an episode that goes on."""
        now = self.state.now
        if now is None or now.episode.log.is_over or not now.episode.runtime.process.is_current:
            return None
        return now.episode.runtime.loop.submit(now.episode.answer(message))

    def record_words(self, prompt: object, completion: object, *, step: int | None) -> None:
        """Let the record tell what the model wrote in the current episode, which ends; it is written in the background.

        Args:
            prompt: What the trainer showed the model.
            completion: What followed: the model's words and calls, and the results.
            step: Of the training.
        """
        now = self.state.now
        if now is None or not self.handle.settings.record or not now.episode.runtime.process.is_current:
            return
        words = partial(
            _words,
            now.episode.log,
            prompt,
            completion,
            names={alias: name for name, alias in self._tools.names.items()},
            images=self.handle.settings.record_images,
            step=step,
            reward=self.reward,
        )
        with contextlib.suppress(ClientStateError):  # the runtime was closed meanwhile
            now.episode.runtime.loop.submit(now.episode.record_words(words))

    def release(self) -> Future[None] | None:
        """End the current episode as it stands; return the future of its deletion, which runs in the background."""
        self._dispatched.clear()
        return self.state.now.release() if self.state.now is not None else None

    def close(self) -> None:
        """End the current episode and the one ahead, and wait until the sessions are deleted."""
        ready, self.state.next = self.state.next, None
        for released in (self.release(), ready.discard() if ready is not None else None):
            if released is not None:
                wait(released)

    def _start(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Future[Shown]:
        now = self.state.now
        if now is None:
            raise ClientStateError(f"{tool.name!r} was called before reset(), which opens the episode.")
        if not now.episode.runtime.process.is_current:
            raise ClientStateError(f"{tool.name!r} was called in a forked process; its episode is the parent's.")
        return now.episode.runtime.loop.submit(now.episode.call(tool, kwargs))


def _words(
    log: EpisodeLog,
    prompt: object,
    completion: object,
    *,
    names: Mapping[str, str],
    images: bool,
    step: int | None,
    reward: float | None,
) -> WordsRecord:
    shown, wrote = as_chat(prompt, "user"), as_chat(completion, "assistant")
    opening = from_chat(shown, names=names)
    messages = from_chat([*shown, *wrote], names=names)
    recorder = BlockRecorder(images=images)
    as_opened = log.opening == 1 and len(opening) == 1 and is_one_text(opening) and opening[0].text == log.prompt
    return WordsRecord(
        id=log.id,
        step=step,
        completion=recorder.messages(messages[len(opening) :]),
        prompt=None if as_opened else recorder.messages(opening),
        reward=reward,
        status=log.status,
    )
