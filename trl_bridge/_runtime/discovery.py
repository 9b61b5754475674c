"""What a server is asked before training: which tasks there are, and which tools their episodes have.

Coroutines over an `AsyncEnvironment`, in as few requests as the server allows. They answer with what the server said,
in its order; making rows and methods of it is for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tqdm.auto import tqdm

from ors_client import AsyncEnvironment, AsyncSession, ORSError, SetupFailed, StatusError, Task, TaskRef, ToolSpec
from ors_client._shared import Secrets, get_logger

logger = get_logger(__name__)

T = TypeVar("T")

_AT_ONCE = 16  # requests of discovery at one time: fast enough for hundreds, and no burst that a small server refuses
_SAMPLE = 4  # tasks whose tools are looked at when nobody named tasks: each costs a session, which may cost a container
_SPARSE = 4  # a range is fetched whole unless it holds more than this many tasks for every one that is wanted


async def fetch_tasks(
    environment: AsyncEnvironment,
    split: str,
    *,
    num_tasks: int | None = None,
    indices: Sequence[int] | None = None,
    progress: bool = False,
) -> list[Task]:
    """Return the tasks of a split, each with its index: all, the first `num_tasks`, or those at `indices`.

    Raises:
        ValueError: There is no such split, no task in it, or none at one of the indices.
    """
    try:
        if indices is not None:
            return await _fetch_indices(environment, split, indices, progress=progress)
        tasks = (
            await environment.list_tasks(split)
            if num_tasks is None
            else await environment.list_tasks(split, 0, num_tasks)
        )
    except StatusError as error:
        await _explain_split(environment, split, error)
        raise
    if not tasks:
        raise ValueError(f"Split {split!r} has no tasks; choose another with split=...")
    if num_tasks is not None and len(tasks) < num_tasks:
        logger.warning("Split %r has %d tasks, fewer than num_tasks=%d.", split, len(tasks), num_tasks)
    return [_with_position(task, split, index) for index, task in enumerate(tasks)]


async def discover_tools(
    environment: AsyncEnvironment,
    tasks: Iterable[TaskRef],
    *,
    secrets: Secrets | None = None,
    toolset: str | None = None,
    progress: bool = False,
) -> list[ToolSpec]:
    """Return the tools of all these tasks, by name, in the server's order; each task costs a short session.

    Where no task can say, these are the environment's own tools.

    Raises:
        ValueError: The server has no such toolset, and every reset would fail.
    """

    async def list_tools_of(task: TaskRef) -> list[ToolSpec] | None:
        try:
            async with environment.session(task, secrets=secrets, toolset=toolset) as session:
                return await session.list_tools()
        except ORSError as error:
            if toolset is not None and isinstance(error, StatusError) and error.status in (400, 422):
                raise ValueError(f"The server refuses toolset={toolset!r}: {error.detail}") from error
            logger.warning("The tools of task %d in %r could not be listed: %s", task.index, task.split, error)
            return None

    answers = [
        tools
        for tools in await _gather([list_tools_of(task) for task in tasks], bar="tools" if progress else "")
        if tools is not None
    ]
    if not answers:
        return await environment.list_tools()
    found: dict[str, ToolSpec] = {}
    differing: set[str] = set()
    for tool in (tool for tools in answers for tool in tools):
        if found.setdefault(tool.name, tool) != tool:
            differing.add(tool.name)
    for name in sorted(differing):
        logger.warning("Tool %r differs between tasks; the model is shown the first task's.", name)
    return list(found.values())


class Capabilities(NamedTuple):
    """What an environment has; everything, where that is unknown."""

    tools: bool = True
    terminal_tool: bool = True
    group_scoring: bool = True


async def look_up_capabilities(
    environment: AsyncEnvironment,
    task: TaskRef,
    *,
    needed: Iterable[str],
    secrets: Secrets | None = None,
    toolset: str | None = None,
) -> Capabilities:
    """Tell what an environment has.

    Args:
        task: Asked, in a short session, where the environment itself does not have all that is needed.
        needed: Names of capabilities.
    """
    try:
        listed = await environment.describe_tools()
        found = Capabilities(bool(listed.tools), listed.terminal_tool is not None, listed.supports_score_group)
        if all(getattr(found, name) for name in needed):
            return found
        async with environment.session(task, secrets=secrets, toolset=toolset) as session:
            return Capabilities(
                found.tools or bool(await session.list_tools()),
                found.terminal_tool or await session.terminal_tool() is not None,
                found.group_scoring or await session.supports_score_group(),
            )
    except (StatusError, SetupFailed) as error:  # whoever needs the answer asks again, and says what is wrong
        logger.debug("What the environment has is unknown: %s", error)
        return Capabilities()


async def fetch_prompts(
    environment: AsyncEnvironment,
    tasks: Sequence[TaskRef],
    ask: Callable[[AsyncSession], Awaitable[list[T]]],
    *,
    secrets: Secrets | None = None,
    toolset: str | None = None,
    progress: bool = False,
) -> list[list[T]]:
    """Return the prompt of every task; each distinct task costs a session, its setup included.

    Args:
        ask: `AsyncSession.get_prompt` or `AsyncSession.get_messages`.

    Raises:
        ORSError: A prompt could not be had.
    """

    async def fetch(task: TaskRef) -> list[T]:
        async with environment.session(task, secrets=secrets, toolset=toolset) as session:
            return await ask(session)

    distinct = list(dict.fromkeys(tasks))
    found = await _gather([fetch(task) for task in distinct], bar="prompts" if progress else "")
    prompts = dict(zip(distinct, found, strict=True))
    return [prompts[task] for task in tasks]


async def sample(environment: AsyncEnvironment, split: str, *, num_tasks: int | None) -> list[TaskRef]:
    """Return a few tasks, spread over those that will be trained on, the first among them."""
    total = await environment.num_tasks(split)
    count = total if num_tasks is None else min(num_tasks, total)
    indices = {round(step * (count - 1) / (_SAMPLE - 1)) for step in range(_SAMPLE)} if count > 0 else set[int]()
    return [TaskRef(split, index) for index in sorted(indices)]


async def _fetch_indices(
    environment: AsyncEnvironment, split: str, indices: Sequence[int], *, progress: bool
) -> list[Task]:
    wanted = list(indices)
    if min(wanted) < 0:
        total = await environment.num_tasks(split)
        wanted = [index + total if index < 0 else index for index in wanted]
        if min(wanted) < 0:
            raise ValueError(_out_of_range(split, min(indices), total))
    first, last = min(wanted), max(wanted)
    distinct = sorted(set(wanted))
    if last - first < _SPARSE * len(distinct):
        tasks = dict(enumerate(await environment.list_tasks(split, first, last + 1), start=first))
        if last not in tasks:
            raise ValueError(_out_of_range(split, last, await environment.num_tasks(split)))
    else:
        try:
            fetched = await _gather(
                [environment.get_task(split, index) for index in distinct], bar="tasks" if progress else ""
            )
        except StatusError as error:
            if last >= (total := await environment.num_tasks(split)):
                raise ValueError(_out_of_range(split, last, total)) from error
            raise
        tasks = dict(zip(distinct, fetched, strict=True))
    return [_with_position(tasks[index], split, index) for index in wanted]


async def _gather(coroutines: Sequence[Coroutine[Any, Any, T]], *, bar: str = "") -> list[T]:
    """Await all, some at a time; with `bar`, a bar of that name shows how far it has come."""
    limit = asyncio.Semaphore(_AT_ONCE)
    progress_bar = tqdm(total=len(coroutines), desc=bar, disable=not bar)

    async def one(coroutine: Coroutine[Any, Any, T]) -> T:
        async with limit:
            result = await coroutine
        progress_bar.update()
        return result

    tasks = [asyncio.ensure_future(one(coroutine)) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)  # so that their sessions are closed before the error is raised
        for coroutine in coroutines:
            coroutine.close()  # those that had not started
        raise
    finally:
        progress_bar.close()


async def _explain_split(environment: AsyncEnvironment, split: str, error: StatusError) -> None:
    """Turn a refusal into one that names the splits, if an unknown split was the reason."""
    names = [known.name for known in await environment.list_splits()]
    if split not in names:
        raise ValueError(error.message) from error  # which names them


def _out_of_range(split: str, index: int, total: int) -> str:
    return f"indices holds {index}, but split {split!r} has {total} tasks, at 0 to {total - 1}."


def _with_position(task: Task, split: str, index: int) -> Task:
    if (task.split, task.index) == (split, index):  # nearly always; a copy costs as much as reading the task did
        return task
    return task.model_copy(update={"split": split, "index": index})
