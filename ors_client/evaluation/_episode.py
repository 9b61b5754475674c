"""One episode, played by a model: from the first prompt to the end, as a record.

Knows the order of turns and what ends them. A fault of the infrastructure, whether of the environment's server or of
the model's endpoint, is no reward: the episode counts as failed. An episode that a budget cuts keeps the score it has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio

from ors_client._environment import AsyncEnvironment
from ors_client._errors import ORSError, ToolError
from ors_client._http.credentials import Secrets
from ors_client._session import AsyncSession
from ors_client._shared import REFUSALS, BlockRecorder, CallEntry, EpisodeLog, Failure, refusal_text
from ors_client._types import (
    Block,
    JSONObject,
    Message,
    TaskRef,
    ToolOutput,
    ToolResultBlock,
)
from ors_client.formats import OpenAIChat, ToolCall, ToolNames, distinct_ids, tool_calls, tool_result
from ors_client.record import CallRecord, EpisodeRecord, RunRecord, ToolsRecord

from ._model import ChatModel, ConversationRefused, ModelRefused
from ._rules import Rules


async def play(
    environment: AsyncEnvironment,
    task: TaskRef,
    model: ChatModel,
    *,
    rules: Rules,
    secrets: Secrets | None = None,
    run: RunRecord | None = None,
    about: Mapping[str, Any] | None = None,
) -> EpisodeRecord:
    """Play one episode and return its record; a fault of the infrastructure is in it, not raised.

    Args:
        environment: Where the task is.
        task: The task.
        model: Who plays; entered.
        rules: How it is played, and when it is cut.
        secrets: For the environment.
        run: What the record says of the settings.
        about: Further fields of the record.

    Raises:
        ModelRefused: The endpoint would refuse every other episode too.
    """
    log = EpisodeLog(split=task.split, index=task.index, block_recorder=BlockRecorder(), started=datetime.now(UTC))
    began = time.monotonic()
    failure = tools = None
    try:
        async with environment.session(task, secrets=secrets, toolset=rules.toolset) as session:
            log.session_id = session.session_id
            messages = await session.get_messages()
            log.open(messages)
            log.timing["opening"] = time.monotonic() - began
            with anyio.move_on_after(rules.budget.seconds) as scope:
                tools = await _tools_of(session)
                await _Player(session, model, log, messages, tools).play(rules)
            if scope.cancelled_caught:
                log.cut = "seconds"
    except ModelRefused:
        raise
    except ConversationRefused as error:
        log.cut = error.fault
    except ORSError as error:
        failure = Failure(type(error).__name__, str(error))
    log.end(time.monotonic() - began, failure=failure, cut=log.cut)
    return _rounded(log.to_record(reward=_reward(log), model=model.name, run=run, tools=tools, **(about or {})))


async def _tools_of(session: AsyncSession) -> ToolsRecord:
    """Return what a model can call in a session, under the names that it is told."""
    tools = await session.list_tools()
    names = ToolNames(tools)
    aliases = {spec.name: alias for spec in names.specs if (alias := names.alias(spec.name)) != spec.name}
    return ToolsRecord(tools=tools, terminal_tool=await session.terminal_tool(), names=aliases)


def _reward(log: EpisodeLog) -> float | None:
    """Return the last reward that was given, unless the infrastructure broke the episode."""
    given = [reward for reward in log.rewards if reward is not None]
    return given[-1] if given and log.failure is None else None


def _rounded(episode: EpisodeRecord) -> EpisodeRecord:
    """Return an episode with its times in microseconds."""
    calls = [call.model_copy(update={"seconds": round(call.seconds, 6)}) for call in episode.calls]
    return episode.model_copy(update={"calls": calls, "seconds": round(episode.seconds or 0.0, 6)})


class _Player:
    """Hands the conversation to the model, and what it calls to the session, until one of them is done."""

    def __init__(
        self,
        session: AsyncSession,
        model: ChatModel,
        log: EpisodeLog,
        messages: list[Message],
        tools: ToolsRecord,
    ) -> None:
        self._tools = tools
        self._log = log
        self._messages = messages
        self._session = session
        self._model = model

    async def play(self, rules: Rules) -> None:
        log = self._log
        form = OpenAIChat(self._tools.tools, reasoning_history=rules.reasoning_history)
        final = self._tools.terminal_tool
        while not self._session.finished:
            log.cut = rules.budget.spent(turns=log.usage["requests"], tokens=log.usage["completion_tokens"])
            if log.cut is not None:
                return
            message, cut = await self._ask(form)
            log.said = message.text or None
            if cut is not None and not rules.accept_truncated:
                log.cut = cut  # what stands in it may be half of what the model meant
                return
            calls = tool_calls(message)
            if not calls:
                if final is not None:
                    log.said = None  # it stands in the call
                    await self._step(final.name, {} if final.arg is None else {final.arg: message.text})
                return
            results: list[Block] = []
            for call in calls:
                if self._session.finished:
                    break
                results.append(await self._call(call))
            self._add(Message(role="user", blocks=results))

    async def _ask(self, form: OpenAIChat) -> tuple[Message, str | None]:
        """Return the model's reply, and what cut it off, if anything did."""
        log = self._log
        began = time.monotonic()
        log.usage["requests"] += 1
        try:
            reply = await self._model.ask(form.request(self._messages))
        finally:
            log.timing["model"] += time.monotonic() - began
        log.usage.update(reply.usage)
        log.finish_reasons.append(reply.finish_reason)
        message = distinct_ids([*self._messages, form.reply(reply.message)])[-1]
        self._add(message)
        return message, reply.cut

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._log.add_message(message)

    async def _call(self, call: ToolCall) -> ToolResultBlock:
        if call.problem is None:
            return tool_result(call, await self._step(call.tool, call.arguments))
        # It never was a call: the model is told, and the server is not asked.
        said, self._log.said = self._log.said, None
        self._log.calls.append(CallRecord(tool=call.tool, error=call.problem, kind="ValueError", said=said))
        return tool_result(call, call.problem)

    async def _step(self, tool: str, arguments: JSONObject) -> ToolOutput | ToolError | str:
        before = len(self._log.calls)
        entry = CallEntry(self._log, self._session, tool, arguments)
        try:
            output = await self._session.call_tool(tool, arguments)
        except REFUSALS as error:
            entry.add_error(refusal_text(error), kind=type(error).__name__, reason=getattr(error, "reason", None))
            return error if isinstance(error, ToolError) else str(error)
        except ORSError as error:
            entry.add_error(str(error), kind=type(error).__name__)
            raise
        else:
            entry.add_output(output)
            return output
        finally:
            for call in self._log.calls[before:]:  # none, where the budget cut it
                self._log.timing["tools"] += call.seconds
