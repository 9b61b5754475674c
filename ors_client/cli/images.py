"""Images of prompts and outputs: kept as files, and drawn where the terminal can.

A file's name is made here, never taken from a server. Drawing knows the two protocols that need no library: kitty's
and iTerm2's.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from ors_client import ImageBlock

_SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "image/bmp": ".bmp",
}
_CHUNK = 4096  # what kitty's protocol takes at a time

ImageProtocol = Literal["kitty", "iterm2"]


class ImageStore:
    """A folder for the images of one episode, made when the first one comes.

    Args:
        folder: Where; files that are there are left alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def save(self, image: ImageBlock) -> Path:
        """Write an image to a file of its own.

        Raises:
            ValueError: Its data is not base64.
            OSError: The folder can't be written.
        """
        content = image.decode()
        self._folder.mkdir(parents=True, exist_ok=True)
        suffix = _SUFFIXES.get(image.mime_type.lower(), ".bin")
        while True:
            self._number += 1
            path = self._folder / f"image-{self._number:03d}{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            return path


def image_protocol(environ: Mapping[str, str]) -> ImageProtocol | None:
    """Tell how the terminal that the environment's variables describe draws images, if it does."""
    if environ.get("TMUX") or environ.get("TERM", "").startswith("screen"):
        return None  # they stand between us and the terminal, and pass nothing through unasked
    program = environ.get("TERM_PROGRAM", "")
    if "KITTY_WINDOW_ID" in environ or environ.get("TERM") == "xterm-kitty" or program == "ghostty":
        return "kitty"
    if program in {"iTerm.app", "WezTerm"} or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return None


def escape_sequence(image: ImageBlock, protocol: ImageProtocol) -> str | None:
    """Return what makes a terminal draw an image, or `None` where its protocol does not know the format.

    Raises:
        ValueError: The image's data is not base64.
    """
    content = image.decode()
    text = base64.b64encode(content).decode("ascii")  # encoded anew: a server's own text goes to no terminal
    if protocol == "iterm2":
        return f"\033]1337;File=inline=1;size={len(content)}:{text}\a\n"
    if image.mime_type.lower() != "image/png":
        return None
    return "".join(_kitty(text)) + "\n"


def _kitty(text: str) -> Iterator[str]:
    for start in range(0, len(text), _CHUNK):
        head = "a=T,f=100," if start == 0 else ""
        more = int(start + _CHUNK < len(text))
        yield f"\033_G{head}m={more};{text[start : start + _CHUNK]}\033\\"
