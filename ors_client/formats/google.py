"""Google's contents, as the Gemini API and Vertex AI take them.

Source: `Content`, `Part` and `FunctionDeclaration` of the `google-genai` package (1.x to 3.x). Bytes are base64 text,
as in JSON; the package reads that. Readers take its dumps of both kinds, and the camel case of JSON.

What has no place there: a system message after the start becomes a user message that says so; an image in a system
message or a result moves to a user message (only the newest models look at images in results); reasoning without the
mark that it is Google's becomes text; the borders between several texts of a result become those of a list. A call
that came without an id gets one, which is not sent back.
"""

from __future__ import annotations

import base64
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

from ._calls import GENERATED_ID, arguments_object, call_block, tool_calls, tool_names_by_call_id
from ._format import Format, format_detail, items, unwrap_native, wrap_native
from ._normalize import Capabilities, normalize_content, normalize_messages, split_system

_NAME = "google"


@checked
class Google(Format):
    """Shapes of `client.models.generate_content(**format.request(messages))`.

    A reply is `response.candidates[0].content.model_dump(exclude_none=True)`.
    """

    _conversation_key = "contents"

    @property
    def tools(self) -> list[JSONObject]:
        """One `Tool` with a `FunctionDeclaration` for each tool, or none."""
        # Not `parameters`, which is OpenAPI's smaller language.
        declarations = [self._declare(spec, "parameters_json_schema") for spec in self.names.specs]
        return [{"function_declarations": declarations}] if declarations else []

    def _request(self, messages: Sequence[Message]) -> JSONObject:
        """Return `contents`, and `config` with `system_instruction` and `tools` where there are any."""
        blocks, turns = split_system(normalize_messages(messages, _CAPABILITIES))
        system = _parts(blocks)
        config: JSONObject = {"system_instruction": {"parts": system}} if system else {}
        if tools := self.tools:
            config["tools"] = tools
        contents = self._write(turns, tool_names_by_call_id(messages))
        return {"contents": contents, "config": config} if config else {"contents": contents}

    def messages(self, request: Mapping[str, Any]) -> list[Message]:
        """Read `config.system_instruction` and `contents`; a result without an id answers the next open call."""
        system = self._read_parts(_get(_get(request, "config"), "system_instruction"))
        read = [Message(role="system", blocks=system)] if system else []
        calls: list[tuple[str, str]] = []
        for content in items(request.get("contents")):
            role = "assistant" if content.get("role") == "model" else "user"
            message = Message(role=role, blocks=self._read_parts(content))
            for index, block in enumerate(message.blocks):
                if isinstance(block, ToolResultBlock):
                    message.blocks[index] = _match_call(block, calls)
            calls += [(call.tool, call.call_id) for call in tool_calls(message)]
            read.append(message)
        return read

    def reply(self, reply: Mapping[str, Any]) -> Message:
        """Read the content of a candidate."""
        return Message(role="assistant", blocks=self._read_parts(reply))

    def content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        """Return `Part`s."""
        return _parts(normalize_content(blocks, _CAPABILITIES))

    def _write(self, messages: Iterable[Message], tools: Mapping[str, str]) -> list[JSONObject]:
        contents: list[JSONObject] = []
        for message in messages:
            parts: list[JSONObject] = []
            for block in message.blocks:
                if isinstance(block, ToolCallBlock):
                    call = {"name": self.names.alias(block.name), "args": arguments_object(block)}
                    parts.append({"function_call": {**_id(block.id), **call}, **_signature(block)})
                elif isinstance(block, ToolResultBlock):
                    name = self.names.alias(tools.get(block.tool_call_id, "unknown"))
                    outcome = {"error" if block.is_error else "output": _outcome(block.blocks)}
                    response = {**_id(block.tool_call_id), "name": name, "response": outcome}
                    parts.append({"function_response": response})
                else:
                    parts += _parts([block])
            contents.append({"role": _ROLES[message.role], "parts": parts or [{"text": "[empty message]"}]})
        return contents

    def _read_parts(self, content: object) -> list[Block]:
        if isinstance(content, str):
            return [TextBlock(text=content)] if content else []
        return [block for part in items(_get(content, "parts")) for block in self._read(part)]

    def _read(self, part: JSONObject) -> list[Block]:
        signature = _base64(_get(part, "thought_signature"))
        detail: JSONObject | None = {_NAME: {"thought_signature": signature}} if signature else None
        text = part.get("text")
        image = _get(part, "inline_data")
        call = _get(part, "function_call")
        response = _get(part, "function_response")
        if isinstance(call, dict):
            fields = cast("JSONObject", call)
            return [call_block(self.names.tool(str(fields.get("name"))), fields.get("id"), fields.get("args"), detail)]
        if isinstance(response, dict):
            fields = cast("JSONObject", response)
            return [_read_function_response(self.names.tool(str(fields.get("name"))), fields)]
        if part.get("thought") and isinstance(text, str):
            return [ReasoningBlock(text=text, signature=signature, detail={_NAME: {"thought": True}})]
        if isinstance(text, str):
            return [TextBlock(text=text, detail=detail)] if text or detail else []
        mime_type = str(_get(image, "mime_type"))
        data = _base64(_get(image, "data"))
        if data is not None and mime_type.startswith("image/"):
            return [ImageBlock(data=data, mimeType=mime_type, detail=detail)]
        kind = next((key for key, value in part.items() if value is not None), "part")
        return [wrap_native(_NAME, part, kind)]


_ROLES = {"user": "user", "assistant": "model"}


def _supports_block(block: Block) -> bool:
    if isinstance(block, ImageBlock):
        try:
            block.decode()  # the package decodes it too
        except ValueError:
            return False
    if isinstance(block, ReasoningBlock):
        return format_detail(_NAME, block) is not None
    return True


_CAPABILITIES = Capabilities(
    _NAME, images=frozenset({"assistant"}), later_system=False, mixed_results=False, supports=_supports_block
)


def _id(call_id: str) -> JSONObject:
    return {"id": call_id} if call_id and not call_id.startswith(GENERATED_ID) else {}


def _signature(block: Block) -> JSONObject:
    # It stands beside what it signs, a call for one, and the newest models refuse that without it.
    signature = (format_detail(_NAME, block) or {}).get("thought_signature")
    return {"thought_signature": signature} if signature else {}


def _outcome(blocks: Sequence[Block]) -> str | list[str]:
    texts = [cast("TextBlock", block).text for block in blocks]  # nothing else is left after normalizing
    return texts[0] if len(texts) == 1 else texts or ""


def _parts(blocks: Iterable[Block]) -> list[JSONObject]:
    parts: list[JSONObject] = []
    for block in blocks:
        kept = _signature(block)
        if isinstance(block, ImageBlock):
            parts.append({"inline_data": {"mime_type": block.mime_type, "data": block.data}, **kept})
        elif isinstance(block, ReasoningBlock):
            signature = {"thought_signature": block.signature} if block.signature else {}
            parts.append({"text": block.text, "thought": True, **signature})
        elif raw := unwrap_native(_NAME, block):
            parts.append(raw)
        elif (text := cast("TextBlock", block).text) or kept:  # a part that is only empty text is refused
            parts.append({"text": text, **kept})
    return parts


def _match_call(result: ToolResultBlock, calls: list[tuple[str, str]]) -> ToolResultBlock:
    """Give a result without an id that of the first open call of its tool; close the call that it answers."""
    tool = (format_detail(_NAME, result) or {}).get("name")
    found = next((call for call in calls if result.tool_call_id in {call[1], ""} and tool == call[0]), None)
    if found:
        calls.remove(found)
    call_id = result.tool_call_id or (found[1] if found else "")
    return result.model_copy(update={"tool_call_id": call_id, "detail": None})


def _read_function_response(tool: str, response: JSONObject) -> ToolResultBlock:
    outcome = response.get("response")
    fields = cast("JSONObject", outcome) if isinstance(outcome, dict) else {}
    key = next((key for key in ("error", "output") if fields.get(key) is not None), None)
    value: object = fields[key] if key else fields
    texts = cast("list[object]", value) if isinstance(value, list) else [value]
    blocks: list[Block] = [
        TextBlock(text=text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))
        for text in texts
        if text not in ("", {})
    ]
    for part in items(response.get("parts")):
        image = _get(part, "inline_data")
        data = _base64(_get(image, "data"))
        if data is not None:
            blocks.append(ImageBlock(data=data, mimeType=str(_get(image, "mime_type"))))
        else:
            blocks.append(wrap_native(_NAME, part, "part"))
    return ToolResultBlock(
        tool_call_id=str(response.get("id") or ""),
        blocks=blocks,
        is_error=key == "error",
        detail={_NAME: {"name": tool}},
    )


def _get(value: object, key: str) -> object:
    """Return a field whose name is in snake case in the package and in camel case in the API."""
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, object]", value)
    head, *tail = key.split("_")
    found = fields.get(key)
    return found if found is not None else fields.get(head + "".join(map(str.capitalize, tail)))


def _base64(value: object) -> str | None:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.replace("-", "+").replace("_", "/") if isinstance(value, str) else None
