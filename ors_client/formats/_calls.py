"""A model's tool calls as a client makes them, and their outcomes as blocks of the next message.

A model may write arguments that are no JSON object. Such a call is kept, together with a description of the problem,
which the model gets as the call's result.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from ors_client._errors import ToolError
from ors_client._protocol.json import encode
from ors_client._types import Block, JSONObject, Message, TextBlock, ToolCallBlock, ToolOutput, ToolResultBlock


@dataclass(frozen=True, slots=True)
class ToolCall:
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


def tool_calls(message: Message) -> list[ToolCall]:
    """Return the calls of a message, in order."""
    return [
        ToolCall(block.name, block.input, block.id, _problem(block))
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]


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


def call_block(name: str, call_id: str, arguments: object, detail: JSONObject | None = None) -> ToolCallBlock:
    """Make the block of a call.

    Args:
        arguments: An object, or the text that a model wrote for one.
        detail: What the provider needs back with the call.
    """
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


def valid_id(call_id: str, *, longest: int) -> str:
    """Return the id if providers accept it, or one derived from it, the same for the call and its result.

    Args:
        longest: In characters; a hash replaces what is cut off.
    """
    if re.fullmatch(rf"[A-Za-z0-9_-]{{1,{longest}}}", call_id):
        return call_id
    mark = hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', call_id)[: longest - 13]}_{mark}"


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
