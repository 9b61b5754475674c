"""Lets a trainer's rollouts wait for their environments together instead of one after the other.

A `GRPOTrainer` resets a batch's environments in turn and makes the calls of an iteration in turn. Two of its methods
are wrapped, on the instance: before the resets, all episodes of the batch start to open; at the first call of an
iteration, all calls of all rollouts start, those of one rollout in their order. The trainer then asks as before and
finds the answers there: the calls, their order within an episode, and every message and count stay the trainer's own.
It asks for less than was started only if it fails; what it asks for beyond that is done when it asks.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this

from __future__ import annotations

import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, overload

from trl_bridge._chat.tools import BoundTool
from trl_bridge._rollout.environment import bound_tool, slot_of
from trl_bridge._rollout.slot import RolloutSlot

from .prefetch import Prefetcher
from .unknown import warn_unknown


def unknown(trainer: Any) -> str:
    """Name what this module relies on and a trainer does not have; empty if it has everything."""
    for name, parameter in (("_tool_call_loop", "completions"), ("_generate_and_score_completions", "inputs")):
        method = getattr(trainer, name, None)
        if not callable(method) or parameter not in inspect.signature(method).parameters:
            return f"{name}({parameter})"
    if not isinstance(getattr(trainer, "_environment_pool", None), dict):
        return "_environment_pool"
    if not isinstance(getattr(trainer, "environment_factories", None), dict):
        return "environment_factories"
    return next((name for name in ("_multi_environment", "train") if not hasattr(trainer, name)), "")


def with_sessions_released(trainer: Any, prefetcher: Prefetcher | None) -> Callable[..., Any]:
    """Wrap the method that trains: after it, or an exception in it, nobody asks for what is open."""
    train = trainer.train
    signature = inspect.signature(train)

    @functools.wraps(train)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if prefetcher is not None:
            resumed = signature.bind(*args, **kwargs).arguments.get("resume_from_checkpoint")
            prefetcher.begins_at_first_row = not resumed and not trainer.args.resume_from_checkpoint
        try:
            return train(*args, **kwargs)
        finally:
            if prefetcher is not None:
                prefetcher.drop()
            for environment in itertools.chain.from_iterable(trainer._environment_pool.values()):
                if (slot := slot_of(environment)) is not None:
                    slot.release()

    return wrapped


def with_prefetched_resets(trainer: Any, prefetcher: Prefetcher | None) -> Callable[..., Any]:
    """Wrap the method that takes a batch from its rows to its rewards."""
    score = trainer._generate_and_score_completions
    signature = inspect.signature(score)

    @functools.wraps(score)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        training, slots = trainer.model.training, list[RolloutSlot]()
        for slot, row in slots_for_rows(trainer, signature.bind(*args, **kwargs).arguments["inputs"]):
            slot.prefetch(row, ready=prefetcher.take(slot, row) if training and prefetcher is not None else None)
            slot.attached = True
            slots.append(slot)
        try:
            scored = score(*args, **kwargs)
        finally:
            for slot in slots:
                slot.drop_prefetched()
        if training and prefetcher is not None:
            prefetcher.generated()
        return scored

    return wrapped


def slots_for_rows(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[RolloutSlot, Mapping[str, Any]]]:
    """Yield the slot of the environment that the trainer will take for each row, where it is ours and can be reset."""
    taken: Counter[str | None] = Counter()
    for row in rows:
        name = row.get("environment") if trainer._multi_environment else None
        pool = trainer._environment_pool.get(name)
        if pool is None:
            return  # the trainer says what is wrong
        if taken[name] == len(pool):
            pool.append(trainer.environment_factories[name]())
        slot = slot_of(pool[taken[name]])
        taken[name] += 1
        if slot is not None and slot.can_reset(row):
            yield slot, row


def with_eager_calls(trainer: Any) -> Callable[..., Any]:
    """Wrap the loop that makes the calls of a batch and lets the model go on, until no rollout calls any more."""
    loop = trainer._tool_call_loop
    signature = inspect.signature(loop)
    warned = False

    @functools.wraps(loop)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        completions = signature.bind(*args, **kwargs).arguments["completions"]
        # Made anew for every batch, so that their absence shows no earlier.
        functions, environments = getattr(trainer, "_sync_tool_dicts", None), getattr(trainer, "environments", None)
        if not isinstance(functions, list) or not isinstance(environments, list):
            if not warned:
                name = "environments" if isinstance(functions, list) else "_sync_tool_dicts"
                warn_unknown(trainer, name, "its calls stay one after the other")
            warned = True
            return loop(*args, **kwargs)
        if len(cast("list[Any]", environments)) != len(completions):
            return loop(*args, **kwargs)
        trainer._sync_tool_dicts = EagerCalls(
            cast("list[Any]", functions), cast("list[Any]", environments), completions
        )
        try:
            return loop(*args, **kwargs)
        finally:
            trainer._sync_tool_dicts = functions

    return wrapped


class EagerCalls(Sequence[Any]):
    """Stands for the trainer's list of each rollout's functions, and notices when a rollout is about to call.

    The trainer looks a rollout's functions up once per iteration, when it has decided that the rollout's calls are made
    and just before it makes them. At the first look-up in an iteration, the calls of all rollouts are started: those
    whose last message is an assistant's with calls that were not started before. A rollout whose outputs were taken
    back, as they would have been too long, keeps the message that was seen, so its calls are never started twice.

    Args:
        functions: For each rollout, from a function's name to the function.
        environments: One for each rollout.
        completions: For each rollout, its messages; the trainer appends to them.
    """

    def __init__(
        self,
        functions: list[Mapping[str, Any]],
        environments: Sequence[Any],
        completions: Sequence[list[dict[str, Any]]],
    ) -> None:
        self._functions = functions
        self._environments = environments
        self._completions = completions
        self._seen: dict[int, dict[str, Any]] = {}  # the message of each rollout whose calls were last started

    def __len__(self) -> int:
        return len(self._functions)

    @overload
    def __getitem__(self, rollout: int) -> Any: ...
    @overload
    def __getitem__(self, rollout: slice) -> Sequence[Any]: ...
    def __getitem__(self, rollout: int | slice) -> Any:
        if isinstance(rollout, int) and self._seen.get(rollout) is not self._completions[rollout][-1]:
            self._start_all()
        # The very object that the trainer made: its messages about bad arguments name what is in it.
        return self._functions[rollout]

    def _start_all(self) -> None:
        for rollout, messages in enumerate(self._completions):
            message = messages[-1]
            if message.get("role") == "assistant" and message.get("tool_calls"):
                if self._seen.get(rollout) is not message:
                    self._start(rollout, message["tool_calls"])
                self._seen[rollout] = message

    def _start(self, rollout: int, calls: Sequence[Mapping[str, Any]]) -> None:
        environment, functions = self._environments[rollout], self._functions[rollout]
        slot = slot_of(environment)
        if slot is None or not slot.is_open:
            return
        plan: list[tuple[BoundTool, dict[str, Any]]] = []
        for call in calls:
            if call.get("type") != "function":
                continue  # the trainer answers without calling, as it does to a name it does not know
            function = functions.get(call["function"]["name"])
            if function is None:
                continue
            tool = bound_tool(environment, function)
            if tool is None:
                return  # one of the user's own: all of this message's calls stay in the trainer's order
            arguments = call["function"]["arguments"]
            if isinstance(arguments, Mapping) and all(
                isinstance(key, str) for key in cast("Mapping[Any, Any]", arguments)
            ):
                plan.append((tool, dict(cast("Mapping[str, Any]", arguments))))
        for tool, arguments in plan:
            slot.dispatch(tool, arguments)
