"""Why an endpoint refuses one conversation, read from its error: the context is full, or a filter stopped it.

There is no standard for that. Some servers give a code, some only words, and a router hands on the error of another
server as a text within its own. What an error repeats of the request is not read: a conversation may be about anything.

Words of OpenAI, vLLM, SGLang, llama.cpp, Anthropic, Google, OpenRouter and Mistral, as of 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal, cast

from ors_client._types import JSONObject

ConversationFault = Literal["context", "filter"]
"""What is wrong with a conversation: it outgrew the model, or a filter stopped it."""

_CODES: dict[str, ConversationFault] = {
    "context_length_exceeded": "context",
    "exceed_context_size_error": "context",
    "content_filter": "filter",
}
_CONTEXT = re.compile(
    r"maximum context length"  # OpenAI, vLLM, SGLang, OpenRouter, Mistral
    r"|longer than the (?:model's context length|maximum model length)"  # SGLang, vLLM
    r"|exceeds? (?:the (?:available )?)?context (?:size|window|limit|length)"  # llama.cpp, OpenAI, Anthropic
    r"|exceeds the maximum allowed length"  # SGLang
    r"|exceeds the maximum number of tokens allowed"  # Google
    r"|prompt is too long"  # Anthropic
    r"|max_tokens must be at least 1, got -\d",  # vLLM, where the prompt alone is too long
    re.IGNORECASE,
)
_FIELDS = ("code", "type", "message", "detail", "error")
_MOST_CHARS = 1000  # of one text: the reason stands first, and what is repeated of the request after it
_DEEPEST = 8  # levels of an error, those of an error within it included


def conversation_fault(body: bytes | bytearray) -> ConversationFault | None:
    """Return what an error says is wrong with the conversation, or `None` where that is not it."""
    for said in _texts(body.decode(errors="replace"), _DEEPEST):
        if said in _CODES:
            return _CODES[said]
        if _CONTEXT.search(said[:_MOST_CHARS]):
            return "context"
    return None


def _texts(error: object, depth: int) -> Iterator[str]:
    """Yield the codes and words of an error, also of one that is a text within another."""
    if depth < 0:
        return
    if isinstance(error, str):
        held = _parsed(error)
        if held is None:
            yield error
        else:
            yield from _texts(held, depth - 1)
    elif isinstance(error, list):
        for item in cast("list[object]", error)[:1]:
            yield from _texts(item, depth)
    elif isinstance(error, dict):
        fields = cast("JSONObject", error)
        for name in _FIELDS:
            yield from _texts(fields.get(name), depth - 1)
        metadata = fields.get("metadata")
        if isinstance(metadata, dict):
            yield from _texts(cast("JSONObject", metadata).get("raw"), depth - 1)


def _parsed(text: str) -> object | None:
    try:
        held = cast("object", json.loads(text)) if text.lstrip().startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        return None
    return cast("object", held) if isinstance(held, dict | list) else None
