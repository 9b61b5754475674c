"""One episode on a server: opened, stepped and ended, with every failure turned into what the rollout is told.

Runs on the runtime's loop. It decides what the model is told, what breaks an episode and what merely answers, and
enters it all in a `Rollout`; what the rollout is worth is for others to say. An infrastructure failure ends an episode
without an exception: to the model it reads like any other end, so that nothing is learnt from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio

from ors_client import (
    AsyncSession,
    AuthenticationError,
    BillingError,
    CapacityError,
    ClientStateError,
    DeadlineExceeded,
    EnvironmentNotFound,
    Message,
    ORSError,
    TaskRef,
    TextBlock,
    ToolFailed,
    ToolOutput,
    ToolRejected,
)
from ors_client._shared import BlockRecorder, conversation_text, timing_parts
from ors_client.record import CallRecord, EpisodeRecord
from trl_bridge._chat.content import to_content
from trl_bridge._chat.tools import BoundTool
from trl_bridge._runtime.rollout_upload import text_only
from trl_bridge._runtime.runtime import Runtime
from trl_bridge._runtime.servers import Server

from .log import CallTiming, Cut, Failure, Rollout

logger = logging.getLogger(__name__)

Shown = str | list[dict[str, Any]]
"""What TRL puts before the model: text, or content blocks where there are images."""

OVER = "The episode is over; further calls have no effect."
NO_PROMPT = "The environment is not available; there is nothing to do."

_RECORD_SHARE = 0.1  # of the time that is left to an episode, for what only its record needs

# A fresh session would meet these again: they speak of the key, the account, the name, or a wait that has been made.
_FINAL = (AuthenticationError, BillingError, CapacityError, EnvironmentNotFound)


class ToolCallError(Exception):
    """Raised to TRL for a call that was answered with an error; its text is the server's own, for the model to read."""


class Episode:
    """One task, from the request for a session to its deletion.

    Args:
        live: What it runs on.
        task: Which task.
        tools: The server's names of the tools that the model was told of.
        unwanted: It is opened ahead for a rollout that has not come: nothing to record, and no reset to be counted.
    """

    def __init__(self, runtime: Runtime, task: TaskRef, *, tools: frozenset[str], speculative: bool = False) -> None:
        self.runtime = runtime
        self.rollout = Rollout(split=task.split, index=task.index)
        self.speculative = speculative
        self.task = task
        self._tools = tools
        self._transcriber = BlockRecorder(images=runtime.settings.record_images) if runtime.settings.record else None
        self._words: list[Message] = []
        self._order = asyncio.Lock()  # an episode is a sequence: its opening, then its calls as they were made
        self._server: Server | None = None
        self._session: AsyncSession | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._opening: anyio.CancelScope | None = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return time.monotonic() - self._start if self.rollout.seconds is None else self.rollout.seconds

    def claim(self) -> bool:
        """Begin what was opened ahead, now that a rollout wants it; `False` if it is over or its session is lost."""
        if self.rollout.over or (self._session is not None and self._session.lost is not None):
            return False
        self.speculative = False
        self._start = time.monotonic()  # how long it stood ready counts against no budget
        self.rollout.started = time.time()
        if self._session is not None:
            self.runtime.resets.succeeded()  # or else, once it is open
        else:
            self.runtime.loop.submit(self._limit_opening())
        return True

    async def open(self) -> Shown:
        """Open a session and return the prompt; after a second failure, a neutral one.

        Raises:
            FailureRateExceeded: Too many resets failed for the run to go on.
        """
        prompt = await self._open()
        await self._recorded()
        if self.rollout.failure is not None and not self.speculative:
            self.runtime.resets.check()
        return prompt

    async def call(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Shown:
        """Make one call and return what the model sees of its output.

        Raises:
            SpokenError: The tool raised, or the call was rejected.
        """
        shown = await self._call(tool, kwargs)
        await self._recorded()
        return shown

    async def answer(self, message: str) -> None:
        """Hand the model's last message to the terminal tool, which scores it.

        Raises:
            ValueError: The environment has no terminal tool.
        """
        await self._answer(message)
        await self._recorded()

    def end(self, *, failure: Failure | None = None, cut: Cut | None = None) -> None:
        """Close the books, delete the session in the background, and write the record; the first end counts."""
        if not self.rollout.end(self.seconds, failure=failure, cut=cut):
            return
        self.runtime.running.discard(self)
        if failure is not None:
            logger.warning("The episode of task %d in %r failed: %s", self.task.index, self.task.split, failure.message)
        session, self._session = self._session, None
        if session is not None and self._server is not None:
            self._leaving = self.runtime.spawn(_close_session(session, self._server))
        if not self.speculative:
            self._recording = self.runtime.record(self._as_record(), self._words)
            self._words = []
        self.rollout.forget_blocks()

    async def close(self) -> None:
        """End the episode as it stands, as nobody will call any more; wait until it is deleted and written down."""
        self.end()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        await self._recorded()

    async def _limit_opening(self) -> None:
        """Let an opening that a rollout has begun to wait for end with the episode's time."""
        seconds = self._remaining_seconds()
        if self._opening is not None and seconds is not None:
            self._opening.deadline = anyio.current_time() + seconds

    async def _open(self) -> Shown:
        async with self._order:
            prompt = await self._open_session()
            await self._await_description()
            return prompt

    async def _open_session(self) -> Shown:
        async with self.runtime.request_slot():
            self._start = time.monotonic()
            self.rollout.started = time.time()
            self.runtime.running.add(self)
            try:
                # Opened ahead, an episode has no time of its own yet.
                with anyio.move_on_after(None if self.speculative else self._remaining_seconds()) as self._opening:
                    prompt = await self._begin_or_again()
                    if not self.speculative:
                        self.runtime.resets.succeeded()
                    return prompt
            except ClientStateError:
                raise
            except ORSError as error:
                return self._give_up(error)
            seconds = self.runtime.settings.episode_timeout or 0.0
            return self._give_up(DeadlineExceeded("Opening the episode", limit="episode_timeout", seconds=seconds))

    async def _await_description(self) -> None:
        """Wait for what was asked beside the opening: a record may take a little of an episode's time."""
        if self.runtime.settings.record and not self.rollout.over:
            seconds = self.runtime.settings.episode_timeout if self.speculative else self._remaining_seconds()
            within = None if seconds is None else max(0.0, seconds * _RECORD_SHARE)
            await self.runtime.task_specs.wait(self.task, within=within)

    async def _call(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Shown:
        async with self._order:
            if not self.rollout.over and (spent := self._spent()) is not None:
                self.end(cut=spent)
            if self.rollout.over or self._session is None:
                self.rollout.late_calls += 1
                return OVER
            asked = time.monotonic()
            async with self.runtime.request_slot(within=self._remaining_seconds()) as free:
                if not free:
                    self.end(cut="seconds")
                    self.rollout.late_calls += 1
                    return OVER
                return await self._send(self._session, tool.spec.name, tool.arguments(kwargs), asked=asked)

    async def _answer(self, message: str) -> None:
        async with self._order:
            if self.rollout.over or self._session is None:
                return
            asked = time.monotonic()
            async with self.runtime.request_slot(within=self._remaining_seconds()) as free:
                if not free:
                    self.end(cut="seconds")
                    return
                try:
                    tool = await self._session.terminal_tool()
                except ORSError as error:
                    self.end(failure=Failure(type(error).__name__, error.message))
                    return
                if tool is None:
                    raise ValueError("terminal_tool=True, but this environment has none; leave it out.")
                # The model will not read what it says; that it was refused stands in the rollout.
                with contextlib.suppress(ToolCallError):
                    arguments: dict[str, Any] = {} if tool.arg is None else {tool.arg: message}
                    await self._send(self._session, tool.name, arguments, asked=asked)

    async def _recorded(self) -> None:
        """Wait until an episode that has ended is written down: who was told of its end finds it there."""
        if self._recording is not None:
            await self.runtime.recorded(self._recording)

    async def _begin_or_again(self) -> Shown:
        try:
            return await self._begin()
        except (*_FINAL, ClientStateError):
            raise
        except ORSError as error:
            logger.info("A reset is tried once more on a fresh session: %s", error)
            return await self._begin(without=self._server)

    async def _begin(self, *, without: Server | None = None) -> Shown:
        settings = self.runtime.settings
        self._server = server = self.runtime.servers.pick(without=without)
        session = server.environment.session(self.task, secrets=self.runtime.secrets, toolset=settings.toolset)
        server.sessions += 1
        try:
            await session.__aenter__()
            if settings.record:  # not before: the question may need a place of its own, and the opening comes first
                self.runtime.task_specs.ask(self.task, self.runtime.servers)
            self.rollout.session_id = session.session_id
            if self.runtime.environment is None:
                self.runtime.environment = await server.environment.name()  # which the client knows by now
            opening = await _opening(session, conversation=settings.prompts == "messages")
            self.rollout.prompt = conversation_text(opening)
            self._words = text_only(opening) if settings.rollouts else []
        except BaseException as error:
            if isinstance(error, ORSError):
                self.runtime.servers.report(server, error)
            with anyio.CancelScope(shield=True):  # bounded by the client's own limit on closing
                await _close_session(session, server)
            raise
        if self.rollout.over:  # released while it opened
            self.runtime.spawn(_close_session(session, server))
        else:
            self._session = session
            self.runtime.spawn(self._look_for_new_tools(session))
            if self._transcriber is not None:
                self.rollout.messages = self._transcriber.messages(opening)
        if settings.prompts != "reset":
            return ""  # the dataset has what the model is shown
        blocks = opening[0].blocks
        return to_content(blocks, images=settings.images, max_chars=settings.max_output_chars, empty="").value

    def _give_up(self, error: ORSError) -> Shown:
        failure = Failure(type(error).__name__, error.message)
        self.end(failure=failure)
        if not self.speculative:
            self.runtime.resets.failed(failure.kind, failure.message)
        return NO_PROMPT

    def _spent(self) -> Cut | None:
        """Return the budget that leaves no room for one more call, if one does not."""
        settings, rollout = self.runtime.settings, self.rollout
        if settings.max_calls is not None and len(rollout.calls) >= settings.max_calls:
            return "calls"
        if (seconds := self._remaining_seconds()) is not None and seconds <= 0:
            return "seconds"
        if settings.max_episode_chars is not None and rollout.characters >= settings.max_episode_chars:
            return "characters"
        return None

    def _remaining_seconds(self) -> float | None:
        limit = self.runtime.settings.episode_timeout
        return None if limit is None else self._start + limit - time.monotonic()

    async def _send(self, session: AsyncSession, name: str, arguments: dict[str, Any], *, asked: float) -> Shown:
        sent, before = time.monotonic(), session.last_call
        output: ToolOutput | None = None

        def timing() -> CallTiming:
            times = session.last_call
            # What the client would not send leaves the times of the call before it.
            return CallTiming(
                time.monotonic() - sent, timing_parts(None if times is before else times, waited=sent - asked)
            )

        try:
            with anyio.move_on_after(self._remaining_seconds()):
                output = await session.call_tool(name, arguments, timeout=self.runtime.settings.call_timeout)
        except (ToolRejected, ToolFailed) as error:
            raise self._refused(name, arguments, error.text, error, timing=timing()) from error
        except (ValueError, TypeError) as error:
            # What the client itself would not send, such as NaN: the model's own doing, and it may do better.
            raise self._refused(name, arguments, str(error), error, timing=timing()) from error
        except ORSError as error:
            if self._server is not None:
                self.runtime.servers.report(self._server, error)
            return self._broken(name, arguments, Failure(type(error).__name__, error.message), timing=timing())
        except asyncio.CancelledError:
            self._broken(name, arguments, Failure("Interrupted", "The call was interrupted."), timing=timing())
            raise
        if output is not None:
            return self._answered(name, arguments, output, timing=timing())
        said = "The episode's time was up."
        self.rollout.refused(name, arguments, said, shown=OVER, timing=timing())
        self.end(cut="seconds")
        return OVER

    def _answered(self, name: str, arguments: dict[str, Any], output: ToolOutput, *, timing: CallTiming) -> Shown:
        content = to_content(output.blocks, images=self.runtime.settings.images, max_chars=self._room())
        self.rollout.answered(name, arguments, output, shown=content.shown, timing=timing)
        if self._transcriber is not None:
            self.rollout.keep_blocks(self._transcriber.blocks(output.blocks))
        if self.rollout.finished:
            self.end()
        return content.value

    def _refused(
        self, name: str, arguments: dict[str, Any], said: str, error: Exception, *, timing: CallTiming
    ) -> ToolCallError:
        content = to_content([TextBlock(text=said)], images=False, max_chars=self._room())
        self.rollout.refused(name, arguments, said, shown=content.shown, timing=timing, kind=type(error).__name__)
        return ToolCallError(content.shown)

    def _broken(self, name: str, arguments: dict[str, Any], failure: Failure, *, timing: CallTiming) -> Shown:
        self.rollout.refused(name, arguments, failure.message, shown=OVER, timing=timing, kind=failure.kind)
        self.end(failure=failure)
        return OVER

    def _room(self) -> int | None:
        """Return how many characters the model may be shown next."""
        settings = self.runtime.settings
        limits = [settings.max_output_chars] if settings.max_output_chars is not None else []
        if settings.max_episode_chars is not None:
            limits.append(settings.max_episode_chars - self.rollout.characters)
        return min(limits, default=None)

    async def _look_for_new_tools(self, session: AsyncSession) -> None:
        """Log tools of this task that the model was not told of, once per name; asked once per task."""
        if self.task in self.runtime.tasks_seen:
            return
        self.runtime.tasks_seen.add(self.task)
        try:
            tools = await session.list_tools()
        except ORSError:  # it may be over before it was asked; another episode of the task will not ask again
            return
        for name in {tool.name for tool in tools} - self._tools - self.runtime.tools_logged:
            self.runtime.tools_logged.add(name)
            logger.warning(
                "Task %d in %r has a tool that the model was not told of: %r. Name such a task in indices= or in "
                "task_tools_discovery_index=.",
                self.task.index,
                self.task.split,
                name,
            )

    def _as_record(self) -> EpisodeRecord:
        settings, rollout = self.runtime.settings, self.rollout
        return EpisodeRecord(
            environment=self.runtime.environment,
            target=settings.target,
            split=rollout.split,
            index=rollout.index,
            session_id=rollout.session_id,
            prompt=rollout.prompt,
            # `asdict` would copy arguments, level by level; a model may nest them more deeply than Python calls.
            calls=[CallRecord.model_validate(call, from_attributes=True) for call in rollout.calls],
            rewards=rollout.rewards,
            reward=rollout.reward(settings.scoring),
            status=rollout.status,
            failure=rollout.failure.message if rollout.failure else None,
            started=None if rollout.started is None else datetime.fromtimestamp(rollout.started, UTC),
            seconds=rollout.seconds,
            spec=self.runtime.task_specs.get(self.task),
            messages=rollout.messages,
        )


async def _opening(session: AsyncSession, *, conversation: bool) -> list[Message]:
    if conversation:
        return await session.get_messages()
    return [Message(role="user", blocks=await session.get_prompt())]


async def _close_session(session: AsyncSession, server: Server) -> None:
    """Delete a session; what goes wrong is the client's to log, and no longer the rollout's business."""
    try:
        await session.__aexit__(None, None, None)
    except ORSError as error:
        logger.debug("A session could not be left in order: %s", error)
    finally:
        server.sessions -= 1
