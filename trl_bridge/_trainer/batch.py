"""Whether a dataset fills a trainer's batch: a trainer drops one that is not full."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any


def check_trainer(trainer: Any) -> None:
    """Raise unless a trainer's own dataset fills at least one of its batches, where it can be counted."""
    rows = getattr(trainer, "train_dataset", None)
    if isinstance(rows, Sized):
        check_batch(len(rows), trainer.args)


def check_batch(tasks: int, args: Any) -> None:
    """Raise unless `tasks` fill at least one batch of a trainer with the configuration `args`."""
    prompts = args.generation_batch_size // args.num_generations
    if tasks < prompts:
        raise ValueError(
            f"The dataset has {tasks} tasks, but a batch has {prompts} prompts (generation_batch_size="
            f"{args.generation_batch_size} / num_generations={args.num_generations}), and the trainer drops batches "
            "that are not full. Make the batch smaller, or name tasks more than once with indices=[...]."
        )
