"""An evaluation whose episodes are played by workers on Ray; see `_dispatcher` for how."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence

import anyio

from ors_client._arguments import checked
from ors_client._client import AsyncClient
from ors_client._http.credentials import Secrets, secret_values
from ors_client._types import Task, TaskRef
from ors_client.formats import ReasoningHistory
from ors_client.record import EpisodeRecord
from ors_client.report import Figures

from ._budget import Budget
from ._dispatcher import Dispatcher
from ._model import ChatModel
from ._plan import Plan, make_plan
from ._ray_cluster import connected, create_workers, import_ray, pickled
from ._ray_worker import WorkerSettings
from ._rules import Rules


@checked
async def evaluate_on_ray(
    client: Callable[[], AsyncClient],
    tasks: Sequence[TaskRef | Task],
    model: Callable[[], ChatModel],
    *,
    record: str | os.PathLike[str],
    environment: str | None = None,
    variant: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    attempts: int = 1,
    concurrency: int = 8,
    budget: Budget | None = None,
    reasoning_history: ReasoningHistory = "all",
    accept_truncated: bool = False,
    toolset: str | None = None,
    secrets: Secrets | None = None,
    target: str | None = None,
    hide: Collection[str] = (),
    retry_failed: bool = False,
    force: bool = False,
    shard: tuple[int, int] | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
    on_leaked: Callable[[int], None] | None = None,
    progress: bool | None = None,
    passing: float = 1.0,
    unscored: float | None = 0.0,
) -> Figures:
    """Let workers on Ray play every attempt that the record does not hold yet; else it is `evaluate`, on asyncio.

    Each worker is a process with a client and a model of its own. This process holds the queue and writes the record.
    What a worker was playing when it died is played again, as new episodes. Where Ray is initialised, it is used as it
    is; else a cluster is connected to or started for as long as this takes.

    Args:
        client: Makes a client, here and in each worker: `functools.partial(AsyncClient, url, api_key=key)`.
        tasks: As for `evaluate`.
        model: Makes a model, here and in each worker: `functools.partial(ChatModel, name, base_url, api_key=key)`.
        record: The file that gets a line for each episode as it ends.
        environment: The environment's name, as `AsyncClient.environment` takes it.
        variant: As it takes it.
        workers: How many there are; `None` is one on each node of the cluster.
        address: Of the cluster, as `ray.init` takes it; `None` is the one that Ray finds, or a new one on this machine.
        attempts: For each task.
        concurrency: How many sessions each worker has open together.
        budget: As for `evaluate`; so are all that are not named here.
        reasoning_history: As there.
        accept_truncated: As there.
        toolset: As there.
        secrets: As there. They go to the workers' memory only, as the keys do.
        target: The server's address, as the record names it; `None` is where the client has its sessions.
        hide: Further keys that the record must not show; keys of the client are among them.
        retry_failed: As there.
        force: As there.
        shard: As there.
        on_episode: As there.
        on_leaked: Called with how many sessions a worker left on the server: those that it could not delete, or that
            were under way when it died.
        progress: As there.
        passing: As there.
        unscored: As there.

    Raises:
        ModelRefused: The endpoint refuses every request.
        ModuleNotFoundError: Ray is not installed.
        OSError: The record can't be written.
        RuntimeError: It is awaited on trio.
        SettingsDiffer: The record holds episodes of this environment and model with other settings.
        TypeError: What makes the client or the model can't be pickled, or makes something else.
        ValueError: A task does not say where it is listed, or a number is less than one.
        WorkerDied: No worker is left.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("An evaluation on Ray runs on asyncio, as Ray does, and not on trio.") from None
    import_ray(address)
    if workers is not None and workers < 1:
        raise ValueError(f"At least one worker plays, not {workers!r}.")
    mine, player = client(), model()
    async with mine:
        plan = await make_plan(
            mine.environment(environment, variant=variant),
            tasks,
            player,
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
            target=mine.layout.sessions if target is None else target,
            hide=hide,
            retry_failed=retry_failed,
            force=force,
            shard=shard,
            passing=passing,
            unscored=unscored,
            noted={"workers": workers},
        )
        with plan.playing(on_episode=on_episode, progress=progress):
            await play_plan_on_ray(
                plan,
                client,
                model,
                environment=environment,
                variant=variant,
                workers=workers,
                address=address,
                hide=[*player.secrets, *hide],
                on_leaked=on_leaked,
            )
    return await plan.figures()


async def play_plan_on_ray(
    plan: Plan,
    client: Callable[[], AsyncClient],
    model: Callable[[], ChatModel],
    *,
    environment: str | None,
    variant: str | None,
    workers: int | None,
    address: str | None,
    hide: Collection[str],
    on_leaked: Callable[[int], None] | None,
) -> None:
    """Let workers on Ray play what a plan has left. The arguments are those of `evaluate_on_ray`.

    `hide` is what Ray must not be shown of this program's command line: the model's keys, too.
    """
    if not plan.attempts:
        return
    ray = import_ray()
    settings = WorkerSettings(
        client=client, model=model, environment=environment, variant=variant, rules=plan.rules, secrets=plan.secrets
    )
    dispatcher = Dispatcher(
        ray,
        pickled(ray, settings),
        plan.attempts,
        plan.finish,
        concurrency=plan.concurrency,
        on_leaked=on_leaked or (lambda _: None),
    )
    async with connected(ray, address, hide=[*secret_values(plan.secrets), *hide]):
        await dispatcher.play(await anyio.to_thread.run_sync(create_workers, ray, workers))
