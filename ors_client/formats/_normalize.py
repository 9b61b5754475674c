"""Messages of the standard, rearranged so that a provider can hold them.

Knows the rules that providers share: results come first after the calls that they answer, and an image stands only
where the provider looks at images. Knows no provider's shapes: what one of them holds is said by its `Holds`.

The result depends only on the messages so far, so that a longer conversation starts with the shorter one, as prompt
caches need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from ors_client._types import Block, ImageBlock, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock

Place = Literal["system", "assistant", "result", "user"]


@dataclass(frozen=True, slots=True)
class Holds:
    """What a provider's messages can hold.

    Args:
        images: The places beside user messages where images may stand. From others they move to a user message.
        later_system: Whether a system message may stand anywhere but at the start. Where not, it becomes a user message
            that says what it was.
        mixed_results: Whether results and other blocks may stand in one message.
        block: Whether this block can be sent at all, in its right place. Where not, text stands for it.
    """

    images: frozenset[Place]
    later_system: bool
    mixed_results: bool
    block: Callable[[Block], bool]


def arranged(messages: Iterable[Message], holds: Holds) -> list[Message]:
    """Return messages that a provider can hold, with nothing lost that it could show.

    Raises:
        ValueError: A message has a role that is none of the standard's.
    """
    return list(_Arrangement(holds).turns(messages))


def described(block: Block) -> list[Block]:
    """Return text that stands for a block which can't be sent where it is."""
    match block:
        case ImageBlock():
            return [TextBlock(text=f"[an image of the type {block.mime_type}, which can't be sent here]")]
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
            return [TextBlock(text=f"[a block of the type {block.type}, which can't be sent here]")]


class _Arrangement:
    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._moved: list[Block] = []
        self._images = 0
        self._started = False

    def turns(self, messages: Iterable[Message]) -> Iterable[Message]:
        for assistant, turn in groupby(messages, key=lambda message: _role(message) == "assistant"):
            if assistant:
                self._started = True
                yield from (
                    message.model_copy(update={"blocks": self._placed(message.blocks, "assistant")}) for message in turn
                )
            else:
                yield from self._between(list(turn))
        yield from self._flushed()

    def _between(self, turn: Sequence[Message]) -> Iterable[Message]:
        """Arrange what stands between two turns of the assistant."""
        answering = [message for message in turn if _role(message) == "user" and any(map(_is_result, message.blocks))]
        rest = list(turn)
        if answering:
            self._started = True
            results = [block for message in answering for block in message.blocks if isinstance(block, ToolResultBlock)]
            first = answering[0]
            blocks: list[Block] = [self._result(block) for block in results]
            if self._holds.mixed_results:
                blocks += self._placed(_others(first), "user")
                rest = [message for message in rest if message is not first]
            yield first.model_copy(update={"blocks": blocks})
        for message in rest:
            answers = any(message is other for other in answering)
            if answers and not _others(message):
                continue  # all that it held are results, which stand above
            role = _role(message)
            if role == "user" or self._started:
                yield from self._flushed()
            place: Place = "system" if role == "system" else "user"
            blocks = _others(message) if answers else message.blocks
            if place == "system" and self._started and not self._holds.later_system:
                note: list[Block] = [TextBlock(text="[system message]")]
                yield Message(role="user", blocks=note + self._placed(blocks, "user"))
                continue
            self._started = self._started or role != "system"
            yield message.model_copy(update={"blocks": self._placed(blocks, place)})
        yield from self._flushed()

    def _placed(self, blocks: Iterable[Block], place: Place) -> list[Block]:
        placed: list[Block] = []
        for block in blocks:
            if not self._belongs(block, place):
                placed += self._placed(described(block), place)
            elif isinstance(block, ImageBlock) and place != "user" and place not in self._holds.images:
                placed.append(self._move(block))
            else:
                placed.append(block)
        return placed

    def _belongs(self, block: Block, place: Place) -> bool:
        if isinstance(block, TextBlock):
            return True
        if not self._holds.block(block):
            return False
        if isinstance(block, ReasoningBlock | ToolCallBlock):
            return place == "assistant"
        return not isinstance(block, ToolResultBlock)

    def _result(self, block: ToolResultBlock) -> ToolResultBlock:
        return block.model_copy(update={"blocks": self._placed(block.blocks, "result")})

    def _move(self, image: ImageBlock) -> TextBlock:
        self._images += 1
        self._moved += [TextBlock(text=f"[image {self._images}, from above]"), image]
        return TextBlock(text=f"[image {self._images}, shown in the next user message]")

    def _flushed(self) -> Iterable[Message]:
        if self._moved:
            self._started = True
            yield Message(role="user", blocks=self._moved)
            self._moved = []


def _role(message: Message) -> str:
    if message.role == "developer":  # OpenAI's newer word for it
        return "system"
    if message.role not in {"system", "user", "assistant"}:
        raise ValueError(f"A message has the role {message.role!r}; use 'system', 'user' or 'assistant'.")
    return message.role


def _is_result(block: Block) -> bool:
    return isinstance(block, ToolResultBlock)


def _others(message: Message) -> list[Block]:
    return [block for block in message.blocks if not _is_result(block)]
