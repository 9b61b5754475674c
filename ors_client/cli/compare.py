"""The command `ors compare`: whether a model, or a setting, is better than another, task by task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ors_client.report import Comparison, Figures, compare, summarise
from ors_client.report._compare import Pair, Task

from .command import PROBLEMS
from .figures import PassAtOption, Unscored, UnscoredOption, reward_text
from .options import Misuse
from .output import out, printable, show_json, show_table

_TASKS = 10  # of each kind that a terminal lists


def compare_records(
    first: Annotated[Path, typer.Argument(metavar="A", help="The record to measure by, as JSON lines.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="B", help="The record that is measured; left out, two models of A.")
    ] = None,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="NAME", help="Once: in both records. Twice: that of A, then that of B or of A again."
        ),
    ] = None,
    pass_at: PassAtOption = 1.0,
    unscored: UnscoredOption = Unscored.ZERO,
    fail_if_worse: Annotated[
        bool, typer.Option("--fail-if-worse", help="Exit with 1 where B is worse than A, with p below 0.05.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
) -> int:
    """Compare two records, or two models of one, by the tasks that both played.

    The mean of the attempts at a task in A is paired with that in B, and Student's t is taken over the tasks. The exit
    status is 2 where they have no task in common.
    """

    def figures(record: Path, of: str | None) -> Figures:
        try:
            return summarise(record, passing=pass_at, unscored=unscored.value_in_means, model=of)
        except OSError as error:
            raise Misuse(f"{error.filename or str(record)!r}: {error.strerror or error}.") from None

    here, there = _sides(first, second, model or [], figures)
    found = compare(*(figures(record, of) for record, of in (here, there)))
    if found.reward is None:
        raise Misuse(
            f"Nothing pairs: {_side(here)} and {_side(there)} have no task with attempts that count in common."
        )
    if as_json:
        show_json(_as_json(found, here, there, pass_at, unscored))
    else:
        _show(found, here, there, pass_at)
    return PROBLEMS if fail_if_worse and found.verdict == "worse" else 0


_Side = tuple[Path, str | None]


def _sides(
    first: Path, second: Path | None, models: Sequence[str], figures: Callable[[Path, str | None], Figures]
) -> tuple[_Side, _Side]:
    """Return which record and model each side is.

    Raises:
        Misuse: That is not clear, or there is no such model.
    """
    if len(models) > 2:
        raise Misuse("Two sides have two models: give --model once or twice.")
    records = (first, second or first)
    known = [_models(figures(record, None)) for record in records]
    if models:
        wanted = (models[0], models[-1])
    elif second is None and len(known[0]) == 2:
        wanted = (known[0][0], known[0][1])
    else:
        wanted = (None, None)
    for record, names, name in zip(records, known, wanted, strict=True):
        if name is None and len(names) > 1:
            raise Misuse(f"{str(record)!r} has several models; name one for each side with --model: {_listed(names)}.")
        if name is not None and name not in names:
            raise Misuse(f"{str(record)!r} has no model {name!r}, but {_listed(names) or 'none with a name'}.")
    here, there = zip(records, wanted, strict=True)
    if here == there:
        raise Misuse("Both sides are the same; name another record, or two models with --model A --model B.")
    return here, there


def _models(figures: Figures) -> list[str]:
    return list(figures.names["model"])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_TASKS])) + (" and others" if len(names) > _TASKS else "")


def _side(side: _Side) -> str:
    record, model = side
    return str(record) if model is None else f"{model} in {record}"


def _as_json(found: Comparison, here: _Side, there: _Side, passing: float, unscored: Unscored) -> dict[str, Any]:
    def names(tasks: Sequence[Task]) -> list[dict[str, Any]]:
        return [{"environment": environment, "split": split, "index": index} for environment, split, index in tasks]

    return {
        "a": {"record": str(here[0]), "model": here[1]},
        "b": {"record": str(there[0]), "model": there[1]},
        "verdict": found.verdict,
        **_pair(found.reward),
        "pass_rate": _pair(found.passed),
        "passing_reward": passing,
        "unscored": unscored.value,
        "gained": names(found.gained),
        "lost": names(found.lost),
        "only_a": names(found.only_first),
        "only_b": names(found.only_second),
    }


def _pair(pair: Pair | None) -> dict[str, Any]:
    if pair is None:
        return {}
    difference = pair.difference
    return {
        "tasks": difference.tasks,
        "mean_a": pair.first,
        "mean_b": pair.second,
        "difference": difference.mean,
        "interval": None if difference.interval is None else list(difference.interval),
        "p": difference.p,
    }


def _show(found: Comparison, here: _Side, there: _Side, passing: float) -> None:
    out().print(f"A  {printable(_side(here))}\nB  {printable(_side(there))}\n", soft_wrap=True)
    rows = [
        (name, reward_text(pair.first), reward_text(pair.second), *_difference(pair))
        for name, pair in (("mean reward", found.reward), (f"pass@1, reward of {passing:g} or more", found.passed))
        if pair is not None
    ]
    columns = ["", "A", "B", "B - A", "95 % interval", "p"]
    show_table(columns, rows, right=columns[1:])
    tasks = found.reward.difference.tasks if found.reward else 0
    verdict = "no difference" if found.verdict == "no difference" else f"B is {found.verdict}"
    alone = "; one task is too few to tell" if tasks == 1 else ""
    out().print(f"\n{verdict}, by {tasks:,} task{'' if tasks == 1 else 's'} that both played{alone}", soft_wrap=True)
    for title, flipped in (
        ("solved by B only", found.gained),
        ("solved by A only", found.lost),
        ("played by A only", found.only_first),
        ("played by B only", found.only_second),
    ):
        if flipped:
            shown = ", ".join(f"{split or '?'}/{index}" for _, split, index in flipped[:_TASKS])
            more = f" and {len(flipped) - _TASKS:,} more" if len(flipped) > _TASKS else ""
            out().print(f"{title} ({len(flipped):,}): {printable(shown)}{more}", soft_wrap=True)


def _difference(pair: Pair) -> tuple[str, str, str]:
    found = pair.difference
    sign = "+" if found.mean > 0 else ""
    if found.interval is None or found.p is None:
        return f"{sign}{reward_text(found.mean)}", "", ""
    shown = "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"
    return f"{sign}{reward_text(found.mean)}", " to ".join(map(reward_text, found.interval)), shown
