"""Lets a trainer's rollouts wait for their environments together instead of one after the other.

A `GRPOTrainer` resets a batch's environments in turn and makes the calls of an iteration in turn. Two of its methods
are wrapped, on the instance: before the resets, all episodes of the batch start to open; at the first call of an
iteration, all calls of all rollouts start, those of one rollout in their order. The trainer then asks as before and
finds the answers there: the calls, their order within an episode, and every message and count stay the trainer's own.
It asks for less than was started only if it fails; what it asks for beyond that is done when it asks.

The trainer's private names are known in this package alone. A trainer that has other ones is left as it is.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this; see the last paragraph above

from __future__ import annotations

import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, overload

from ors_client._shared import get_logger
from trl_bridge._chat.tools import BoundTool
from trl_bridge._rollout.environment import bound_tool, slot_of
from trl_bridge._rollout.slot import RolloutSlot

from . import ranks, turns
from .prefetch import Prefetcher

logger = get_logger(__name__)

_MARK = "_trl_bridge_attached"
_PREFETCHER = "_trl_bridge_look_ahead"
_UNKNOWN = "%s has no %s as trl 1.16 has it; %s."


def attach(trainer: Any, *, look_ahead: bool = False, stop_at_finish: bool = False) -> bool:
    """Make a trainer's resets and calls concurrent, and let nothing that failed teach it anything.

    Once is enough; a trainer that is not recognised stays as it is. Returns whether its ranks agree on each batch from
    now on, and did not before.

    Args:
        trainer: A `GRPOTrainer`, or one derived from it.
        look_ahead: Open episodes of the next batch while it trains on this one, as many as their specs allow. The
            trainer must not have begun to train.
        stop_at_finish: Whether any of its specs wants no turn after the end of an episode, and a warning is due where
            that can't be.
    """
    if hasattr(trainer, _MARK):
        if look_ahead and getattr(trainer, _MARK) and not hasattr(trainer, _PREFETCHER):
            logger.warning("look_ahead has no effect: the trainer was attached without it; attach it before it trains.")
        return False
    missing = _unknown(trainer)
    setattr(trainer, _MARK, not missing)
    if missing:
        effect = "its resets and calls stay one after the other" + (f", and {turns.EFFECT}" if stop_at_finish else "")
        logger.warning(_UNKNOWN, type(trainer).__name__, missing, effect)
        return False
    if look_ahead:
        setattr(trainer, _PREFETCHER, _make_prefetcher(trainer))
    trainer._generate_and_score_completions = _with_prefetched_resets(trainer, getattr(trainer, _PREFETCHER, None))
    trainer.train = _with_sessions_released(trainer)
    trainer._tool_call_loop = _with_eager_calls(trainer)
    if not (missing := turns.unknown(trainer)):
        trainer._tool_call_loop = turns.with_turns_stopped(trainer)
    elif stop_at_finish:
        logger.warning(_UNKNOWN, type(trainer).__name__, missing, turns.EFFECT)
    if missing := ranks.unknown(trainer):
        effect = "what other reward functions give a failed rollout counts, and metrics are averages over ranks"
        logger.warning(_UNKNOWN, type(trainer).__name__, missing, effect)
        return False
    trainer._calculate_rewards = ranks.with_failures_unscored(trainer)
    return True


def owner_of(log_metric: object) -> Any:
    """Return the trainer whose bound method `log_metric` is, if it is one that runs environments."""
    trainer = getattr(log_metric, "__self__", None)
    return trainer if hasattr(trainer, "environment_factories") else None


def _unknown(trainer: Any) -> str:
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


def _make_prefetcher(trainer: Any) -> Prefetcher | None:
    """Return what opens episodes of the trainer's next batch, or `None`, with a warning, where that can't be done."""
    if missing := Prefetcher.unknown(trainer):
        logger.warning(_UNKNOWN, type(trainer).__name__, missing, "look_ahead has no effect")
        return None
    if workers := trainer.args.dataloader_num_workers:
        logger.warning("look_ahead has no effect with dataloader_num_workers=%d, which reads rows elsewhere.", workers)
        return None
    prefetcher = Prefetcher(trainer, functools.partial(_slots_for_rows, trainer))
    prefetcher.watch()
    return prefetcher


def _with_sessions_released(trainer: Any) -> Callable[..., Any]:
    """Wrap the method that trains: after it, or an exception in it, nobody asks for what is open."""
    train = trainer.train
    signature = inspect.signature(train)

    @functools.wraps(train)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        prefetcher: Prefetcher | None = getattr(trainer, _PREFETCHER, None)
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


def _with_prefetched_resets(trainer: Any, prefetcher: Prefetcher | None) -> Callable[..., Any]:
    """Wrap the method that takes a batch from its rows to its rewards."""
    score = trainer._generate_and_score_completions
    signature = inspect.signature(score)

    @functools.wraps(score)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        training, slots = trainer.model.training, list[RolloutSlot]()
        for slot, row in _slots_for_rows(trainer, signature.bind(*args, **kwargs).arguments["inputs"]):
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


def _slots_for_rows(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[RolloutSlot, Mapping[str, Any]]]:
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


def _with_eager_calls(trainer: Any) -> Callable[..., Any]:
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
                logger.warning(_UNKNOWN, type(trainer).__name__, name, "its calls stay one after the other")
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
