"""Normalize messages of the standard, so that a provider accepts them.

Knows the rules that providers share: results come first after the calls that they answer, and an image stands only
where the provider looks at images. Knows no provider's shapes: `Capabilities` says what a provider accepts.

The result depends only on the messages so far, so that a longer conversation starts with the shorter one, as prompt
caches need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, cast

from ors_client._shared.block_text import placeholder
from ors_client._types import (
    Block,
    ImageBlock,
    JSONObject,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
)

from ._format import unwrap_native

MessagePosition = Literal["system", "assistant", "result", "user"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider's messages can contain.

    Args:
        name: The format's, by which it knows the blocks that it wrapped.
        images: The positions, besides user messages, where images may stand. From others they move to a user message.
        later_system: Whether a system message may stand after the start. If not, it becomes a user message that says
            what it was.
        mixed_results: Whether results and other blocks may stand in one message.
        supports: Whether this block can be sent at all, in its right position. If not, text replaces it, as it does a
            block that neither the standard nor the format knows.
    """

    name: str
    images: frozenset[MessagePosition]
    later_system: bool
    mixed_results: bool
    supports: Callable[[Block], bool]


def normalize_messages(messages: Iterable[Message], capabilities: Capabilities) -> list[Message]:
    """Return messages that a provider accepts; nothing that it could show is lost.

    Raises:
        ValueError: A message has a role that is none of the standard's.
    """
    return list(_Normalizer(capabilities).normalize(messages))


def split_system(messages: Iterable[Message]) -> tuple[list[Block], list[Message]]:
    """Return the blocks of system messages and the other messages, for a provider that takes them apart."""
    system: list[Block] = []
    turns: list[Message] = []
    for message in messages:
        if _role(message) == "system":
            system += message.blocks
        else:
            turns.append(message)
    return system, turns


def normalize_content(blocks: Iterable[Block], capabilities: Capabilities) -> list[Block]:
    """Return blocks that a provider accepts in a user message; results belong to calls, and are left out."""
    message = Message(role="user", blocks=[block for block in blocks if not isinstance(block, ToolResultBlock)])
    return [block for turn in normalize_messages([message], capabilities) for block in turn.blocks]


def _as_text(block: Block) -> list[Block]:
    """Return text in place of a block that can't be sent where it is."""
    match block:
        case ReasoningBlock(text="", signature=None) if not any(_details(block)):
            return []
        case ReasoningBlock():
            return [TextBlock(text=f"[reasoning]\n{block.text}" if block.text else "[reasoning that can't be shown]")]
        case ToolCallBlock():
            arguments = json.dumps(block.input, ensure_ascii=False)
            return [TextBlock(text=f"[call {block.id} of the tool {block.name}: {arguments}]")]
        case ToolResultBlock():
            what = "error" if block.is_error else "result"
            return [TextBlock(text=f"[{what} of the call {block.tool_call_id}]"), *block.blocks]
        case TextBlock():
            return [block]
        case _:
            return [TextBlock(text=placeholder(block))]


def _details(block: ReasoningBlock) -> Iterator[object]:
    """Yield what providers keep of reasoning that can't be read."""
    for kept in (block.detail or {}).values():
        yield from cast("JSONObject", kept).values() if isinstance(kept, dict) else ()


class _Normalizer:
    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._moved_images: list[Block] = []
        self._images = 0
        self._started = False

    def normalize(self, messages: Iterable[Message]) -> Iterable[Message]:
        for assistant, turn in groupby(messages, key=lambda message: _role(message) == "assistant"):
            if assistant:
                self._started = True
                yield from (
                    message.model_copy(update={"blocks": self._position_blocks(message.blocks, "assistant")})
                    for message in turn
                )
            else:
                yield from self._normalize_user_turn(list(turn))
        yield from self._flush_images()

    def _normalize_user_turn(self, turn: Sequence[Message]) -> Iterable[Message]:
        """Normalize the messages between two turns of the assistant."""
        answering = [message for message in turn if _role(message) == "user" and any(map(_is_result, message.blocks))]
        rest = list(turn)
        if answering:
            self._started = True
            results = [block for message in answering for block in message.blocks if isinstance(block, ToolResultBlock)]
            first = answering[0]
            blocks: list[Block] = [self._result(block) for block in results]
            if self._capabilities.mixed_results:
                blocks += self._position_blocks(_without_results(first), "user")
                rest = [message for message in rest if message is not first]
            yield first.model_copy(update={"blocks": blocks})
        for message in rest:
            answers = any(message is other for other in answering)
            if answers and not _without_results(message):
                continue  # it held nothing but results, which stand above
            role = _role(message)
            if role == "user" or self._started:
                yield from self._flush_images()
            position: MessagePosition = "system" if role == "system" else "user"
            blocks = _without_results(message) if answers else message.blocks
            if position == "system" and self._started and not self._capabilities.later_system:
                note: list[Block] = [TextBlock(text="[system message]")]
                yield Message(role="user", blocks=note + self._position_blocks(blocks, "user"))
                continue
            self._started = self._started or role != "system"
            yield message.model_copy(update={"blocks": self._position_blocks(blocks, position)})
        yield from self._flush_images()

    def _position_blocks(self, blocks: Iterable[Block], position: MessagePosition) -> list[Block]:
        placed: list[Block] = []
        for block in blocks:
            if not self._is_allowed(block, position):
                placed += self._position_blocks(_as_text(block), position)
            elif isinstance(block, ImageBlock) and position != "user" and position not in self._capabilities.images:
                placed.append(self._move(block))
            else:
                placed.append(block)
        return placed

    def _is_allowed(self, block: Block, position: MessagePosition) -> bool:
        if isinstance(block, TextBlock):
            return True
        if isinstance(block, UnknownBlock):
            return unwrap_native(self._capabilities.name, block) is not None
        if not self._capabilities.supports(block):
            return False
        if isinstance(block, ReasoningBlock | ToolCallBlock):
            return position == "assistant"
        return not isinstance(block, ToolResultBlock)

    def _result(self, block: ToolResultBlock) -> ToolResultBlock:
        return block.model_copy(update={"blocks": self._position_blocks(block.blocks, "result")})

    def _move(self, image: ImageBlock) -> TextBlock:
        self._images += 1
        self._moved_images += [TextBlock(text=f"[image {self._images}, from above]"), image]
        return TextBlock(text=f"[image {self._images}, shown in the next user message]")

    def _flush_images(self) -> Iterable[Message]:
        if self._moved_images:
            self._started = True
            yield Message(role="user", blocks=self._moved_images)
            self._moved_images = []


def _role(message: Message) -> str:
    if message.role == "developer":  # OpenAI's newer word for it
        return "system"
    if message.role not in {"system", "user", "assistant"}:
        raise ValueError(f"A message has the role {message.role!r}; use 'system', 'user' or 'assistant'.")
    return message.role


def _is_result(block: Block) -> bool:
    return isinstance(block, ToolResultBlock)


def _without_results(message: Message) -> list[Block]:
    return [block for block in message.blocks if not _is_result(block)]
