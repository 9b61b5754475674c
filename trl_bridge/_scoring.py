"""What a rollout is worth: the rewards of its steps reduced to the one number that an optimiser sees, or to none.

Pure arithmetic over what happened; knows nothing of servers and trainers. Its one rule: what was not scored is `None`,
never a guessed zero, and neither is what the infrastructure broke, nor what a trainer can't hold in its float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Reduction = Literal["last", "sum", "mean", "max"]
OnFailure = Literal["unscored", "keep"] | float

_LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]  # of float32; beyond it a trainer's weights become NaN


def is_usable(reward: float) -> bool:
    """Tell whether a trainer can compute with a reward."""
    return abs(reward) <= _LARGEST  # false for NaN, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How the rewards of a rollout's steps become its reward.

    Args:
        reward: Which of the non-null step rewards count: the last, or the sum, mean or maximum of all.
        unscored: The reward of a rollout whose environment scored nothing; `None` leaves it out of the optimisation.
        on_failure: The reward of a rollout that the infrastructure broke: `"unscored"` leaves it out, `"keep"` scores
            what was seen before, a number stands for itself.
        clamp: The lowest and the highest reward; either may be `None`.
        unfinished_penalty: Subtracted, after the clamp, from the number of a rollout that was not finished and did not
            fail. A rollout without a number stays without one.
    """

    reward: Reduction = "last"
    unscored: float | None = None
    on_failure: OnFailure = "unscored"
    clamp: tuple[float | None, float | None] | None = None
    unfinished_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Reject what would score rollouts in a way that nobody meant."""
        if self.reward not in get_args(Reduction):
            raise ValueError(f"reward is one of {', '.join(map(repr, get_args(Reduction)))}, not {self.reward!r}.")
        if self.on_failure not in ("unscored", "keep") and not _is_number(self.on_failure):
            raise ValueError(f"on_failure is 'unscored', 'keep' or a number, not {self.on_failure!r}.")
        if self.unscored is not None and not _is_number(self.unscored):
            raise ValueError(f"unscored is a number or None, not {self.unscored!r}.")
        if not _is_number(self.unfinished_penalty) or self.unfinished_penalty < 0:
            raise ValueError(f"unfinished_penalty is a number from zero up, not {self.unfinished_penalty!r}.")
        if self.clamp is not None:
            low, high = _bounds(self.clamp)
            if not low <= high:
                raise ValueError(f"clamp is a pair (lowest, highest), not {self.clamp!r}.")

    def score(self, rewards: Sequence[float | None], *, failed: bool, finished: bool) -> float | None:
        """Return the reward of a rollout, or `None` where nothing was scored.

        Args:
            rewards: Those of its steps, in order.
            failed: Whether the infrastructure broke it.
            finished: Whether the environment ended it.
        """
        if failed and self.on_failure == "unscored":
            return None
        if failed and not isinstance(self.on_failure, str):
            return float(self.on_failure)
        seen = [reward for reward in rewards if reward is not None and is_usable(reward)]
        value = self._reduce(seen) if seen else self.unscored
        if value is None:
            return None
        if self.clamp is not None:
            low, high = _bounds(self.clamp)
            value = min(max(value, low), high)
        value = value if finished or failed else value - self.unfinished_penalty
        return value if is_usable(value) else None

    def _reduce(self, seen: list[float]) -> float:
        match self.reward:
            case "last":
                return seen[-1]
            case "sum":
                return math.fsum(seen)
            case "mean":
                return math.fsum(seen) / len(seen)
            case "max":
                return max(seen)


def _bounds(clamp: tuple[float | None, float | None]) -> tuple[float, float]:
    low, high = clamp
    return -math.inf if low is None else low, math.inf if high is None else high


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_usable(value)
