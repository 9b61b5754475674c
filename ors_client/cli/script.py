"""A script of `ors play`: a call a line, as JSON. It makes no call."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from .json_input import read_json
from .options import Misuse

_NAMED = 8  # lines that a message names
_COUNTED = 1000  # lines after the end of the episode: a pipe may have no last one


@dataclass(frozen=True)
class Call:
    """A tool with its arguments, or the final message for the terminal tool."""

    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    message: str | None = None


@dataclass
class ScriptResult:
    """What became of a script.

    Args:
        calls: How many were made.
        errors: The lines whose calls came back with an error.
        unplayed: The lines that came after the end of the episode, or the first of them.
        more: Whether there were more of those.
    """

    calls: int = 0
    errors: list[int] = field(default_factory=list[int])
    unplayed: list[int] = field(default_factory=list[int])
    more: bool = False


class Script:
    """The calls of a file, or of stdin, read as they are wanted."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._lines = ((number, line) for number, line in enumerate(source, start=1) if line.strip())

    @classmethod
    @contextlib.contextmanager
    def open(cls, name: str | None) -> Generator[Self | None]:
        """Open a script for the length of the block; `-` is stdin, and no name no script.

        Raises:
            Misuse: The file can't be read.
        """
        if name is None or name == "-":
            yield None if name is None else cls(sys.stdin.buffer)
            return
        try:
            file = Path(name).open("rb")  # noqa: SIM115 - closed below; only opening it may fail as misuse
        except OSError as error:
            raise Misuse(f"The script {name!r} can't be read: {error.strerror}.") from None
        with file:
            yield cls(file)

    def calls(self) -> Iterator[tuple[int, Call]]:
        """Return the calls, each with the number of its line.

        Raises:
            Misuse: A line is no call.
        """
        return ((number, _read_call(line, number)) for number, line in self._lines)

    def skip_rest(self) -> tuple[list[int], bool]:
        """Return the numbers of the lines that were not read, of those that are there now; and whether of more."""
        with _non_blocking(self._source):
            numbers = [number for number, _ in itertools.islice(self._lines, _COUNTED + 1)]
        return numbers[:_COUNTED], len(numbers) > _COUNTED


def format_lines(numbers: Sequence[int]) -> str:
    """Name lines as people do."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"lines {numbers[0]} to {numbers[-1]}"
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"lines {', '.join(map(str, numbers[:_NAMED]))}{more}"


@contextlib.contextmanager
def _non_blocking(source: BinaryIO) -> Generator[None]:
    """Have reads take what is there: the writer of a pipe may be waiting for us to end."""
    try:
        file = source.fileno()
        before = os.get_blocking(file)
        os.set_blocking(file, False)
    # There is nothing to wait for, or Windows before Python 3.12, where there is no way not to.
    except (io.UnsupportedOperation, OSError, AttributeError):
        yield
        return
    try:
        yield
    finally:
        os.set_blocking(file, before)


def _read_call(line: bytes, number: int) -> Call:
    form = 'a line is {"tool": NAME, "arguments": {...}}, or {"message": TEXT} for the terminal tool'
    try:
        value = read_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Misuse(f"Line {number} of the script is not UTF-8; save it as that.") from None
    except ValueError as error:
        raise Misuse(f"Line {number} of the script is not JSON ({error}); {form}.") from None
    call = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if isinstance(call.get("message"), str):
        return Call(message=call["message"])
    arguments: object = call.get("arguments") or {}
    if not isinstance(call.get("tool"), str) or not isinstance(arguments, dict):
        raise Misuse(f"Line {number} of the script is no call; {form}.")
    return Call(call["tool"], cast("dict[str, Any]", arguments))
