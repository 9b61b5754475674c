"""OpenAI's responses, where a conversation is a list of items.

Source: `ResponseInputItemParam` and `FunctionToolParam` of the `openai` package (2.x and 3.x), which its authors
generate from the published OpenAPI description.

What has no place there: an image in an answer of the assistant moves to a user message; a result says that it is an
error by the text `[error]`; reasoning that is not OpenAI's own becomes text. Ids of items are kept in `detail`, since
the API matches reasoning with what follows it by them.
"""

from __future__ import annotations

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

from ._calls import arguments_text, call_block
from ._format import Format, data_url, format_detail, items, split_data_url, unwrap_native, wrap_native
from ._normalize import Capabilities, normalize_content, normalize_messages

_NAME = "openai_responses"


@checked
class OpenAIResponses(Format):
    """Shapes of `client.responses.create(**format.request(messages))`.

    A reply is `[item.model_dump(exclude_none=True) for item in response.output]`, or the whole response dumped.
    """

    _conversation_key = "input"

    @property
    def tools(self) -> list[JSONObject]:
        """`FunctionToolParam`s, not strict: strict mode takes only a part of JSON Schema, and is this API's default."""
        return [{"type": "function", **self._declare(spec, "parameters"), "strict": False} for spec in self.names.specs]

    def _request(self, messages: Sequence[Message]) -> JSONObject:
        """Return `input`, and `tools` where there are any."""
        request: JSONObject = {"input": self._write(messages)}
        if tools := self.tools:
            request["tools"] = tools
        return request

    def messages(self, request: Mapping[str, Any]) -> list[Message]:
        """Read `instructions` and `input`; items of one side in a row become one message."""
        read: list[Message] = []
        if instructions := request.get("instructions"):
            read.append(Message(role="system", blocks=[TextBlock(text=str(instructions))]))
        given = request.get("input")
        if isinstance(given, str):
            return [*read, Message(role="user", blocks=[TextBlock(text=given)])]
        last = ""
        for item in items(given):
            kind = str(item.get("type") or "message")
            role = str(item.get("role", "user" if kind.endswith("_output") else "assistant"))
            # A user's messages keep their bounds; the items of a turn, and results, belong together.
            side = role if role == "assistant" else f"{role} {kind}"
            if not read or side != last or (kind == "message" and role != "assistant"):
                read.append(Message(role=role))
            last = side
            read[-1].blocks.extend(self._read(item, kind))
        return read

    def reply(self, reply: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Message:
        """Read a response, or its `output`."""
        output = items(reply.get("output") if isinstance(reply, Mapping) else reply)
        blocks = [block for item in output for block in self._read(item, str(item.get("type")))]
        return Message(role="assistant", blocks=blocks)

    def content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        """Return `ResponseInputContentParam`s."""
        return [_part(block) for block in normalize_content(blocks, _CAPABILITIES)]

    def _write(self, messages: Sequence[Message]) -> list[JSONObject]:
        written: list[JSONObject] = []
        for message in normalize_messages(messages, _CAPABILITIES):
            results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
            if results:
                written += map(_output, results)
            elif message.role == "assistant":
                written += self._assistant(message.blocks)
            else:
                written.append({"role": message.role, "content": _content(message.blocks)})
        return written

    def _assistant(self, blocks: Sequence[Block]) -> list[JSONObject]:
        written: list[JSONObject] = [] if blocks else [{"role": "assistant", "content": ""}]
        for block in blocks:
            kept = _own_detail(block)
            raw = unwrap_native(_NAME, block)
            named = {"id": kept["id"]} if kept.get("id") else {}
            if raw is not None:
                written.append(raw)
            elif isinstance(block, ToolCallBlock):
                call = {"call_id": block.id, "name": self.names.alias(block.name)}
                written.append({"type": "function_call", **named, **call, "arguments": arguments_text(block)})
            elif isinstance(block, ReasoningBlock):
                written.append(_reasoning_item(block, kept))
            elif named and written and written[-1].get("id") == kept["id"] and "content" in written[-1]:
                written[-1]["content"].append(_output_text(block))
            elif named:
                written.append(_output_message(block, kept))
            else:
                phase = {"phase": kept["phase"]} if kept.get("phase") else {}
                written.append({"role": "assistant", "content": cast("TextBlock", block).text, **phase})
        return written

    def _read(self, item: JSONObject, kind: str) -> list[Block]:
        kept = {key: item[key] for key in ("id", "phase") if item.get(key)}
        match kind:
            case "message":
                detail: JSONObject | None = {_NAME: kept} if kept and item.get("role") == "assistant" else None
                return _read_content(item.get("content"), detail)
            case "function_call":
                name = self.names.tool(str(item.get("name")))
                detail = {_NAME: kept} if kept else None
                return [call_block(name, item.get("call_id"), item.get("arguments"), detail)]
            case "function_call_output":
                blocks = _read_content(item.get("output"), None)
                return [ToolResultBlock(tool_call_id=str(item.get("call_id")), blocks=blocks)]
            case "reasoning":
                return [_read_reasoning(item)]
            case _:
                return [wrap_native(_NAME, item)]


def _supports_block(block: Block) -> bool:
    return not isinstance(block, ReasoningBlock) or bool(_own_detail(block).get("id"))


_CAPABILITIES = Capabilities(
    _NAME,
    images=frozenset({"system", "result"}),
    later_system=True,
    mixed_results=False,
    supports=_supports_block,
)


def _own_detail(block: Block) -> JSONObject:
    return format_detail(_NAME, block) or {}


def _output(result: ToolResultBlock) -> JSONObject:
    error: list[Block] = [TextBlock(text="[error]")] if result.is_error else []
    output = _content(error + result.blocks)
    return {"type": "function_call_output", "call_id": result.tool_call_id, "output": output}


def _content(blocks: Sequence[Block]) -> str | list[JSONObject]:
    if not blocks:
        return ""
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock):
        return blocks[0].text
    return [_part(block) for block in blocks]


def _part(block: Block) -> JSONObject:
    if isinstance(block, ImageBlock):
        return {"type": "input_image", "detail": "auto", "image_url": data_url(block.data, block.mime_type)}
    if raw := unwrap_native(_NAME, block):
        return raw
    return {"type": "input_text", "text": cast("TextBlock", block).text}  # nothing else is left after normalizing


def _output_text(block: Block) -> JSONObject:
    text = cast("TextBlock", block).text
    if _own_detail(block).get("refusal"):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": []}


def _output_message(block: Block, kept: JSONObject) -> JSONObject:
    message = {key: kept[key] for key in ("id", "phase") if kept.get(key)}
    return {"type": "message", "role": "assistant", "status": "completed", **message, "content": [_output_text(block)]}


def _reasoning_item(block: ReasoningBlock, kept: JSONObject) -> JSONObject:
    item: JSONObject = {"type": "reasoning", "id": kept["id"], "summary": []}
    if block.text and kept.get("open"):
        item["content"] = [{"type": "reasoning_text", "text": block.text}]
    elif block.text:
        item["summary"] = [{"type": "summary_text", "text": block.text}]
    if block.signature is not None:
        item["encrypted_content"] = block.signature
    return item


def _read_reasoning(item: JSONObject) -> ReasoningBlock:
    opened = items(item.get("content"))  # models with open weights show their reasoning itself
    text = "\n\n".join(str(part.get("text")) for part in opened or items(item.get("summary")))
    kept: JSONObject = {"id": item.get("id")}
    if opened:
        kept["open"] = True
    return ReasoningBlock(text=text, signature=item.get("encrypted_content"), detail={_NAME: kept})


def _read_content(content: object, detail: JSONObject | None) -> list[Block]:
    if isinstance(content, str):
        return [TextBlock(text=content, detail=detail)] if content else []
    return [_read_part(part, detail) for part in items(content)]


def _read_part(part: JSONObject, detail: JSONObject | None) -> Block:
    kind = part.get("type")
    if kind in {"input_text", "output_text", "text"}:
        return TextBlock(text=str(part.get("text")), detail=detail)
    if kind == "refusal":
        kept = (detail or {}).get(_NAME, {})
        return TextBlock(text=str(part.get("refusal")), detail={_NAME: {**kept, "refusal": True}})
    held = split_data_url(part.get("image_url")) if kind == "input_image" else None
    return ImageBlock(mimeType=held[0], data=held[1]) if held else wrap_native(_NAME, part)
