"""Where the page goes: a file, which is replaced as a whole, or a device or pipe, which is written to."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def write_page(page: Path, text: str) -> None:
    """Write the page beside its place first, so that an interrupted run leaves the old one whole.

    A device, a pipe, and whatever stdout is, is written to: it can't be replaced by a file.
    """
    if is_stream(page):
        with page.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        return
    page = page.resolve()  # a link stays, and leads to the new page
    page.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=page.parent, prefix=f".{page.name}.", encoding="utf-8", errors="backslashreplace", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            mask = os.umask(0)
            os.umask(mask)
            Path(file.name).chmod(0o666 & ~mask)  # as an ordinary file has it; temporary ones are private
            Path(file.name).replace(page)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def is_stream(page: Path) -> bool:
    """Return whether a path is a device, a pipe, or what this process writes its output to."""
    try:
        there = page.stat()
    except OSError:
        return False
    if not stat.S_ISREG(there.st_mode):
        return True
    outputs: list[os.stat_result] = []
    for output in (1, 2):
        with contextlib.suppress(OSError):  # a process may have closed them
            outputs.append(os.fstat(output))
    return any(os.path.samestat(there, output) for output in outputs)
