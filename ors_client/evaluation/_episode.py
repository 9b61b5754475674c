"""One episode, played by a model: from the first prompt to the end, as a record.

Knows the order of turns and what ends them. A fault of the infrastructure, whether of the environment's server or of
the model's endpoint, is no reward: the episode counts as failed. An episode that a budget cuts keeps the score it has.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio

from ors_client._environment import AsyncEnvironment
from ors_client._errors import ORSError, ToolError
from ors_client._http.credentials import Secrets
from ors_client._session import AsyncSession
from ors_client._shared.block_recorder import BlockRecorder, conversation_text
from ors_client._shared.episode_log import timing_parts
from ors_client._types import (
    Block,
    JSONObject,
    Message,
    TaskRef,
    TerminalToolSpec,
    ToolOutput,
    ToolResultBlock,
)
from ors_client.formats import OpenAIChat, ToolCall, tool_calls, tool_result
from ors_client.record import CallRecord, EpisodeRecord

from ._budget import Budget
from ._model import ChatModel, ModelRefused


@dataclass(slots=True)
class Course:
    """What has happened so far in an episode; it survives whatever ends it."""

    session_id: str | None = None
    transcriber: BlockRecorder = field(default_factory=BlockRecorder)
    prompt: str = ""
    opening: list[JSONObject] | None = None
    messages: list[Message] = field(default_factory=list[Message])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    timing: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    usage: Counter[str] = field(default_factory=Counter[str])
    said: str | None = None
    cut: str | None = None
    failure: ORSError | None = None

    @property
    def rewards(self) -> list[float | None]:
        """One entry per call."""
        return [call.reward for call in self.calls]

    @property
    def status(self) -> str:
        """One of `scored`, `unscored`, `failed: kind` and `cut: kind`."""
        if self.failure is not None:
            return f"failed: {type(self.failure).__name__}"
        if self.cut is not None:
            return f"cut: {self.cut}"
        return "unscored" if all(reward is None for reward in self.rewards) else "scored"

    @property
    def reward(self) -> float | None:
        """The last that was given, unless the infrastructure broke the episode."""
        given = [reward for reward in self.rewards if reward is not None]
        return given[-1] if given and self.failure is None else None


async def play(
    environment: AsyncEnvironment,
    task: TaskRef,
    model: ChatModel,
    *,
    budget: Budget,
    secrets: Secrets | None = None,
    about: Mapping[str, Any] | None = None,
) -> EpisodeRecord:
    """Play one episode and return its record; a fault of the infrastructure is in it, not raised.

    Args:
        environment: Where the task is.
        task: The task.
        model: Who plays; entered.
        budget: When the episode is cut.
        secrets: For the environment.
        about: Further fields of the record.

    Raises:
        ModelRefused: The endpoint would refuse every other episode too.
    """
    course = Course()
    started, began = datetime.now(UTC), time.monotonic()
    try:
        async with environment.session(task, secrets=secrets) as session:
            course.session_id = session.session_id
            course.messages = await session.get_messages()
            course.prompt = conversation_text(course.messages)
            course.opening = course.transcriber.messages(course.messages)
            course.timing["opening"] += time.monotonic() - began
            await _within(_Player(session, model, course), budget)
    except ModelRefused:
        raise
    except ORSError as error:
        course.failure = error
    seconds = time.monotonic() - began
    return _as_record(course).model_copy(
        update={
            "split": task.split,
            "index": task.index,
            "model": model.name,
            "started": started,
            "seconds": round(seconds, 6),
            **(about or {}),
        }
    )


async def _within(player: _Player, budget: Budget) -> None:
    with anyio.move_on_after(budget.seconds) as scope:
        await player.play(budget)
    if scope.cancelled_caught:
        player.course.cut = "seconds"


class _Player:
    """Hands the conversation to the model, and what it calls to the session, until one of them is done."""

    def __init__(self, session: AsyncSession, model: ChatModel, course: Course) -> None:
        self.course = course
        self._session = session
        self._model = model

    async def play(self, budget: Budget) -> None:
        course = self.course
        form = OpenAIChat(await self._session.list_tools())
        final = await self._session.terminal_tool()
        while not self._session.finished:
            course.cut = budget.spent(turns=course.usage["requests"], tokens=course.usage["completion_tokens"])
            if course.cut is not None:
                return
            message = await self._ask(form)
            calls = tool_calls(message)
            course.said = message.text or None
            if not calls:
                if final is not None:
                    await self._hand_in(final, message.text)
                return
            results: list[Block] = []
            for call in calls:
                if self._session.finished:
                    break
                results.append(await self._call(call))
            course.messages.append(Message(role="user", blocks=results))

    async def _ask(self, form: OpenAIChat) -> Message:
        course = self.course
        began = time.monotonic()
        course.usage["requests"] += 1
        try:
            reply = await self._model.ask(form.request(course.messages))
        finally:
            course.timing["model"] += time.monotonic() - began
        course.usage.update(reply.usage)
        message = form.reply(reply.message)
        course.messages.append(message)
        return message

    async def _call(self, call: ToolCall) -> ToolResultBlock:
        if call.problem is not None:  # it never was a call: the model is told, and the server is not asked
            said, self.course.said = self.course.said, None
            self.course.calls.append(CallRecord(tool=call.tool, error=call.problem, kind="ValueError", said=said))
            return tool_result(call, call.problem)
        return tool_result(call, await self._step(call.tool, call.arguments))

    async def _hand_in(self, final: TerminalToolSpec, text: str) -> None:
        self.course.said = None  # it stands in the call
        await self._step(final.name, {} if final.arg is None else {final.arg: text})

    async def _step(self, tool: str, arguments: JSONObject) -> ToolOutput | ToolError | str:
        course = self.course
        said, course.said = course.said, None
        began, before = time.monotonic(), self._session.last_call

        def enter(**fields: Any) -> None:
            seconds = round(time.monotonic() - began, 6)
            course.timing["tools"] += seconds
            times = self._session.last_call
            # What the client would not send leaves the times of the call before it.
            timing = None if times is before else timing_parts(times)
            course.calls.append(
                CallRecord(tool=tool, arguments=arguments, said=said, seconds=seconds, timing=timing, **fields)
            )

        try:
            output = await self._session.call_tool(tool, arguments)
        except ToolError as error:
            enter(error=error.text, kind=type(error).__name__)
            return error
        except (ValueError, TypeError) as error:  # what the client would not send: the model's own doing
            enter(error=str(error), kind=type(error).__name__)
            return str(error)
        except ORSError as error:
            enter(error=str(error), kind=type(error).__name__)
            raise
        enter(
            output=output.text,
            reward=output.reward,
            finished=output.finished,
            blocks=course.transcriber.blocks(output.blocks),
            metadata=output.metadata,
        )
        return output


def _as_record(course: Course) -> EpisodeRecord:
    return EpisodeRecord(
        session_id=course.session_id,
        prompt=course.prompt,
        calls=course.calls,
        rewards=course.rewards,
        reward=course.reward,
        status=course.status,
        failure=None if course.failure is None else str(course.failure),
        messages=course.opening,
        said=course.said,
        usage=dict(course.usage) or None,
        timing={part: round(seconds, 6) for part, seconds in course.timing.items()} or None,
    )
