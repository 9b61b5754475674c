"""What stands in a text for blocks that are no text, so that records, models and reports read the same words.

Knows blocks and their texts; which of them are passed on or kept, and how much of them, is for others to say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from ors_client._types import Block, ImageBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock

_LONGEST_TYPE = 60  # a type is a word; a server that sends an essay gets it shortened


def flatten(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks in order, with those of a result in its place."""
    # A stack, not recursion: how deep results nest is the server's choice.
    stack = [iter(blocks)]
    while stack:
        block = next(stack[-1], None)
        if block is None:
            stack.pop()
        elif isinstance(block, ToolResultBlock):
            stack.append(iter(block.blocks))
        else:
            yield block


def plain_text(block: Block) -> str:
    """Return the text of a block, or what stands in its place."""
    match block:
        case TextBlock() | ReasoningBlock():
            return block.text
        case ToolCallBlock():
            return f"[call of {_short(block.name)} with {json.dumps(block.input, ensure_ascii=False)}]"
        case _:
            return placeholder(block)


def placeholder(block: Block) -> str:
    """Return what stands in the place of a block that is not passed on."""
    if isinstance(block, ImageBlock):
        return images_absent([block])
    return f"[block of type {_short(block.type)!r} left out]"


def images_absent(images: Iterable[ImageBlock], how: str = "left out") -> str:
    """Return what stands in the place of images that follow each other, as `[2 images left out: image/png]`."""
    types = Counter(_short(image.mime_type) for image in images)
    kinds = ", ".join(f"{count} {kind}" if len(types) > 1 else kind for kind, count in types.items())
    return f"[{_counted(types.total())} {how}: {kinds}]"


def images_shown(number: int) -> str:
    """Return what stands in the place of images that are kept elsewhere."""
    return f"[{_counted(number)}]"


def _counted(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_TYPE else name[:_LONGEST_TYPE] + "..."
