"""What an evaluation has to play, as its record says, and the one way by which episodes come into the record.

Knows neither how an episode is played nor where: `evaluate` plays a plan in this process, `evaluate_on_ray` by workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from ors_client._arguments import checked
from ors_client._environment import AsyncEnvironment
from ors_client._http.credentials import Secrets, secret_values
from ors_client._http.redaction import get_logger
from ors_client._types import JSONObject, JSONValue, Task, TaskRef
from ors_client.record import EpisodeRecord, RecordWriter, RunRecord, read
from ors_client.report import Figures, summarise

from ._model import ChatModel
from ._progress import progress_bar
from ._rules import Rules
from ._run import check_settings, describe_run
from ._shard import Attempt, Shard, attempts_of

logger = get_logger(__name__)


@checked
@dataclass(kw_only=True, repr=False)
class Plan:
    """The attempts of an evaluation that its record does not hold yet, and what becomes of their episodes.

    Whoever plays a plan plays each of its `attempts` by its `rules`, anywhere, and awaits `finish` with each episode
    within `playing`. That is done in the process that made the plan, which is the record's only writer. What was not
    finished is in the next plan again.

    Args:
        attempts: What is left to play, in the order in which it is begun.
        requested: How many were asked for, those that the record holds included.
        notes: How the settings differ from those in the record; such as may.
        environment: The name that the server lists it by.
        rules: How episodes are played.
        concurrency: How many are played together by a process.
        secrets: For the environment.
        run: The settings for the record.
        specs: The tasks' specifications, as far as they are known; a task may be added before it is played.
        writer: Of the record.
        summarise: Reads the figures of all that the record holds.
        unplayed: The figures of nothing, for a record that is not there.
    """

    attempts: list[Attempt]
    requested: int
    notes: list[str]
    environment: str
    rules: Rules
    concurrency: int
    secrets: Secrets | None
    run: RunRecord
    specs: dict[TaskRef, JSONObject]
    writer: RecordWriter
    summarise: Callable[[], Figures]
    unplayed: Callable[[], Figures]
    _listeners: list[Callable[[EpisodeRecord], None]] = field(default_factory=list[Callable[[EpisodeRecord], None]])

    @contextmanager
    def playing(
        self, *, on_episode: Callable[[EpisodeRecord], None] | None = None, progress: bool | None = False
    ) -> Generator[None]:
        """Tell of each episode that is finished within the block.

        Args:
            on_episode: Called with each record as it is written.
            progress: Whether to show a bar; see `evaluate`.
        """
        with progress_bar(len(self.attempts), self.unplayed(), wanted=progress) as advance:
            self._listeners = [advance] if on_episode is None else [advance, on_episode]
            yield

    async def finish(self, attempt: Attempt, episode: EpisodeRecord) -> None:
        """Record the episode of an attempt, with what all episodes of the run share.

        Raises:
            OSError: The record can't be written.
        """
        task, number = attempt
        episode = episode.model_copy(
            update={
                "environment": self.environment,
                "target": self.run.target,
                "model": self.run.model,
                "attempt": number,
                "spec": self.specs.get(task),
                "run": self.run,
            }
        )
        await anyio.to_thread.run_sync(self.writer.append, episode)
        for listener in self._listeners:
            listener(episode)

    async def figures(self) -> Figures:
        """Return the figures of all that the record holds of this model in this environment."""
        # Read again: an attempt that was made anew counts once, as it ended last.
        try:
            return await anyio.to_thread.run_sync(self.summarise)
        except FileNotFoundError:
            return self.unplayed()


@checked
async def make_plan(
    environment: AsyncEnvironment,
    tasks: Sequence[TaskRef | Task],
    model: ChatModel,
    *,
    record: str | os.PathLike[str],
    rules: Rules | None = None,
    attempts: int = 1,
    concurrency: int = 8,
    secrets: Secrets | None = None,
    target: str = "",
    hide: Collection[str] = (),
    retry_failed: bool = False,
    force: bool = False,
    shard: Shard | None = None,
    passing: float = 1.0,
    unscored: float | None = 0.0,
    noted: Mapping[str, JSONValue] | None = None,
) -> Plan:
    """Read a record, and plan what is left to play.

    Args:
        environment: Where the tasks are.
        tasks: All that are asked for, by all shards together.
        model: Who will play; nothing is asked of it.
        record: The file; it need not be there. It is read once.
        rules: How episodes are played.
        attempts: For each task; as `concurrency` and all that is not named here, as for `evaluate`.
        concurrency: As there.
        secrets: As there.
        target: As there.
        hide: As there.
        retry_failed: As there.
        force: As there.
        shard: As there.
        passing: As there.
        unscored: As there.
        noted: What else may differ from one start to the next.

    Raises:
        OSError: The record can't be read.
        SettingsDiffer: It holds episodes of this environment and model with other settings.
        ValueError: A task does not say where it is listed, there is no such shard, or a number is less than one.
    """
    if concurrency < 1:
        raise ValueError(f"At least one episode runs at a time, not {concurrency!r}.")
    references = list(dict.fromkeys(map(_reference, tasks)))
    asked = attempts_of(references, attempts, shard)
    rules = rules or Rules()
    run = await describe_run(
        environment,
        model,
        rules=rules,
        tasks=references,
        target=target,
        noted={
            "num_tasks": len(references),
            "attempts": attempts,
            "concurrency": concurrency,
            **({} if shard is None else {"shard": "{}/{}".format(*shard)}),
            **(noted or {}),
        },
    )
    held, before = await anyio.to_thread.run_sync(_held, record, run)
    notes = check_settings(record, before, run, force=force)
    for note in notes:
        logger.info("Other episodes of %s: %s.", record, note)
    summary = {"passing": passing, "unscored": unscored}
    return Plan(
        attempts=[attempt for attempt in asked if attempt not in held or (retry_failed and held[attempt])],
        requested=len(asked),
        notes=notes,
        environment=run.environment or "",
        rules=rules,
        concurrency=concurrency,
        secrets=secrets,
        run=run,
        specs={_reference(task): task.spec for task in tasks if isinstance(task, Task)},
        writer=RecordWriter(record, hide=[*model.secrets, *secret_values(secrets), *hide]),
        summarise=partial(summarise, record, **summary, model=run.model, environment=run.environment),
        unplayed=partial(Figures, **summary),
    )


def _held(record: str | os.PathLike[str], run: RunRecord) -> tuple[dict[Attempt, bool], Iterable[RunRecord]]:
    """Return what a record holds of a run's environment and model: attempts, and whether each failed; settings."""
    held: dict[Attempt, bool] = {}
    runs: dict[int, RunRecord] = {}
    try:
        for episode in read(record):
            if (episode.environment, episode.model) != (run.environment, run.model):
                continue
            if episode.run is not None:
                runs[id(episode.run)] = episode.run  # one object for all episodes of a run
            if episode.split is not None and episode.index is not None and episode.attempt is not None:
                task = TaskRef(episode.split, episode.index)
                held[task, episode.attempt] = episode.status.startswith("failed")
    except FileNotFoundError:
        pass
    return held, runs.values()


def _reference(task: TaskRef | Task) -> TaskRef:
    if isinstance(task, TaskRef):
        return task
    if task.split is None or task.index is None:
        raise ValueError("A task to be evaluated needs its split and its index, by which its attempts are counted.")
    return TaskRef(task.split, task.index)
