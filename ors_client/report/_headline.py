"""The figures that head a terminal's table and a page: which there are, in which order, and what stands beside each.

Knows numbers and what they are about; how they are spelt is for the terminal and the page to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._figures import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One figure of a run.

    Args:
        name: In a few words.
        value: `None` where nothing was measured.
        unit: What it counts.
        note: What it is over, or what it means.
        interval: That holds the true value with a confidence of 95 %, where that is known.
        unscored: What the attempts without a score count for in it, where there are any.
    """

    name: str
    value: float | None
    unit: Literal["count", "reward", "share", "seconds"]
    note: str = ""
    interval: tuple[float, float] | None = None
    unscored: str = ""


def headline(figures: Figures) -> list[Headline]:
    """Return the figures that come first, of any record."""
    reward, passed = figures.reward(), figures.pass_rate(1)
    tasks = figures.num_tasks
    return [
        Headline(
            name="episodes",
            value=figures.episodes,
            unit="count",
            note=f"of {tasks:,} task{'' if tasks == 1 else 's'}" if tasks else "",
        ),
        Headline(
            name="mean reward",
            value=figures.mean_reward,
            unit="reward",
            interval=None if reward is None else reward.interval,
            unscored=unscored_note(figures),
        ),
        Headline(
            name="coverage", value=figures.coverage, unit="share", note=f"{figures.scored:,} of {figures.episodes:,}"
        ),
        Headline(
            name="pass@1",
            value=None if passed is None else passed.mean,
            unit="share",
            note=f"reward of {figures.passing:g} or more",
            interval=None if passed is None else passed.interval,
        ),
        Headline(
            name="broken by infrastructure",
            value=figures.broken,
            unit="count",
            note="in no mean" if figures.broken else "",
        ),
        Headline(name="calls", value=figures.calls, unit="count"),
        Headline(name="median episode", value=figures.median_seconds, unit="seconds"),
    ]


def unscored_note(figures: Figures) -> str:
    """Say what the attempts without a score count for in means, where there are any."""
    count = figures.without_score
    if not count:
        return ""
    how = "left out of the mean" if figures.unscored is None else f"counted as {figures.unscored:g}"
    return f"{count:,} attempt{'' if count == 1 else 's'} without a score, {how}"
