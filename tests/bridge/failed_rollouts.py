"""Batches in which some rollouts fail, and what TRL is to make of the others, computed by hand."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bridge.training import END, call, from_trl, make_trainer

from fixtures.proxy import ResetAfterForward, Rule

if TYPE_CHECKING:
    from trl import GRPOTrainer

REWARDS = (0.5, 0.875, 0.0, 0.25, 1.0, 0.125, 0.625, 0.75)
"""What the environment gives the rollouts of a batch, in two groups."""
LOST = (1, 6)
"""Whose call never comes back."""
STYLE = (1.0, 3.0, 0.5, 0.25, 0.0, 0.75, -2.0, 1.0)
"""What another reward function gives them, the lost ones too."""
ROWS = [{"prompt": [{"role": "user", "content": ""}], "task_index": 0, "split": "train"}] * 2


def lose(*rewards: float) -> Rule:
    """Break the connection of each call that asks for one of these rewards."""
    asked = tuple(f'{{"reward": {reward}}}'.replace(" ", "").encode() for reward in rewards)
    return Rule(
        "POST",
        "/call",
        ResetAfterForward(),
        times=None,
        when=lambda request: any(part in request.body.replace(b" ", b"") for part in asked),
    )


def style(completions: Sequence[Any], **_: Any) -> list[float]:
    """A reward function that knows nothing of failures."""
    assert len(completions) == len(STYLE)
    return list(STYLE)


def step_policy(rewards: Sequence[float] = REWARDS) -> Callable[[str], str]:
    """Have each rollout of a batch ask for its reward, and then stop."""
    turn = itertools.cycle(rewards)
    return lambda text: ("Done." if "<tool_response>" in text else call("step", reward=next(turn))) + END


def recording_trainer() -> type[GRPOTrainer]:
    """Make a class of trainers that keep what each batch's rows were worth."""

    class Recording(from_trl("GRPOTrainer")):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.scored: list[dict[str, Any]] = []

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
            self.scored.append(super()._generate_and_score_completions(inputs))
            return self.scored[-1]

    return Recording


def make_recording(folder: Any, spec: Any, *, policy: Any = None, reward_funcs: Any, **arguments: Any) -> Any:
    """Make a trainer of batches of eight rollouts in two groups."""
    from datasets import Dataset

    return make_trainer(
        folder,
        policy=policy or step_policy(),
        trainer=recording_trainer(),
        rollouts=arguments.pop("per_device_train_batch_size", 8),
        generations=arguments.pop("num_generations", 4),
        arguments={"max_steps": 1, **arguments},
        train_dataset=Dataset.from_list(ROWS),
        environment_factory=spec.environment_factory,
        reward_funcs=reward_funcs,
    )


def by_hand(
    columns: Sequence[Sequence[float]],
    lost: Sequence[int],
    *,
    weights: Sequence[float] | None = None,
    scale: str = "group",
    aggregation: str = "sum_then_normalize",
    generations: int = 4,
) -> list[float]:
    """Return the advantages of a batch, those of the rows that were not lost from these rows alone."""
    count, weights = len(columns[0]), weights or [1.0] * len(columns)
    alive = [row for row in range(count) if row not in lost]
    groups = [[row for row in alive if row // generations == group] for group in range(count // generations)]

    def normal(values: dict[int, float], rows: Sequence[int], deviation: float | None = None) -> dict[int, float]:
        seen = [values[row] for row in rows]
        spread = statistics.stdev(seen) if deviation is None else deviation
        return {row: (values[row] - statistics.mean(seen)) / (spread + 1e-4) for row in rows}

    if aggregation == "normalize_then_sum":
        total = dict.fromkeys(alive, 0.0)
        for weight, column in zip(weights, columns, strict=True):
            for rows in groups:
                for row, value in normal(dict(enumerate(column)), rows).items():
                    total[row] += weight * value
        advantages = normal(total, alive)
    else:
        total = {row: math.fsum(w * c[row] for w, c in zip(weights, columns, strict=True)) for row in alive}
        shared = {"group": None, "batch": statistics.stdev(total.values()), "none": 1 - 1e-4}[scale]
        advantages = {row: value for rows in groups for row, value in normal(total, rows, shared).items()}
    return [advantages.get(row, 0.0) for row in range(count)]
