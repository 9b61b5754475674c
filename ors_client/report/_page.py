"""The page: figures as tiles, charts and tables, then transcripts. One file, with nothing from elsewhere.

The policy in its head forbids the browser to fetch anything, and to run anything but the page's own script, which it
knows by its hash: should an escape ever be missing. Without scripts the page reads the same, and has no filters.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ors_client._arguments import checked
from ors_client.record import EpisodeRecord

from ._charts import axis_bounds, bar, bins, line_chart
from ._figures import FailureFigures, Figures, TaskKey, labels
from ._headline import headline, unscored_note
from ._intervals import Estimate, mean
from ._output import write_page
from ._reading import Sample, sample
from ._symptoms import symptom
from ._text import PageBudget, duration, escape, number, percent
from ._transcript import anchor, task_name, transcript

_TILES = {"coverage": "coverage: share scored", "calls": "tool calls"}
_SPELT: dict[str, Callable[[float | None], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "reward": number,
    "share": percent,
    "seconds": duration,
}
_BINS = 60  # points of a curve: more would be noise at this width
_TOOLS, _TASKS, _ENTRIES, _REASONS = 25, 12, 25, 40
_LINKS = 6  # to transcripts, from one row
_FILTERS = (
    '<div class="filters" hidden>'
    + "".join(
        f'<label>{name} <select name="{name}"><option value="">all</option></select></label>'
        for name in ("model", "status", "task")
    )
    + '<label>text <input type="search"></label><output></output></div>'
)
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"


@checked
def write_report(
    record: str | os.PathLike[str],
    page: str | os.PathLike[str],
    *,
    title: str | None = None,
    transcripts: int = 40,
    passing: float = 1.0,
    unscored: float | None = 0.0,
) -> Figures:
    """Read a record and write a page about it; return the figures.

    Args:
        record: Of training or evaluation, as `ors_client.record` writes it.
        page: The HTML file.
        title: Its heading; left out, the record's name.
        transcripts: How many episodes are shown in full. From a longer record, some of each kind are chosen.
        passing: The reward from which an episode counts as passed.
        unscored: What an attempt without a score counts for in means; `None` leaves it out.

    Raises:
        OSError: The record can't be read, or the page can't be written.
    """
    figures, chosen = sample(record, passing=passing, unscored=unscored, transcripts=transcripts, hardest=_TASKS)
    write_page(Path(page), _render(title or Path(record).name, figures, chosen))
    return figures


def _render(title: str, figures: Figures, chosen: Sample) -> str:
    sections = [
        _head(title, figures, chosen),
        _tiles(figures),
        _curves(figures),
        _entries(figures),
        _failures(figures, chosen),
        _pass_curve(figures),
        _finish_reasons(figures),
        _tools(figures),
        _timing(figures),
        _tasks(figures, chosen),
        _transcripts(figures, chosen),
    ]
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    policy = _POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(sections)}</main><script>{script}</script></body></html>\n"
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
    shown = ""
    for line in headline(figures):
        title = _TILES.get(line.name, line.name)
        more: list[str] = []
        if line.name in {"pass@1", "broken by infrastructure"} and line.note:
            title += f"{': ' if line.unit == 'share' else ', '}{line.note}"
        if line.interval is not None:
            more.append(_between(line.interval, _SPELT[line.unit]))
        if line.unscored:
            more.append(line.unscored)
        value = escape(_SPELT[line.unit](line.value))
        shown += f'<div class="tile"><b>{value}</b><span>{escape(title)}</span>{_small_print(*more)}</div>'
    return f'<div class="tiles">{shown}</div>'


def _interval(found: Estimate | None, format_value: Callable[[float], str]) -> str:
    """Return a mean's interval in words, or nothing where there is none."""
    if found is None or found.interval is None:
        return ""
    return _between(found.interval, format_value)


def _between(interval: tuple[float, float], format_value: Callable[[float], str]) -> str:
    low, high = map(format_value, interval)
    return f"95 % interval {low} to {high}"


def _curves(figures: Figures) -> str:
    if not figures.episodes:
        return "<p>The record holds no episodes.</p>"
    if figures.episodes == 1:
        return ""
    folded = bins(figures.values, _BINS)
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
    covered = [(float(x), share) for x, _, share in bins(figures.rewards, _BINS)]
    coverage = line_chart(
        covered, label="Share of scored episodes", bounds=(0.0, 1.0), format_value=percent, filled=True
    )
    return (
        f'<h2>Over time</h2><div class="charts"><figure><figcaption>Mean reward</figcaption>{reward}</figure>'
        f"<figure><figcaption>Coverage: share of episodes scored</figcaption>{coverage}</figure></div>"
        f'<p class="note">In the order in which they ended; each point {each}. {escape(unscored_note(figures))}</p>'
    )


def _entries(figures: Figures) -> str:
    differing = figures.differing
    if not differing:
        return ""
    ranked = sorted(figures.compared.items(), key=lambda item: tuple(name or "" for name in reversed(item[0])))
    rows: list[tuple[str, ...]] = []
    below: list[str] = []
    for (model, environment), entry in ranked[:_ENTRIES]:
        first, *others = labels(differing, model=model, environment=environment)
        reward = figures.reward(entry=(model, environment))
        passed = figures.pass_rate(1, entry=(model, environment))
        rows.append(
            (
                escape(first[:120]) + _small_print(*others),
                f"{entry.episodes:,}",
                number(None if reward is None else reward.mean),
                percent(None if passed is None else passed.mean),
                percent(entry.scored / entry.episodes),
            )
        )
        intervals = [
            f"{name}: {words}"
            for name, words in (("mean reward", _interval(reward, number)), ("pass@1", _interval(passed, percent)))
            if words
        ]
        below.append(f"<p>{escape(', '.join(intervals))}</p>" if intervals else "")
    title = " and ".join(differing)
    table = _table([title, "#episodes", "#mean reward", "#pass@1", "#coverage"], rows, below=below)
    note = f'<p class="note">{escape(unscored_note(figures))}</p>' if figures.without_score else ""
    return f"<h2>By {title}</h2>" + table + note + _rows_left_out(len(ranked), _ENTRIES, "rows")


def _failures(figures: Figures, chosen: Sample) -> str:
    failures = figures.failure_rows[:20]
    if not failures:
        return ""
    rows = [
        (
            escape(row.title[:120]),
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
    return "<h2>Failures by kind</h2>" + _table(columns, rows, below=[_reason(row, chosen) for row in failures]) + note


def _reason(row: FailureFigures, chosen: Sample) -> str:
    links = _links([line for line, _, episode in chosen.shown if _is_of(row, episode)])
    message = f"<p>The first: {escape(row.message[:300])}</p>" if row.message else ""
    tried = f"<p>Try: {escape(row.advice)}</p>" if row.advice else ""
    return message + tried + (f"<p>Transcripts: {links}</p>" if links else "")


def _is_of(row: FailureFigures, episode: EpisodeRecord) -> bool:
    return episode.status == row.kind and symptom(episode) == row.symptom


def _links(lines: Sequence[int]) -> str:
    """Return links to the transcripts of these lines of the record, the first few."""
    return ", ".join(f'<a href="#{anchor(line)}">line {line}</a>' for line in lines[:_LINKS])


def _pass_curve(figures: Figures) -> str:
    curve = figures.pass_curve
    if len(curve) < 2:
        return ""
    rows: list[tuple[str, ...]] = []
    for every, sign in ((False, "@"), (True, "^")):
        for k in curve:
            found = figures.pass_rate(k, every=every)
            if found is not None and not (every and k == 1):  # pass^1 is pass@1
                words = _small_print(_interval(found, percent)) if found.interval else ""
                rows.append((f"pass{sign}{k}" + words, percent(found.mean), bar(found.mean), f"{found.tasks:,}"))
    note = (
        f'<p class="note">pass@k: at least one of k attempts passes; pass^k: all of them. A reward of '
        f"{figures.passing:g} or more passes, an attempt without a score does not; broken episodes are no attempts.</p>"
    )
    return "<h2>Passing within k attempts</h2>" + _table(["measure", "#share", "|of the tasks", "#tasks"], rows) + note


def _finish_reasons(figures: Figures) -> str:
    rows: list[tuple[str, ...]] = []
    for (model, environment), entry in figures.compared.items():
        names = labels(figures.differing, model=model, environment=environment)
        for reason, share in entry.finish_shares.items():
            count = f"{entry.finish_reasons[reason]:,}"
            rows.append((escape(reason[:60]) + _small_print(*names), count, percent(share), bar(share)))
    if not rows:
        return ""
    table = _table(["reason", "#replies", "#share", "|of the model's replies"], rows[:_REASONS])
    return "<h2>Why replies ended</h2>" + table + _rows_left_out(len(rows), _REASONS, "rows")


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
    columns = ["tool", "#calls", "#errors", "#median", "~95 % within", "~slowest", "#in all", "|compared"]
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


def _tasks(figures: Figures, chosen: Sample) -> str:
    ranked = figures.hardest_tasks
    if len(ranked) < 2:
        return ""
    differing = figures.differing
    lines: dict[TaskKey, list[int]] = {}
    for line, _, episode in chosen.shown:
        lines.setdefault((episode.model, episode.environment, episode.split, episode.index), []).append(line)
    rows: list[tuple[str, ...]] = []
    for key, task in ranked[:_TASKS]:
        model, environment, split, index = key
        rows.append(
            (
                escape(task_name(split, index))
                + _small_print(*labels(differing, model=model, environment=environment)),
                f"{task.tried:,}",
                f"{task.passed:,}",
                number(mean(task.values(figures.unscored))),
                _links(lines.get(key, [])),
            )
        )
    table = _table(["task", "#attempts", "#passed", "~mean reward", "transcripts"], rows)
    note = '<p class="note">Those that were solved least come first; broken episodes are no attempts.</p>'
    return "<h2>Hardest tasks</h2>" + table + note + _rows_left_out(len(ranked), _TASKS, "tasks")


def _transcripts(figures: Figures, chosen: Sample) -> str:
    if not chosen.shown:
        return ""
    budget = PageBudget()
    differing = figures.differing
    shown = "".join(
        transcript(line, why, episode, budget, passing=figures.passing, differing=differing)
        for line, why, episode in chosen.shown
    )
    count = len(chosen.shown)
    note = (
        "The only episode."
        if count == figures.episodes == 1
        else f"All {count:,} episodes, in the order in which they ended."
        if count == figures.episodes
        else f"{count:,} of {figures.episodes:,} episodes: some of each kind of failure, the lowest and the highest "
        "rewards, the longest, the latest, and others at even distances. The record has them all."
    )
    return f'<h2>Transcripts</h2><p class="note">{note}</p>{_FILTERS if count > 1 else ""}{shown}'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, below: Sequence[str] = ()) -> str:
    """Return a table of cells that are HTML.

    Before a column's name, `#` marks numbers, `|` bars, and `~` numbers for which a narrow screen has no room.

    Args:
        columns: Their names.
        rows: Of cells.
        below: What stands below each row, over all columns; nothing where it is empty.
    """

    def kind(column: str) -> str:
        return {"#": ' class="n"', "|": ' class="b"', "~": ' class="n wider"'}.get(column[:1], "")

    head = "".join(f"<th{kind(column)}>{escape(column.lstrip('#|~'))}</th>" for column in columns)
    body = ""
    for row, under in itertools.zip_longest(rows, below, fillvalue=""):
        cells = "".join(f"<td{kind(column)}>{cell}</td>" for column, cell in zip(columns, row, strict=True))
        body += f'<tr class="above">{cells}</tr>' if under else f"<tr>{cells}</tr>"
        body += f'<tr class="below"><td colspan="{len(columns)}">{under}</td></tr>' if under else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _small_print(*lines: str) -> str:
    """Return lines in small print below a text."""
    return "".join(f'<span class="small">{escape(line[:120])}</span>' for line in lines if line)


def _rows_left_out(there: int, shown: int, what: str) -> str:
    return f'<p class="note">… and {there - shown:,} more {what}.</p>' if there > shown else ""
