"""The figures of a record in a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ors_client.report import Estimate, Figures
from ors_client.report._advice import advice
from ors_client.report._figures import labels
from ors_client.report._headline import Headline, headline
from ors_client.report._text import duration

from .output import one_line, out, printable, show

_KIND = 46  # characters of a tool's name on 80 columns
_TITLE = 120  # characters of what a failure is
_MESSAGE = 300  # characters of a failure's message
_FAILURES, _TOOLS = 10, 5


class Unscored(StrEnum):
    """What an attempt without a score counts for in means."""

    ZERO = "0"
    LEAVE_OUT = "leave-out"

    @property
    def value_in_means(self) -> float | None:
        """As `Figures` takes it."""
        return 0.0 if self is Unscored.ZERO else None


UnscoredOption = Annotated[
    Unscored,
    typer.Option("--unscored", help="In mean rewards, an attempt without a score: one that was cut, or got none."),
]
PassAtOption = Annotated[
    float, typer.Option("--pass-at", metavar="REWARD", help="From which reward on an episode has passed.")
]


def show_figures(figures: Figures) -> None:
    """Print what a run came to."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(figures):
        table.add_row(name, Text(printable(value)))
    show(table)
    console = out()
    for title, rows in (
        ("failed or cut, by episodes", _failures(figures)),
        ("slowest tools, by the time of all calls", _tools(figures)),
    ):
        if rows:
            console.print(Text(f"\n{title}", style="bold"))
            detail = Table(box=None, pad_edge=False, show_header=False)
            detail.add_column(justify="right")
            detail.add_column(overflow="fold")
            for count, what in rows:
                detail.add_row(f"  {count}", Text(printable(what)))
            show(detail)
    console.print()


def as_json(figures: Figures) -> dict[str, Any]:
    """Return the figures for programs."""
    return {
        "episodes": figures.episodes,
        "scored": figures.scored,
        "coverage": figures.coverage,
        "unscored": Unscored.LEAVE_OUT.value if figures.unscored is None else figures.unscored,
        "without_score": figures.without_score,
        "broken": figures.broken,
        "mean_reward": figures.mean_reward,
        "mean_reward_interval": _bounds(figures.reward()),
        "pass_at": {str(k): {"share": share, "tasks": tasks} for k, (share, tasks) in figures.pass_curve.items()},
        "pass_at_interval": {str(k): _bounds(figures.pass_rate(k)) for k in figures.pass_curve},
        "pass_hat": {str(k): _share(figures.pass_rate(k, every=True)) for k in figures.pass_curve},
        "pass_hat_interval": {str(k): _bounds(figures.pass_rate(k, every=True)) for k in figures.pass_curve},
        "passing_reward": figures.passing,
        "statuses": dict(figures.statuses),
        "failures": dict(figures.failures),
        "reasons": {
            kind: {"message": message, "try": [cure] if (cure := advice(kind)) else []}
            for kind, message in figures.messages.items()
        },
        "ends": [
            {
                "status": row.kind,
                "symptom": None if row.symptom is None else row.symptom.words,
                "episodes": row.episodes,
                "message": row.message,
                "try": [row.advice] if row.advice else [],
            }
            for row in figures.failure_rows
        ],
        "compared": [
            {
                "model": model,
                "environment": environment,
                "episodes": entry.episodes,
                "coverage": entry.scored / entry.episodes,
                "mean_reward": None if (reward := figures.reward(entry=(model, environment))) is None else reward.mean,
                "mean_reward_interval": _bounds(reward),
                "pass_at_1": _share(passed := figures.pass_rate(1, entry=(model, environment))),
                "pass_at_1_interval": _bounds(passed),
                "finish_reasons": dict(entry.finish_reasons),
            }
            for (model, environment), entry in figures.compared.items()
        ],
        "calls": figures.calls,
        "median_seconds": figures.median_seconds,
        "usage": dict(figures.usage),
        "tools": {
            name: {
                "calls": tool.calls,
                "errors": tool.errors,
                "median_seconds": tool.percentile(0.5),
                "p95_seconds": tool.percentile(0.95),
                "seconds": tool.total_seconds,
            }
            for name, tool in figures.tools.items()
        },
    }


def _share(found: Estimate | None) -> float | None:
    return None if found is None else found.mean


def _bounds(found: Estimate | None) -> list[float] | None:
    return None if found is None or found.interval is None else list(found.interval)


def reward_text(reward: float) -> str:
    """Spell a reward with three decimals, or a very large one with its power of ten."""
    return f"{reward:.3f}" if abs(reward) < 1e6 else f"{reward:.4g}"


def _rows(figures: Figures) -> list[tuple[str, str]]:
    spelt: dict[str, Callable[[Headline], list[tuple[str, str]]]] = {
        "mean reward": _mean,
        "coverage": _coverage,
        "pass@1": partial(_passes, figures),
        "broken by infrastructure": _broken,
        "median episode": _seconds,
    }
    rows: list[tuple[str, str]] = []
    for line in headline(figures):
        rows += spelt.get(line.name, _plain)(line)
        if line.name == "calls":
            rows += [*_replies(figures), ("tokens", _tokens(figures))]
    return [(name, value) for name, value in rows if value]


def _plain(line: Headline) -> list[tuple[str, str]]:
    return [(line.name, _number(line) + (f", {line.note}" if line.note else ""))]


def _mean(line: Headline) -> list[tuple[str, str]]:
    value = "nothing was scored" if line.value is None else reward_text(line.value)
    interval = f"{' to '.join(map(reward_text, line.interval))}, clustered by task" if line.interval else ""
    return [(line.name, value), ("  95 %", interval), ("  unscored", line.unscored)]


def _coverage(line: Headline) -> list[tuple[str, str]]:
    return [(line.name, "" if line.value is None else f"{line.value:.0%} ({line.note})")]


def _passes(figures: Figures, line: Headline) -> list[tuple[str, str]]:
    curve = figures.pass_curve
    tasks = max((count for _, count in curve.values()), default=0)
    passes = ", ".join(
        f"@{k} {share:.1%}" + ("" if count == tasks else f" of {_count(count, 'task')}")
        for k, (share, count) in curve.items()
    )
    every = {k: found for k in curve if k > 1 and (found := figures.pass_rate(k, every=True)) is not None}
    interval = f"@1 {' to '.join(f'{share:.1%}' for share in line.interval)}" if line.interval else ""
    return [
        ("pass", f"{passes}  ({line.note})" if passes else ""),
        ("  95 %", interval),
        ("  all of k", ", ".join(f"^{k} {found.mean:.1%}" for k, found in every.items())),
    ]


def _seconds(line: Headline) -> list[tuple[str, str]]:
    return [("seconds", "" if line.value is None else f"{line.value:.1f}, the {line.name}")]


def _broken(line: Headline) -> list[tuple[str, str]]:
    return [("broken", f"{_number(line)} by the infrastructure, {line.note}")] if line.value else []


def _number(line: Headline) -> str:
    return "" if line.value is None else f"{line.value:,.0f}"


def _replies(figures: Figures) -> list[tuple[str, str]]:
    """Return for each model why its replies ended, by shares."""
    differing = figures.differing
    rows: list[tuple[str, str]] = []
    for (model, environment), entry in figures.compared.items():
        shares = ", ".join(f"{one_line(reason, _KIND)} {share:.1%}" for reason, share in entry.finish_shares.items())
        names = ", ".join(labels(differing, model=model, environment=environment)) if differing else ""
        if shares:
            rows.append(("" if rows else "replies", f"{one_line(names, _KIND)}: {shares}" if names else shares))
    return rows


def _tokens(figures: Figures) -> str:
    read, written = figures.usage["prompt_tokens"], figures.usage["completion_tokens"]
    return f"{read:,} read, {written:,} written" if read or written else ""


def _failures(figures: Figures) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for row in figures.failure_rows[:_FAILURES]:
        rows.append((str(row.episodes), one_line(row.title, _TITLE)))
        if row.message:
            rows.append(("", f"the first: {one_line(row.message, _MESSAGE)}"))
        if row.advice:
            rows.append(("", f"try: {row.advice}"))
    return rows


def _tools(figures: Figures) -> list[tuple[str, str]]:
    return [
        (
            duration(tool.total_seconds),
            f"{one_line(name, _KIND)}, {_count(tool.calls, 'call')}, {_count(tool.errors, 'error')}, median "
            + duration(tool.percentile(0.5)),
        )
        for name, tool in figures.slowest_tools[:_TOOLS]
    ]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
