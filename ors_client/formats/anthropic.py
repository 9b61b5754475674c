"""Anthropic's messages.

Source: `MessageParam`, `ContentBlockParam` and `ToolParam` of the `anthropic` package (1.x and 2.x), and the rules that
its API adds: results stand first in a user message, text is neither empty nor only white space, thinking is signed.

What has no place there: a system message after the start becomes a user message that says so; an image in a system
message or an answer of the assistant moves to a user message; images of other types than JPEG, PNG, GIF and WebP, and
reasoning that Anthropic did not sign, become text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ors_client._arguments import checked
from ors_client._types import (
    Block,
    ImageBlock,
    JSONObject,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

from ._calls import arguments_object, call_block
from ._format import Format, format_detail, is_signed_by_other_format, items, unwrap_native, wrap_native
from ._normalize import Capabilities, normalize_content, normalize_messages, split_system

_NAME = "anthropic"
_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


@checked
class Anthropic(Format):
    """Shapes of `client.messages.create(**format.request(messages))`.

    A reply is `message.model_dump(exclude_none=True)`.
    """

    @property
    def tools(self) -> list[JSONObject]:
        """`ToolParam`s."""
        return [self._declare(spec, "input_schema") for spec in self.names.specs]

    def _request(self, messages: Sequence[Message]) -> JSONObject:
        """Return `messages`, and `system` and `tools` where there are any."""
        blocks, turns = split_system(normalize_messages(messages, _CAPABILITIES))
        system = _content(blocks)
        request: JSONObject = {"system": system} if system else {}
        request["messages"] = [self._write(message) for message in turns]
        if tools := self.tools:
            request["tools"] = tools
        return request

    def messages(self, request: Mapping[str, Any]) -> list[Message]:
        """Read `system` and `messages`."""
        system = self._read_content(request.get("system"))
        start = [Message(role="system", blocks=system)] if system else []
        return start + [
            Message(role=str(message.get("role")), blocks=self._read_content(message.get("content")))
            for message in items(request.get("messages"))
        ]

    def reply(self, reply: Mapping[str, Any]) -> Message:
        """Read a message."""
        return Message(role="assistant", blocks=self._read_content(reply.get("content")))

    def content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        """Return `TextBlockParam`s and `ImageBlockParam`s."""
        return _content(normalize_content(blocks, _CAPABILITIES))

    def _write(self, message: Message) -> JSONObject:
        written: list[JSONObject] = []
        for block in message.blocks:
            if isinstance(block, ToolCallBlock):
                call = {"id": block.id, "name": self.names.alias(block.name), "input": arguments_object(block)}
                written.append({"type": "tool_use", **call})
            elif isinstance(block, ToolResultBlock):
                written.append(_result(block))
            else:
                written += _content([block])
        return {"role": message.role, "content": written or [{"type": "text", "text": "[empty message]"}]}

    def _read_content(self, content: object) -> list[Block]:
        if isinstance(content, str):
            return [TextBlock(text=content)] if content else []
        return [self._read(block) for block in items(content)]

    def _read(self, block: JSONObject) -> Block:
        match block.get("type"):
            case "text":
                return TextBlock(text=str(block.get("text")))
            case "image":
                return _read_image(block)
            case "thinking" | "redacted_thinking" as kind:
                signature = block.get("signature") or block.get("data")
                text = str(block.get("thinking") or "")
                return ReasoningBlock(text=text, signature=signature, detail={_NAME: {"type": kind}})
            case "tool_use":
                return call_block(self.names.tool(str(block.get("name"))), block.get("id"), block.get("input"))
            case "tool_result":
                return ToolResultBlock(
                    tool_call_id=str(block.get("tool_use_id")),
                    blocks=self._read_content(block.get("content")),
                    is_error=bool(block.get("is_error")),
                )
            case _:
                return wrap_native(_NAME, block)


def _supports_block(block: Block) -> bool:
    if isinstance(block, ImageBlock):
        return block.mime_type in _IMAGE_TYPES
    if isinstance(block, ReasoningBlock):
        return bool(block.signature) and not is_signed_by_other_format(_NAME, block)
    return True


_CAPABILITIES = Capabilities(
    _NAME, images=frozenset({"result"}), later_system=False, mixed_results=True, supports=_supports_block
)


def _result(block: ToolResultBlock) -> JSONObject:
    result: JSONObject = {"type": "tool_result", "tool_use_id": block.tool_call_id}
    if content := _content(block.blocks):
        result["content"] = content
    return {**result, "is_error": True} if block.is_error else result


def _content(blocks: Iterable[Block]) -> list[JSONObject]:
    written: list[JSONObject] = []
    for block in blocks:
        if isinstance(block, ImageBlock):
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            written.append({"type": "image", "source": source})
        elif isinstance(block, ReasoningBlock):
            written.append(_thinking(block))
        elif raw := unwrap_native(_NAME, block):
            written.append(raw)
        elif text := cast("TextBlock", block).text:  # the API refuses an empty one, which says nothing anyway
            shown = text if text.strip() else f"[white space: {json.dumps(text)}]"
            written.append({"type": "text", "text": shown})
    return written


def _thinking(block: ReasoningBlock) -> JSONObject:
    if (format_detail(_NAME, block) or {}).get("type") == "redacted_thinking":
        return {"type": "redacted_thinking", "data": block.signature}
    return {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _read_image(block: JSONObject) -> Block:
    source: JSONObject = block.get("source") or {}
    data = source.get("data")
    if source.get("type") != "base64" or not isinstance(data, str):
        return wrap_native(_NAME, block)  # it is elsewhere, and the standard has no block for that
    return ImageBlock(data=data, mimeType=str(source.get("media_type")))
