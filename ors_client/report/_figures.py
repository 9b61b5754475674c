"""Figures over many episodes, counted one episode at a time.

Keeps numbers, never episodes, so that a record of any length fits into memory. Knows nothing of files and pages.
"""

from __future__ import annotations

import itertools
import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ors_client.record import EpisodeRecord

from ._advice import advice

EnvironmentKey = tuple[str | None, str | None]
"""An environment as one model meets it: model and environment."""

TaskKey = tuple[str | None, str | None, str | None, int | None]
"""A task as one model meets it: model, environment, split and index."""


@dataclass(slots=True)
class ToolFigures:
    """The calls of one tool: how long they took and how they ended.

    Args:
        calls: How many there are.
        errors: How many of them were rejected, failed or lost.
        seconds: How long each call took, in order.
    """

    calls: int = 0
    errors: int = 0
    seconds: MutableSequence[float] = field(default_factory=lambda: array("d"))

    @property
    def total_seconds(self) -> float:
        """How long all calls took together."""
        return sum(self.seconds)

    def percentile(self, share: float) -> float:
        """Return the seconds within which a share of the calls was answered.

        Args:
            share: From 0 to 1.
        """
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class FailureFigures:
    """The episodes that failed, were cut or stayed unscored in one way.

    Args:
        kind: The status.
        episodes: How many there are.
        message: That of the first.
        advice: What to try.
    """

    kind: str
    episodes: int
    message: str | None
    advice: str | None


@dataclass(slots=True)
class TaskFigures:
    """The attempts at one task that were not broken by the infrastructure, and what was scored."""

    tried: int = 0
    passed: int = 0
    rewards: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class EnvironmentFigures:
    """The results of one model in one environment.

    Args:
        episodes: How many there are.
        rewards: Of the scored ones.
    """

    episodes: int = 0
    rewards: MutableSequence[float] = field(default_factory=lambda: array("d"))


class Figures:
    """The figures of the episodes that were added.

    Args:
        passing: The reward from which an episode counts as passed.
    """

    def __init__(self, *, passing: float = 1.0) -> None:
        self.passing = passing
        self.episodes = 0
        """How many were added."""
        self.calls = 0
        """How many calls they made."""
        self.rewards = array("d")
        """Of each episode in order; NaN where nothing was scored."""
        self.seconds = array("d")
        """Of each episode that tells its length, in order."""
        self.statuses: Counter[str] = Counter()
        """Episodes by status."""
        self.tools: defaultdict[str, ToolFigures] = defaultdict(ToolFigures)
        """By the tool's name."""
        self.tasks: defaultdict[TaskKey, TaskFigures] = defaultdict(TaskFigures)
        """By model, environment, split and index."""
        self.entries: defaultdict[EnvironmentKey, EnvironmentFigures] = defaultdict(EnvironmentFigures)
        """By model and environment."""
        self.timing: defaultdict[str, list[float]] = defaultdict(list)
        """Seconds of each part of the episodes, as `opening` or `model`."""
        self.usage: Counter[str] = Counter()
        """The model's requests and tokens, summed."""
        self.messages: dict[str, str] = {}
        """One message of each kind of failure."""
        self.names: dict[str, Counter[str]] = {"environment": Counter(), "model": Counter(), "target": Counter()}
        """Episodes by environment, model and target."""
        self.first: datetime | None = None
        """When the first episode began."""
        self.last: datetime | None = None
        """When the last episode began."""

    def add(self, episode: EpisodeRecord) -> None:
        """Count one episode."""
        self.episodes += 1
        reward = _finite(episode.reward)
        self.rewards.append(math.nan if reward is None else reward)
        self.statuses[episode.status] += 1
        entry = self.entries[episode.model, episode.environment]
        entry.episodes += 1
        if reward is not None:
            entry.rewards.append(reward)
        if (seconds := _finite(episode.seconds)) is not None:
            self.seconds.append(seconds)
        for name, counter in self.names.items():
            if value := getattr(episode, name):
                counter[value] += 1
        if episode.failure is not None:
            self.messages.setdefault(episode.status, episode.failure)
        if (started := _local(episode.started)) is not None:
            self.first = min(self.first or started, started)
            self.last = max(self.last or started, started)
        self.usage.update(episode.usage or {})
        self._add_calls(episode)
        if not episode.status.startswith("failed"):
            task = self.tasks[episode.model, episode.environment, episode.split, episode.index]
            task.tried += 1
            if reward is not None:
                task.passed += reward >= self.passing
                task.rewards.append(reward)

    def _add_calls(self, episode: EpisodeRecord) -> None:
        for part, seconds in (episode.timing or {}).items():
            self.timing[part].append(_finite(seconds) or 0.0)
        for call in episode.calls:
            self.calls += 1
            tool = self.tools[call.tool]
            tool.calls += 1
            tool.errors += call.error is not None
            tool.seconds.append(_finite(call.seconds) or 0.0)
            for part, seconds in (call.timing or {}).items():
                self.timing[f"{part}, each call"].append(_finite(seconds) or 0.0)

    @property
    def num_tasks(self) -> int:
        """How many tasks there are, whoever played them, without those of which every episode was broken."""
        return _distinct(self.tasks)

    @property
    def compared(self) -> dict[EnvironmentKey, EnvironmentFigures]:
        """By model and environment; where only one environment has a name, the others are taken to be it.

        An episode that failed before there was a session may not know the name.
        """
        known = {environment for _, environment in self.entries if environment is not None}
        only = next(iter(known)) if len(known) == 1 else None
        compared: dict[EnvironmentKey, EnvironmentFigures] = {}
        for (model, environment), entry in self.entries.items():
            whole = compared.setdefault((model, environment or only), EnvironmentFigures())
            whole.episodes += entry.episodes
            whole.rewards.extend(entry.rewards)
        return compared

    @property
    def differing(self) -> list[str]:
        """Which of `environment` and `model` are not the same in all episodes."""
        compared = self.compared
        models, environments = (set(names) for names in zip(*compared, strict=True)) if compared else ((), ())
        return ["environment"] * (len(environments) > 1) + ["model"] * (len(models) > 1)

    @property
    def scored(self) -> int:
        """How many episodes have a reward."""
        return sum(not math.isnan(reward) for reward in self.rewards)

    @property
    def coverage(self) -> float | None:
        """The share of the episodes that have a reward."""
        return self.scored / self.episodes if self.episodes else None

    @property
    def mean_reward(self) -> float | None:
        """Over the episodes that have one."""
        given = [reward for reward in self.rewards if not math.isnan(reward)]
        return math.fsum(given) / len(given) if given else None

    @property
    def failures(self) -> Counter[str]:
        """The episodes that were broken by the infrastructure or cut by a budget, by kind."""
        kinds = {kind: count for kind, count in self.statuses.items() if kind not in {"scored", "unscored"}}
        return Counter(kinds)

    @property
    def failure_rows(self) -> list[FailureFigures]:
        """The failures and the unscored episodes by kind, the most frequent first."""
        kinds = self.failures
        if unscored := self.statuses["unscored"]:
            kinds["unscored"] = unscored
        return [
            FailureFigures(kind, count, self.messages.get(kind), advice(kind)) for kind, count in kinds.most_common()
        ]

    @property
    def slowest_tools(self) -> list[tuple[str, ToolFigures]]:
        """The tools by name, the one whose calls took the most time in all first."""
        return sorted(self.tools.items(), key=lambda item: -item[1].total_seconds)

    @property
    def broken(self) -> int:
        """How many episodes the infrastructure broke."""
        return sum(count for kind, count in self.statuses.items() if kind.startswith("failed"))

    @property
    def median_seconds(self) -> float | None:
        """Of an episode."""
        return statistics.median(self.seconds) if self.seconds else None

    def pass_at(self, k: int, *, entry: EnvironmentKey | None = None) -> tuple[float, int] | None:
        """Return pass@k, and over how many tasks: those with at least `k` attempts of a model that were not broken.

        Args:
            k: Attempts.
            entry: Of this model in this environment only.
        """
        tasks = {key: task for key, task in self.tasks.items() if task.tried >= k and entry in {None, (key[0], key[1])}}
        if not tasks:
            return None
        shares = [pass_at(k, tried=task.tried, passed=task.passed) for task in tasks.values()]
        return math.fsum(shares) / len(shares), _distinct(tasks)

    @property
    def pass_curve(self) -> dict[int, tuple[float, int]]:
        """Pass@k for 1, 2, 4, ... up to the most attempts that a task has, where half of the tasks have that many."""
        most = max((task.tried for task in self.tasks.values()), default=0)
        powers = [1 << power for power in range(most.bit_length())]
        ks = sorted({*powers, most} - {0})
        curve = {k: found for k in ks if (found := self.pass_at(k)) is not None}
        return {k: (share, tasks) for k, (share, tasks) in curve.items() if 2 * tasks >= self.num_tasks}


def pass_at(k: int, *, tried: int, passed: int) -> float:
    """Return the chance that at least one of `k` attempts passes, estimated without bias from `tried` attempts.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1.
    """
    if not 0 < k <= tried or not 0 <= passed <= tried:
        raise ValueError(f"pass@{k} needs at least {k} attempts, and {passed} of {tried} passed.")
    return 1.0 - math.comb(tried - passed, k) / math.comb(tried, k)


def labels(differing: Sequence[str], *, model: str | None, environment: str | None) -> list[str]:
    """Return those names of an episode that tell it apart from others, see `Figures.differing`."""
    names = {"model": model, "environment": environment}
    return [names[name] or "?" for name in differing]


def _distinct(tasks: Iterable[TaskKey]) -> int:
    return len({(environment, split, index) for _, environment, split, index in tasks})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _local(moment: datetime | None) -> datetime | None:
    """Return a time with a zone: a record of several writers may mix times with and without, which do not compare."""
    try:
        return None if moment is None else moment.astimezone()
    except (ValueError, OverflowError):  # the year 1 has no yesterday
        return None


def bins(rewards: Iterable[float], most: int) -> list[tuple[int, float | None, float]]:
    """Fold rewards in order into at most `most` bins: the number of episodes so far, mean reward, and coverage.

    The bins differ in size by one at most: a small last one would be the noisiest, where the eye looks first.
    """
    values = list(rewards)
    count = math.ceil(len(values) / math.ceil(len(values) / most)) if values else 0
    ends = [number * len(values) // count for number in range(count + 1)]
    folded: list[tuple[int, float | None, float]] = []
    for start, end in itertools.pairwise(ends):
        given = [reward for reward in values[start:end] if not math.isnan(reward)]
        mean = math.fsum(given) / len(given) if given else None
        folded.append((end, mean, len(given) / (end - start)))
    return folded
