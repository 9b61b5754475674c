"""Untrusted text as safe HTML, or safe for a terminal; numbers and durations as people read them.

Everything in a record comes from servers and models: it is escaped and shortened, and control characters are written
out. Only raster images are shown. Counts how much a page may still hold.
"""

from __future__ import annotations

import base64
import binascii
import html
from collections.abc import Mapping
from typing import Any

from ors_client._shared.block_text import images_absent
from ors_client._types import ImageBlock

_RASTER = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})  # SVG is a document, not a picture
_LONGEST = 6_000  # characters of one text: some screens of it
_JOINER = "\u200d"  # holds emoji together; not printable to Python


class PageBudget:
    """How much a page may still hold.

    Args:
        characters: Of text in transcripts.
        image_bytes: Of images, as base64.
    """

    def __init__(self, *, characters: int = 8_000_000, image_bytes: int = 24_000_000) -> None:
        self._characters = characters
        self._image_bytes = image_bytes

    def text(self, text: str, longest: int = _LONGEST) -> str:
        """Return a text as HTML, with a note if it was shortened."""
        kept = max(0, min(len(text), longest, self._characters))
        self._characters -= kept
        left_out = len(text) - kept
        more = f'<span class="more">… {left_out:,} more characters, in the record</span>' if left_out else ""
        return f"{escape(text[:kept])}{more}"

    def image(self, block: Mapping[str, Any]) -> str:
        """Return an image block as HTML, or a placeholder."""
        kind, data = str(block.get("mimeType") or ""), block.get("data")
        if not isinstance(data, str) or kind not in _RASTER:
            return _placeholder(kind, "not shown")
        if len(data) > self._image_bytes:
            return _placeholder(kind, "not shown, the page has no more room for it")
        try:
            content = base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError):
            return _placeholder(kind, "not shown, it can't be read")
        self._image_bytes -= len(data)
        return f'<img alt="{kind}" src="data:{kind};base64,{base64.b64encode(content).decode()}">'


def _placeholder(mime_type: str, how: str) -> str:
    image = ImageBlock(data="", mimeType=mime_type or "unknown")
    return f'<p class="note">{escape(images_absent([image], how))}</p>'


def escape(text: object) -> str:
    """Escape a text for HTML, inside an element or a quoted attribute."""
    return html.escape(printable(text))


def printable(text: object) -> str:
    """Return a text with every character that a terminal would act on, save line ends and tabs, spelt out."""
    return "".join(c if c.isprintable() or c in "\n\t" or c == _JOINER else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return "" if character == "\r" else character.encode("unicode_escape").decode("ascii")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits, or a dash."""
    if value is None:
        return "—"
    shown = f"{value:.{digits}g}"
    thousands = abs(float(shown)) >= 1000 and abs(value) < 1e9  # 999.6 is 1,000 to three digits
    return f"{value:,.0f}" if thousands else shown


def percent(share: float | None) -> str:
    """Return a share in percent; 100 only where nothing is missing."""
    if share is None:
        return "—"
    shown = round(100 * share, 1)
    return f"{min(shown, 99.9) if share < 1 else shown:g} %"


def duration(seconds: float | None) -> str:
    """Return a duration in the unit that fits."""
    if seconds is None:
        return "—"
    if seconds < 0.9995:  # which is not 1000 ms
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
