"""Many episodes at a time in this process, each recorded when it ends, and none played twice.

What was under way when it is cancelled is not recorded, and played when it is run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

import anyio

from ors_client._arguments import checked
from ors_client._environment import AsyncEnvironment
from ors_client._http.credentials import Secrets
from ors_client._types import Task, TaskRef
from ors_client.formats import ReasoningHistory
from ors_client.record import EpisodeRecord
from ors_client.report import Figures

from ._budget import Budget
from ._episode import play
from ._model import ChatModel, ModelRefused
from ._plan import Plan, make_plan
from ._rules import Rules


@checked
async def evaluate(
    environment: AsyncEnvironment,
    tasks: Sequence[TaskRef | Task],
    model: ChatModel,
    *,
    record: str | os.PathLike[str],
    attempts: int = 1,
    concurrency: int = 8,
    budget: Budget | None = None,
    reasoning_history: ReasoningHistory = "all",
    accept_truncated: bool = False,
    toolset: str | None = None,
    secrets: Secrets | None = None,
    target: str = "",
    hide: Collection[str] = (),
    retry_failed: bool = False,
    force: bool = False,
    shard: tuple[int, int] | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
    progress: bool | None = None,
    passing: float = 1.0,
    unscored: float | None = 0.0,
) -> Figures:
    """Let a model play every attempt that the record does not hold yet; return the figures of all that it holds then.

    They are those of this model in this environment, as `ors_client.report.summarise` gives them.

    Args:
        environment: Where the tasks are.
        tasks: Each by split and index, or as it was listed; the record then holds its specification, too.
        model: Who plays; entered.
        record: The file that gets a line for each episode as it ends.
        attempts: For each task.
        concurrency: How many sessions are open together.
        budget: When an episode is cut.
        reasoning_history: Whether the model is sent the reasoning of `all` its replies, of the `last`, or of `none`.
        accept_truncated: Whether a reply that was cut off counts as if it were whole: its calls are made, and its words
            are handed in.
        toolset: The tools of the sessions, where the environment has several sets.
        secrets: For the environment; see `AsyncEnvironment.session`.
        target: The server's address, as the record names it.
        hide: Further keys that the record must not show.
        retry_failed: Whether attempts that the infrastructure broke are made again.
        force: Whether to go on where the record holds episodes that were played with other settings.
        shard: Which part of the attempts is played here: its number, from 1, and how many parts there are. All are
            told the same tasks and attempts, and each has a record of its own; `ors_client.record.merge` joins them.
        on_episode: Called with each record as it is written.
        progress: Whether to show a bar, by tqdm; by default in a notebook, where tqdm is installed.
        passing: The reward from which an episode counts as passed in the figures.
        unscored: What an attempt without a score counts for in their means; `None` leaves it out.

    Raises:
        ModelRefused: The endpoint refuses every request; what was under way with it is not recorded.
        OSError: The record can't be written.
        SettingsDiffer: The record holds episodes of this environment and model with other settings.
        ValueError: A task does not say where it is listed, there is no such shard, or a number is less than one.
    """
    plan = await make_plan(
        environment,
        tasks,
        model,
        rules=Rules(
            budget=budget or Budget(),
            reasoning_history=reasoning_history,
            accept_truncated=accept_truncated,
            toolset=toolset,
        ),
        record=record,
        attempts=attempts,
        concurrency=concurrency,
        secrets=secrets,
        target=target,
        hide=hide,
        retry_failed=retry_failed,
        force=force,
        shard=shard,
        passing=passing,
        unscored=unscored,
    )
    with plan.playing(on_episode=on_episode, progress=progress):
        await play_plan(plan, environment, model)
    return await plan.figures()


async def play_plan(plan: Plan, environment: AsyncEnvironment, model: ChatModel) -> None:
    """Play what a plan has left, in this process.

    Raises:
        ModelRefused: The endpoint refuses every request.
        OSError: The record can't be written.
    """
    queue = iter(plan.attempts)
    stopped: list[Exception] = []  # not raised in the group, which would wrap it in a group of its own

    async def work() -> None:
        for attempt in queue:
            try:
                episode = await play(environment, attempt[0], model, rules=plan.rules, secrets=plan.secrets)
                await plan.finish(attempt, episode)
            except (ModelRefused, OSError) as error:
                stopped.append(error)
                group.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as group:
        for _ in range(min(plan.concurrency, len(plan.attempts))):
            group.start_soon(work)
    if stopped:
        raise stopped[0]
