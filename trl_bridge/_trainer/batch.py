"""Whether a trainer can train on a dataset of ours: fills a batch, keeps its columns, and shows its model images."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any


def check_trainer(trainer: Any, *, images: bool) -> None:
    """Raise unless a trainer can train on its dataset, as far as it can be told.

    Args:
        trainer: Any trainer.
        images: Whether its model is to be shown images.
    """
    rows, args = getattr(trainer, "train_dataset", None), getattr(trainer, "args", None)
    if args is not None:
        check_columns(args)
    if isinstance(rows, Sized):
        check_batch(len(rows), args)
    processor = getattr(trainer, "processing_class", None)
    if images and processor is not None and not hasattr(processor, "image_processor"):
        raise ValueError(
            f"images=True, but the trainer's model takes none: its processing_class is a {type(processor).__name__}, "
            "which has no image_processor. Leave images out, or train a vision model with its processor."
        )


def check_columns(args: Any) -> None:
    """Raise where a trainer with the configuration `args` strips the columns by which a row names its task."""
    if getattr(args, "remove_unused_columns", False):
        raise ValueError(
            "remove_unused_columns=True strips task_index from the dataset's rows, so that no reset would know its "
            "task; pass remove_unused_columns=False, which is GRPOConfig's default."
        )


def check_configuration(args: Any) -> None:
    """Raise `TypeError` unless `args` tells a trainer's batches."""
    if not hasattr(args, "generation_batch_size") or not hasattr(args, "num_generations"):
        raise TypeError(f"check takes the trainer's configuration, a GRPOConfig, not {args!r}.")


def check_batch(tasks: int, args: Any) -> None:
    """Raise unless `tasks` fill at least one batch of a trainer with the configuration `args`."""
    prompts = args.generation_batch_size // args.num_generations
    if tasks < prompts:
        raise ValueError(
            f"The dataset has {tasks} tasks, but a batch has {prompts} prompts (generation_batch_size="
            f"{args.generation_batch_size} / num_generations={args.num_generations}), and the trainer drops batches "
            "that are not full. Make the batch smaller, or name tasks more than once with indices=[...]."
        )
