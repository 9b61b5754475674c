"""The command `ors merge`: the records of several machines as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ors_client.record import Merged, merge

from .command import PROBLEMS
from .options import Misuse
from .output import out, printable, show_json, show_note

_NAMED = 3  # of what is told


def merge_records(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="The episodes, as JSON lines.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The new record.")],
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
) -> int:
    """Join the records of shards, or of a training's processes, and tell what is there twice or missing.

    Of an attempt in several records the one that the infrastructure did not break is taken, else that of the record
    named first. The exit status is 1 where an attempt is missing that the runs were to play.
    """
    try:
        merged = merge(records, output)
    except FileExistsError:
        raise Misuse(f"{str(output)!r} is there already; name another with -o FILE.") from None
    except OSError as error:
        raise Misuse(f"{str(error.filename or output)!r}: {error.strerror or error}.") from None
    except ValueError as error:
        raise Misuse(str(error)) from None
    missing = len(merged.missing) + merged.unnamed
    if as_json:
        show_json(
            {
                "record": str(output),
                "episodes": merged.episodes,
                "overlaps": [{"episode": str(key), "records": files} for key, files in merged.overlaps.items()],
                "missing": missing,
                "missing_attempts": [str(key) for key in merged.missing],
                "missing_shards": merged.shards,
            }
        )
    else:
        for note in _notes(merged, missing):
            show_note(note)
        out().print(f"{merged.episodes:,} episodes  {printable(output)}", soft_wrap=True)
    return PROBLEMS if missing else 0


def _notes(merged: Merged, missing: int) -> list[str]:
    notes: list[str] = []
    if merged.overlaps:
        taken = [f"{key}, from {files[0]!r}, not {files[1]!r}" for key, files in merged.overlaps.items()]
        notes.append(f"in several records, and taken from one: {len(taken):,} episodes ({_some(taken)})")
    if missing:
        named = _some([str(key) for key in merged.missing]) or "the runs do not say which"
        notes.append(f"missing: {missing:,} episodes ({named})")
    if merged.shards:
        notes.append(f"no record of shard {', '.join(merged.shards)}")
    return notes


def _some(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - _NAMED:,} more"] if len(texts) > _NAMED else []
    return "; ".join([*texts[:_NAMED], *more])
