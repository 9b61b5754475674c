"""ORS tools, messages and results in the shapes of model providers, and back.

A `Message` of the standard is the form in which a conversation is kept; a format writes it as one provider's request
and reads that provider's reply as the next message, so that a rollout may change providers midway. Each format is made
for the tools of one session: it knows the names by which the model calls them.

Everything is plain dicts, JSON throughout; no provider's package is imported, and every package takes them as they are.
Nothing is dropped in silence. What a provider has no place for is moved (a tool's image becomes part of a user message
where tool results are text) or stands as text in square brackets that says what it was. Two things are about a text and
not of it, and stay behind: a block's `detail`, apart from what a format put there itself, and a provider's annotations.
"""

from ._calls import ToolCall, distinct_ids, tool_calls, tool_result
from ._format import Format
from ._names import ToolNames
from .anthropic import Anthropic
from .google import Google
from .mcp import MCP
from .openai_chat import OpenAIChat, ReasoningHistory
from .openai_responses import OpenAIResponses

__all__ = [
    "MCP",
    "Anthropic",
    "Format",
    "Google",
    "OpenAIChat",
    "OpenAIResponses",
    "ReasoningHistory",
    "ToolCall",
    "ToolNames",
    "distinct_ids",
    "tool_calls",
    "tool_result",
]
