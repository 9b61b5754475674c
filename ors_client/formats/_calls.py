"""A model's tool calls as a client makes them, and their outcomes as blocks of the next message.

A model may write arguments that are no JSON object. Such a call is kept, together with a description of the problem,
which the model gets as the call's result.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from ors_client._arguments import checked
from ors_client._brief import BriefFields
from ors_client._errors import ToolError
from ors_client._protocol.json import encode
from ors_client._types import Block, JSONObject, Message, TextBlock, ToolCallBlock, ToolOutput, ToolResultBlock


@dataclass(frozen=True, slots=True, repr=False)
class ToolCall(BriefFields):
    """A call for `session.call_tool`.

    Args:
        tool: The server's name of the tool.
        arguments: Empty if there is a problem.
        call_id: Names the call in the conversation.
        problem: Why the arguments can't be sent; pass it to `tool_result` in place of an output.
    """

    tool: str
    arguments: JSONObject = field(default_factory=dict[str, Any])
    call_id: str = ""
    problem: str | None = None


@checked
def tool_calls(message: Message) -> list[ToolCall]:
    """Return the calls of a message, in order."""
    return [
        ToolCall(block.name, block.input, block.id, _problem(block))
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]


@checked
def tool_result(call: ToolCall, outcome: ToolOutput | ToolError | str) -> ToolResultBlock:
    """Return the outcome of a call as a block of a user message.

    Args:
        outcome: The tool's output, its error, or a description of another problem.
    """
    if isinstance(outcome, ToolOutput):
        return ToolResultBlock(tool_call_id=call.call_id, blocks=outcome.blocks)
    text = outcome if isinstance(outcome, str) else outcome.text
    blocks: list[Block] = [TextBlock(text=text)]
    return ToolResultBlock(tool_call_id=call.call_id, blocks=blocks, is_error=True)


_BROKEN = "broken_arguments"
_LONGEST_ID = 40  # what OpenAI's chat completions take; others take more
GENERATED_ID = "call_without_id_"
"""What the ids of calls begin with that came without one."""


def call_block(name: str, call_id: object, arguments: object, detail: JSONObject | None = None) -> ToolCallBlock:
    """Make the block of a call.

    Args:
        name: The server's name of the tool.
        call_id: As it came; where none did, the call gets one.
        arguments: An object, or the text that a model wrote for one.
        detail: What the provider needs back with the call.
    """
    call_id = str(call_id or f"{GENERATED_ID}{uuid.uuid4().hex[:16]}")
    problem: str | None = None
    given: object = arguments
    if isinstance(arguments, str):
        try:
            # Some servers write nothing where a tool takes nothing.
            given = cast("object", json.loads(arguments)) if arguments.strip() else {}
        except ValueError as error:
            problem = f"The arguments are no JSON: {error}."
        except RecursionError:
            problem = "The arguments are no JSON that can be read: they are nested too deeply."
    if given is None:
        given = {}
    if problem is None and not isinstance(given, dict):
        problem = f"The arguments are no JSON object but a {type(given).__name__}."
    if problem is None:
        try:
            # json.loads takes NaN, makes infinity of 1e999, and goes deeper than what is to be sent.
            encode(cast("JSONObject", given), "arguments")
        except (TypeError, ValueError) as error:
            problem = f"The arguments are no JSON: {str(error).rstrip('.')}."
    if problem is not None:
        kept = {_BROKEN: arguments if isinstance(arguments, str) else _repr(arguments), "problem": problem}
        return ToolCallBlock(id=call_id, name=name, detail={**(detail or {}), **kept})
    return ToolCallBlock(id=call_id, name=name, input=cast("JSONObject", given), detail=detail)


def arguments_text(block: ToolCallBlock) -> str:
    """Write a call's arguments as JSON; broken ones stay as the model wrote them."""
    broken = (block.detail or {}).get(_BROKEN)
    return broken if isinstance(broken, str) else json.dumps(block.input, ensure_ascii=False, allow_nan=False)


def arguments_object(block: ToolCallBlock) -> JSONObject:
    """Return a call's arguments as an object, which contains broken ones as the model wrote them."""
    broken = (block.detail or {}).get(_BROKEN)
    return block.input if broken is None else {_BROKEN: broken}


@checked
def distinct_ids(messages: Iterable[Message]) -> list[Message]:
    """Return a conversation in which every call and its result have an id of their own, which every provider takes.

    A model may name two calls alike, or the calls of each turn as those of the last. An id that is fit and new stays.
    The others depend only on what stands before them, so that a longer conversation starts with the shorter one.
    """
    ids = _CallIds()
    return [ids.rewrite(message) for message in messages]


class _CallIds:
    """The ids of a conversation's calls, as far as it was read."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._repeats: Counter[str] = Counter()
        self._open: list[list[tuple[str, str]]] = []  # by turn: the calls without a result yet, by old and new id
        self._answered: dict[str, str] = {}

    def rewrite(self, message: Message) -> Message:
        self._open.append([])
        blocks = [self._rewrite_block(block, called=message.role == "assistant") for block in message.blocks]
        if not self._open[-1]:
            self._open.pop()
        changed = any(new is not old for new, old in zip(blocks, message.blocks, strict=True))
        return message.model_copy(update={"blocks": blocks}) if changed else message

    def _rewrite_block(self, block: Block, *, called: bool) -> Block:
        if isinstance(block, ToolCallBlock) and called:
            new = self._new_id(block.id)
            self._open[-1].append((block.id, new))
            return block if new == block.id else block.model_copy(update={"id": new})
        if isinstance(block, ToolResultBlock) and not called:
            new = self._answer(block.tool_call_id)
            return block if new == block.tool_call_id else block.model_copy(update={"tool_call_id": new})
        return block

    def _new_id(self, call_id: str) -> str:
        base = new = _valid_id(call_id) if call_id else f"call_{len(self._taken) + 1}"
        while new in self._taken:
            self._repeats[base] += 1
            suffix = f"_{self._repeats[base] + 1}"
            new = base[: _LONGEST_ID - len(suffix)] + suffix
        self._taken.add(new)
        return new

    def _answer(self, call_id: str) -> str:
        """Return the new id of the call that a result is of: the first open one of the latest turn that has it."""
        for turn in reversed(self._open):
            for pair in turn:
                if pair[0] == call_id or not call_id:
                    turn.remove(pair)
                    self._answered[call_id] = pair[1]
                    return pair[1]
        return self._answered.get(call_id) or _valid_id(call_id)


def _valid_id(call_id: str) -> str:
    """Return the id if providers accept it, or one derived from it, in which a hash replaces what is cut off."""
    if re.fullmatch(rf"[A-Za-z0-9_-]{{1,{_LONGEST_ID}}}", call_id):
        return call_id
    mark = hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', call_id)[: _LONGEST_ID - 13]}_{mark}"


def tool_names_by_call_id(messages: Iterable[Message]) -> dict[str, str]:
    """Map the ids of a conversation's calls to the server's tool names."""
    return {call.call_id: call.tool for message in messages for call in tool_calls(message)}


def _repr(arguments: object) -> str:
    try:
        return repr(arguments)
    except RecursionError:
        return reprlib.repr(arguments)  # its first levels


def _problem(block: ToolCallBlock) -> str | None:
    detail = block.detail or {}
    return str(detail.get("problem")) if _BROKEN in detail else None
