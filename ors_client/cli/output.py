"""How the commands speak: tables and text for people, JSON for programs, and nothing that moves a terminal.

Everything that a server says is shown through `printable`, since a control sequence in it could rewrite the screen or
the clipboard. In a pipe there are no colours and lines are not folded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pydantic import BaseModel
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ors_client.report._text import printable

# In a pipe rich assumes 80 columns and would cut what `grep` looks for.
_UNFOLDED = 100_000


def out() -> Console:
    """Return the console of results: stdout as it is now."""
    return _console(sys.stdout.isatty(), stderr=False)


def err() -> Console:
    """Return the console of errors, notes and progress: stderr as it is now."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, *, stderr: bool) -> Console:  # noqa: FBT001 - private, and named at both calls
    width = None if terminal else _UNFOLDED
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=not terminal)


def one_line(text: object, limit: int) -> str:
    """Fold `text` to one line of at most `limit` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def show_json(value: object) -> None:
    """Print a value as JSON, ASCII only, so that any pipe carries it."""
    print(json.dumps(_json_value(value), indent=2))  # noqa: T201 - this is the command's output


def show_json_line(value: object) -> None:
    """Print a value as one line of JSON, at once."""
    print(json.dumps(_json_value(value)), flush=True)  # noqa: T201


def _json_value(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in cast("Mapping[object, object]", value).items()}
    return value


def show(content: RenderableType) -> None:
    """Print `content`; in a pipe, without the blanks that fill a terminal's lines."""
    console = out()
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    for line in captured.get().splitlines():
        print(line.rstrip())  # noqa: T201


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `right` hold numbers."""
    framed = out().is_terminal
    table = Table(box=box.SIMPLE_HEAD if framed else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    show(table)


def show_error(
    message: str, hints: Sequence[str] = (), *, label: str = "error", console: Console | None = None
) -> None:
    """Print what went wrong, and below it what to try."""
    on = console or err()
    on.print(labelled(f"{label}:", "bold red", message))
    for hint in hints:
        on.print(labelled("  try:", "bold", hint))


def show_note(message: str, console: Console | None = None) -> None:
    """Print what a person should know, though nothing failed."""
    (console or err()).print(labelled("note:", "bold yellow", message))


def labelled(label: str, style: str, text: str, *, gap: int = 1) -> Table:
    """Return a text that is folded beside its label, not below it."""
    grid = Table.grid(padding=(0, gap))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(printable(label), style=style), Text(printable(text)))
    return grid
