"""`OpenRewardSpec`: what a trainer's three slots need, from the address of an ORS server.

Checks what it was asked for, asks the server when a property is read, and owns the life of the runtime behind it.
Knows nothing of how rollouts are run.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ors_client import (
    AsyncEnvironment,
    AsyncSession,
    KeepalivePolicy,
    Layout,
    Limits,
    RetryPolicy,
    Task,
    TaskRef,
    Timeouts,
    ToolCallBlock,
    ToolSpec,
)
from ors_client._shared import Secrets, checked

from ._chat.content import to_content
from ._chat.conversation import to_chat
from ._datasets.tasks import build, fingerprint
from ._rollout.environment import EnvironmentFactory
from ._runtime.discovery import Capabilities, discover_tools, fetch_prompts, fetch_tasks, look_up_capabilities, sample
from ._runtime.runtime import connect
from ._scoring import OnFailure, Reduction, Scoring
from ._settings import (
    Indices,
    Prompts,
    Settings,
    check_choice,
    checked_count,
    checked_indices,
    parse_target,
)
from ._trainer.attachment import attach
from ._trainer.batch import check_batch, check_columns, check_configuration, check_trainer
from ._trainer.group_scoring import group_reward
from ._trainer.rewards import environment_reward

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs] - it has none

T = TypeVar("T")
RewardFunction = Callable[..., list[float | None]]


@checked
class OpenRewardSpec:
    """An ORS environment, as the slots of a TRL trainer; a drop-in for `trl.experimental.openreward.OpenRewardSpec`.

    Nothing is contacted until a property is read. It is a context manager, and closes at the interpreter's exit.

    Args:
        **Tasks, and where they are; these are TRL's, with its meaning**

        target: A catalogue name (`"owner/name"`), the URL of a server, a `Layout`, or several URLs that serve the same
            environment: sessions are spread over them.
        num_tasks: Train on the first so many tasks; `None` on all.
        split: The split that they are taken from.
        indices: Train on these tasks instead. Negative ones count from the end. A path is that of a file of tasks, as
            `ors profile` writes it, or of a JSON list.
        api_key: For the servers of `target` alone.
        secrets: For the environment. A catalogue environment gets the key as `api_key` unless this is given.
        env_name: The environment's name on a server with several.
        include_metadata: Add a column per key of the task specs.
        discover_task_tools: Look for tools of single tasks; each task that is looked at costs a short session.
        task_tools_discovery_index: The one task to look at. By default these are all of `indices`, or else a few spread
            over the split.

        **More of the environment**

        variant: Of a catalogue environment.
        toolset: One of the server's named sets of tools.
        forward_api_key: Whether a catalogue environment gets the key as a secret.

        **Rewards**

        reward: Which step rewards count: `"last"`, `"sum"`, `"mean"` or `"max"` of those that are not null.
        unscored: The reward of a rollout that nothing scored; `None` leaves it out.
        on_failure: The reward of a rollout that the infrastructure broke: `"unscored"`, `"keep"`, or a number.
        clamp: The lowest and the highest reward.
        unfinished_penalty: Subtracted from the reward of a rollout that did not finish.
        max_failure_rate: The share of the last 32 resets that may fail before the run is stopped; as soon as more have
            failed, so that `0.0` stops it at the first.
        owns_reward: Give the environments a `get_reward`, for trainers that hand reward functions no environments. The
            trainer's `reward_funcs` is then `None`. It is the reward function that logs `environment/...` and attaches
            the trainer after the first batch: without it nothing is logged, and `attach` has to be called.
        terminal_tool: Hand the model's last message, if it calls nothing, to the environment's terminal tool when the
            rewards are computed.
        group_scoring: Have the environment score the rollouts of one task beside each other. `reward_funcs` is then a
            list of two, which TRL adds up, with `reward_weights` as weights.

        **Budgets of an episode**

        max_calls: The most calls of an episode; it then ends, with its score.
        call_timeout: Seconds for one call; a longer one breaks the episode. `None` waits as long as it shows life.
        episode_timeout: Seconds for an episode from the moment it asks for its session; it then ends, with its score.
        max_output_chars: The most characters of one prompt or output that the model sees; the middle is cut.
        max_episode_chars: The most characters of all outputs of an episode; it then ends, with its score.

        **What the model sees**

        prompts: Where the prompt comes from: `"reset"`, or `"dataset"`, which fetches all prompts once and lets resets
            return at once, or `"messages"`, which does so with conversations: TRL can add no turns in a reset. Right
            only where a prompt depends on nothing but its task.
        images: Pass images on, to a model that sees them; otherwise text says what is left out.

        **The trainer**

        max_concurrency: The most openings and calls at one time in each process. An opening waits for as long as those
            before it take, which only their own limits bound (`call_timeout`, `Timeouts.start_up`): its episode has not
            begun, and no limit of its own runs. A call waits within its `episode_timeout`.
        look_ahead: With `attach`, open up to so many sessions of the next batch in each process while the trainer
            trains on this one, for environments whose setup takes long. Those of this batch are deleted by then. The
            first batch of an epoch is foreseen where TRL's own sampler orders a `datasets.Dataset`.
        stop_at_finish: With `attach`, ask the model for no turn after the end of an episode; TRL asks for one, which
            reaches nobody. The rollout then ends with its last result and the end-of-turn token, which has no weight in
            the loss; its completion ends with a `tool` message.

        **Records**

        record: A file that gets a line of JSON for every episode that ends: its task's specification, what came in,
            images included, and what was called. In its name `{rank}` is the process's number and `{host}` the
            machine's name; without them all processes write one file.
        record_images: Whether the record holds images, which may be most of it; otherwise text says what is left out.
        rollouts: The name of this run. With it, every episode that ends is uploaded to the catalogue: prompt, calls,
            results. In the background; see `ors_client.Rollouts`.
        progress: Show a bar while many things are fetched.

        **The network**

        retry: What is repeated, how often and how fast.
        keepalive: How sessions are kept while the model thinks.
        timeout: How long is waited for what.
        limits: How much a server can make this process hold.
        headers: Sent with every request, as some proxies want. A pickled spec carries them, as it does the key; no
            `repr` shows them, and no record those that authenticate.

    Raises:
        ValueError: The arguments do not make sense, alone or together.
        TypeError: A setting is of the wrong kind, as `retry=3` or `indices=3`, or there is no such parameter.
    """

    def __init__(
        self,
        target: str | Layout | Sequence[str | Layout],
        *,
        num_tasks: int | None = None,
        split: str = "train",
        indices: Indices | None = None,
        api_key: str | None = None,
        secrets: Secrets | None = None,
        env_name: str | None = None,
        include_metadata: bool = True,
        discover_task_tools: bool = True,
        task_tools_discovery_index: int | None = None,
        variant: str | None = None,
        toolset: str | None = None,
        forward_api_key: bool = True,
        reward: Reduction = "last",
        unscored: float | None = None,
        on_failure: OnFailure = "unscored",
        clamp: tuple[float | None, float | None] | None = None,
        unfinished_penalty: float = 0.0,
        max_failure_rate: float = 0.5,
        owns_reward: bool = False,
        terminal_tool: bool = False,
        group_scoring: bool = False,
        max_calls: int | None = None,
        call_timeout: float | None = 1800.0,
        episode_timeout: float | None = None,
        max_output_chars: int | None = None,
        max_episode_chars: int | None = None,
        prompts: Prompts = "reset",
        images: bool = False,
        max_concurrency: int | None = None,
        look_ahead: int | None = None,
        stop_at_finish: bool = False,
        record: str | os.PathLike[str] | None = None,
        record_images: bool = True,
        rollouts: str | None = None,
        progress: bool = False,
        retry: RetryPolicy | None = None,
        keepalive: KeepalivePolicy | None = None,
        timeout: Timeouts | None = None,
        limits: Limits | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        check_choice(num_tasks, indices)
        servers, name = parse_target(target, env_name)
        if servers == (None,):
            variant = variant or env_name  # a catalogue name is the deployment's; this is the environment within it
        if rollouts is not None and not all(server is None or isinstance(server, Layout) for server in servers):
            raise ValueError(
                f"rollouts={rollouts!r} uploads to the catalogue, and the target is not in it; leave it out."
            )
        self._num_tasks = checked_count(num_tasks)
        self._indices = checked_indices(indices, split=split, environment=name)
        self._include_metadata = include_metadata
        self._discover_task_tools = discover_task_tools
        self._discovery_index = task_tools_discovery_index
        self._progress = progress
        settings = Settings(
            servers=servers,
            name=name,
            variant=variant,
            split=split,
            api_key=api_key,
            secrets=secrets,
            forward_api_key=forward_api_key,
            toolset=toolset,
            call_timeout=call_timeout,
            episode_timeout=episode_timeout,
            max_calls=max_calls,
            max_output_chars=max_output_chars,
            max_episode_chars=max_episode_chars,
            max_concurrency=max_concurrency,
            look_ahead=look_ahead,
            stop_at_finish=stop_at_finish,
            max_failure_rate=max_failure_rate,
            images=images,
            owns_reward=owns_reward,
            terminal_tool=terminal_tool,
            group_scoring=group_scoring,
            prompts=prompts,
            record=None if record is None else os.fspath(record),
            record_images=record_images,
            rollouts=rollouts,
            scoring=Scoring(
                reward=reward,
                unscored=unscored,
                on_failure=on_failure,
                clamp=clamp,
                unfinished_penalty=unfinished_penalty,
            ),
            retry=RetryPolicy() if retry is None else retry,
            keepalive=KeepalivePolicy() if keepalive is None else keepalive,
            timeout=Timeouts() if timeout is None else timeout,
            limits=Limits() if limits is None else limits,
            headers=headers if not isinstance(headers, Mapping) else dict(headers),
        )
        self._handle = connect(settings)

    @cached_property
    def train_dataset(self) -> Dataset:
        """The tasks as a dataset: `prompt` (an empty user turn), `task_index`, `split`, and the metadata's columns.

        Raises:
            ValueError: There is no such split or task, or the environment has not what was asked for.
        """
        dataset = self._build(self._tasks)
        self._check_environment()
        return dataset

    @property
    def manifest(self) -> dict[str, Any]:
        """What a run was trained on, fit to be kept beside it, as JSON.

        `target`, `environment`, `split`, `tasks` (the indices) and `fingerprint`, a hash of the tasks' content.
        """
        settings = self._handle.settings
        return {
            "target": settings.target,
            "environment": settings.name,
            "split": settings.split,
            "tasks": [task.index for task in self._tasks],
            "fingerprint": fingerprint(self._tasks),
        }

    def dataset(self, split: str, *, num_tasks: int | None = None, indices: Indices | None = None) -> Dataset:
        """Return the dataset of another split, for evaluation; the environments serve it as well.

        Args:
            split: The split.
            num_tasks: The first so many; by default the spec's own number, if it has one.
            indices: Exactly these.

        Raises:
            ValueError: There is no such split or task, or both ways choose tasks.
        """
        check_choice(num_tasks, indices)
        if indices is not None:
            return self._build(self._fetch(split, num_tasks=None, indices=checked_indices(indices, split=split)))
        return self._build(self._fetch(split, num_tasks=checked_count(num_tasks) or self._num_tasks, indices=None))

    @cached_property
    def environment_factory(self) -> EnvironmentFactory:
        """What makes the environments of the rollouts; picklable, takes no arguments, opens no session."""
        runtime = self._handle.runtime
        return EnvironmentFactory(self._handle, runtime.loop.run(runtime.servers.ask(self._discover)))

    @property
    def reward_funcs(self) -> RewardFunction | list[RewardFunction]:
        """The reward function: every rollout's reward, by default its last non-null one, `None` if nothing scored it.

        With `group_scoring`, a fresh list of it and of the one that compares rollouts: trainers add to such lists.

        Raises:
            ValueError: The environments own their reward, to which TRL would add this one.
        """
        if self._handle.settings.owns_reward:
            raise ValueError(
                "With owns_reward=True the environments hand TRL their reward, and reward_funcs would be added to it; "
                "pass reward_funcs=None to the trainer."
            )
        return [environment_reward, group_reward] if self._handle.settings.group_scoring else environment_reward

    def check(self, args: Any) -> None:
        """Raise where a trainer with this configuration could not train, before a model is loaded.

        A trainer drops the batch that it can't fill, and with a single such batch trains on nothing, in silence. Told
        as well: a configuration that strips the dataset's columns, and an environment that has not what was asked for.

        Args:
            args: A `GRPOConfig`.

        Raises:
            ValueError: There are fewer tasks than a batch has prompts, or than `num_tasks`; or one of the above.
            TypeError: It is no trainer's configuration.
        """
        check_configuration(args)
        check_columns(args)
        check_batch(len(self.train_dataset), args)
        if self._num_tasks is not None and len(self._tasks) < self._num_tasks:
            raise ValueError(
                f"num_tasks={self._num_tasks}, but split {self._handle.settings.split!r} has {len(self._tasks)} tasks; "
                "ask for no more than that, or leave num_tasks out for all."
            )

    def attach(self, trainer: Any) -> None:
        """Let a trainer's rollouts wait for their environments together, from the first batch on.

        Without it the reward function does so after the first batch. The trainer makes the same calls either way.

        Args:
            trainer: A `GRPOTrainer`, or one derived from it; one that is not recognised stays as it is, with a warning.

        Raises:
            ValueError: The trainer's dataset has fewer rows than a batch has prompts, its configuration strips the
                columns, its model does not see the images, or the environment has not what was asked for.
        """
        settings = self._handle.settings
        check_trainer(trainer, images=settings.images)
        self._check_environment()
        attach(trainer, look_ahead=settings.look_ahead is not None, stop_at_finish=settings.stop_at_finish)

    def close(self) -> None:
        """Delete all open sessions and close the runtime of this process; may be called again."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A worker needs the tools, which the factory holds; the dataset goes its own way.
        return {name: value for name, value in self.__dict__.items() if name not in ("train_dataset", "_tasks")}

    def __repr__(self) -> str:
        settings = self._handle.settings
        chosen = f", num_tasks={self._num_tasks}" if self._num_tasks is not None else ""
        chosen += f", indices={list(self._indices)!r}" if self._indices is not None else ""
        name = f", env_name={settings.name!r}" if settings.name is not None else ""
        return f"OpenRewardSpec({settings.target!r}{name}, split={settings.split!r}{chosen})"

    def _check_environment(self) -> None:
        """Raise where the environment has not what an option needs, or nothing that could score a rollout."""
        there, settings = self._capabilities, self._handle.settings
        if settings.terminal_tool and not there.terminal_tool:
            raise ValueError("terminal_tool=True, but this environment has no terminal tool; leave it out.")
        if settings.group_scoring and not there.group_scoring:
            raise ValueError("group_scoring=True, but this environment does not score groups; leave it out.")
        if there.tools or settings.terminal_tool or settings.group_scoring or self.environment_factory.aliases:
            return
        if there.terminal_tool:
            raise ValueError(
                "This environment has no tool but a terminal one, so that nothing would score a rollout; pass "
                "terminal_tool=True, which hands it the model's last message."
            )
        raise ValueError("This environment has no tools, so that nothing would score a rollout.")

    @cached_property
    def _capabilities(self) -> Capabilities:
        runtime, settings = self._handle.runtime, self._handle.settings
        index = self._discovery_index if self._indices is None else self._indices[0]
        options = [name for name in ("terminal_tool", "group_scoring") if getattr(settings, name)]
        question = partial(
            look_up_capabilities,
            task=TaskRef(settings.split, max(index or 0, 0)),
            needed=options or ["tools"],
            secrets=runtime.secrets,
            toolset=settings.toolset,
        )
        return runtime.loop.run(runtime.servers.ask(question))

    @cached_property
    def _tasks(self) -> list[Task]:
        return self._fetch(self._handle.settings.split, num_tasks=self._num_tasks, indices=self._indices)

    def _fetch(self, split: str, *, num_tasks: int | None, indices: Sequence[int] | None) -> list[Task]:
        fetch = partial(fetch_tasks, split=split, num_tasks=num_tasks, indices=indices, progress=self._progress)
        runtime = self._handle.runtime

        async def ask() -> list[Task]:
            tasks = await runtime.servers.ask(fetch)
            if runtime.settings.record:
                runtime.task_specs.add(tasks)
            return tasks

        return runtime.loop.run(ask())

    def _rows(self, split: str | None) -> Rows:
        tasks = self._tasks if split is None else self._fetch(split, num_tasks=self._num_tasks, indices=None)
        return Rows(tasks, self._prompts(tasks), include_metadata=self._include_metadata)

    def _build(self, tasks: Sequence[Task]) -> Dataset:
        split = tasks[0].split or self._handle.settings.split
        return build(tasks, split=split, include_metadata=self._include_metadata, prompts=self._prompts(tasks))

    def _prompts(self, tasks: Sequence[Task]) -> list[str | list[Any]] | None:
        settings = self._handle.settings
        if settings.prompts == "reset":
            return None
        images, max_chars = settings.images, settings.max_output_chars
        if settings.prompts == "dataset":
            prompts = self._ask_all(tasks, AsyncSession.get_prompt)
            return [to_content(blocks, images=images, max_chars=max_chars, empty="").value for blocks in prompts]
        conversations = self._ask_all(tasks, AsyncSession.get_messages)
        turns = (turn for conversation in conversations for turn in conversation)
        called = any(isinstance(block, ToolCallBlock) for turn in turns for block in turn.blocks)
        aliases = self.environment_factory.aliases if called else {}
        return [
            to_chat(conversation, aliases=aliases, images=images, max_chars=max_chars) for conversation in conversations
        ]

    def _ask_all(self, tasks: Sequence[Task], ask: Callable[[AsyncSession], Awaitable[list[T]]]) -> list[list[T]]:
        runtime, settings = self._handle.runtime, self._handle.settings
        refs = [_task_ref(task, settings.split) for task in tasks]

        def fetch(environment: AsyncEnvironment) -> Awaitable[list[list[T]]]:
            return fetch_prompts(
                environment, refs, ask, secrets=runtime.secrets, toolset=settings.toolset, progress=self._progress
            )

        return runtime.loop.run(runtime.servers.ask(fetch))

    async def _discover(self, environment: AsyncEnvironment) -> list[ToolSpec]:
        runtime, split = self._handle.runtime, self._handle.settings.split
        if not self._discover_task_tools:
            return await environment.list_tools()
        if self._discovery_index is not None:
            tasks = [TaskRef(split, self._discovery_index)]
        elif self._indices is not None:
            tasks = [TaskRef(split, index) for index in sorted(set(self._indices))]
        else:
            tasks = await sample(environment, split, num_tasks=self._num_tasks)
        runtime.tasks_seen.update(tasks)
        return await discover_tools(
            environment,
            tasks,
            secrets=runtime.secrets,
            toolset=self._handle.settings.toolset,
            progress=self._progress,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """What a dataset is made of.

    Args:
        tasks: In order, each with its split and index.
        prompts: One for each, where they stand in the dataset.
        include_metadata: Whether the keys of the tasks' specs become columns.
    """

    tasks: list[Task]
    prompts: list[Any] | None
    include_metadata: bool


def dataset_rows(spec: OpenRewardSpec, split: str | None = None) -> Rows:
    """Return the rows that a spec trains on, or as many of another split."""
    return spec._rows(split)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - public names are for users


def check_environment(spec: OpenRewardSpec) -> None:
    """Raise where a spec's environment has not what its options need; see `OpenRewardSpec.check`."""
    spec._check_environment()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - see `dataset_rows`


def settings_of(spec: OpenRewardSpec) -> Settings:
    """Return the settings of a spec's rollouts."""
    return spec._handle.settings  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - see `dataset_rows`


def _task_ref(task: Task, split: str) -> TaskRef:
    if task.index is None:
        raise ValueError(
            f"The prompt of the task {task.spec!r} can't be asked for, as it has no index; list the tasks from their "
            "split."
        )
    return TaskRef(task.split or split, task.index)
