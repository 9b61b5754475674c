"""Messages of the standard <-> the chat that TRL and chat templates take.

Knows where each keeps what the other keeps elsewhere: tool results stand in a user's turn here and in turns of their
own there, calls have ids here and only an order there. Which text and images pass is decided in `content`.
"""

from __future__ import annotations

import base64
import io
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ors_client import (
    Block,
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

from .content import to_content
from .schemas import DEEPEST, too_deep

Chat = list[dict[str, Any]]

_REASONING_FIELDS = ("reasoning_content", "thinking")  # where chat templates take past reasoning, the usual one first
_FIELD = "trl_field"


def as_chat(value: object, role: str) -> Chat:
    """Return what a trainer holds of a rollout as messages; a plain text is one of that role."""
    if isinstance(value, list):
        return [cast("dict[str, Any]", turn) for turn in cast("list[object]", value) if isinstance(turn, dict)]
    return [{"role": role, "content": str(value)}]


def to_chat(
    messages: Iterable[Message],
    *,
    aliases: Mapping[str, str],
    images: bool,
    max_chars: int | None = None,
    empty: str = "(no output)",
) -> Chat:
    """Turn a conversation into the messages that a chat template takes.

    Args:
        messages: As the server sent them.
        aliases: From the server's name of a tool to the one that the model calls it by.
        images: Whether the model sees images; if not, a marker stands for them.
        max_chars: The longest content of one message.
        empty: Stands for the text of a result without any.
    """
    chat: Chat = []
    called: dict[str, str] = {}
    for message in messages:
        rest: list[Block] = []
        calls: list[dict[str, Any]] = []
        reasoning: list[str] = []
        field = _REASONING_FIELDS[0]
        for block in message.blocks:
            if isinstance(block, ToolCallBlock) and message.role == "assistant":
                called[block.id] = name = aliases.get(block.name, block.name)
                calls.append({"type": "function", "function": {"name": name, "arguments": block.input}})
            elif isinstance(block, ReasoningBlock) and message.role == "assistant":
                reasoning.append(block.text)
                field = str((block.detail or {}).get(_FIELD, field))
            elif isinstance(block, ToolResultBlock):
                content = to_content(block.blocks, images=images, max_chars=max_chars, empty=empty).value
                chat.append({"role": "tool", "name": called.get(block.tool_call_id, ""), "content": content})
            else:
                rest.append(block)
        if not (rest or calls or reasoning) and message.blocks:
            continue  # a turn of nothing but results
        turn: dict[str, Any] = {
            "role": message.role,
            "content": to_content(rest, images=images, max_chars=max_chars, empty="").value,
        }
        if reasoning:
            turn[field] = "\n".join(reasoning)
        if calls:
            turn["tool_calls"] = calls
        chat.append(turn)
    return chat


def from_chat(chat: Sequence[Mapping[str, Any]], *, names: Mapping[str, str]) -> list[Message]:
    """Turn what a trainer holds of a rollout into a conversation of the standard.

    Args:
        chat: The prompt's messages and the completion's.
        names: From the name that the model calls a tool by to the server's.
    """
    messages: list[Message] = []
    waiting: deque[str] = deque()
    calls = 0
    results: list[Block] = []
    for turn in chat:
        role = str(turn.get("role"))
        if role == "tool":
            # TRL's results have no ids; they follow their calls in order.
            identity = waiting.popleft() if waiting else "unknown"
            results.append(ToolResultBlock(tool_call_id=identity, blocks=_blocks(turn.get("content"))))
            continue
        blocks = _blocks(turn.get("content"))
        if role == "assistant":
            waiting.clear()
            for field in _REASONING_FIELDS:
                if isinstance(thought := turn.get(field), str) and thought:
                    detail = None if field == _REASONING_FIELDS[0] else {_FIELD: field}
                    blocks.insert(0, ReasoningBlock(text=thought, detail=detail))
            for name, arguments in map(_call, turn.get("tool_calls") or ()):
                calls += 1
                waiting.append(f"call_{calls}")
                blocks.append(ToolCallBlock(id=waiting[-1], name=names.get(name, name), input=arguments))
        if results:
            messages.append(Message(role="user", blocks=results))
            results = []
        messages.append(Message(role=role, blocks=blocks))
    if results:
        messages.append(Message(role="user", blocks=results))
    return messages


def final_answer(completion: object) -> str | None:
    """Return the text with which a rollout ended, or `None` if it ended in a call or in its result."""
    if not isinstance(completion, list) or not completion:
        return None
    last = cast("list[Mapping[str, Any]]", completion)[-1]
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    return "\n".join(block.text for block in _blocks(last.get("content")) if isinstance(block, TextBlock))


def _call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    function = cast("Mapping[str, Any]", call.get("function") or {})
    arguments = function.get("arguments")
    # What a model wrote there need not be an object, nor anything that can be sent; a judge is shown it all the same.
    if too_deep(arguments):
        arguments = f"(nested more than {DEEPEST} deep)"
    try:
        json.dumps(arguments, allow_nan=False)
    except (ValueError, TypeError):
        arguments = repr(arguments)
    shown = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {"arguments": arguments}
    return str(function.get("name")), shown


def _blocks(content: object) -> list[Block]:
    if not isinstance(content, list):
        return [] if content is None or content == "" else [TextBlock(text=str(content))]
    blocks: list[Block] = []
    for part in cast("list[Mapping[str, Any]]", content):
        if part.get("type") == "text":
            blocks.append(TextBlock(text=str(part.get("text"))))
        elif part.get("type") == "image":
            blocks.append(_image(part.get("image")))
    return blocks


def _image(image: Any) -> ImageBlock:
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return ImageBlock(data=base64.b64encode(stream.getvalue()).decode(), mimeType="image/png")
