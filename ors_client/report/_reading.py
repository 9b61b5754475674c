"""Reads a record: all of it for the figures, and again the episodes that are worth showing.

Knows which episodes those are. An attempt that was made again after a failure counts once, as it ended last.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ors_client._arguments import checked
from ors_client.record import EpisodeRecord, numbered

from ._figures import Figures, TaskKey
from ._symptoms import ending


@dataclass(frozen=True, slots=True)
class Sample:
    """The episodes of a page.

    Args:
        shown: Each with the number of its line, and why it was chosen.
        superseded: How many attempts were made again later, and are not counted.
    """

    shown: list[tuple[int, str, EpisodeRecord]]
    superseded: int


@checked
def summarise(
    path: str | os.PathLike[str],
    *,
    passing: float = 1.0,
    unscored: float | None = 0.0,
    model: str | None = None,
    environment: str | None = None,
) -> Figures:
    """Return the figures of a record.

    Args:
        path: The record.
        passing: The reward from which an episode counts as passed.
        unscored: What an attempt without a score counts for in means; `None` leaves it out.
        model: Of this model's episodes only.
        environment: Of this environment's episodes only.

    Raises:
        OSError: The record can't be read.
    """
    return _read(
        path, lambda: Figures(passing=passing, unscored=unscored), model=model, environment=environment
    ).figures


def sample(
    path: str | os.PathLike[str], *, passing: float, unscored: float | None, transcripts: int, hardest: int
) -> tuple[Figures, Sample]:
    """Return the figures of a record, and at most `transcripts` of its episodes, some of its hardest tasks too."""
    reading = _read(path, lambda: Figures(passing=passing, unscored=unscored))
    tasks = [reading.tasks[key] for key, _ in reading.figures.hardest_tasks[:hardest]]
    chosen = _choose(reading.summaries, transcripts, tasks)
    shown = [(number, chosen[number], episode) for number, episode in numbered(path, only=chosen)]
    return reading.figures, Sample(shown, reading.superseded)


@dataclass(frozen=True, slots=True)
class _EpisodeSummary:
    number: int
    task: int
    status: str
    reward: float | None
    calls: int


@dataclass(frozen=True, slots=True)
class _Reading:
    figures: Figures
    summaries: list[_EpisodeSummary]
    superseded: int
    tasks: dict[TaskKey, int]
    """A number for each task, so that a summary is small."""


def _read(
    path: str | os.PathLike[str],
    new_figures: Callable[[], Figures],
    *,
    model: str | None = None,
    environment: str | None = None,
) -> _Reading:
    figures, summaries, superseded = new_figures(), list[_EpisodeSummary](), 0
    last: dict[tuple[object, ...], int] = {}
    tasks: dict[TaskKey, int] = {}
    for number, episode in numbered(path):
        if model not in {None, episode.model} or environment not in {None, episode.environment}:
            continue
        if episode.attempt is not None:
            superseded += _attempt_key(episode) in last
            last[_attempt_key(episode)] = number
        figures.add(episode)
        task = tasks.setdefault((episode.model, episode.environment, episode.split, episode.index), len(tasks))
        summaries.append(_EpisodeSummary(number, task, ending(episode), episode.reward, len(episode.calls)))
    if not superseded:
        return _Reading(figures, summaries, 0, tasks)
    # Figures can't take an episode back; a record with attempts made again is rare, and read again.
    lasting = set(last.values())
    figures, counted = new_figures(), set[int]()
    for number, episode in numbered(path, only={summary.number for summary in summaries}):
        if episode.attempt is None or number in lasting:
            figures.add(episode)
            counted.add(number)
    return _Reading(figures, [summary for summary in summaries if summary.number in counted], superseded, tasks)


def _attempt_key(episode: EpisodeRecord) -> tuple[object, ...]:
    return episode.model, episode.environment, episode.split, episode.index, episode.attempt


def _choose(summaries: list[_EpisodeSummary], most: int, hardest: list[int]) -> dict[int, str]:
    """Choose episodes, by number, with the reason: rare ones first, then extremes, then evenly spaced ones.

    Args:
        summaries: Of all episodes.
        most: How many are chosen at most.
        hardest: The tasks of which one attempt each is wanted; a third of the room is theirs.
    """
    if len(summaries) <= most:
        return dict.fromkeys((summary.number for summary in summaries), "")
    scored = [summary for summary in summaries if summary.reward is not None]
    scored.sort(key=lambda summary: summary.reward or 0.0)
    kinds: dict[str, list[_EpisodeSummary]] = {}
    for summary in summaries:
        kinds.setdefault(summary.status, []).append(summary)
    each = max(1, most // 10)
    wanted: list[tuple[str, list[_EpisodeSummary]]] = [
        *((kind, of_kind[:each]) for kind, of_kind in sorted(kinds.items()) if kind != "scored"),
        ("lowest reward", scored[:each]),
        ("highest reward", scored[::-1][:each]),
        ("most calls", sorted(summaries, key=lambda summary: -summary.calls)[:each]),
        ("latest", summaries[::-1][:each]),
    ]
    chosen = {of_kind[0].number: kind for kind, of_kind in sorted(kinds.items())[:most] if kind != "scored"}
    attempts = _attempts(summaries)
    free = min(most // 3, most - len(chosen))
    chosen |= {attempts[task]: "hardest tasks" for task in hardest[:free] if attempts[task] not in chosen}
    # One of each reason before two of any, so that a bound as low as the number of reasons still shows them all.
    for turn in range(each):
        for reason, candidates in wanted:
            if turn < len(candidates) and len(chosen) < most:
                chosen.setdefault(candidates[turn].number, reason)
    step = len(summaries) / most
    for nth in range(most):
        if len(chosen) >= most:
            break
        chosen.setdefault(summaries[int(nth * step)].number, "one of many")
    return chosen


def _attempts(summaries: list[_EpisodeSummary]) -> dict[int, int]:
    """Return the number of the first episode of each task that was not broken by the infrastructure."""
    attempts: dict[int, int] = {}
    for summary in summaries:
        if not summary.status.startswith("failed"):
            attempts.setdefault(summary.task, summary.number)
    return attempts
