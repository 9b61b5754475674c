"""The pass rate of each task of a record, and the file of tasks whose rate lies between two bounds.

A task that every attempt solves, or none, teaches little; those between are worth training on.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ors_client._arguments import checked
from ors_client.record import EpisodeRecord, read


@dataclass(frozen=True, slots=True)
class TaskRate:
    """How often a task was passed.

    Args:
        index: The task's, in its split.
        attempts: That count; those that the infrastructure broke do not.
        passed: Of them.
    """

    index: int
    attempts: int
    passed: int

    @property
    def rate(self) -> float:
        """The share that passed."""
        return self.passed / self.attempts


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The pass rates of one model on one split of an environment.

    Args:
        environment: Its name.
        target: The server's address.
        split: The tasks'.
        model: Who played; `None` in training.
        pass_at: The reward from which an attempt passes.
        tasks: By index.
    """

    environment: str | None
    target: str
    split: str | None
    model: str | None
    pass_at: float
    tasks: list[TaskRate]

    def between(self, low: float, high: float, *, min_attempts: int = 1) -> list[TaskRate]:
        """Return the tasks whose rate lies between two bounds, both included, and that were played often enough."""
        return [task for task in self.tasks if task.attempts >= min_attempts and low <= task.rate <= high]

    def to_json(self, tasks: Sequence[TaskRate]) -> dict[str, Any]:
        """Return what a file of tasks holds, for some of them."""
        return {
            "environment": self.environment,
            "target": self.target,
            "split": self.split,
            "model": self.model,
            "pass_at": self.pass_at,
            "tasks": [
                {"index": task.index, "attempts": task.attempts, "passed": task.passed, "rate": task.rate}
                for task in tasks
            ],
        }


@checked
def profile(
    record: str | os.PathLike[str],
    *,
    pass_at: float = 1.0,
    split: str | None = None,
    model: str | None = None,
    environment: str | None = None,
) -> Profile:
    """Return the pass rates of a record.

    Args:
        record: The file.
        pass_at: The reward from which an attempt passes; one without a score has not passed.
        split: Of these tasks, where the record has several splits.
        model: Of this one, where it has several.
        environment: Likewise.

    Raises:
        OSError: The record can't be read.
        ValueError: It holds no such episode, or of several splits, models or environments, and none was named.
    """
    wanted = {"split": split, "model": model, "environment": environment}
    last: dict[tuple[object, ...], EpisodeRecord] = {}
    for number, episode in enumerate(read(record)):
        if episode.index is None or any(
            value is not None and getattr(episode, name) != value for name, value in wanted.items()
        ):
            continue
        attempt = ("once", number) if episode.attempt is None else episode.attempt
        # An attempt that was made again counts once, as it ended last.
        last[episode.environment, episode.model, episode.split, episode.index, attempt] = episode
    episodes = list(last.values())
    for name in wanted:
        names = {getattr(episode, name) for episode in episodes}
        if len(names) > 1:
            listed = [*map(repr, sorted(names - {None})), *(["none, as in a training"] * (None in names))]
            option = "--env" if name == "environment" else f"--{name}"
            raise ValueError(f"The record has several {name}s; name one with {name}= or {option}: {', '.join(listed)}.")
    if not episodes:
        raise ValueError("The record has no such episode.")
    counted: defaultdict[int, list[bool]] = defaultdict(list)
    for episode in episodes:
        if not episode.status.startswith("failed") and episode.index is not None:
            counted[episode.index].append(episode.reward is not None and episode.reward >= pass_at)
    one = episodes[-1]
    return Profile(
        environment=one.environment,
        target=one.target,
        split=one.split,
        model=one.model,
        pass_at=pass_at,
        tasks=[TaskRate(index, len(passed), sum(passed)) for index, passed in sorted(counted.items())],
    )
