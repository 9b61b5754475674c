"""Which tasks of an environment are played: a part of a split, or those that a file names, in order or shuffled.

And which of several machines' parts it is that is played here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from ors_client import AsyncEnvironment, Limits, ORSError, Task, TaskRef
from ors_client._shared.task_file import TaskFile, read_task_file
from ors_client._types import JSONObject
from ors_client.evaluation._shard import Shard

from .options import Misuse

_DESCRIBED = 1000  # tasks that are asked for their specifications: some servers are asked for one by one
_AT_A_TIME = 8
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_ARRAY = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT"))


@dataclass(frozen=True, kw_only=True)
class TaskSelection:
    """What options say of the tasks.

    Args:
        split: Its name; left out, that of the file, or the environment's first.
        start: The index of the first task.
        num_tasks: How many; `None` for all.
        file: The tasks by their indices.
        shuffle: The seed of the order; `None` leaves the tasks in the split's or the file's order.
    """

    split: str | None
    start: int
    num_tasks: int | None
    file: TaskFile | None
    shuffle: int | None

    @classmethod
    def of(
        cls, *, split: str | None, start: int, num_tasks: int | None, path: Path | None, shuffle: int | None
    ) -> TaskSelection:
        """Read what options say.

        Raises:
            Misuse: The file names no tasks, or others of another split, or options contradict each other.
        """
        if path is None:
            return cls(split=split, start=start, num_tasks=num_tasks, file=None, shuffle=shuffle)
        if start or num_tasks is not None:
            raise Misuse("--tasks names the tasks; --start and --num-tasks have no place beside it.")
        try:
            file = read_task_file(path)
            file.require(split=split)
        except OSError as error:
            raise Misuse(f"The file {str(path)!r} can't be read: {error.strerror or error}.") from None
        except ValueError as error:
            raise Misuse(str(error)) from None
        return cls(split=split or file.split, start=0, num_tasks=None, file=file, shuffle=shuffle)

    async def tasks(self, environment: AsyncEnvironment, name: str) -> tuple[list[TaskRef], list[str]]:
        """Return the tasks in the order in which they are played, and what should be known of them.

        Args:
            environment: Where they are.
            name: The environment's own name.

        Raises:
            Misuse: There are no such tasks.
        """
        if self.file is not None:
            try:
                self.file.require(environment=name)
            except ValueError as error:
                raise Misuse(str(error)) from None
        split = self.split or next((one.name for one in await environment.list_splits()), None)
        if split is None:
            raise Misuse("The environment lists no splits; name one with --split.")
        there = await environment.num_tasks(split)
        indices, notes = self._indices(split, there)
        return [TaskRef(split, index) for index in indices], notes

    def _indices(self, split: str, there: int) -> tuple[list[int], list[str]]:
        notes: list[str] = []
        if self.file is not None:
            indices = list(self.file.indices)
            if (highest := max(indices)) >= there:
                raise Misuse(f"Split {split!r} has {there} tasks; {self.file.path!r} names {highest}.")
        else:
            rest = range(there)[self.start :]
            if not rest:
                raise Misuse(f"Split {split!r} has {there} tasks, and none from {self.start} on.")
            if self.num_tasks is not None and self.num_tasks > len(rest):
                more = f" from {self.start} on" if self.start else ""
                notes.append(
                    f"split {split!r} has {len(rest)} tasks{more}, not {self.num_tasks}; all of them are played"
                )
            taken = rest if self.shuffle is not None else rest[: self.num_tasks]
            if len(taken) > Limits().tasks:  # a server may claim any number
                how = "it can't be shuffled" if self.shuffle is not None else "say with --num-tasks how many to play"
                raise Misuse(f"Split {split!r} is said to have {there} tasks; {how}.")
            indices = list(taken)
        if self.shuffle is not None:
            random.Random(self.shuffle).shuffle(indices)  # noqa: S311 - an order, not a secret
        return indices[: self.num_tasks], notes


async def specifications(environment: AsyncEnvironment, tasks: list[TaskRef]) -> dict[TaskRef, JSONObject]:
    """Return what the tasks of a split are, for the record; of none where that would take long."""
    if not tasks or len(tasks) > _DESCRIBED:
        return {}
    first, last = (end(task.index for task in tasks) for end in (min, max))
    found: dict[int, Task] = {}
    try:
        if last - first < max(_DESCRIBED, len(tasks)):
            listed = await environment.list_tasks(tasks[0].split, first, last + 1)
            if len(listed) == last - first + 1:
                found = dict(zip(range(first, last + 1), listed, strict=True))
        else:
            limiter = anyio.Semaphore(_AT_A_TIME)

            async def fetch(task: TaskRef) -> None:
                async with limiter:
                    found[task.index] = await environment.get_task(task.split, task.index)

            async with anyio.create_task_group() as group:
                for task in tasks:
                    group.start_soon(fetch, task)
    except* ORSError:
        pass  # it does not keep them from being played
    return {task: found[task.index].spec for task in tasks if task.index in found}


def read_shard(text: str, variables: Mapping[str, str]) -> Shard:
    """Return which part is played here, of how many.

    Args:
        text: As the option has it: `2/8`, or `slurm`.
        variables: The environment's.

    Raises:
        Misuse: There is no such part, or no job array with consecutive numbers.
    """
    if text == "slurm":
        return _shard_of_array(variables)
    found = _SHARD.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise Misuse(f"A shard is written 2/8, the second of eight parts, or slurm: not {text!r}.")
    return int(found[1]), int(found[2])


def _shard_of_array(variables: Mapping[str, str]) -> Shard:
    missing = [name for name in _ARRAY if not variables.get(name, "").isdecimal()]
    if missing:
        raise Misuse(
            f"--shard slurm reads the variables of a job array, and has no number in {', '.join(missing)}. Start it by "
            "`sbatch --array=1-8`, or write the part, as --shard 2/8."
        )
    number, first, last, count = (int(variables[name]) for name in _ARRAY)
    if last - first + 1 != count or not first <= number <= last:
        # Of ids with gaps, some would be beyond the count, and their parts nobody's.
        raise Misuse(
            f"--shard slurm needs a job array without gaps; this one has {count} tasks from {first} to {last}, and "
            f"this is {number}. Start it by `sbatch --array=1-{count}`, or write the part, as --shard 2/{count}."
        )
    return number - first + 1, count
