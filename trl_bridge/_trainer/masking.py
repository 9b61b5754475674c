"""Takes failed rollouts out of all advantages.

A rollout that the infrastructure broke must teach nothing, whichever reward functions gave it a value, and TRL leaves a
rollout out only if its whole row is NaN. So the row is made NaN where TRL has the rewards of all ranks together.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from . import ranks


def unknown(trainer: Any) -> str:
    """Name what this module relies on and a trainer does not have; empty if it has everything."""
    method = getattr(trainer, "_calculate_rewards", None)
    if not callable(method) or "inputs" not in inspect.signature(method).parameters:
        return "_calculate_rewards(inputs)"
    return ranks.unknown(trainer)


def with_failures_unscored(trainer: Any) -> Callable[..., Any]:
    """Wrap the method that returns the rewards of all ranks, a row for each rollout and a column for each function."""
    calculate = trainer._calculate_rewards
    signature = inspect.signature(calculate)

    @functools.wraps(calculate)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        rewards = calculate(*args, **kwargs)
        environments: Any = trainer.environments
        if not isinstance(environments, list):
            return rewards
        rows: Sequence[Mapping[str, Any]] = signature.bind(*args, **kwargs).arguments["inputs"]
        failed = ranks.agree(trainer, cast("list[Any]", environments), [row.get("environment") for row in rows])
        if any(failed):
            rewards = rewards.clone()
            rewards[[position for position, lost in enumerate(failed) if lost]] = float("nan")
        return rewards

    return wrapped
