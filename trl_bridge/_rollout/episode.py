"""One episode on a server: opened, stepped and ended.

Runs on the runtime's loop. It decides what the model sees and what breaks an episode, and enters it all in a log. An
infrastructure failure ends an episode without an exception: to the model it reads like any other end, so that nothing
is learnt from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal

import anyio

from ors_client import (
    AsyncSession,
    AuthenticationError,
    BillingError,
    Block,
    CapacityError,
    ClientStateError,
    DeadlineExceeded,
    EnvironmentNotFound,
    Message,
    ORSError,
    TaskRef,
    TextBlock,
    ToolOutput,
)
from ors_client._shared import REFUSALS, BlockRecorder, CallEntry, EpisodeLog, Failure, get_logger, refusal_text
from ors_client.record import ToolsRecord, WordsRecord
from trl_bridge._chat.content import Content, to_content
from trl_bridge._chat.tools import BoundTool
from trl_bridge._runtime.rollout_upload import text_only
from trl_bridge._runtime.runtime import Runtime
from trl_bridge._runtime.servers import Server
from trl_bridge._scoring import Scoring, is_usable

logger = get_logger(__name__)

Cut = Literal["calls", "seconds", "characters"]
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
        runtime: What it runs on.
        task: Which task.
        tools: What the model knows of the tools.
        speculative: It is opened ahead, for a rollout that has not come: nothing to record, and no reset to be counted.
    """

    def __init__(self, runtime: Runtime, task: TaskRef, *, tools: ToolsRecord, speculative: bool = False) -> None:
        self.runtime = runtime
        settings = runtime.settings
        recorder = BlockRecorder(images=settings.record_images) if settings.record else None
        self.unusable_rewards = 0
        self.log = EpisodeLog(split=task.split, index=task.index, block_recorder=recorder)
        self.speculative = speculative
        self.task = task
        self._tools = tools
        self._upload_messages: list[Message] = []
        self._turns = asyncio.Lock()  # an episode is a sequence: its opening, then its calls as they were made
        self._server: Server | None = None
        self._session: AsyncSession | None = None
        self._closing: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._open_scope: anyio.CancelScope | None = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return time.monotonic() - self._start if self.log.seconds is None else self.log.seconds

    def claim(self) -> bool:
        """Begin what was opened ahead, now that a rollout wants it; `False` if it is over or its session is lost."""
        if self.log.is_over or (self._session is not None and self._session.lost is not None):
            return False
        self.speculative = False
        self._start = time.monotonic()  # how long it stood ready counts against no budget
        self.log.started = datetime.now(UTC)
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
        async with self._turns:
            prompt = await self._open_session()
            if self.runtime.settings.record and not self.log.is_over:
                # What was asked beside the opening may take a little of the episode's time.
                seconds = self.runtime.settings.episode_timeout if self.speculative else self._remaining_seconds()
                within = None if seconds is None else max(0.0, seconds * _RECORD_SHARE)
                await self.runtime.task_specs.wait(self.task, within=within)
        await self._recorded()
        if self.log.failure is not None and not self.speculative:
            self.runtime.resets.check()
        return prompt

    async def call(self, tool: BoundTool, kwargs: Mapping[str, Any]) -> Shown:
        """Make one call and return what the model sees of its output.

        Raises:
            ToolCallError: The tool raised, or the call was rejected.
        """
        async with self._turn(budgeted=True) as turn:
            if turn is None:
                self.log.late_calls += 1
                return OVER
            return await self._send(*turn, tool.spec.name, tool.arguments(kwargs))

    async def answer(self, message: str) -> None:
        """Hand the model's last message to the terminal tool, which scores it.

        Raises:
            ValueError: The environment has no terminal tool.
        """
        async with self._turn(budgeted=False) as turn:
            if turn is None:
                return
            session, asked = turn
            try:
                tool = await session.terminal_tool()
            except ORSError as error:
                self.end(failure=Failure(type(error).__name__, error.message))
                return
            if tool is None:
                raise ValueError("terminal_tool=True, but this environment has none; leave it out.")
            # The model will not read what it says; that it was refused stands in the log.
            with contextlib.suppress(ToolCallError):
                await self._send(session, asked, tool.name, {} if tool.arg is None else {tool.arg: message})

    def end(self, *, failure: Failure | None = None, cut: Cut | None = None) -> None:
        """Close the log, delete the session in the background, and write the record; the first end counts."""
        if not self.log.end(self.seconds, failure=failure, cut=cut):
            return
        self.runtime.running.discard(self)
        if failure is not None:
            logger.warning("The episode of task %d in %r failed: %s", self.task.index, self.task.split, failure.message)
        session, self._session = self._session, None
        if session is not None and self._server is not None:
            self._closing = self.runtime.spawn(_close_session(session, self._server))
        if not self.speculative:
            episode = self.log.to_record(
                reward=reward(self.log, self.runtime.settings.scoring),
                environment=self.runtime.environment,
                target=self.runtime.settings.target,
                spec=self.runtime.task_specs.get(self.task),
                run=self.runtime.run_record(),
                tools=self._tools,
            )
            self._recording = self.runtime.record(episode, self._upload_messages)
            self._upload_messages = []
        self.log.drop_blocks()

    async def record_words(self, words: Callable[[], WordsRecord]) -> None:
        """Record the model's words, which the trainer knows, once the episode is recorded."""
        await self.close()
        self.runtime.record_words(words)

    async def close(self) -> None:
        """End the episode as it stands, as nobody will call any more; wait until it is deleted and written down."""
        self.end()
        if self._closing is not None:
            await asyncio.wait([self._closing])
        await self._recorded()

    async def _limit_opening(self) -> None:
        """Let an opening that a rollout has begun to wait for end with the episode's time."""
        seconds = self._remaining_seconds()
        if self._open_scope is not None and seconds is not None:
            self._open_scope.deadline = anyio.current_time() + seconds

    @asynccontextmanager
    async def _turn(self, *, budgeted: bool) -> AsyncGenerator[tuple[AsyncSession, float] | None]:
        """Wait for a request's turn; yield the session and since when it was waited, or `None` if the episode is over.

        Args:
            budgeted: Whether the episode ends here if it has spent a budget.
        """
        async with self._turns:
            if budgeted and not self.log.is_over and (spent := self._spent_budget()) is not None:
                self.end(cut=spent)
            session = self._session
            if self.log.is_over or session is None:
                yield None
            else:
                asked = time.monotonic()
                async with self.runtime.request_slot(within=self._remaining_seconds()) as free:
                    if not free:
                        self.end(cut="seconds")
                    yield (session, asked) if free else None
        await self._recorded()

    async def _recorded(self) -> None:
        """Wait until an episode that has ended is in the record: whoever learns of its end finds it there."""
        if self._recording is not None:
            await self.runtime.recorded(self._recording)

    async def _open_session(self) -> Shown:
        """Open a session, on another server if the first one fails, and return the prompt."""
        async with self.runtime.request_slot():
            self._start = time.monotonic()
            self.log.started = datetime.now(UTC)
            self.runtime.running.add(self)
            try:
                # Opened ahead, an episode has no time of its own yet.
                with anyio.move_on_after(None if self.speculative else self._remaining_seconds()) as self._open_scope:
                    try:
                        prompt = await self._begin()
                    except (*_FINAL, ClientStateError):
                        raise
                    except ORSError as error:
                        logger.info("A reset is tried once more on a fresh session: %s", error)
                        prompt = await self._begin(without=self._server)
                    if not self.speculative:
                        self.runtime.resets.succeeded()
                    return prompt
            except ClientStateError:
                raise
            except ORSError as error:
                return self._give_up(error)
            seconds = self.runtime.settings.episode_timeout or 0.0
            return self._give_up(DeadlineExceeded("Opening the episode", limit="episode_timeout", seconds=seconds))

    async def _begin(self, *, without: Server | None = None) -> Shown:
        settings = self.runtime.settings
        self._server = server = self.runtime.servers.pick(without=without)
        session = server.environment.session(self.task, secrets=self.runtime.secrets, toolset=settings.toolset)
        server.sessions += 1
        try:
            await session.__aenter__()
            if settings.record:  # not before: the question may need a session of its own, and the opening comes first
                self.runtime.task_specs.ask(self.task, self.runtime.servers)
            self.log.session_id = session.session_id
            if self.runtime.environment is None:
                self.runtime.environment = await server.environment.name()  # which the client knows by now
            if settings.record and not self.runtime.version_asked:
                self.runtime.version_asked = True
                with contextlib.suppress(ORSError):  # nothing depends on it
                    self.runtime.server_version = await server.environment.server_version()
            if settings.prompts == "messages":
                messages = await session.get_messages()
            else:
                messages = [Message(role="user", blocks=await session.get_prompt())]
            self.log.open(messages)
            self._upload_messages = text_only(messages) if settings.rollouts else []
        except BaseException as error:
            if isinstance(error, ORSError):
                self.runtime.servers.report(server, error)
            with anyio.CancelScope(shield=True):  # bounded by the client's own limit on closing
                await _close_session(session, server)
            raise
        if self.log.is_over:  # released while it opened
            self.runtime.spawn(_close_session(session, server))
        else:
            self._session = session
            self.runtime.spawn(self._log_new_tools(session))
        if settings.prompts != "reset":
            return ""  # the dataset has what the model is shown
        blocks = messages[0].blocks
        return to_content(blocks, images=settings.images, max_chars=settings.max_output_chars, empty="").value

    def _give_up(self, error: ORSError) -> Shown:
        failure = Failure(type(error).__name__, error.message)
        self.end(failure=failure)
        if not self.speculative:
            self.runtime.resets.failed(failure.kind, failure.message)
        return NO_PROMPT

    def _spent_budget(self) -> Cut | None:
        """Return the budget that allows no further call, if there is one."""
        settings, log = self.runtime.settings, self.log
        if settings.max_calls is not None and len(log.calls) >= settings.max_calls:
            return "calls"
        if (seconds := self._remaining_seconds()) is not None and seconds <= 0:
            return "seconds"
        if settings.max_episode_chars is not None and log.shown_chars >= settings.max_episode_chars:
            return "characters"
        return None

    def _remaining_seconds(self) -> float | None:
        limit = self.runtime.settings.episode_timeout
        return None if limit is None else self._start + limit - time.monotonic()

    async def _send(self, session: AsyncSession, asked: float, name: str, arguments: dict[str, Any]) -> Shown:
        entry = CallEntry(self.log, session, name, arguments, waiting_since=asked)
        output: ToolOutput | None = None
        try:
            with anyio.move_on_after(self._remaining_seconds()):
                output = await session.call_tool(name, arguments, timeout=self.runtime.settings.call_timeout)
        except REFUSALS as error:
            text = refusal_text(error)
            entry.add_error(text, kind=type(error).__name__, reason=getattr(error, "reason", None))
            raise ToolCallError(self._show([TextBlock(text=text)], images=False).shown) from error
        except ORSError as error:
            if self._server is not None:
                self.runtime.servers.report(self._server, error)
            return self._break(entry, Failure(type(error).__name__, error.message))
        except asyncio.CancelledError:
            self._break(entry, Failure("Interrupted", "The call was interrupted."))
            raise
        if output is None:
            entry.add_error("The episode's time was up.")
            self.log.show(OVER)
            self.end(cut="seconds")
            return OVER
        if output.reward is not None and not is_usable(output.reward):
            self.unusable_rewards += 1
            self.runtime.warn_of_reward(name, output.reward)
            output = output.model_copy(update={"reward": None})
        entry.add_output(output)
        content = self._show(output.blocks, images=self.runtime.settings.images)
        if output.finished:
            self.end()
        return content.value

    def _show(self, blocks: Sequence[Block], *, images: bool) -> Content:
        """Turn an answer into what the model sees of it, within the characters that it may still be shown."""
        settings = self.runtime.settings
        limits = [settings.max_output_chars] if settings.max_output_chars is not None else []
        if settings.max_episode_chars is not None:
            limits.append(settings.max_episode_chars - self.log.shown_chars)
        content = to_content(blocks, images=images, max_chars=min(limits, default=None))
        self.log.show(content.shown)
        return content

    def _break(self, entry: CallEntry, failure: Failure) -> Shown:
        entry.add_error(failure.message, kind=failure.kind)
        self.log.show(OVER)
        self.end(failure=failure)
        return OVER

    async def _log_new_tools(self, session: AsyncSession) -> None:
        """Log tools of this task that the model does not know, once per name; asked once per task."""
        if self.task in self.runtime.tasks_seen:
            return
        self.runtime.tasks_seen.add(self.task)
        try:
            tools = await session.list_tools()
        except ORSError:  # it may be over before it was asked; another episode of the task will not ask again
            return
        known = {tool.name for tool in self._tools.tools}
        for name in {tool.name for tool in tools} - known - self.runtime.tools_logged:
            self.runtime.tools_logged.add(name)
            logger.warning(
                "Task %d in %r has a tool that the model was not told of: %r. Name such a task in indices= or in "
                "task_tools_discovery_index=.",
                self.task.index,
                self.task.split,
                name,
            )


def reward(log: EpisodeLog, scoring: Scoring) -> float | None:
    """Return what an episode is worth."""
    return scoring.score(log.rewards, failed=log.failure is not None, finished=log.finished)


async def _close_session(session: AsyncSession, server: Server) -> None:
    """Delete a session; what goes wrong is the client's to log, and no longer the rollout's business."""
    try:
        await session.__aexit__(None, None, None)
    except ORSError as error:
        logger.debug("A session could not be left in order: %s", error)
    finally:
        server.sessions -= 1
