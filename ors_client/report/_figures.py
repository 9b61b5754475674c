"""Figures over many episodes, counted one episode at a time.

Keeps numbers, never episodes, so that a record of any length fits into memory. Knows nothing of files and pages.

An episode that the infrastructure broke (`failed`) is no attempt: it is counted, and is in no mean and in no pass rate.
Any other attempt without a score, unscored or cut, did not pass, and counts in means as `Figures.unscored` says.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ors_client._arguments import checked
from ors_client.record import EpisodeRecord

from ._advice import advice
from ._intervals import Estimate, estimate, mean
from ._symptoms import Symptom, symptom

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
        symptom: What was wrong with the model's calls, where that is known.
        episodes: How many there are.
        message: That of the first.
        advice: What to try.
    """

    kind: str
    symptom: Symptom | None
    episodes: int
    message: str | None
    advice: str | None

    @property
    def title(self) -> str:
        """The status, and what is known of it."""
        facts = [self.symptom.words] if self.symptom is not None else []
        if self.kind == "unscored":
            facts.insert(0, "the environment gave no reward")
        return f"{self.kind}: {'; '.join(facts)}" if facts else self.kind


@dataclass(slots=True)
class TaskFigures:
    """The attempts at one task that were not broken by the infrastructure, and what was scored."""

    tried: int = 0
    passed: int = 0
    rewards: list[float] = field(default_factory=list[float])

    @property
    def rate(self) -> float:
        """The share of the attempts that passed."""
        return self.passed / self.tried

    def values(self, unscored: float | None) -> list[float]:
        """Return what the attempts count for in a mean.

        Args:
            unscored: Of those without a score; `None` leaves them out.
        """
        return self.rewards + ([] if unscored is None else [unscored] * (self.tried - len(self.rewards)))


@dataclass(slots=True)
class EnvironmentFigures:
    """The episodes of one model in one environment.

    Args:
        episodes: How many there are.
        scored: How many of them have a reward.
        finish_reasons: The model's replies by why they ended, as its endpoint says it.
    """

    episodes: int = 0
    scored: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter[str])

    @property
    def finish_shares(self) -> dict[str, float]:
        """The shares of the model's replies by why they ended, the most frequent first."""
        whole = self.finish_reasons.total()
        return {reason: count / whole for reason, count in self.finish_reasons.most_common()}


@checked
class Figures:
    """The figures of the episodes that were added.

    Args:
        passing: The reward from which an episode counts as passed.
        unscored: What an attempt without a score counts for in means; `None` leaves it out.
    """

    def __init__(self, *, passing: float = 1.0, unscored: float | None = 0.0) -> None:
        self.passing = passing
        self.unscored = unscored
        self.episodes = 0
        """How many were added."""
        self.calls = 0
        """How many calls they made."""
        self.rewards = array("d")
        """Of each episode in order; NaN where nothing was scored."""
        self.values = array("d")
        """What each episode counts for in means, in order; NaN where it is in none."""
        self.seconds = array("d")
        """Of each episode that tells its length, in order."""
        self.statuses: Counter[str] = Counter()
        """Episodes by status."""
        self._ends: Counter[tuple[str, Symptom | None]] = Counter()
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
        broken = episode.status.startswith("failed")
        reward = None if broken else _finite(episode.reward)
        value = reward if reward is not None or broken else self.unscored
        self.rewards.append(math.nan if reward is None else reward)
        self.values.append(math.nan if value is None else value)
        self.statuses[episode.status] += 1
        entry = self.entries[episode.model, episode.environment]
        entry.episodes += 1
        entry.scored += reward is not None
        entry.finish_reasons.update(reason or "unknown" for reason in episode.finish_reasons or ())
        if (episode.status, found := symptom(episode)) != ("scored", None):
            self._ends[episode.status, found] += 1
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
        if not broken:
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
        """By model and environment; where only one environment has a name, the others are taken to be it."""
        compared: dict[EnvironmentKey, EnvironmentFigures] = {}
        only = self._only_environment
        for (model, environment), entry in self.entries.items():
            whole = compared.setdefault((model, environment or only), EnvironmentFigures())
            whole.episodes += entry.episodes
            whole.scored += entry.scored
            whole.finish_reasons.update(entry.finish_reasons)
        return compared

    @property
    def _only_environment(self) -> str | None:
        """The environment, where only one has a name.

        An episode that failed before there was a session may not know the name.
        """
        known = {environment for _, environment in self.entries if environment is not None}
        return next(iter(known)) if len(known) == 1 else None

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
    def without_score(self) -> int:
        """How many attempts have no score though nothing broke them: the environment gave none, or they were cut."""
        return self.episodes - self.broken - self.scored

    @property
    def mean_reward(self) -> float | None:
        """Over the attempts; see `unscored` for those without a score."""
        return mean([value for value in self.values if not math.isnan(value)])

    def reward(self, *, entry: EnvironmentKey | None = None) -> Estimate | None:
        """Return the mean reward of the attempts, with its interval; `None` where there are none.

        Args:
            entry: Of this model in this environment only.
        """
        return self._estimate((key, task.values(self.unscored)) for key, task in self._tasks_of(entry))

    @property
    def failures(self) -> Counter[str]:
        """The episodes that were broken by the infrastructure or cut by a budget, by kind."""
        kinds = {kind: count for kind, count in self.statuses.items() if kind not in {"scored", "unscored"}}
        return Counter(kinds)

    @property
    def failure_rows(self) -> list[FailureFigures]:
        """The failures and the unscored episodes by kind and symptom, the most frequent first."""
        return [
            FailureFigures(kind, found, count, self.messages.get(kind), found.cure if found else advice(kind))
            for (kind, found), count in self._ends.most_common()
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
        found = self.pass_rate(k, entry=entry)
        return None if found is None else (found.mean, found.tasks)

    def pass_rate(self, k: int, *, entry: EnvironmentKey | None = None, every: bool = False) -> Estimate | None:
        """Return pass@k with its interval, over the tasks with at least `k` attempts of a model that were not broken.

        Args:
            k: Attempts.
            entry: Of this model in this environment only.
            every: Return pass^k instead: all `k` attempts pass.
        """
        chance = pass_hat if every else pass_at
        return self._estimate(
            (key, [chance(k, tried=task.tried, passed=task.passed)])
            for key, task in self._tasks_of(entry)
            if task.tried >= k
        )

    def _tasks_of(self, entry: EnvironmentKey | None) -> list[tuple[TaskKey, TaskFigures]]:
        only = self._only_environment
        return [(key, task) for key, task in self.tasks.items() if entry is None or entry == (key[0], key[1] or only)]

    def _estimate(self, values: Iterable[tuple[TaskKey, list[float]]]) -> Estimate | None:
        """Return the mean over all; a task is one cluster, whoever played it."""
        clusters: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        for (_, environment, split, index), of_task in values:
            clusters[environment, split, index] += of_task
        return estimate(clusters.values())

    @property
    def hardest_tasks(self) -> list[tuple[TaskKey, TaskFigures]]:
        """The tasks, those first that were solved least; of those solved alike, the lowest mean and the most tries."""

        def order(item: tuple[TaskKey, TaskFigures]) -> tuple[float, float, int]:
            task = item[1]
            return task.rate, mean(task.values(self.unscored)) or 0.0, -task.tried

        return sorted(self.tasks.items(), key=order)

    @property
    def pass_curve(self) -> dict[int, tuple[float, int]]:
        """Pass@k for 1, 2, 4, ... up to the most attempts that a task has, where half of the tasks have that many."""
        most = max((task.tried for task in self.tasks.values()), default=0)
        powers = [1 << power for power in range(most.bit_length())]
        ks = sorted({*powers, most} - {0})
        curve = {k: found for k in ks if (found := self.pass_at(k)) is not None}
        return {k: (share, tasks) for k, (share, tasks) in curve.items() if 2 * tasks >= self.num_tasks}


@checked
def pass_at(k: int, *, tried: int, passed: int) -> float:
    """Return the chance that at least one of `k` attempts passes, estimated without bias from `tried` attempts.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1.
    """
    if not 0 < k <= tried or not 0 <= passed <= tried:
        raise ValueError(f"pass@{k} needs at least {k} attempts, and {passed} of {tried} passed.")
    return 1.0 - math.comb(tried - passed, k) / math.comb(tried, k)


@checked
def pass_hat(k: int, *, tried: int, passed: int) -> float:
    """Return the chance that all of `k` attempts pass, estimated without bias from `tried` attempts.

    Source: Yao et al., "tau-bench", 2024, section 3 (pass^k).
    """
    if not 0 < k <= tried or not 0 <= passed <= tried:
        raise ValueError(f"pass^{k} needs at least {k} attempts, and {passed} of {tried} passed.")
    return math.comb(passed, k) / math.comb(tried, k)


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
