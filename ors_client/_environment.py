"""One environment of a server: its splits, tasks and tools, and the sessions opened on it.

It knows which request answers a question at the least cost, and what to ask instead where a server lacks it. It holds
no connection and no episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import anyio

from ._arguments import checked
from ._brief import brief
from ._errors import LimitExceeded, ORSError, StatusError, one_line
from ._http.credentials import Secrets, secret_values
from ._lifecycle.creation import TaskSource
from ._lifecycle.server import EnvironmentKey, Server
from ._misuse import Unlike
from ._protocol.json import encode
from ._protocol.operations import (
    Address,
    Operation,
    num_tasks,
    required_secrets,
    splits,
    task,
    task_difficulty,
    task_range,
    tasks,
    tools,
)
from ._protocol.retry import is_missing_route
from ._session import AsyncSession
from ._types import JSONValue, Split, Task, TaskDifficulty, TaskRef, ToolList, ToolSpec

T = TypeVar("T")

# Tasks asked for one by one, where a server has no other way, are asked for together; this many keep a laptop's server
# busy without drowning it.
_TOGETHER = 16


_LISTING = 500  # characters of the names of splits in a message

# What servers answer where there is no such split or task; 500 is what openreward 0.1.50 makes of an `IndexError`.
_MISSING = frozenset({400, 404, 422, 500})


class TaskMissing(StatusError):
    """Raised where there is no such split or task; the message names what there is.

    Args:
        problem: Says so.
        status: What the server answered; 404 where its whole list was searched.
        detail: What the server said.
    """

    def __init__(
        self,
        problem: str,
        *,
        status: int = 404,
        detail: str | None = None,
        url: str | None = None,
        session_id: str | None = None,
    ) -> None:
        self.status = status
        self.detail = problem if detail is None else detail
        answer = "" if detail is None else f" The server answered HTTP {status}: {one_line(detail).rstrip('.')}."
        ORSError.__init__(self, problem + answer, url=url, session_id=session_id)


@checked
class AsyncEnvironment(Unlike):
    """An environment of a server. Made by `AsyncClient.environment`; nothing is asked until a method is called.

    Every method that asks raises `EnvironmentNotFound` where the server has no such environment, and the other errors
    of `AsyncClient`. What they ask is safe to repeat, and repeated as `RetryPolicy` says.
    """

    def __init__(self, server: Server, name: str | None = None, *, variant: str | None = None) -> None:
        self._server = server
        self._key = EnvironmentKey(name, variant)
        self._described: ToolList | None = None
        self._listing = anyio.Lock()  # guards that each whole list below is asked for once
        self._listed: dict[str, list[Task]] = {}  # by split; for servers that tell neither a count nor a single task

    def __repr__(self) -> str:
        name, variant = self._key
        shown = f"{type(self).__name__}({brief(name)}{'' if variant is None else f', variant={brief(variant)}'})"
        return self._server.transport.show(shown)  # a name may come from a server that echoes the key

    async def name(self) -> str:
        """Return the name that the server lists the environment by.

        Raises:
            EnvironmentNotFound: There are several, and none or another was named.
        """
        return (await self._address()).environment

    async def server_version(self) -> str | None:
        """Return the version of the environment's server, or `None` where it has no such route."""
        return await self._server.version((await self._address()).deployment)

    async def list_splits(self) -> list[Split]:
        """Return the splits, in the server's order."""
        address = await self._address()
        return await self._ask(lambda session_id: splits(address, session_id=session_id), address)

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split.

        Raises:
            StatusError: There is no such split.
        """
        address = await self._address()

        async def counted() -> int:
            return len(await self._whole(address, split))

        try:
            return await self._server.ask_optional(
                ("num_tasks", address.deployment),
                lambda: self._ask(lambda session_id: num_tasks(address, split, session_id=session_id), address),
                instead=counted,
            )
        except StatusError as error:
            raise await self._explained(error, split) from error.__cause__

    async def get_task(self, split: str, index: int) -> Task:
        """Return one task.

        Args:
            split: The split's name.
            index: From 0; a negative one counts from the end.

        Raises:
            StatusError: There is no such split or task.
        """
        reference = TaskRef(split, index)
        address = await self._address()

        async def picked() -> Task:
            everything = await self._whole(address, split)
            if not -len(everything) <= index < len(everything):
                problem = _no_such_task(split, index, len(everything))
                raise TaskMissing(problem, url=self._server.transport.target.layout.sessions)
            return everything[index]

        try:
            return await self._server.ask_optional(
                ("task", address.deployment),
                lambda: self._ask(
                    lambda session_id: task(address, reference.split, reference.index, session_id=session_id), address
                ),
                instead=picked,
            )
        except StatusError as error:
            raise await self._explained(error, split, index) from error.__cause__

    async def list_tasks(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        """Return the tasks of a split, or those of a range of it, resolved like a Python slice.

        Costs one request where the server has one for it; otherwise the range is cut from the whole list or, for an
        index-based environment, asked for task by task.

        Args:
            split: The split's name.
            start: The first index; `None` is the beginning, a negative one counts from the end.
            stop: The index after the last; likewise.

        Raises:
            StatusError: There is no such split.
            TypeError: A bound is no integer.
        """
        address = await self._address()

        async def listed() -> list[Task]:
            try:
                return (await self._ask_list(address, split))[start:stop]
            except StatusError as error:
                if not _has_no_list(error):
                    raise
            return await (one_by_one() if bounded else ranged(instead=one_by_one))

        async def ranged(*, instead: Callable[[], Awaitable[list[Task]]]) -> list[Task]:
            return await self._server.ask_optional(
                ("task_range", address.deployment),
                lambda: self._ask_range(address, split, start, stop),
                instead=instead,
            )

        async def one_by_one() -> list[Task]:
            first, last, _ = slice(start, stop).indices(await self.num_tasks(split))
            most = self._server.transport.limits.tasks
            if last - first > most:  # a server may claim any number
                raise LimitExceeded(
                    f"Split {split!r} is said to have {last - first} tasks to list",
                    limit="tasks",
                    maximum=most,
                    url=self._server.transport.target.layout.sessions,
                )
            return await self._one_by_one(split, range(first, last))

        bounded = start is not None or stop is not None
        try:
            return await (ranged(instead=listed) if bounded else listed())
        except StatusError as error:
            raise await self._explained(error, split, start, None if stop is None else stop - 1) from error.__cause__

    async def list_tools(self) -> list[ToolSpec]:
        """Return the tools that every task has; some tasks have more, see `AsyncSession.list_tools`."""
        return (await self.describe_tools()).tools

    async def describe_tools(self) -> ToolList:
        """Return the tools, the terminal tool, and whether groups are scored; asked once."""
        if self._described is None:
            address, limits = await self._address(), self._server.transport.limits
            self._described = await self._ask(
                lambda session_id: tools(address, limits=limits, session_id=session_id), address
            )
        return self._described

    def session(
        self,
        task: Task | TaskRef,
        *,
        secrets: Secrets | None = None,
        toolset: str | None = None,
        env_overrides: Mapping[str, JSONValue] | None = None,
    ) -> AsyncSession:
        """Return a session of a task, to be entered with `async with`.

        Args:
            task: One that this environment listed, or its split and index.
            secrets: By name: a value, or a `Secret` with the domains that the catalogue may send it to.
            toolset: A set of ready-made tools, where the server has them; older ones answer 422.
            env_overrides: Variables of the session's container, in the catalogue: names to strings. Who does not own
                the environment may set only the base URLs and keys of OpenAI and Anthropic, and gets a 400 for others.

        Raises:
            TypeError: The task is neither a `Task` nor a `TaskRef`, or a secret is not a text.
        """
        secret_values(secrets)  # which says what is wrong with them
        encode({} if env_overrides is None else env_overrides, "env_overrides")  # likewise
        source = None
        if isinstance(task, TaskRef):
            split, index = task.split, task.index

            def explain(error: StatusError) -> Awaitable[StatusError]:
                return self._explained(error, split, index)

            source = TaskSource(partial(self.get_task, split, index), explain)
        return AsyncSession(
            self._server,
            self._key,
            task,
            source=source,
            secrets=secrets,
            toolset=toolset,
            env_overrides=env_overrides,
        )

    async def required_secrets(self) -> list[str]:
        """Return the names of the secrets that a catalogue environment needs.

        Raises:
            ValueError: The environment was not named "owner/name".
        """
        return await self._server.transport.send(required_secrets(self._deployment("required_secrets")))

    async def task_difficulty(
        self,
        *,
        split: str | None = None,
        model_name: str | None = None,
        min_model_params: float | None = None,
        max_model_params: float | None = None,
        training_stage: str | None = None,
    ) -> list[TaskDifficulty]:
        """Return what past rollouts of a catalogue environment's tasks scored.

        Args:
            split: Of one split only.
            model_name: By one model only.
            min_model_params: By models of at least this many parameters.
            max_model_params: By models of at most this many.
            training_stage: As "base" or "rl".

        Raises:
            ValueError: The environment was not named "owner/name".
        """
        filters = {
            "variant": self._key.variant,
            "split": split,
            "model_name": model_name,
            "min_model_params": min_model_params,
            "max_model_params": max_model_params,
            "training_stage": training_stage,
        }
        given = {name: value for name, value in filters.items() if value is not None}
        return await self._server.transport.send(task_difficulty(self._deployment("task_difficulty"), given))

    async def _address(self) -> Address:
        return await self._server.address(self._key)

    async def _ask(self, make: Callable[[str | None], Operation[T]], address: Address) -> T:
        return await self._server.discover(make, address.deployment)

    async def _ask_range(self, address: Address, split: str, start: int | None, stop: int | None) -> list[Task]:
        if (start is not None and start < 0) or (stop is not None and stop < 0):
            # The answer to a negative bound does not say where it begins.
            start, stop, _ = slice(start, stop).indices(await self.num_tasks(split))
        return await self._ask(
            lambda session_id: task_range(address, split, start, stop, session_id=session_id), address
        )

    async def _ask_list(self, address: Address, split: str) -> list[Task]:
        return await self._ask(lambda session_id: tasks(address, split, session_id=session_id), address)

    async def _whole(self, address: Address, split: str) -> list[Task]:
        """Return every task of a split, asked once: to count or to pick, task by task, where there is no other way."""
        async with self._listing:
            if split not in self._listed:
                self._listed[split] = await self._ask_list(address, split)
            return self._listed[split]

    async def _one_by_one(self, split: str, indices: range) -> list[Task]:
        found: dict[int, Task] = {}
        left = iter(indices)
        failures: list[ORSError] = []

        async def get_rest() -> None:
            try:
                for index in left:
                    found[index] = await self.get_task(split, index)
            except ORSError as error:  # raised below: a task group would wrap it
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for _ in range(min(_TOGETHER, len(indices))):
                group.start_soon(get_rest)
        if failures:
            raise failures[0]
        return [found[index] for index in indices]

    async def _explained(self, error: StatusError, split: str, *indices: int | None) -> StatusError:
        """Return the error of a split or task that is not there, with what there is; any other as it is."""
        if type(error) is not StatusError or error.status not in _MISSING:
            return error
        try:
            names = [one.name for one in await self.list_splits()]
            if names and split not in names:
                problem = f"There is no split {split!r}; there are: {one_line(', '.join(map(repr, names)), _LISTING)}."
            else:
                wanted = [index for index in indices if index is not None]
                count = await self.num_tasks(split) if wanted else 0
                missing = [index for index in wanted if not -count <= index < count]
                if not missing:
                    return error
                problem = _no_such_task(split, missing[-1], count)
        except ORSError:  # a server that does not tell
            return error
        return self._server.shown(
            TaskMissing(problem, status=error.status, detail=error.detail, url=error.url, session_id=error.session_id)
        )

    def _deployment(self, method: str) -> str:
        deployment = self._server.deployment_of(self._key)
        if deployment is None:
            raise ValueError(
                f"{method}() asks the catalogue, which has two hosts, and needs an environment named 'owner/name', not "
                f"{self._key.name!r} at {self._server.transport.target.layout.sessions}."
            )
        return deployment


def _no_such_task(split: str, index: int, count: int) -> str:
    return f"There is no task {index} in split {split!r}, which has {count}."


def _has_no_list(error: StatusError) -> bool:
    """Tell an environment whose tasks can only be had by index from one that failed."""
    if is_missing_route(error):
        return True
    if error.status == 400:
        return "not supported" in error.detail  # "list_tasks is not supported ... index-based API"
    # openreward 0.1.50 hands on what the environment's author raised.
    return error.status == 501 or (error.status == 500 and error.detail.startswith("NotImplementedError"))
