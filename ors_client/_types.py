"""What an environment serves: tasks, splits, tools, blocks, messages and results, as frozen models.

The readers are tolerant, as the standard's servers differ by age and author: unknown fields are ignored, unknown blocks
kept as `UnknownBlock`, `null` means missing, and a missing optional field takes its default. Nothing here knows how
these values travel.

Source: the Open Reward Standard, and the models of openreward 0.1.50 to 0.1.167 and ors-sdk 0.1.0.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, SupportsIndex, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)
from typing_extensions import TypeAliasType

from ._arguments import checked_names
from ._brief import brief_fields, clipped

logger = logging.getLogger(__name__)

JSONValue = TypeAliasType("JSONValue", "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None")
"""Anything that JSON can say."""
JSONObject = dict[str, Any]
"""A JSON object as a server or an environment's author defines it; its inside is theirs."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        return brief_fields(super().__repr_args__())

    def __repr_str__(self, join_str: str) -> str:
        return clipped(super().__repr_str__(join_str))


def _object_or_none(value: object) -> object:
    # The standard says object or null; losing a finished call over a list would be worse than keeping it under a name.
    return {"value": value} if value is not None and not isinstance(value, Mapping) else cast("object", value)


def _finite_or_none(value: object) -> object:
    # The official servers write NaN and the infinities as null; a hand-written one that does not means the same.
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value  # left to the field, which refuses it
    if isinstance(number, float) and not math.isfinite(number):
        _warn_of_reward()
        return None
    return number


@cache
def _warn_of_reward() -> None:
    logger.warning("A server gave a reward that is NaN or infinite, which counts as none. Said once.")


def _or(default: object) -> BeforeValidator:
    return BeforeValidator(lambda value: default if value is None else value)


Detail = Annotated[JSONObject | None, BeforeValidator(_object_or_none)]
Reward = Annotated[float | None, BeforeValidator(_finite_or_none)]


class TextBlock(_Model):
    """Text, to the letter as the environment wrote it.

    Args:
        text: The text; newlines and spaces are kept.
        detail: Whatever the environment or a model's provider adds; the client does not read it.
    """

    type: Literal["text"] = "text"
    text: str
    detail: Detail = None


class ImageBlock(_Model):
    """An image as base64 text.

    Args:
        data: The image's bytes in base64, as it came; `decode` reads it.
        mime_type: As `image/png`; `mimeType` on the wire.
        detail: As for `TextBlock`.
    """

    type: Literal["image"] = "image"
    data: str = Field(repr=False)  # a notebook would print all of it
    mime_type: str = Field(alias="mimeType")
    detail: Detail = None

    def decode(self) -> bytes:
        """Return the image's bytes.

        Raises:
            ValueError: The data is not base64.
        """
        try:
            return base64.b64decode("".join(self.data.split()), validate=True)  # MIME encoders break lines
        except binascii.Error as error:
            raise ValueError(f"The image's data ({self.mime_type}) is not base64: {error}") from None


class ReasoningBlock(_Model):
    """What a model thought before it answered.

    Args:
        text: The thoughts, as far as the provider shows them.
        signature: By which the provider knows its own thoughts again.
        detail: As for `TextBlock`.
    """

    type: Literal["reasoning"] = "reasoning"
    text: str
    signature: str | None = None
    detail: Detail = None


class ToolCallBlock(_Model):
    """A call that an assistant made.

    Args:
        id: Names the call in the conversation; its `ToolResultBlock` has the same.
        name: The tool's name on the server.
        input: The arguments.
        detail: As for `TextBlock`.
    """

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: Annotated[JSONObject, _or({})] = Field(default_factory=dict[str, Any])
    detail: Detail = None


class UnknownBlock(_Model):
    """A block of a type that this version does not know, or one that breaks the rules of its type; kept whole.

    Args:
        type: The type that it names, or `unknown`.
        raw: The block as it came.
    """

    type: str
    raw: JSONValue = None

    @model_serializer(mode="plain")
    def _as_it_came(self) -> JSONObject:
        # Whoever it is handed on to, a server or a record, gets what the environment wrote; a block is an object there.
        return self.raw if isinstance(self.raw, dict) else {"type": self.type, "raw": self.raw}


def _tag(value: object) -> str:
    """Name the model that a block is read as."""
    if isinstance(value, BaseModel):
        return str(getattr(value, "type", "unknown")) if not isinstance(value, UnknownBlock) else "unknown"
    if not isinstance(value, Mapping):
        return "unknown"
    kind = str(cast("Mapping[str, object]", value).get("type"))
    return kind if kind in {"text", "image", "reasoning", "tool_call", "tool_result"} else "unknown"


def _keep_raw(value: object) -> object:
    if isinstance(value, UnknownBlock):
        return value
    kind = cast("Mapping[str, object]", value).get("type") if isinstance(value, Mapping) else None
    return {"type": "unknown" if kind is None else str(kind), "raw": cast("object", value)}


def _or_unknown(value: object, read: ValidatorFunctionWrapHandler) -> object:
    # One block that breaks its type's rules must not cost the whole result of a call that has run.
    try:
        return read(value)
    except ValidationError:
        return UnknownBlock.model_validate(_keep_raw(value))


def _no_blocks() -> list[Block]:
    return []


class ToolResultBlock(_Model):
    """What a call came back with.

    Args:
        tool_call_id: The `id` of the call.
        blocks: The output, in order.
        is_error: Whether the call was refused or the tool failed.
        detail: As for `TextBlock`.
    """

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    blocks: Annotated[list[Block], _or([])] = Field(default_factory=_no_blocks)
    is_error: Annotated[bool, _or(False)] = False
    detail: Detail = None


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[ReasoningBlock, Tag("reasoning")]
    | Annotated[ToolCallBlock, Tag("tool_call")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[UnknownBlock, BeforeValidator(_keep_raw), Tag("unknown")],
    Discriminator(_tag),
    WrapValidator(_or_unknown),
]
"""One part of a prompt, a message or an output; a block that can't be read is an `UnknownBlock`, never an error."""
Blocks = Annotated[list[Block], _or([])]


def _text(blocks: list[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


class Message(_Model):
    """One turn of a conversation. Since openreward 0.1.157.

    Args:
        role: `system`, `user` or `assistant`; a `user` also brings the results of calls.
        blocks: What was said, in order.
        detail: As for `TextBlock`.
    """

    role: str
    blocks: Blocks = Field(default_factory=_no_blocks)
    detail: Detail = None

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return _text(self.blocks)


class ToolOutput(_Model):
    """What one step of the episode came back with.

    Args:
        blocks: The output, in order; `text` and `images` read it.
        metadata: Whatever the environment tells of the step; not for the model.
        reward: Of this step, or `None` where the environment scored nothing (official servers also send null for NaN);
            it is never guessed as zero.
        finished: Whether the episode is over; further calls raise `ToolRejected`.
    """

    blocks: Blocks = Field(default_factory=_no_blocks)
    metadata: Detail = None
    reward: Reward = None
    finished: Annotated[bool, _or(False)] = False

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return _text(self.blocks)

    @property
    def images(self) -> list[ImageBlock]:
        """The image blocks, in order."""
        return [block for block in self.blocks if isinstance(block, ImageBlock)]


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Where the seconds of one call went; together they are its length.

    Args:
        queued: Until its turn in the session, and until the server had room.
        setup: Until the environment was set up; of the first call only.
        connecting: Until there was a connection.
        server: At the server, and on the way there and back.
    """

    queued: float
    setup: float
    connecting: float
    server: float


class ToolSpec(_Model):
    """A tool as the server describes it.

    Args:
        name: As the server takes it; it may be one that no provider accepts, see `ors_client.formats.ToolNames`.
        description: For the model; may be empty.
        input_schema: JSON Schema of the arguments, word for word, or `None` for no arguments.
    """

    name: str
    description: Annotated[str, _or("")] = ""
    input_schema: Detail = None


class TerminalToolSpec(_Model):
    """The tool that takes an assistant's final message.

    Args:
        name: As the server takes it.
        arg: The argument that the message is passed as; `None` where the tool takes none.
        description: May be empty.
    """

    name: str
    arg: str | None = None
    description: Annotated[str, _or("")] = ""


class ToolList(_Model):
    """The tools of an environment or of a task, and what else it supports.

    Args:
        tools: What a model may call, in the server's order.
        terminal_tool: What takes the final message, where there is such a tool.
        supports_score_group: Whether rollouts of one task can be scored beside each other.
        message_block_types: The types of blocks that messages and outputs may hold.
    """

    tools: Annotated[list[ToolSpec], _or([])] = Field(default_factory=list[ToolSpec])
    terminal_tool: TerminalToolSpec | None = None
    supports_score_group: Annotated[bool, _or(False)] = False
    message_block_types: Annotated[list[str], _or(["text", "image"])] = Field(default_factory=lambda: ["text", "image"])


class Split(_Model):
    """A named set of tasks.

    Args:
        name: What other methods take as `split`.
        type: `train`, `validation` or `test`, whatever else a server says, or empty where it says nothing.
    """

    name: str
    type: Annotated[str, _or("")] = ""


class Task(_Model):
    """One task of an environment: what the environment needs to start the episode, and where it stands.

    Args:
        environment: The environment's name.
        spec: What its author defines; a session can be opened by it alone.
        split: Where it stands, where that is known.
        index: Its number in the split, from 0, where that is known.
    """

    environment: str
    spec: JSONObject
    split: str | None = None
    index: int | None = None


@checked_names
@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task by split and index: the server looks it up.

    Args:
        split: The split's name.
        index: From 0; a negative one counts from the end.

    Raises:
        TypeError: The split is no string or empty, or the index no integer.
    """

    split: str
    index: int

    def __post_init__(self) -> None:
        """Reject what no server takes, before a request is made."""
        if not isinstance(self.split, str) or not self.split:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise TypeError(f"A TaskRef's split is a non-empty string, not {self.split!r}.")
        if type(self.index) is not int:  # NumPy's are none, and JSON does not take them
            if isinstance(self.index, bool) or not isinstance(self.index, SupportsIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"A TaskRef's index is an integer, not {self.index!r}.")
            object.__setattr__(self, "index", operator.index(self.index))


class GroupCandidate(_Model):
    """One rollout of a task, as a conversation, to be scored beside its siblings.

    Args:
        messages: All of it, from the prompt to the last message.
        metadata: Whatever the environment wants to know of it.
    """

    messages: list[Message]
    metadata: JSONObject | None = None


class GroupScore(_Model):
    """The score of one candidate.

    Args:
        reward: `None` where the environment gave none.
        metadata: Whatever the environment tells of it.
    """

    reward: Reward = None
    metadata: Detail = None


class ResponseChars(_Model):
    """How long the answers of past rollouts were, in characters: the mean, and percentiles from 1 to 99."""

    mean: float | None = None
    p1: float | None = None
    p10: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p99: float | None = None


class TaskDifficulty(_Model):
    """What past rollouts of one catalogue task scored.

    Args:
        task_index: The task's number in its split.
        avg_reward: Over the rollouts; likewise `min_reward` and `max_reward`.
        num_rollouts: How many there were.
        response_chars: How long the answers were.
        split: The task's split.
        variant: The environment within the deployment.
    """

    task_index: int
    avg_reward: float | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    num_rollouts: Annotated[int, _or(0)] = 0
    response_chars: ResponseChars | None = None
    split: str | None = None
    variant: str | None = None


ToolResultBlock.model_rebuild()
