"""The Model Context Protocol: tools, results, and the messages of sampling.

Source: the protocol's schema of 2025-11-25, which later versions read, as `mcp` 1.x and `mcp-types` 2.x hold it:
`Tool`, `CallToolResult`, `SamplingMessage`. Names are in camel case, as on the wire.

What has no place there: a system message after the start becomes a user message that says so; an image in a system
message moves to a user message; reasoning becomes text; the texts of system messages are joined by blank lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ors_client._arguments import checked
from ors_client._errors import ToolError
from ors_client._types import (
    Block,
    ImageBlock,
    JSONObject,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
)

from ._calls import ToolCall, arguments_object, call_block, tool_calls, tool_result
from ._format import Format, items, unwrap_native, wrap_native
from ._normalize import Capabilities, normalize_content, normalize_messages, split_system

_NAME = "mcp"


@checked
class MCP(Format):
    """Shapes of `sampling/createMessage`, and of `tools/list` and `tools/call` for a server before a session.

    A reply is a `CreateMessageResult`, dumped by alias.
    """

    @property
    def tools(self) -> list[JSONObject]:
        """`Tool`s."""
        return [self._declare(spec, "inputSchema") for spec in self.names.specs]

    def _request(self, messages: Sequence[Message]) -> JSONObject:
        """Return `messages`, and `systemPrompt` and `tools` where there are any."""
        blocks, turns = split_system(normalize_messages(messages, _CAPABILITIES))
        # Nothing but text is left there after normalizing.
        system = "\n\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        request: JSONObject = {"systemPrompt": system} if system else {}
        request["messages"] = [{"role": message.role, "content": self._content(message.blocks)} for message in turns]
        if tools := self.tools:
            request["tools"] = tools
        return request

    def messages(self, request: Mapping[str, Any]) -> list[Message]:
        """Read `systemPrompt` and `messages`."""
        system = request.get("systemPrompt")
        start = [Message(role="system", blocks=[TextBlock(text=str(system))])] if system else []
        return start + [
            Message(role=str(message.get("role")), blocks=self._read_content(message.get("content")))
            for message in items(request.get("messages"))
        ]

    def reply(self, reply: Mapping[str, Any]) -> Message:
        """Read the result of a sampling request."""
        return Message(role="assistant", blocks=self._read_content(reply.get("content")))

    def content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        """Return `TextContent`s and `ImageContent`s."""
        return self._content(normalize_content(blocks, _CAPABILITIES))

    def call(self, params: Mapping[str, Any]) -> ToolCall:
        """Read the parameters of a `tools/call` request, which has no id of its own."""
        block = call_block(self.names.tool(str(params.get("name"))), "", params.get("arguments"))
        return replace(tool_calls(Message(role="assistant", blocks=[block]))[0], call_id="")

    def call_result(self, outcome: ToolOutput | ToolError | str) -> JSONObject:
        """Return a `CallToolResult`.

        Args:
            outcome: The tool's output, its error, or a description of another problem.
        """
        result = tool_result(ToolCall(tool=""), outcome)
        return {"content": self.content(result.blocks), "isError": result.is_error}

    def _content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        written: list[JSONObject] = []
        for block in blocks:
            if isinstance(block, ImageBlock):
                written.append({"type": "image", "data": block.data, "mimeType": block.mime_type})
            elif isinstance(block, ToolCallBlock):
                call = {"id": block.id, "name": self.names.alias(block.name), "input": arguments_object(block)}
                written.append({"type": "tool_use", **call})
            elif isinstance(block, ToolResultBlock):
                content = self._content(block.blocks)
                result = {"toolUseId": block.tool_call_id, "content": content, "isError": block.is_error}
                written.append({"type": "tool_result", **result})
            elif raw := unwrap_native(_NAME, block):
                written.append(raw)
            else:
                written.append({"type": "text", "text": cast("TextBlock", block).text})
        return written

    def _read_content(self, content: object) -> list[Block]:
        blocks = cast("object", content if isinstance(content, list) else [content])
        return [self._read(block) for block in items(blocks)]

    def _read(self, block: JSONObject) -> Block:
        match block.get("type"):
            case "text":
                return TextBlock(text=str(block.get("text")))
            case "image":
                return ImageBlock(data=str(block.get("data")), mimeType=str(block.get("mimeType")))
            case "tool_use":
                return call_block(self.names.tool(str(block.get("name"))), block.get("id"), block.get("input"))
            case "tool_result":
                return ToolResultBlock(
                    tool_call_id=str(block.get("toolUseId")),
                    blocks=self._read_content(block.get("content")),
                    is_error=bool(block.get("isError")),
                )
            case _:
                return wrap_native(_NAME, block)


def _supports_block(block: Block) -> bool:
    return not isinstance(block, ReasoningBlock)


_CAPABILITIES = Capabilities(
    _NAME,
    images=frozenset({"assistant", "result"}),
    later_system=False,
    mixed_results=False,
    supports=_supports_block,
)
