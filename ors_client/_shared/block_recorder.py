"""What an environment sends in one episode, as a record holds it: texts, blocks, and images as far as the line allows.

Training and evaluation both write through it, so that a report or a replay need not know which of them wrote. It takes
whatever a server sends: a record must not break an episode. Knows blocks, but neither the file nor the episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic_core import to_json

from ors_client._types import Block, ImageBlock, JSONObject, Message, TextBlock, ToolResultBlock

from .block_text import flatten, images_shown, placeholder, plain_text

# Twice what one answer may hold by default, as an output counts in its call and in the conversation. An episode is held
# whole by its writer and its readers.
_BYTE_BUDGET = 128 * 2**20
_DEEPEST = 40  # results within results; each takes two of the levels that a line has


class BlockRecorder:
    """Writes down what comes in during one episode, and counts how much of its line is more than plain text.

    Args:
        images: Whether images are kept. A placeholder, as `[1 image left out: image/png]`, stands for one that is not,
            and for a block that exceeds the budget.
        byte_budget: Bytes of the line that all blocks but plain texts may take together.
    """

    def __init__(self, *, images: bool = True, byte_budget: int = _BYTE_BUDGET) -> None:
        self._images = images
        self._byte_budget = byte_budget

    def messages(self, messages: Sequence[Message]) -> list[JSONObject]:
        """Return messages of the conversation."""
        return [
            {"role": message.role, "blocks": self._fitting(message.blocks)}
            | ({} if message.detail is None else {"detail": message.detail})
            for message in messages
        ]

    def blocks(self, output: Sequence[Block]) -> list[JSONObject] | None:
        """Return what a call came back with, or `None` where that is one text."""
        return None if _is_text(output) else self._fitting(output)

    def _fitting(self, blocks: Iterable[Block], depth: int = 0) -> list[JSONObject]:
        return [self._fit(block, depth) for block in blocks]

    def _fit(self, block: Block, depth: int) -> JSONObject:
        if not isinstance(block, ToolResultBlock):
            return self._kept(block) or _text(placeholder(block))
        kept = self._kept(block.model_copy(update={"blocks": []})) if depth < _DEEPEST else None
        return {**kept, "blocks": self._fitting(block.blocks, depth + 1)} if kept else _text(placeholder(block))

    def _kept(self, block: Block) -> JSONObject | None:
        """Return a block as far as the budget allows: whole, or without its `detail`, or not at all."""
        # One that breaks the rules of its type may hold an image all the same.
        if block.type == "image" and not self._images:
            return None
        has_detail = getattr(block, "detail", None) is not None
        for each in (block, block.model_copy(update={"detail": None})) if has_detail else (block,):
            if isinstance(each, TextBlock) and each.detail is None:
                return _text(each.text)
            try:
                (kept,) = dump_blocks([each])
                size = len(to_json(kept))
            except ValueError:  # nested more deeply than can be written, where the client's limit was raised
                continue
            if size <= self._byte_budget:
                self._byte_budget -= size
                return kept
        return None


def dump_blocks(blocks: Iterable[Block]) -> list[JSONObject]:
    """Return blocks as the standard writes them, which is how a record holds them."""
    return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]


def conversation_text(opening: Iterable[Message]) -> str:
    """Return all text of a conversation, with a word on what is none: the `prompt` of a record."""
    return "\n\n".join(_message_text(message) for message in opening)


def is_one_text(opening: Sequence[Message]) -> bool:
    """Tell whether an episode began with nothing but one text of the user's: the `prompt` of a record says it all."""
    return not opening or (
        len(opening) == 1
        and opening[0].role == "user"
        and len(opening[0].blocks) == 1
        and _is_text(opening[0].blocks)
        and opening[0].detail is None
    )


def _message_text(message: Message) -> str:
    pieces: list[str] = []
    images = 0
    for block in (*flatten(message.blocks), None):
        if isinstance(block, ImageBlock):
            images += 1
            continue
        if images:
            pieces.append(images_shown(images))
            images = 0
        if block is not None:
            pieces.append(plain_text(block))
    return "\n".join(pieces)


def _text(text: str) -> JSONObject:
    return {"type": "text", "text": text}


def _is_text(blocks: Sequence[Block]) -> bool:
    return len(blocks) == 0 or (len(blocks) == 1 and isinstance(blocks[0], TextBlock) and not blocks[0].detail)
