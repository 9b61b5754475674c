"""The attempts of an evaluation, and the part of them that one of several machines plays."""

from __future__ import annotations

from collections.abc import Iterable

from ors_client._types import TaskRef

Attempt = tuple[TaskRef, int]
Shard = tuple[int, int]


def attempts_of(tasks: Iterable[TaskRef], attempts: int, shard: Shard | None = None) -> list[Attempt]:
    """Return the attempts that are asked for, in the order in which they are played.

    Args:
        tasks: In their order; one that is named twice counts once.
        attempts: For each task.
        shard: The number of a part, from 1, and how many parts there are. The parts of the same tasks are disjoint,
            whatever their order, make up all, and differ in size by one at most; more attempts leave those that there
            were in their parts.

    Raises:
        ValueError: There is no such part, or there are no attempts.
    """
    if attempts < 1:
        raise ValueError(f"Each task has one attempt at least, not {attempts!r}.")
    tasks = list(dict.fromkeys(tasks))
    # Every task once before any task twice: what an interrupted run holds then says something of all tasks.
    asked = [(task, attempt) for attempt in range(attempts) for task in tasks]
    match shard:
        case None:
            return asked
        case (int(number), int(count)) if 1 <= number <= count:
            ranks = {task: rank for rank, task in enumerate(sorted(tasks, key=lambda task: (task.split, task.index)))}
            return [pair for pair in asked if (pair[1] * len(tasks) + ranks[pair[0]]) % count == number - 1]
        case _:
            raise ValueError(f"A shard is its number, from 1, and how many there are, as (2, 8): not {shard!r}.")
