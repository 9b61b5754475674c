"""What an environment sends in one episode, as a record holds it: texts, blocks, and images as far as there is room.

Training and evaluation both write through it, so that a report or a replay need not know which of them wrote. Knows
blocks; knows neither the file nor the episode's course.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ._types import Block, ImageBlock, JSONObject, Message, TextBlock

# As much as one answer may hold by default. An episode is one line, which its writer and its readers hold whole.
_ROOM = 64 * 2**20
_LONGEST_TYPE = 60  # a type is a word; a server that sends an essay gets it shortened


class Transcriber:
    """Writes down what comes in during one episode, and counts how much of it is images.

    Args:
        images: Whether images are kept. In the place of one that is not, or that finds no room, stands what a model
            that sees no images is told, as `[1 image left out: image/png]`.
        room: Characters of base64 that the images of the episode may have together.
    """

    def __init__(self, *, images: bool = True, room: int = _ROOM) -> None:
        self._room = room if images else 0

    def messages(self, opening: Sequence[Message]) -> list[JSONObject] | None:
        """Return the conversation that an episode began with, or `None` where it is one text of the user's."""
        if not opening or (len(opening) == 1 and opening[0].role == "user" and _is_text(opening[0].blocks)):
            return None
        return [{"role": message.role, "blocks": self._fitting(message.blocks)} for message in opening]

    def blocks(self, output: Sequence[Block]) -> list[JSONObject] | None:
        """Return what a call came back with, or `None` where that is one text."""
        return None if _is_text(output) else self._fitting(output)

    def _fitting(self, blocks: Iterable[Block]) -> list[JSONObject]:
        return [self._fit(block) for block in written(blocks)]

    def _fit(self, block: JSONObject) -> JSONObject:
        match block:
            case {"type": "tool_result"}:
                inner = cast("list[JSONObject]", block.get("blocks", []))
                return {**block, "blocks": [self._fit(each) for each in inner]}
            case {"type": "image"}:
                return self._image(block)
            case _:
                return block

    def _image(self, block: Mapping[str, Any]) -> JSONObject:
        size = sum(len(value) for value in block.values() if isinstance(value, str))
        if size <= self._room:
            self._room -= size
            return dict(block)
        kind = str(block.get("mimeType"))
        short = kind if len(kind) <= _LONGEST_TYPE else kind[:_LONGEST_TYPE] + "..."
        return {"type": "text", "text": f"[1 image left out: {short}]"}


def written(blocks: Iterable[Block]) -> list[JSONObject]:
    """Return blocks as the standard writes them, which is how a record holds them."""
    return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]


def told(opening: Iterable[Message]) -> str:
    """Return the text of a conversation, with a word on the images in it: the `prompt` of a record."""
    return "\n\n".join(_told(message) for message in opening)


def _told(message: Message) -> str:
    images = sum(isinstance(block, ImageBlock) for block in message.blocks)
    mark = "" if not images else "[1 image]" if images == 1 else f"[{images} images]"
    return "\n".join(part for part in (message.text, mark) if part)


def _is_text(blocks: Sequence[Block]) -> bool:
    return len(blocks) == 0 or (len(blocks) == 1 and isinstance(blocks[0], TextBlock) and not blocks[0].detail)
