"""Blocks -> what TRL puts before a model: text, or TRL's content blocks where there are images to pass.

Knows the shapes that chat templates take and the bounds within which a stranger's output and images are let in. Knows
nothing of episodes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ors_client import Block, ImageBlock
from ors_client._shared import flatten, images_absent, plain_text

if TYPE_CHECKING:
    from PIL import Image

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # what models are shown; Pillow's EPS reader would start Ghostscript


@dataclass(frozen=True, slots=True)
class Content:
    """What one output becomes.

    Args:
        value: Text, or content blocks (`{"type": "text", ...}` and `{"type": "image", "image": PIL.Image}`) if and only
            if there is an image among them: many chat templates drop a list of text blocks or print its repr.
        shown: The text in `value`.
    """

    value: str | list[dict[str, Any]]
    shown: str


def to_content(blocks: Sequence[Block], *, images: bool, max_chars: int | None, empty: str = "(no output)") -> Content:
    """Turn blocks into content that TRL takes.

    Args:
        blocks: What a prompt or a tool's output consists of.
        images: Whether the model sees images; if not, a marker stands for them.
        max_chars: The longest text, its cut marker included; images do not count.
        empty: Stands for the text where there is nothing at all.
    """
    pieces = _pieces(blocks, images=images)
    segments = _joined(pieces)
    length = sum(len(segment) for segment in segments if isinstance(segment, str))
    if max_chars is not None and length > max_chars:
        segments = _cut(segments, length=length, max_chars=max_chars)
    parts: list[dict[str, Any]] = []
    for segment in segments:
        if not isinstance(segment, str):
            parts.append({"type": "image", "image": segment})
        elif segment:
            parts.append({"type": "text", "text": escape_surrogates(segment)})
    shown = "".join(part["text"] for part in parts if part["type"] == "text")
    if any(part["type"] == "image" for part in parts):
        return Content(value=parts, shown=shown)
    shown = shown if any(piece.strip("\n") for piece in pieces if isinstance(piece, str)) else empty
    return Content(value=shown, shown=shown)


def escape_surrogates(text: str) -> str:
    r"""Spell out lone surrogates: JSON may hold `"\ud83d"`, but UTF-8, and with it every tokenizer, can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _pieces(blocks: Sequence[Block], *, images: bool) -> list[str | Image.Image]:
    """Return texts and decoded images in order, with markers in place of what is not passed."""
    pieces: list[str | Image.Image] = []
    missing: list[ImageBlock] = []  # the run of images at hand, so that a run gets one marker
    pixels = _Pixels()
    for block in (*flatten(blocks), None):
        if isinstance(block, ImageBlock):
            piece = pixels.decode(block) if images else None
            if piece is None:
                missing.append(block)
                continue
        else:
            piece = None if block is None else plain_text(block)
        if missing:
            pieces.append(images_absent(missing, "could not be read" if images else "left out"))
            missing.clear()
        if piece is not None:
            pieces.append(piece)
    return pieces


class _Pixels:
    """Decodes images while Pillow's limit on one image holds for those of one output together."""

    def __init__(self) -> None:
        self._spent = 0

    def decode(self, block: ImageBlock) -> Image.Image | None:
        """Return the image in RGB, or `None` if it can't or must not be read."""
        from PIL import Image  # noqa: PLC0415 - a text-only run needs no Pillow

        try:
            picture = Image.open(io.BytesIO(block.decode()), formats=_FORMATS)
            size = picture.width * picture.height
            # Pillow only warns above its limit and refuses above twice that; a training run is no place to try.
            if Image.MAX_IMAGE_PIXELS is not None and self._spent + size > Image.MAX_IMAGE_PIXELS:
                return None
            self._spent += size
            if not picture.has_transparency_data:
                return picture.convert("RGB")
            canvas = Image.new("RGB", picture.size, "white")
            layer = picture.convert("RGBA")
            canvas.paste(layer, mask=layer)
        except Exception:  # noqa: BLE001 - a stranger's bytes: Pillow's decoders raise whatever their parsing trips over
            return None
        return canvas


def _joined(pieces: Sequence[str | Image.Image]) -> list[str | Image.Image]:
    """Join neighbouring texts by newlines."""
    joined: list[str | Image.Image] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += "\n" + piece
        else:
            joined.append(piece)
    return joined


def _cut(segments: Sequence[str | Image.Image], *, length: int, max_chars: int) -> list[str | Image.Image]:
    """Take characters out of the middle; return what is left, with a marker in the gap."""
    # The number cut has at most as many digits as the length, so a marker of this size always fits.
    kept = max(0, max_chars - len(_marker(length, length)))
    head = kept - kept // 2
    tail_start = length - kept // 2
    marker = _marker(length - kept, length)[:max_chars]
    out: list[str | Image.Image] = []
    position = 0
    marked = False
    for segment in segments:
        if not isinstance(segment, str):
            out.append(segment)
            continue
        end = position + len(segment)
        before = segment[: max(0, head - position)]
        after = segment[max(0, tail_start - position) :]
        if end <= head and not marked:
            out.append(segment)
        elif not marked:
            # The gap starts in this segment; the marker stands where the first character is missing.
            out.append(before + marker + after)
            marked = True
        else:
            out.append(after)
        position = end
    return out


def _marker(cut: int, length: int) -> str:
    return f"\n[... {cut:,} of {length:,} characters cut ...]\n"
