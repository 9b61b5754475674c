"""The command `ors profile`: how often each task was solved, and a file of those that are worth training on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ors_client.report import TaskRate
from ors_client.report import profile as profiled

from .figures import PassAtOption
from .options import Misuse
from .output import out, printable, show_json, show_table

_BINS = 10  # of the histogram
_WIDTH = 40  # characters of its longest bar


def profile(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="The episodes, as JSON lines.")],
    *,
    between: Annotated[
        tuple[float, float], typer.Option("--between", metavar="LOW HIGH", help="Pass rates, both ends included.")
    ] = (0.0, 1.0),
    min_attempts: Annotated[
        int, typer.Option("--min-attempts", min=1, metavar="N", help="Tasks with fewer attempts are left out.")
    ] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Gets the tasks, for ors run --tasks.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", metavar="NAME", help="Of a record with several.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Of a record with several.")] = None,
    env: Annotated[str | None, typer.Option("--env", metavar="NAME", help="Of a record with several.")] = None,
    pass_at: PassAtOption = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
) -> None:
    """Show how often the tasks of a record were solved; with -o, write those with a pass rate between two bounds."""
    low, high = between
    if not low <= high:
        raise Misuse(f"--between takes the lower pass rate first, not {low:g} {high:g}.")
    try:
        found = profiled(record, pass_at=pass_at, split=split, model=model, environment=env)
    except OSError as error:
        raise Misuse(f"{error.filename or str(record)!r}: {error.strerror or error}.") from None
    except ValueError as error:
        raise Misuse(f"{str(record)!r}: {error}") from None
    chosen = found.between(low, high, min_attempts=min_attempts)
    written = found.to_json(chosen)
    if output is not None:
        if not chosen:
            often = "any number of attempts" if min_attempts == 1 else f"{min_attempts} attempts or more"
            raise Misuse(f"No task has a pass rate between {low:g} and {high:g} in {often}.")
        try:
            output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise Misuse(f"{str(output)!r}: {error.strerror or error}.") from None
    if as_json:
        show_json(written)
        return
    show_table(["pass rate", "tasks", ""], _histogram(found.tasks), right=["tasks"])
    tasks = "1 task" if len(chosen) == 1 else f"{len(chosen):,} tasks"
    out().print(f"\n{tasks} of {len(found.tasks):,} between {low:g} and {high:g}", soft_wrap=True)
    if output is not None:
        out().print(f"tasks  {printable(output)}", soft_wrap=True)


def _histogram(tasks: list[TaskRate]) -> list[tuple[str, str, str]]:
    counts = Counter(min(int(task.rate * _BINS + 1e-9), _BINS - 1) for task in tasks)  # 0.3 is stored as less
    most = max(counts.values(), default=1)
    return [
        (
            f"{bin_number / _BINS:.0%} to {(bin_number + 1) / _BINS:.0%}",
            str(counts[bin_number]),
            "#" * round(_WIDTH * counts[bin_number] / most),
        )
        for bin_number in range(_BINS)
    ]
