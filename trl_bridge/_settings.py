"""The options of a spec: those of its rollouts as one frozen value that crosses process boundaries, and their checks.

Holds choices and checks them; opens nothing. A `repr` shows neither the key nor the secrets nor the headers; a pickle
carries them, as a worker needs them.
"""

from __future__ import annotations

import operator
import os
import re
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, SupportsIndex, TypeVar, cast, get_args

from ors_client import KeepalivePolicy, Layout, Limits, RetryPolicy, TaskRef, Timeouts
from ors_client._shared import (
    Secrets,
    check_headers,
    read_task_file,
    secret_values,
)

from ._scoring import Scoring

P = ParamSpec("P")
R = TypeVar("R")
Prompts = Literal["reset", "dataset", "messages"]

_CATALOGUE_NAME = re.compile(r"[^\s/:]+/[^\s/:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a spec was asked for, but for the choice of its tasks.

    Args:
        servers: Where sessions are opened; `None` is the catalogue.
        name: The environment's name there; `None` is the only one.
        call_timeout: Seconds for one call.
        episode_timeout: Seconds from the first request of an episode, once `max_concurrency` allows it; what
            runs then is cut and keeps its score, and an opening that is not done has failed.
        max_calls: Calls of one episode that are sent; the next one is answered on the spot and ends it.
        max_output_chars: Characters of one prompt or output that the model sees; the middle goes first.
        max_episode_chars: Characters of all outputs of an episode that the model sees.
        max_concurrency: Requests of rollouts (an opening, a call) that run at one time in this process.
        look_ahead: Episodes of the next batch that are opened while the trainer trains on this one.
        stop_at_finish: Ask the model for no turn after the end of an episode.
        max_failure_rate: The share of the last resets that may fail; above it, the run stops.
        terminal_tool: Hand the model's last message to the environment's terminal tool.
        group_scoring: Have the environment score the rollouts of one task beside each other.
        rollouts: The run's name under which episodes are uploaded to the catalogue; `None` uploads nothing.
        forward_api_key: Hand the catalogue's key to its environments as their secret `api_key`.
        key: Tells specs apart; one runtime serves all copies of a spec in a process.
    """

    servers: tuple[str | Layout | None, ...]
    name: str | None = None
    variant: str | None = None
    split: str = "train"
    api_key: str | None = field(default=None, repr=False)
    secrets: Secrets | None = field(default=None, repr=False)
    forward_api_key: bool = True
    toolset: str | None = None
    call_timeout: float | None = 1800.0
    episode_timeout: float | None = None
    max_calls: int | None = None
    max_output_chars: int | None = None
    max_episode_chars: int | None = None
    max_concurrency: int | None = None
    look_ahead: int | None = None
    stop_at_finish: bool = False
    max_failure_rate: float = 0.5
    images: bool = False
    owns_reward: bool = False
    terminal_tool: bool = False
    group_scoring: bool = False
    prompts: Prompts = "reset"
    record: str | None = None
    record_images: bool = True
    rollouts: str | None = None
    scoring: Scoring = field(default_factory=Scoring)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    keepalive: KeepalivePolicy = field(default_factory=KeepalivePolicy)
    timeout: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    key: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)

    def __post_init__(self) -> None:
        """Reject settings of the wrong kind, and limits under which no episode could run."""
        record_path(self.record or "")
        secret_values(self.secrets)  # which says what is wrong with them
        check_headers({} if self.headers is None else self.headers)
        for name in ("call_timeout", "episode_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} is a positive number of seconds or None, not {seconds!r}.")
        for name in ("max_calls", "max_output_chars", "max_episode_chars", "max_concurrency", "look_ahead"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"{name} is a positive integer or None, not {number!r}.")
        if not 0 <= self.max_failure_rate <= 1:
            raise ValueError(f"max_failure_rate is a share between 0 and 1, not {self.max_failure_rate!r}.")
        if self.prompts not in get_args(Prompts):
            raise ValueError(f"prompts is one of {', '.join(map(repr, get_args(Prompts)))}, not {self.prompts!r}.")
        for name in ("terminal_tool", "group_scoring"):
            if self.owns_reward and getattr(self, name):
                raise ValueError(
                    f"{name}=True needs the finished conversation, which TRL hands to reward functions and not to "
                    "environments that own their reward; leave owns_reward out."
                )

    @property
    def target(self) -> str:
        """The servers and the environment, as a record names them."""
        addresses = (
            "the catalogue" if target is None else target.sessions if isinstance(target, Layout) else target
            for target in self.servers
        )
        return ", ".join(addresses)

    def task(self, row: Mapping[str, Any]) -> TaskRef:
        """Return the task that a dataset row stands for.

        Raises:
            ValueError: The row names none. It is never guessed, as every rollout would then train on the same task.
        """
        index = row.get("task_index")
        if index is None:
            raise ValueError(
                f"A dataset row has no task_index; its columns are {sorted(row)}. Trainers strip the columns that they "
                "do not know unless their configuration says remove_unused_columns=False."
            )
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise ValueError(f"A dataset row's task_index is an integer, not {index!r}.")
        split = row.get("split")
        return TaskRef(str(split) if split else self.split, operator.index(cast("SupportsIndex", index)))


def parse_target(
    target: str | Layout | Sequence[str | Layout], env_name: str | None
) -> tuple[tuple[str | Layout | None, ...], str | None]:
    """Return the servers that a target stands for, and the environment's name there."""
    if isinstance(target, Layout):
        return (target,), env_name
    if target is None or target == "":  # pyright: ignore[reportUnnecessaryComparison] - callers without a type checker
        raise ValueError(
            f"target is {target!r}; a variable that should hold it may be unset. It is a catalogue name such as "
            "'owner/name' or a URL such as 'http://localhost:8000'."
        )
    if not isinstance(target, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"target takes a name, a URL, a Layout or several URLs, not {target!r}.")
    if not isinstance(target, str):
        several = tuple(target)
        if not several:
            raise ValueError("target is an empty list; name at least one server.")
        for each in several:
            if isinstance(each, str) and "://" not in each:
                raise ValueError(f"Each of several targets is a URL, unlike {_shown(each)!r}.")
            _checked_url(each)
        return several, env_name
    if "://" in target:
        _checked_url(target)
        return (target,), env_name
    if not _CATALOGUE_NAME.fullmatch(target):
        raise ValueError(
            f"{_shown(target)!r} is neither a catalogue name such as 'owner/name' nor a URL such as 'http://localhost:8000'."
        )
    return (None,), target


def _shown(target: str) -> str:
    return re.sub(r"(?s).*@", "***@", target)  # what stands before it may be a password


def _checked_url(target: str | Layout) -> None:
    if isinstance(target, str):
        Layout.single(target)  # raises where a client would, but when the mistake is made


Indices = Sequence[int] | str | os.PathLike[str]
"""Tasks by their numbers, or a file that names them."""


def check_choice(num_tasks: int | None, indices: Indices | None) -> None:
    """Raise where both ways to choose tasks are taken."""
    if num_tasks is not None and indices is not None:
        raise ValueError(f"num_tasks={num_tasks!r} and indices={indices!r} both choose tasks; pass one of them.")


def checked_count(num_tasks: int | None) -> int | None:
    """Return the number of tasks; raise unless it is one."""
    if num_tasks is not None and (not isinstance(num_tasks, int) or isinstance(num_tasks, bool) or num_tasks < 1):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise ValueError(f"num_tasks is a positive integer, or None for all tasks, not {num_tasks!r}.")
    return num_tasks


def checked_indices(
    indices: Indices | None, *, split: str | None = None, environment: str | None = None
) -> tuple[int, ...] | None:
    """Return the indices of tasks as they were given, or as a file names them; raise unless each can be one.

    Args:
        indices: The numbers, or the file.
        split: That is asked for; a file of another's tasks is an error.
        environment: Likewise.
    """
    if indices is None:
        return None
    if isinstance(indices, str | os.PathLike):
        file = read_task_file(indices)
        file.require(split=split, environment=environment)
        return tuple(file.indices)
    if not isinstance(indices, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"indices takes several integers, not {indices!r}; write indices=[{indices!r}].")
    chosen = tuple(indices)
    if not chosen:
        raise ValueError("indices is empty; name at least one task, or leave it out for all tasks.")
    for index in chosen:
        if not isinstance(index, int) or isinstance(index, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise TypeError(f"indices holds integers, not {index!r}.")
    return chosen


def record_path(template: str) -> str:
    """Return the path of a record in this process: `{rank}` is its number in a training, `{host}` the machine's name.

    Raises:
        ValueError: Something else stands in braces.
    """
    known = {"{rank}": os.environ.get("RANK", "0"), "{host}": socket.gethostname()}

    def fill(found: re.Match[str]) -> str:
        if found[0] not in known:
            raise ValueError(f"record= may hold {{rank}} and {{host}}, and {found[0]!r} is neither: {template!r}.")
        return known[found[0]]

    return re.sub(r"\{[^{}]*\}", fill, template)
