"""Specifications of tasks, as a record names them.

A process that lists its tasks has them; one that was only handed a factory asks for each of those it plays, once. It
asks beside the opening of an episode, which waits for the answer: the record then waits for no server. What can't be
had by then leaves the record without it, and keeps no episode from being played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ors_client import AsyncEnvironment, JSONObject, ORSError, Task, TaskRef
from ors_client._shared import get_logger

from .servers import Servers

logger = get_logger(__name__)

_TIMEOUT = 5.0  # seconds that a question may take, and with it openings; it takes milliseconds


class TaskSpecCache:
    """What is known of tasks in this process. Belongs to one loop."""

    def __init__(self) -> None:
        self._known: dict[TaskRef, JSONObject] = {}
        self._asked: dict[TaskRef, asyncio.Task[None]] = {}

    def add(self, tasks: Iterable[Task]) -> None:
        """Take the specifications of a list of tasks."""
        for task in tasks:
            if task.split is not None and task.index is not None:
                self._known[TaskRef(task.split, task.index)] = task.spec

    def get(self, task: TaskRef) -> JSONObject | None:
        """Return a task's specification, where it is known."""
        return self._known.get(task)

    def ask(self, task: TaskRef, servers: Servers) -> None:
        """Begin to ask for a specification, unless that was done before."""
        if task not in self._known and task not in self._asked:
            self._asked[task] = asyncio.get_running_loop().create_task(self._ask(task, servers))

    async def wait(self, task: TaskRef, *, within: float | None = None) -> None:
        """Wait until what was asked of a task is answered or given up, for `within` seconds at most."""
        asked = self._asked.get(task)
        if asked is not None and not asked.done():
            await asyncio.wait([asked], timeout=within)

    async def close(self) -> None:
        """Ask no more."""
        asked = [task for task in self._asked.values() if not task.done()]
        for task in asked:
            task.cancel()
        if asked:
            await asyncio.wait(asked)

    async def _ask(self, task: TaskRef, servers: Servers) -> None:
        async def question(environment: AsyncEnvironment) -> Task:
            return await environment.get_task(task.split, task.index)

        try:
            async with asyncio.timeout(_TIMEOUT):
                self._known[task] = (await servers.ask(question)).spec
        except ORSError as error:
            _log(task, str(error))
        except TimeoutError:
            _log(task, f"it was not told within {_TIMEOUT:g} s")
        except Exception as error:  # noqa: BLE001 - the top of a task that nobody awaits for its result
            _log(task, type(error).__name__)


def _log(task: TaskRef, why: str) -> None:
    logger.info("The record will not tell the specification of task %d in %r: %s", task.index, task.split, why)
