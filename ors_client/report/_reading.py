"""Reads a record: all of it for the figures, and again the episodes that are worth showing.

Knows which episodes those are. An attempt that was made again after a failure counts once, as it ended last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ors_client.record import EpisodeRecord, numbered

from ._figures import Figures


@dataclass(frozen=True, slots=True)
class Sample:
    """The episodes of a page.

    Args:
        shown: Each with the number of its line, and why it was chosen.
        superseded: How many attempts were made again later, and are not counted.
    """

    shown: list[tuple[int, str, EpisodeRecord]]
    superseded: int


def summarise(
    path: str | os.PathLike[str], *, passing: float = 1.0, model: str | None = None, environment: str | None = None
) -> Figures:
    """Return the figures of a record.

    Args:
        path: The record.
        passing: The reward from which an episode counts as passed.
        model: Of this model's episodes only.
        environment: Of this environment's episodes only.

    Raises:
        OSError: The record can't be read.
    """
    return _read_figures(path, passing=passing, model=model, environment=environment)[0]


def sample(path: str | os.PathLike[str], *, passing: float, transcripts: int) -> tuple[Figures, Sample]:
    """Return the figures of a record, and at most `transcripts` of its episodes."""
    figures, summaries, superseded = _read_figures(path, passing=passing)
    chosen = _choose(summaries, transcripts)
    shown = [(number, chosen[number], episode) for number, episode in numbered(path, only=chosen)]
    return figures, Sample(shown, superseded)


@dataclass(frozen=True, slots=True)
class _EpisodeSummary:
    number: int
    status: str
    reward: float | None
    calls: int


def _read_figures(
    path: str | os.PathLike[str], *, passing: float, model: str | None = None, environment: str | None = None
) -> tuple[Figures, list[_EpisodeSummary], int]:
    figures, summaries, superseded = Figures(passing=passing), list[_EpisodeSummary](), 0
    last: dict[tuple[object, ...], int] = {}
    for number, episode in numbered(path):
        if model not in {None, episode.model} or environment not in {None, episode.environment}:
            continue
        if episode.attempt is not None:
            superseded += _attempt_key(episode) in last
            last[_attempt_key(episode)] = number
        figures.add(episode)
        summaries.append(_EpisodeSummary(number, episode.status, episode.reward, len(episode.calls)))
    if not superseded:
        return figures, summaries, 0
    # Figures can't take an episode back; a record with attempts made again is rare, and read again.
    lasting = set(last.values())
    figures, counted = Figures(passing=passing), set[int]()
    for number, episode in numbered(path, only={summary.number for summary in summaries}):
        if episode.attempt is None or number in lasting:
            figures.add(episode)
            counted.add(number)
    return figures, [summary for summary in summaries if summary.number in counted], superseded


def _attempt_key(episode: EpisodeRecord) -> tuple[object, ...]:
    return episode.model, episode.environment, episode.split, episode.index, episode.attempt


def _choose(summaries: list[_EpisodeSummary], most: int) -> dict[int, str]:
    """Choose episodes, by number, with the reason: rare ones first, then extremes, then evenly spaced ones."""
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
    chosen: dict[int, str] = {}
    # One of each reason before two of any, so that a bound as low as the number of reasons still shows them all.
    for turn in range(each):
        for reason, candidates in wanted:
            if turn < len(candidates) and len(chosen) < most:
                chosen.setdefault(candidates[turn].number, reason)
    step = len(summaries) / most
    for place in range(most):
        if len(chosen) >= most:
            break
        chosen.setdefault(summaries[int(place * step)].number, "one of many")
    return chosen
