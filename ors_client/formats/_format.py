"""The interface of all formats, and what they share.

Each format's module names its sources. Formats read dicts as a provider's package dumps them: an absent field means
the same as `None`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ors_client._arguments import checked
from ors_client._errors import ToolError
from ors_client._types import Block, JSONObject, Message, ToolCallBlock, ToolOutput, ToolSpec, UnknownBlock

from ._calls import ToolCall, distinct_ids, tool_calls, tool_result
from ._names import ToolNames


@checked
class Format(ABC):
    """One provider's shapes, for the tools of one session.

    Args:
        tools: As the server lists them.
    """

    _conversation_key = "messages"
    """Where a request has the conversation."""

    def __init__(self, tools: Iterable[ToolSpec] = ()) -> None:
        self.names = ToolNames(tools)

    @property
    @abstractmethod
    def tools(self) -> list[JSONObject]:
        """The tools for the provider, with the server's schemas word for word."""

    def request(self, messages: Sequence[Message]) -> JSONObject:
        """Return the part of a request that is the conversation and the tools, as keyword arguments.

        Every call has an id of its own there, however the model or another provider named it.

        Raises:
            ValueError: A message has a role that is none of the standard's.
        """
        return self._request(distinct_ids(messages))

    @abstractmethod
    def _request(self, messages: Sequence[Message]) -> JSONObject:
        """Write a conversation with its ids as they are, and the tools."""

    @abstractmethod
    def messages(self, request: Mapping[str, Any]) -> list[Message]:
        """Read the conversation of a request; tools get the server's names back."""

    @abstractmethod
    def reply(self, reply: Any) -> Message:
        """Read the model's reply as the next message."""

    @abstractmethod
    def content(self, blocks: Iterable[Block]) -> list[JSONObject]:
        """Return blocks as the content of a user message."""

    def calls(self, reply: Any) -> list[ToolCall]:
        """Read the calls of a reply, under the server's names."""
        return tool_calls(self.reply(reply))

    def results(self, answered: Iterable[tuple[ToolCall, ToolOutput | ToolError | str]]) -> list[JSONObject]:
        """Return what to append to a conversation that is kept in the provider's shape.

        Args:
            answered: All calls of one reply, each with its output, its error, or a description of another problem.
        """
        pairs = list(answered)
        calls: list[Block] = [ToolCallBlock(id=call.call_id, name=call.tool) for call, _ in pairs]
        results: list[Block] = [tool_result(call, outcome) for call, outcome in pairs]
        turn = Message(role="assistant", blocks=calls)
        both = self._conversation([turn, Message(role="user", blocks=results)])
        return both[len(self._conversation([turn])) :]

    def _conversation(self, messages: Sequence[Message]) -> list[JSONObject]:
        return cast("list[JSONObject]", self._request(messages)[self._conversation_key])

    def _declare(self, spec: ToolSpec, schema: str) -> JSONObject:
        """Return a tool's name, its description where it has one, and its schema under the provider's name for it."""
        description = {"description": spec.description} if spec.description else {}
        return {"name": self.names.alias(spec.name), **description, schema: parameters(spec)}


def parameters(spec: ToolSpec) -> JSONObject:
    """Copy a tool's schema, word for word.

    Only what providers insist on is added where it is missing: that arguments are an object, and that it has
    properties. A tool without a schema takes an object without any.

    Raises:
        ValueError: It is nested more deeply than Python can copy.
    """
    try:
        schema = copy.deepcopy(spec.input_schema or {})
    except RecursionError:
        raise ValueError(
            f"The schema of the tool {spec.name!r} is nested too deeply to be put before a model."
        ) from None
    if "type" not in schema:
        schema = {"type": "object", **schema}
    schema.setdefault("properties", {})
    return schema


def wrap_native(name: str, raw: Mapping[str, Any], kind: str | None = None) -> UnknownBlock:
    """Wrap what the standard has no block for, so that the same provider gets it back.

    Args:
        name: The format's.
        kind: Its type, if the provider has no field `type` for it.
    """
    return UnknownBlock(type=f"{name}:{kind or raw.get('type')}", raw=dict(raw))


def unwrap_native(name: str, block: Block) -> JSONObject | None:
    """Return what `wrap_native` wrapped for this format, or `None`.

    A block of this type from an environment is not one: its `raw` contains the block's own type.
    """
    if not isinstance(block, UnknownBlock) or not block.type.startswith(f"{name}:"):
        return None
    raw = cast("object", block.raw)  # pyright: ignore[reportUnknownMemberType] - JSON of any shape
    kept = dict(cast("JSONObject", raw)) if isinstance(raw, dict) else {}
    return kept if kept and kept.get("type") != block.type else None


def format_detail(name: str, block: Block) -> JSONObject | None:
    """Return what this format wrote into a block's detail, or `None`."""
    detail = getattr(block, "detail", None)
    kept = cast("JSONObject", detail).get(name) if isinstance(detail, dict) else None
    return cast("JSONObject", kept) if isinstance(kept, dict) else None


def is_signed_by_other_format(name: str, block: Block) -> bool:
    """Return whether another format read this block: this provider does not know its signature."""
    detail = getattr(block, "detail", None)
    formats = {"anthropic", "google", "openai_responses"} - {name}
    return isinstance(detail, dict) and not formats.isdisjoint(cast("JSONObject", detail))


def items(value: object) -> list[JSONObject]:
    """Return the objects of a list; the list may be missing."""
    values = cast("list[object]", value) if isinstance(value, list | tuple) else []
    return [dict(cast("Mapping[str, Any]", item)) for item in values if isinstance(item, Mapping)]


def data_url(data: str, mime_type: str) -> str:
    """Write an image as a data URL."""
    return f"data:{mime_type};base64,{data}"


def split_data_url(url: object) -> tuple[str, str] | None:
    """Return type and base64 text of a data URL, or `None` for a URL that points elsewhere."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    head, comma, data = url[len("data:") :].partition(",")
    mime_type, _, encoding = head.rpartition(";")
    return (mime_type, data) if comma and encoding == "base64" and mime_type else None
