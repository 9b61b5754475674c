"""Whether one set of episodes is better than another, paired by task.

A task that both have played gives one difference, of the means of its attempts; the differences are then what Student's
t test is about. Some tasks are harder than others for everybody, which cancels out in pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from ors_client._arguments import checked

from ._figures import Figures, TaskFigures
from ._intervals import CONFIDENCE, Estimate, estimate, mean

Task = tuple[str | None, str | None, int]
"""A task as both sides know it: environment, split and index."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What both sides made of the same tasks.

    Args:
        first: The mean of the first side.
        second: The mean of the second side.
        difference: Of the second side to the first.
    """

    first: float
    second: float
    difference: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of episodes, the second measured by the first.

    Args:
        reward: The rewards; `None` where nothing pairs.
        passed: The pass rates, likewise.
        gained: The tasks that only the second side solved: half of its attempts or more passed.
        lost: Those that only the first side solved.
        only_first: The tasks without an attempt that counts on the second side.
        only_second: The other way round.
    """

    reward: Pair | None
    passed: Pair | None
    gained: list[Task]
    lost: list[Task]
    only_first: list[Task]
    only_second: list[Task]

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference`: what the second side is at a level of 5 %, by its rewards."""
        if self.reward is None or (p := self.reward.difference.p) is None or p >= 1 - CONFIDENCE:
            return "no difference"
        return "better" if self.reward.difference.mean > 0 else "worse"


@checked
def compare(first: Figures, second: Figures) -> Comparison:
    """Return how the second figures differ from the first.

    Args:
        first: Of the model or the settings to be measured by, see `summarise`.
        second: Of what is measured; attempts without a score count for it as for the first: as its own `unscored` says.
    """
    here, there = _by_task(first), _by_task(second)
    both = [task for task in here if task in there]

    def flipped(before: dict[Task, TaskFigures], after: dict[Task, TaskFigures]) -> list[Task]:
        return sorted((task for task in both if before[task].rate < 0.5 <= after[task].rate), key=_order)

    def rewards(task: TaskFigures, figures: Figures) -> float | None:
        return mean(task.values(figures.unscored))

    def paired(value: Callable[[TaskFigures, Figures], float | None]) -> Pair | None:
        pairs = [(value(here[task], first), value(there[task], second)) for task in both]
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        difference = estimate([[_difference(one, other)] for one, other in known])
        befores, afters = mean([one for one, _ in known]), mean([other for _, other in known])
        return None if difference is None or befores is None or afters is None else Pair(befores, afters, difference)

    return Comparison(
        reward=paired(rewards),
        passed=paired(lambda task, _: task.rate),
        gained=flipped(here, there),
        lost=flipped(there, here),
        only_first=sorted(here.keys() - there.keys(), key=_order),
        only_second=sorted(there.keys() - here.keys(), key=_order),
    )


def _difference(one: float, other: float) -> float:
    """Return what `other` is more than `one`, as a finite number for rewards of 1e308 too."""
    return max(-sys.float_info.max, min(other - one, sys.float_info.max))


def _by_task(figures: Figures) -> dict[Task, TaskFigures]:
    """Return the tasks, whoever played them; one without an index can't be known again, and is left out."""
    tasks: dict[Task, TaskFigures] = {}
    for (_, environment, split, index), task in figures.tasks.items():
        if index is None:
            continue
        whole = tasks.setdefault((environment, split, index), TaskFigures())
        whole.tried += task.tried
        whole.passed += task.passed
        whole.rewards.extend(task.rewards)
    return tasks


def _order(task: Task) -> tuple[str, str, int]:
    environment, split, index = task
    return environment or "", split or "", index
