"""OpenAI's chat completions, and the many servers that speak them.

Source: `ChatCompletionMessageParam` and `ChatCompletionFunctionToolParam` of the `openai` package (2.x and 3.x), which
its authors generate from the published OpenAPI description. `reasoning_content` (SGLang, DeepSeek, older vLLM),
`reasoning` (vLLM, OpenRouter) and `reasoning_details` (OpenRouter) are what other servers add to it, and
`extra_content` what Google's does. Each goes back in the field in which it came: some refuse a conversation without it.

What has no place there: an image in a system message, an answer of the assistant or a result moves to a user message;
a result says that it is an error by the text `[error]`; reasoning of another provider becomes text, unless there is a
field for it; text after a call stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

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
    ToolSpec,
)

from ._calls import arguments_text, call_block
from ._format import Format, data_url, format_detail, items, split_data_url, unwrap_native, wrap_native
from ._normalize import Capabilities, normalize_content, normalize_messages

_NAME = "openai_chat"
_FIELDS = ("audio", "function_call")  # of an assistant's message; what else is outside its content is not the model's
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
_CALL_FIELDS = ("extra_content",)  # where Google puts the signature of a call, without which it is refused

ReasoningHistory = Literal["all", "last", "none"]
"""Of which of the model's replies the reasoning is part of a request."""


@checked
class OpenAIChat(Format):
    """Shapes of `client.chat.completions.create(**format.request(messages))`.

    A reply is `completion.choices[0].message.model_dump()`.

    Args:
        tools: As the server lists them.
        reasoning_field: Where a compatible server takes the reasoning of other providers (`reasoning_content` with
            DeepSeek, `reasoning` with OpenRouter). Left out, reasoning goes back in the fields in which it came, and
            that of other providers becomes text.
        reasoning_history: Whether the reasoning of `all` replies is sent, of the `last` one, or of `none`.
    """

    def __init__(
        self,
        tools: Iterable[ToolSpec] = (),
        *,
        reasoning_field: str | None = None,
        reasoning_history: ReasoningHistory = "all",
    ) -> None:
        super().__init__(tools)
        self._reasoning_field = reasoning_field
        self._reasoning_history = reasoning_history
        self._capabilities = Capabilities(
            _NAME, images=frozenset(), later_system=True, mixed_results=False, supports=self._supports_block
        )

    @property
    def tools(self) -> list[JSONObject]:
        """`ChatCompletionFunctionToolParam`s, not strict: strict mode takes only a part of JSON Schema."""
        return [{"type": "function", "function": self._declare(spec, "parameters")} for spec in self.names.specs]

    def _request(self, messages: Sequence[Message]) -> JSONObject:
        """Return `messages`, and `tools` where there are any."""
        request: JSONObject = {"messages": self._write(messages)}
        if tools := self.tools:
            request["tools"] = tools
        return request

    def messages(self, request: Mapping[str, Any]) -> list[Message]:
        """Read `messages`; tool messages in a row become one user message."""
        read: list[Message] = []
        answering = False
        for message in items(request.get("messages")):
            if message.get("role") != "tool":
                answering = False
                read.append(self._read(message))
                continue
            blocks = _read_content(message.get("content"))
            result = ToolResultBlock(tool_call_id=str(message.get("tool_call_id")), blocks=blocks)
            if answering:
                read[-1].blocks.append(result)
            else:
                read.append(Message(role="user", blocks=[result]))
            answering = True
        return read

    def reply(self, reply: Mapping[str, Any]) -> Message:
        """Read the message of a choice."""
        return self._read({**reply, "role": "assistant"})

    def content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        """Return `ChatCompletionContentPartParam`s."""
        return [_part(block) for block in normalize_content(blocks, self._capabilities)]

    def _supports_block(self, block: Block) -> bool:
        if not isinstance(block, ReasoningBlock):
            return True
        return self._reasoning_field is not None or bool(_reasoning_fields(block))

    def _write(self, messages: Sequence[Message]) -> list[JSONObject]:
        written: list[JSONObject] = []
        for message in normalize_messages(self._with_history(messages), self._capabilities):
            results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
            if results:
                written += map(_tool_message, results)
            elif message.role == "assistant":
                written.append(self._assistant(message.blocks))
            else:
                written.append({"role": message.role, "content": _content(message.blocks)})
        return written

    def _with_history(self, messages: Sequence[Message]) -> list[Message]:
        """Leave out the reasoning that is not to be sent again."""
        replies = [position for position, message in enumerate(messages) if message.role == "assistant"]
        kept = {"all": replies, "last": replies[-1:], "none": []}[self._reasoning_history]
        return [
            message
            if message.role != "assistant" or position in kept
            else message.model_copy(update={"blocks": [each for each in message.blocks if each.type != "reasoning"]})
            for position, message in enumerate(messages)
        ]

    def _assistant(self, blocks: Iterable[Block]) -> JSONObject:
        calls: list[JSONObject] = []
        spoken: list[Block] = []
        thoughts: list[str] = []
        fields: JSONObject = {}
        for block in blocks:
            kind = block.type.removeprefix(f"{_NAME}:")
            if isinstance(block, ToolCallBlock):
                function = {"name": self.names.alias(block.name), "arguments": arguments_text(block)}
                calls.append({"id": block.id, "type": "function", "function": function, **_call_fields(block)})
            elif isinstance(block, ReasoningBlock):
                thoughts.append(block.text)
                fields |= _reasoning_fields(block) if self._reasoning_field is None else {}
            elif (raw := unwrap_native(_NAME, block)) is not None and kind in _FIELDS:
                # An audio answer is sent back by its id.
                fields[kind] = {"id": raw.get("id")} if kind == "audio" else raw
            elif raw is not None and kind == "custom":
                calls.append(raw)
            else:
                spoken.append(block)
        message: JSONObject = {"role": "assistant", "content": _content(spoken) if spoken or not calls else None}
        if thoughts and self._reasoning_field:
            message[self._reasoning_field] = "\n\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        return {**message, **fields}

    def _read(self, message: Mapping[str, Any]) -> Message:
        role = str(message.get("role"))
        blocks = _read_content(message.get("content"))
        if role != "assistant":
            return Message(role=role, blocks=blocks)
        # An empty text came too: some servers want even that back.
        fields = {name: message[name] for name in _REASONING_FIELDS if message.get(name) not in (None, [])}
        if fields:
            blocks.insert(0, ReasoningBlock(text=_reasoning_text(fields), detail={_NAME: fields}))
        if message.get("refusal"):
            blocks.append(_refusal(message["refusal"]))
        for call in items(message.get("tool_calls")):
            function: JSONObject = call.get("function") or {}
            if call.get("type") == "custom":
                blocks.append(wrap_native(_NAME, call))
            else:
                name = self.names.tool(str(function.get("name")))
                kept = {field: call[field] for field in _CALL_FIELDS if call.get(field)}
                detail: JSONObject | None = {_NAME: kept} if kept else None
                blocks.append(call_block(name, call.get("id"), function.get("arguments"), detail))
        blocks += [
            wrap_native(_NAME, message[field], field) for field in _FIELDS if isinstance(message.get(field), dict)
        ]
        return Message(role=role, blocks=blocks)


def _reasoning_fields(block: ReasoningBlock) -> JSONObject:
    """Return the fields in which reasoning came, with all that was in them."""
    kept = format_detail(_NAME, block) or {}
    return {name: kept[name] for name in _REASONING_FIELDS if name in kept}


def _reasoning_text(fields: JSONObject) -> str:
    """Return what people can read of it; some servers say the same in several fields."""
    details = [part.get("text") or part.get("summary") for part in items(fields.get("reasoning_details"))]
    said = [fields.get(name) for name in _REASONING_FIELDS[:2]]
    texts = [text for text in said if isinstance(text, str) and text]
    return texts[0] if texts else "".join(text for text in details if isinstance(text, str))


def _call_fields(block: ToolCallBlock) -> JSONObject:
    kept = format_detail(_NAME, block) or {}
    return {name: kept[name] for name in _CALL_FIELDS if name in kept}


def _tool_message(result: ToolResultBlock) -> JSONObject:
    error: list[Block] = [TextBlock(text="[error]")] if result.is_error else []
    content = _content(error + result.blocks)
    return {"role": "tool", "tool_call_id": result.tool_call_id, "content": content}


def _content(blocks: Sequence[Block]) -> str | list[JSONObject]:
    # A string where it can be one: older compatible servers know nothing else.
    if not blocks:
        return ""
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock) and not format_detail(_NAME, blocks[0]):
        return blocks[0].text
    return [_part(block) for block in blocks]


def _part(block: Block) -> JSONObject:
    if isinstance(block, ImageBlock):
        return {"type": "image_url", "image_url": {"url": data_url(block.data, block.mime_type)}}
    if raw := unwrap_native(_NAME, block):
        return raw
    text = cast("TextBlock", block).text  # nothing else is left after normalizing
    return {"type": "refusal", "refusal": text} if format_detail(_NAME, block) else {"type": "text", "text": text}


def _read_content(content: object) -> list[Block]:
    if isinstance(content, str):
        return [TextBlock(text=content)] if content else []
    return [_read_part(part) for part in items(content)]


def _read_part(part: JSONObject) -> Block:
    if part.get("type") == "text":
        return TextBlock(text=str(part.get("text")))
    if part.get("type") == "refusal":
        return _refusal(part.get("refusal"))
    image: JSONObject = part.get("image_url") or {}
    held = split_data_url(image.get("url")) if part.get("type") == "image_url" else None
    return ImageBlock(mimeType=held[0], data=held[1]) if held else wrap_native(_NAME, part)


def _refusal(text: object) -> TextBlock:
    return TextBlock(text=str(text), detail={_NAME: {"refusal": True}})
