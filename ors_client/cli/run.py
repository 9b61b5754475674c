"""The command `ors run`: an evaluation of a model, with its progress, its figures and its report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperCommand

from ors_client import AsyncClient, AsyncEnvironment, ORSError, TaskRef
from ors_client._http.credentials import Secrets
from ors_client.evaluation import (
    Budget,
    ChatModel,
    ModelRefused,
    Plan,
    Rules,
    SettingsDiffer,
    make_plan,
)
from ors_client.evaluation._evaluate import play_plan
from ors_client.evaluation._progress import so_far
from ors_client.evaluation._ray import play_plan_on_ray
from ors_client.evaluation._ray_cluster import import_ray
from ors_client.evaluation._shard import Shard
from ors_client.record import EpisodeRecord
from ors_client.report import Figures, summarise, write_report

from .command import INTERRUPTED, PROBLEMS, show_failure
from .figures import PassAtOption, Unscored, UnscoredOption, as_json, show_figures
from .hints import connection_hints
from .json_input import read_json
from .options import (
    EPISODE_TIMEOUT,
    Misuse,
    SecretHostsOption,
    SecretOption,
    ServerOptions,
    SplitOption,
    ToolsetOption,
    read_secrets,
)
from .output import err, one_line, out, printable, show_error, show_json, show_note
from .signals import run_until_signal
from .task_selection import TaskSelection, read_shard, specifications

_BUDGET = "When an episode is cut"
_MODEL = "The model"
_MACHINES = "On several machines"


class RunCommand(TyperCommand):
    """The command with `--ray`, whose value may be left out; typer knows no such option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give `--ray` an empty value where none follows."""
        following = [*args[1:], "--"]
        return super().parse_args(
            ctx,
            [
                "--ray=" if arg == "--ray" and after.startswith("-") else arg
                for arg, after in zip(args, following, strict=True)
            ],
        )


class ReasoningHistory(StrEnum):
    """Whose reasoning the model is sent again."""

    ALL = "all"
    LAST = "last"
    NONE = "none"


def run(
    options: ServerOptions,
    *,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="As its endpoint knows it.", rich_help_panel=_MODEL)
    ],
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url",
            metavar="URL",
            help="Of an OpenAI-compatible endpoint, up to /v1; left out, the variable OPENAI_BASE_URL.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    model_key: Annotated[
        str | None,
        typer.Option(
            "--model-key",
            metavar="KEY",
            help="Sent to that URL's host only; left out, the variable OPENAI_API_KEY.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Added to every request, as --set temperature=0. Repeatable.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    model_timeout: Annotated[
        float,
        typer.Option(
            "--model-timeout",
            min=1,
            metavar="SECONDS",
            help="For one reply, from the request to its last byte.",
            rich_help_panel=_MODEL,
        ),
    ] = 600.0,
    model_attempts: Annotated[
        int,
        typer.Option(
            "--model-attempts",
            min=1,
            metavar="N",
            help="How often one reply is asked for, where the endpoint is busy or fails.",
            rich_help_panel=_MODEL,
        ),
    ] = 5,
    reasoning_history: Annotated[
        ReasoningHistory,
        typer.Option(
            "--reasoning-history",
            help="Of which of its replies the model is sent its reasoning again, in the field in which it came.",
            rich_help_panel=_MODEL,
        ),
    ] = ReasoningHistory.ALL,
    accept_truncated: Annotated[
        bool,
        typer.Option(
            "--accept-truncated",
            help="Make the calls of a reply that was cut off, and hand in its words; without, it ends the episode.",
            rich_help_panel=_MODEL,
        ),
    ] = False,
    toolset: ToolsetOption = None,
    split: SplitOption = None,
    start: Annotated[int, typer.Option("--start", min=0, metavar="N", help="The index of the first task.")] = 0,
    num_tasks: Annotated[
        int | None, typer.Option("--num-tasks", "-n", min=1, metavar="N", help="How many tasks; left out, all.")
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks", metavar="FILE", help="The tasks: a JSON list of indices, or a file that `ors profile` wrote."
        ),
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option("--shuffle", metavar="SEED", help="Mix the tasks, before --num-tasks takes some.")
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", "-k", min=1, metavar="K", help="For each task.")] = 1,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, metavar="N", help="How many episodes run together.")
    ] = 8,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Gets a line for each episode; run again, it goes on. Left out, episodes.jsonl, or of a shard "
            "episodes-2-of-8.jsonl.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="The page; left out, beside the record.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Play episodes again that the infrastructure broke.")
    ] = False,
    pass_at: PassAtOption = 1.0,
    unscored: UnscoredOption = Unscored.ZERO,
    max_turns: Annotated[
        int, typer.Option("--max-turns", min=1, metavar="N", help="Replies of the model.", rich_help_panel=_BUDGET)
    ] = 50,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, metavar="N", help="That the model wrote.", rich_help_panel=_BUDGET),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", min=0.1, metavar="SECONDS", help="In all.", rich_help_panel=_BUDGET),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Play the I-th of N parts, from 1; slurm takes both from a job array. ors merge joins their records.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="Play on Ray: on the cluster at ADDRESS, else on the one that Ray finds, else on this machine.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            metavar="N",
            help="Processes that play --concurrency episodes each; left out, one a node.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Go on where the record has episodes that were played with other settings.")
    ] = False,
    secret: SecretOption = None,
    secret_hosts: SecretHostsOption = None,
) -> int:
    """Let a model play tasks, and report. Ctrl-C leaves no session behind; the same command again goes on.

    The exit status is 0 when every episode was played, 1 when the infrastructure broke some.
    """
    make_player = _model(model, base_url, model_key, parameter, timeout=model_timeout, attempts=model_attempts)
    player = _made(make_player)
    part = None if shard is None else read_shard(shard, os.environ)
    evaluation = _Evaluation(
        options,
        player,
        record or Path("episodes.jsonl" if part is None else "episodes-{}-of-{}.jsonl".format(*part)),
        make_player=make_player,
        ray=ray,
        workers=workers,
        rules=Rules(
            budget=Budget(turns=max_turns, tokens=max_tokens, seconds=max_seconds),
            reasoning_history=reasoning_history.value,
            accept_truncated=accept_truncated,
            toolset=toolset,
        ),
        selection=TaskSelection.of(split=split, start=start, num_tasks=num_tasks, path=tasks, shuffle=shuffle),
        attempts=attempts,
        concurrency=concurrency,
        shard=part,
        secrets=read_secrets(options, secret, secret_hosts),
        retry_failed=retry_failed,
        force=force,
        passing=pass_at,
        unscored=unscored.value_in_means,
    )
    try:
        interrupted = evaluation.run()
    except ModelRefused as error:
        show_failure(error, _model_hints(error, player, model_key), as_json=options.as_json)
        return PROBLEMS
    figures = _report(evaluation, report)
    if interrupted:
        return INTERRUPTED
    return PROBLEMS if figures is not None and figures.broken else 0


@dataclass(kw_only=True)
class _Evaluation:
    """An evaluation from the command's options to its record."""

    options: ServerOptions = field(kw_only=False)
    player: ChatModel = field(kw_only=False)
    record: Path = field(kw_only=False)
    make_player: Callable[[], ChatModel]
    ray: str | None
    workers: int | None
    rules: Rules
    selection: TaskSelection
    attempts: int
    concurrency: int
    shard: Shard | None
    secrets: Secrets | None
    retry_failed: bool
    force: bool
    passing: float
    unscored: float | None
    figures: Figures | None = None
    """Of all that the record holds of this model, once everything was played."""
    environment: str | None = None
    """The name that the server lists it by, once it was asked."""
    requested: int = 0
    """How many episodes were asked for."""
    recorded: int = 0
    """How many of them were in the record before."""
    leaked: int = 0
    """How many sessions workers on Ray left."""
    notes: list[str] = field(default_factory=list[str])
    """What should be known of the tasks, and of those."""

    def run(self) -> bool:
        """Play what is left to play; return whether a signal ended the command before.

        Raises:
            Misuse: There are no such tasks, or the record can't be written.
        """
        if self.ray is None and self.workers is not None:
            raise Misuse("Workers are processes on Ray: give --ray, too.")
        if self.ray is not None:
            try:
                import_ray(self.ray)
            except (ModuleNotFoundError, ValueError) as error:
                raise Misuse(str(error)) from None
        client = self.options.async_client(EPISODE_TIMEOUT)
        try:
            interrupted = anyio.run(run_until_signal, lambda: self._play(client))
        except ORSError:  # some are also an OSError
            raise
        except OSError as error:
            raise Misuse(f"The record {str(self.record)!r} can't be used: {error.strerror or error}.") from None
        if interrupted and not self.options.as_json:
            left = client.leaked_sessions + self.leaked
            sessions = "no session is left" if not left else f"{left} sessions may still be open"
            show_note(f"interrupted; {sessions}, and the same command goes on where it stopped")
        return interrupted

    async def _play(self, client: AsyncClient) -> None:
        async with client:
            environment = client.environment(self.options.env, variant=self.options.variant)
            name = self.environment = await self.options.exact_name(client)
            tasks, self.notes = await self.selection.tasks(environment, name)
            plan = await self._plan(environment, tasks, client.layout.sessions)
            todo = list(dict.fromkeys(task for task, _ in plan.attempts))
            plan.specs.update(await specifications(environment, todo))
            with (
                _progress(name, len(plan.attempts), unscored=self.unscored, quiet=self.options.as_json) as on_episode,
                plan.playing(on_episode=on_episode),
            ):
                if self.ray is None:
                    async with self.player:
                        await play_plan(plan, environment, self.player)
                else:
                    with contextlib.redirect_stdout(sys.stderr):  # what Ray prints there is not the command's answer
                        await play_plan_on_ray(
                            plan,
                            self.options.client_factory(EPISODE_TIMEOUT),
                            self.make_player,
                            environment=self.options.env,
                            variant=self.options.variant,
                            workers=self.workers,
                            address=self.ray or None,
                            hide=[*self.player.secrets, *self.options.credentials],
                            on_leaked=self._add_leaked,
                        )
            self.figures = await plan.figures()

    def _add_leaked(self, sessions: int) -> None:
        self.leaked += sessions

    async def _plan(self, environment: AsyncEnvironment, tasks: list[TaskRef], target: str) -> Plan:
        """Return what is left to play; show what should be known of it.

        Raises:
            Misuse: The record holds episodes with settings that differ in what shapes an episode.
        """
        try:
            plan = await make_plan(
                environment,
                tasks,
                self.player,
                record=self.record,
                rules=self.rules,
                attempts=self.attempts,
                concurrency=self.concurrency,
                secrets=self.secrets,
                target=target,
                hide=self.options.credentials,
                retry_failed=self.retry_failed,
                force=self.force,
                shard=self.shard,
                passing=self.passing,
                unscored=self.unscored,
                noted={} if self.ray is None else {"workers": self.workers},
            )
        except SettingsDiffer as error:
            raise Misuse(
                f"{str(self.record)!r} has episodes with other settings: {'; '.join(error.differences)}. Name another "
                "--record, or go on with --force."
            ) from None
        self.requested = plan.requested
        self.recorded = plan.requested - len(plan.attempts)
        self.notes += plan.notes
        if self.recorded:
            self.notes.append(
                f"{self.recorded} of {self.requested} episodes are in {str(self.record)!r} already and are not played "
                "again; to play them anew, name another --record"
            )
        for note in self.notes if not self.options.as_json else ():
            show_note(note)
        return plan


def _report(evaluation: _Evaluation, page: Path | None) -> Figures | None:
    """Show the figures and write the page; without a record there is nothing to show."""
    options, record, model = evaluation.options, evaluation.record, evaluation.player.name
    passing, unscored = evaluation.passing, evaluation.unscored
    if not record.exists():
        return None
    where = page or record.with_suffix(".html")
    figures = evaluation.figures or summarise(
        record, passing=passing, unscored=unscored, model=model, environment=evaluation.environment
    )
    problem: OSError | None = None
    try:
        write_report(record, where, passing=passing, unscored=unscored)
    except OSError as error:
        problem = error
    if options.as_json:
        written = None if problem else str(where)
        show_json(
            {
                **as_json(figures),
                "model": model,
                "record": str(record),
                "report": written,
                "asked": evaluation.requested,
                "already_there": evaluation.recorded,
                "notes": evaluation.notes,
            }
        )
        return figures
    show_figures(figures)
    out().print(f"record  {printable(record)}", soft_wrap=True)
    if problem is None:
        out().print(f"report  {printable(where)}", soft_wrap=True)
    else:
        show_error(f"The report {str(where)!r} can't be written: {problem.strerror or problem}.")
    if figures.broken:
        show_note(f"the infrastructure broke {figures.broken} episodes; to play them again: --retry-failed")
    return figures


def _model(
    name: str, base_url: str | None, key: str | None, parameters: list[str] | None, *, timeout: float, attempts: int
) -> Callable[[], ChatModel]:
    url = base_url or os.environ.get("OPENAI_BASE_URL")
    if not url:
        raise Misuse("Where is the model? Give --base-url http://host:port/v1, or set OPENAI_BASE_URL.")
    return partial(
        ChatModel,
        name,
        url,
        api_key=key or os.environ.get("OPENAI_API_KEY"),
        parameters=dict(map(_read_parameter, parameters or ())),
        timeout=timeout,
        attempts=attempts,
    )


def _made(make: Callable[[], ChatModel]) -> ChatModel:
    try:
        return make()
    except ValueError as error:
        raise Misuse(str(error)) from None


def _read_parameter(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name or name in {"messages", "model", "stream", "tools", "n"}:
        raise Misuse(f"A parameter is written --set NAME=VALUE, and is none that the command sets: not {text!r}.")
    try:
        return name, read_json(value)
    except ValueError:
        return name, value


def _model_hints(error: ModelRefused, model: ChatModel, key: str | None) -> list[str]:
    if error.status in {401, 403}:
        given = (
            "The key that was given was refused" if key else "The key in OPENAI_API_KEY was refused, or there is none"
        )
        return [f"{given}; give another: --model-key KEY"]
    if error.status is None:
        return connection_hints(error.message, model.base_url)
    if error.status == 200:
        return ["A web page answers there; --base-url is that of the endpoint, usually ending in /v1."]
    if error.status not in {404, 405}:
        return ["Every request would be refused like this one; the endpoint's words say why: see --set and --toolset."]
    return ["Is it the endpoint's base URL, usually ending in /v1, and does it have a model of that name?"]


# --- While it runs ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress(
    name: str, todo: int, *, unscored: float | None, quiet: bool
) -> Generator[Callable[[EpisodeRecord], None]]:
    """Show a bar with the mean reward so far; in a pipe, nothing moves."""
    console = err()
    if quiet or not console.is_terminal or not todo:
        yield lambda _: None
        return
    figures = Figures(unscored=unscored)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[so_far]}"),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        bar = progress.add_task(one_line(name, 24), total=todo, so_far="")

        def advance(episode: EpisodeRecord) -> None:
            figures.add(episode)
            progress.update(bar, advance=1, so_far=so_far(figures))

        yield advance
