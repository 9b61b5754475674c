"""Many episodes at a time, each recorded when it ends, and none played twice.

Knows which attempts a record already holds (`planned`), and how many run together. What was under way when it is
cancelled is not recorded, and played when it is run again. Whoever plays the attempts elsewhere takes the same plan,
which is the one writer of the record.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from ors_client._environment import AsyncEnvironment
from ors_client._http.credentials import Secrets, secret_values
from ors_client._http.redaction import get_logger
from ors_client._types import JSONObject, JSONValue, Task, TaskRef
from ors_client.formats import ReasoningHistory
from ors_client.record import EpisodeRecord, RecordWriter, RunRecord, read
from ors_client.report import Figures, summarise

from ._budget import Budget
from ._episode import play
from ._model import ChatModel, ModelRefused
from ._progress import progress_bar
from ._rules import Rules
from ._run import check_settings, describe_run

logger = get_logger(__name__)

Attempt = tuple[TaskRef, int]


def remaining(
    tasks: Iterable[TaskRef],
    record: str | os.PathLike[str],
    *,
    environment: str,
    model: str,
    attempts: int = 1,
    retry_failed: bool = False,
) -> list[Attempt]:
    """Return the attempts that a record does not hold yet, in the order in which they would be played.

    Args:
        tasks: All that are to be played.
        record: The file; it need not be there.
        environment: The name that the server lists it by.
        model: The model's name; another model's attempts do not count.
        attempts: For each task.
        retry_failed: Whether attempts that the infrastructure broke are to be made again.
    """
    held: dict[tuple[str | None, int | None, int | None], bool] = {}
    if Path(record).exists():
        for episode in read(record):
            if (episode.environment, episode.model) == (environment, model):
                held[episode.split, episode.index, episode.attempt] = episode.status.startswith("failed")
    done = {reference for reference, failed in held.items() if not (failed and retry_failed)}
    # Every task once before any task twice: what an interrupted run holds then says something of all tasks.
    return [
        (task, attempt)
        for attempt in range(attempts)
        for task in dict.fromkeys(tasks)
        if (task.split, task.index, attempt) not in done
    ]


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
    run: RunRecord | None = None,
    force: bool = False,
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
        run: The settings for the record, from `describe_run`; by default, those that are known here.
        force: Whether to go on where the record holds episodes that were played with other settings.
        on_episode: Called with each record as it is written.
        progress: Whether to show a bar, by tqdm; by default in a notebook, where tqdm is installed.
        passing: The reward from which an episode counts as passed in the figures.
        unscored: What an attempt without a score counts for in their means; `None` leaves it out.

    Raises:
        ModelRefused: The endpoint refuses every request; what was under way with it is not recorded.
        OSError: The record can't be written.
        SettingsDiffer: The record holds episodes of this environment and model with other settings.
        ValueError: A task does not say where it is listed.
    """
    rules = Rules(
        budget=budget or Budget(),
        reasoning_history=reasoning_history,
        accept_truncated=accept_truncated,
        toolset=toolset,
    )
    async with planned(
        environment,
        tasks,
        model,
        rules=rules,
        record=record,
        attempts=attempts,
        concurrency=concurrency,
        secrets=secrets,
        target=target,
        hide=hide,
        retry_failed=retry_failed,
        run=run,
        force=force,
        on_episode=on_episode,
        progress=progress,
        passing=passing,
        unscored=unscored,
    ) as plan:
        queue = iter(plan.attempts)
        stopped: list[Exception] = []  # not raised in the group, which would wrap it in a group of its own

        async def work() -> None:
            for attempt in queue:
                try:
                    await plan.finish(attempt, await play(environment, attempt[0], model, rules=rules, secrets=secrets))
                except (ModelRefused, OSError) as error:
                    stopped.append(error)
                    group.cancel_scope.cancel()
                    return

        async with anyio.create_task_group() as group:
            for _ in range(min(concurrency, len(plan.attempts))):
                group.start_soon(work)
        if stopped:
            raise stopped[0]
    return await plan.figures()


@dataclass(kw_only=True, repr=False)
class Plan:
    """What an evaluation has to play, and what becomes of each episode; `planned` makes it.

    Args:
        attempts: Those that the record does not hold, in the order in which they are played.
        environment: The name that the server lists it by.
        target: The server's address, as the record names it.
        run: The settings for the record.
        specs: The tasks' specifications, as far as they are known.
        writer: Of the record.
        on_episode: Called with each record as it is written.
        advance: Moves the bar.
        summarise: Reads the figures of all that the record holds.
        played: The figures of what was played.
    """

    attempts: list[Attempt]
    environment: str
    target: str
    run: RunRecord
    specs: Mapping[TaskRef, JSONObject]
    writer: RecordWriter
    on_episode: Callable[[EpisodeRecord], None] | None
    advance: Callable[[EpisodeRecord], None]
    summarise: Callable[[], Figures]
    played: Figures

    async def finish(self, attempt: Attempt, episode: EpisodeRecord) -> None:
        """Record the episode of an attempt, with what all episodes of the run share.

        Raises:
            OSError: The record can't be written.
        """
        task, number = attempt
        episode = episode.model_copy(
            update={
                "environment": self.environment,
                "target": self.target,
                "model": self.run.model,
                "attempt": number,
                "spec": self.specs.get(task),
                "run": self.run,
            }
        )
        await anyio.to_thread.run_sync(self.writer.append, episode)
        self.advance(episode)
        if self.on_episode is not None:
            self.on_episode(episode)

    async def figures(self) -> Figures:
        """Return the figures of all that the record holds of this model in this environment."""
        # Read again: an attempt that was made anew counts once, as it ended last.
        try:
            return await anyio.to_thread.run_sync(self.summarise)
        except FileNotFoundError:
            return self.played


@asynccontextmanager
async def planned(
    environment: AsyncEnvironment,
    tasks: Sequence[TaskRef | Task],
    model: ChatModel,
    *,
    rules: Rules,
    record: str | os.PathLike[str],
    attempts: int,
    concurrency: int,
    secrets: Secrets | None,
    target: str,
    hide: Collection[str],
    retry_failed: bool,
    run: RunRecord | None,
    force: bool,
    on_episode: Callable[[EpisodeRecord], None] | None,
    progress: bool | None,
    passing: float,
    unscored: float | None,
    noted: Mapping[str, JSONValue] | None = None,
) -> AsyncGenerator[Plan]:
    """Plan an evaluation, and show its progress for the length of the block.

    The arguments are those of `evaluate`; `noted` is what else may differ from one start to the next.
    """
    if concurrency < 1:
        raise ValueError(f"At least one episode runs at a time, not {concurrency!r}.")
    name = await environment.name()
    references = [_reference(task) for task in tasks]
    run = run or await describe_run(
        environment,
        model,
        rules=rules,
        target=target,
        noted={"num_tasks": len(references), "attempts": attempts, "concurrency": concurrency, **(noted or {})},
    )
    for note in check_settings(record, run, force=force):
        logger.info("Other episodes of %s: %s.", record, note)
    todo = remaining(
        references, record, environment=name, model=model.name, attempts=attempts, retry_failed=retry_failed
    )
    played = Figures(passing=passing, unscored=unscored)
    with progress_bar(len(todo), played, wanted=progress) as advance:
        yield Plan(
            attempts=todo,
            environment=name,
            target=target,
            run=run,
            specs={_reference(task): task.spec for task in tasks if isinstance(task, Task)},
            writer=RecordWriter(record, hide=[*model.secrets, *secret_values(secrets), *hide]),
            on_episode=on_episode,
            advance=advance,
            summarise=partial(
                summarise, record, passing=passing, unscored=unscored, model=model.name, environment=name
            ),
            played=played,
        )


def _reference(task: TaskRef | Task) -> TaskRef:
    if isinstance(task, TaskRef):
        return task
    if task.split is None or task.index is None:
        raise ValueError("A task to be evaluated needs its split and its index, by which its attempts are counted.")
    return TaskRef(task.split, task.index)
