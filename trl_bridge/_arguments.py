"""What a spec may be asked for: servers that a target stands for, a choice of tasks, and whether these fill a batch.

A mistake is told where it is made, with the value and the way out; nothing is contacted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any

from ors_client import Layout

_CATALOGUE_NAME = re.compile(r"[^\s/:]+/[^\s/:]+")


def parse_target(
    target: str | Layout | Sequence[str | Layout], env_name: str | None
) -> tuple[tuple[str | Layout | None, ...], str | None]:
    """Return the servers that a target stands for, and the environment's name there."""
    if isinstance(target, Layout):
        return (target,), env_name
    if not isinstance(target, str):
        several = tuple(target)
        if not several:
            raise ValueError("target is an empty list; name at least one server.")
        for place in several:
            if isinstance(place, str) and "://" not in place:
                raise ValueError(f"Each of several targets is a URL, unlike {_shown(place)!r}.")
            _checked_url(place)
        return several, env_name
    if "://" in target:
        _checked_url(target)
        return (target,), env_name
    if not _CATALOGUE_NAME.fullmatch(target):
        raise ValueError(
            f"{_shown(target)!r} is neither a catalogue name such as 'owner/name' nor a URL such as 'http://localhost:8000'."
        )
    return (None,), target


def _shown(target: str) -> str:
    return re.sub(r"(?s).*@", "***@", target)  # what stands before it may be a password


def _checked_url(place: str | Layout) -> None:
    if isinstance(place, str):
        Layout.single(place)  # raises where a client would, but when the mistake is made


def check_choice(num_tasks: int | None, indices: Sequence[int] | None) -> None:
    """Raise where both ways to choose tasks are taken."""
    if num_tasks is not None and indices is not None:
        raise ValueError(f"num_tasks={num_tasks!r} and indices={indices!r} both choose tasks; pass one of them.")


def checked_count(num_tasks: int | None) -> int | None:
    """Return the number of tasks; raise unless it is one."""
    if num_tasks is not None and (not isinstance(num_tasks, int) or isinstance(num_tasks, bool) or num_tasks < 1):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise ValueError(f"num_tasks is a positive integer, or None for all tasks, not {num_tasks!r}.")
    return num_tasks


def checked_indices(indices: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the indices of tasks as they were given; raise unless each can be one."""
    if indices is None:
        return None
    chosen = tuple(indices)
    if not chosen:
        raise ValueError("indices is empty; name at least one task, or leave it out for all tasks.")
    for index in chosen:
        if not isinstance(index, int) or isinstance(index, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise TypeError(f"indices holds integers, not {index!r}.")
    return chosen


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
