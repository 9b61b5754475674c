"""A client for the Open Reward Standard."""

from ors_client._types import (
    Block,
    ImageBlock,
    JSONObject,
    JSONValue,
    Message,
    ReasoningBlock,
    Split,
    Task,
    TaskRef,
    TextBlock,
    ToolCallBlock,
    ToolList,
    ToolOutput,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
)

__all__ = [
    "Block",
    "ImageBlock",
    "JSONObject",
    "JSONValue",
    "Message",
    "ReasoningBlock",
    "Split",
    "Task",
    "TaskRef",
    "TextBlock",
    "ToolCallBlock",
    "ToolList",
    "ToolOutput",
    "ToolResultBlock",
    "ToolSpec",
    "UnknownBlock",
]
