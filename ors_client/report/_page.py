"""The page: figures as tiles, charts and tables, then transcripts. One file, with nothing from elsewhere.

The policy in its head forbids the browser to run or to fetch anything, should an escape ever be missing.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ._charts import axis_bounds, bar, line_chart
from ._figures import FailureFigures, Figures, bins, labels
from ._reading import Sample, sample
from ._text import PageBudget, duration, escape, number, percent
from ._transcript import transcript

_BINS = 60  # points of a curve: more would be noise at this width
_TOOLS, _TASKS, _ENTRIES = 25, 12, 25
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    record: str | os.PathLike[str],
    page: str | os.PathLike[str],
    *,
    title: str | None = None,
    transcripts: int = 40,
    passing: float = 1.0,
) -> Figures:
    """Read a record and write a page about it; return the figures.

    Args:
        record: Of training or evaluation, as `ors_client.record` writes it.
        page: The HTML file.
        title: Its heading; left out, the record's name.
        transcripts: How many episodes are shown in full. From a longer record, some of each kind are chosen.
        passing: The reward from which an episode counts as passed.

    Raises:
        OSError: The record can't be read, or the page can't be written.
    """
    figures, chosen = sample(record, passing=passing, transcripts=transcripts)
    _write(Path(page), _render(title or Path(record).name, figures, chosen))
    return figures


def _write(page: Path, text: str) -> None:
    """Write the page beside its place first, so that an interrupted run leaves the old one whole."""
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


def _render(title: str, figures: Figures, chosen: Sample) -> str:
    sections = [
        _head(title, figures, chosen),
        _tiles(figures),
        _curves(figures),
        _entries(figures),
        _failures(figures),
        _pass_curve(figures),
        _tools(figures),
        _timing(figures),
        _tasks(figures),
        _transcripts(figures, chosen),
    ]
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(title: str, figures: Figures, chosen: Sample) -> str:
    facts = [_first_names(figures.names[name]) for name in ("environment", "model", "target")]
    if figures.first is not None and figures.last is not None:
        first, last = (moment.strftime("%Y-%m-%d %H:%M") for moment in (figures.first, figures.last))
        facts.append(f"{first if first == last else f'{first} to {last}'} {figures.last.strftime('%Z')}")
    if chosen.superseded == 1:
        facts.append("1 attempt that was made again is left out")
    elif chosen.superseded:
        facts.append(f"{chosen.superseded:,} attempts that were made again are left out")
    line = " · ".join(fact for fact in facts if fact)
    return f'<h1>{escape(title)}</h1><p class="sub">{escape(line)}</p>'


def _first_names(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:120] for name in names[:3]) + more


def _tiles(figures: Figures) -> str:
    first = figures.pass_at(1) if figures.scored else None
    tiles = [
        (f"{figures.episodes:,}", "episodes"),
        (number(figures.mean_reward), "mean reward, where scored"),
        (percent(figures.coverage), "coverage: share scored"),
        (percent(None if first is None else first[0]), f"pass@1: reward of {figures.passing:g} or more"),
        (f"{figures.broken:,}", "broken by infrastructure"),
        (f"{figures.calls:,}", "tool calls"),
        (duration(figures.median_seconds), "median episode"),
    ]
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _curves(figures: Figures) -> str:
    if not figures.episodes:
        return "<p>The record holds no episodes.</p>"
    if figures.episodes == 1:
        return ""
    folded = bins(figures.rewards, _BINS)
    size = figures.episodes / len(folded)
    about = "" if size.is_integer() else "about "
    each = "is one episode" if size == 1 else f"is the mean of {about}{size:,.0f} episodes"
    rewards = [(float(x), reward) for x, reward, _ in folded]
    given = [reward for _, reward in rewards if reward is not None]
    reward = line_chart(
        rewards,
        label="Mean reward over the episodes",
        bounds=axis_bounds(given),
        format_value=lambda value: number(value, 4),
    )
    covered = [(float(x), share) for x, _, share in folded]
    coverage = line_chart(
        covered, label="Share of scored episodes", bounds=(0.0, 1.0), format_value=percent, filled=True
    )
    return (
        f'<h2>Over time</h2><div class="charts"><figure><figcaption>Mean reward</figcaption>{reward}</figure>'
        f"<figure><figcaption>Coverage: share of episodes scored</figcaption>{coverage}</figure></div>"
        f'<p class="note">In the order in which they ended; each point {each}.</p>'
    )


def _entries(figures: Figures) -> str:
    differing = figures.differing
    if not differing:
        return ""
    ranked = sorted(figures.compared.items(), key=lambda item: tuple(name or "" for name in reversed(item[0])))
    rows: list[tuple[str, ...]] = []
    for (model, environment), entry in ranked[:_ENTRIES]:
        first, *others = labels(differing, model=model, environment=environment)
        passed = figures.pass_at(1, entry=(model, environment)) if entry.rewards else None
        rows.append(
            (
                escape(first[:120]) + _small_print(*others),
                f"{entry.episodes:,}",
                number(sum(entry.rewards) / len(entry.rewards) if entry.rewards else None),
                percent(None if passed is None else passed[0]),
                percent(len(entry.rewards) / entry.episodes),
            )
        )
    title = " and ".join(differing)
    table = _table([title, "#episodes", "#mean reward", "#pass@1", "#coverage"], rows)
    return f"<h2>By {title}</h2>" + table + _rows_left_out(len(ranked), _ENTRIES, "rows")


def _failures(figures: Figures) -> str:
    failures = figures.failure_rows[:20]
    if not failures:
        return ""
    rows = [
        (
            escape(row.kind[:120]),
            f"{row.episodes:,}",
            percent(row.episodes / figures.episodes),
            bar(row.episodes / figures.episodes),
        )
        for row in failures
    ]
    note = (
        '<p class="note">Broken by the infrastructure (failed), ended by a budget (cut), or never scored by the '
        "environment (unscored).</p>"
    )
    columns = ["kind", "#episodes", "#share", "|of all episodes"]
    return "<h2>Failures by kind</h2>" + _table(columns, rows, below=[_reason(row) for row in failures]) + note


def _reason(row: FailureFigures) -> str:
    message = f"<p>The first: {escape(row.message[:300])}</p>" if row.message else ""
    return message + (f"<p>Try: {escape(row.advice)}</p>" if row.advice else "")


def _pass_curve(figures: Figures) -> str:
    curve = figures.pass_curve
    if len(curve) < 2:
        return ""
    rows = [(f"pass@{k}", percent(share), bar(share), f"{tasks:,}") for k, (share, tasks) in curve.items()]
    note = f'<p class="note">A reward of {figures.passing:g} or more passes; broken episodes are no attempts.</p>'
    return "<h2>Passing within k attempts</h2>" + _table(["measure", "#share", "|of the tasks", "#tasks"], rows) + note


def _tools(figures: Figures) -> str:
    if not figures.tools:
        return ""
    ranked = figures.slowest_tools
    whole = max(ranked[0][1].total_seconds, 1e-9)
    rows = [
        (
            escape(name[:120]),
            f"{tool.calls:,}",
            f"{tool.errors:,}",
            duration(tool.percentile(0.5)),
            duration(tool.percentile(0.95)),
            duration(max(tool.seconds)),
            duration(tool.total_seconds),
            bar(tool.total_seconds / whole),
        )
        for name, tool in ranked[:_TOOLS]
    ]
    columns = ["tool", "#calls", "#errors", "#median", "#95 % within", "#slowest", "#in all", "|compared"]
    return "<h2>Slowest tools</h2>" + _table(columns, rows) + _rows_left_out(len(ranked), _TOOLS, "tools")


def _timing(figures: Figures) -> str:
    if not figures.timing:
        return ""
    ranked = sorted(figures.timing.items(), key=lambda item: -sum(item[1]))
    whole = max(sum(ranked[0][1]), 1e-9)
    rows = [
        (
            escape(part[:120]),
            duration(sum(seconds) / len(seconds)),
            duration(max(seconds)),
            duration(sum(seconds)),
            bar(sum(seconds) / whole),
        )
        for part, seconds in ranked[:_TOOLS]
    ]
    return "<h2>Where the time went</h2>" + _table(["part", "#mean", "#longest", "#in all", "|compared"], rows)


def _tasks(figures: Figures) -> str:
    tried = [(key, task) for key, task in figures.tasks.items() if task.rewards]
    if len(tried) < 2:
        return ""
    differing = figures.differing
    ranked = sorted(tried, key=lambda item: (sum(item[1].rewards) / len(item[1].rewards), -item[1].tried))
    rows = [
        (
            escape(f"{split or '?'}/{'?' if index is None else index}")
            + _small_print(*labels(differing, model=model, environment=environment)),
            f"{task.tried:,}",
            f"{task.passed:,}",
            number(sum(task.rewards) / len(task.rewards)),
        )
        for (model, environment, split, index), task in ranked[:_TASKS]
    ]
    table = _table(["task", "#attempts", "#passed", "#mean reward"], rows)
    return "<h2>Hardest tasks</h2>" + table + _rows_left_out(len(ranked), _TASKS, "tasks")


def _transcripts(figures: Figures, chosen: Sample) -> str:
    if not chosen.shown:
        return ""
    budget = PageBudget()
    differing = figures.differing
    shown = "".join(transcript(line, why, episode, budget, differing=differing) for line, why, episode in chosen.shown)
    count = len(chosen.shown)
    note = (
        "The only episode."
        if count == figures.episodes == 1
        else f"All {count:,} episodes, in the order in which they ended."
        if count == figures.episodes
        else f"{count:,} of {figures.episodes:,} episodes: some of each kind of failure, the lowest and the highest "
        "rewards, the longest, the latest, and others at even distances. The record has them all."
    )
    return f'<h2>Transcripts</h2><p class="note">{note}</p>{shown}'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, below: Sequence[str] = ()) -> str:
    """Return a table of cells that are HTML; `#` before a column's name marks numbers, and `|` bars.

    Args:
        columns: Their names.
        rows: Of cells.
        below: What stands below each row, over all columns; nothing where it is empty.
    """

    def kind(column: str) -> str:
        return ' class="n"' if column.startswith("#") else ' class="b"' if column.startswith("|") else ""

    head = "".join(f"<th{kind(column)}>{escape(column.lstrip('#|'))}</th>" for column in columns)
    body = ""
    for row, under in itertools.zip_longest(rows, below, fillvalue=""):
        cells = "".join(f"<td{kind(column)}>{cell}</td>" for column, cell in zip(columns, row, strict=True))
        body += f'<tr class="above">{cells}</tr>' if under else f"<tr>{cells}</tr>"
        body += f'<tr class="below"><td colspan="{len(columns)}">{under}</td></tr>' if under else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _small_print(*lines: str) -> str:
    """Return lines in small print below a cell's text."""
    return "".join(f'<span class="small">{escape(line[:120])}</span>' for line in lines)


def _rows_left_out(there: int, shown: int, what: str) -> str:
    return f'<p class="note">… and {there - shown:,} more {what}.</p>' if there > shown else ""
