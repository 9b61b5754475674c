"""The reward function that TRL calls with a batch's rollouts: returns their rewards and logs metrics.

It scores nothing itself: the environments do. Once the rewards are read, the sessions are released.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ors_client._shared import get_logger, wait
from trl_bridge._chat.conversation import final_answer
from trl_bridge._rollout.environment import owns_reward, slot_of
from trl_bridge._rollout.slot import RolloutSlot

from . import ranks
from .attachment import attach, owner_of

logger = get_logger(__name__)

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]


def environment_reward(
    environments: Sequence[Any] | None = None,
    *,
    prompts: Sequence[Any] | None = None,
    completions: Sequence[Any] | None = None,
    trainer_state: Any = None,
    environment: Sequence[str] | None = None,
    log_metric: LogMetric | None = None,
    log_extra: LogExtra | None = None,
    **_: Any,
) -> list[float | None]:
    """Return the reward of every rollout; `None`, which TRL leaves out, where nothing was scored.

    Args:
        environments: What TRL holds, in the order of the rollouts. One of another kind is worth `None`.
        prompts: What the model was shown, for the record.
        completions: What the model said, for the record; its last message goes to the terminal tool, where that is
            asked for.
        trainer_state: TRL's, whose step the record tells.
        environment: The name of each one, where the dataset has such a column; their metrics are then logged apart,
            too.
        log_metric: TRL's, if it hands one; the trainer behind it is attached to, from its next batch on.
        log_extra: TRL's, if it hands one.

    Raises:
        ValueError: There are no environments, or they own their reward, which TRL would add to this one.
    """
    if environments is None:
        raise ValueError(
            "This trainer hands reward functions no environments. Pass owns_reward=True to OpenRewardSpec and "
            "reward_funcs=None to the trainer."
        )
    if any(map(owns_reward, environments)):
        raise ValueError(
            "These environments own their reward (owns_reward=True), and TRL would add this function's to it; pass "
            "reward_funcs=None to the trainer."
        )
    slots = [slot_of(environment) for environment in environments]
    _answer(slots, completions)
    rewards = [slot.reward if slot is not None else None for slot in slots]
    ours = [slot for slot in slots if slot is not None]
    trainer = owner_of(log_metric)
    for slot in ours:
        if trainer is None or len(trainer.reward_funcs) > 1:
            slot.warn_unless_attached()
        slot.warn_unless_stopped()
    if log_metric is not None and ours:
        names = environment or [None] * len(slots)
        groups = ranks.grouped_rewards(environments, names)
        metrics = _metrics(ours) | _metrics_by_name(slots, environment or ()) | ranks.zero_variance(groups)
        for name, value in metrics.items():
            log_metric(name, value)
    # On each rank, whether it has rollouts of ours or not: what they do together they all have to do.
    if trainer is not None and attach(trainer, stop_at_finish=any(slot.stops for slot in ours)):
        ranks.agree(trainer, environments, environment or [None] * len(slots))
    _warn_without_rewards(ours)
    if log_extra is not None and ours:
        log_extra("status", [slot.log.status if slot is not None else None for slot in slots])
        log_extra("calls", [len(slot.log.calls) if slot is not None else None for slot in slots])
        log_extra("session_id", [slot.log.session_id if slot is not None else None for slot in slots])
    _end(slots, prompts, completions, step=getattr(trainer_state, "global_step", None))
    return rewards


def _end(
    slots: Sequence[RolloutSlot | None],
    prompts: Sequence[Any] | None,
    completions: Sequence[Any] | None,
    *,
    step: int | None,
) -> None:
    """End the episodes, and let their records tell what the model wrote, as far as the trainer hands it on."""
    for slot in slots:
        if slot is not None:
            slot.release()
    if prompts is None or completions is None:
        return
    # A reward function that calls this one hands on what it likes.
    for slot, prompt, completion in zip(slots, prompts, completions, strict=False):
        if slot is not None:
            slot.record_words(prompt, completion, step=step)


def _warn_without_rewards(slots: Sequence[RolloutSlot]) -> None:
    """Warn once about a batch that has no reward at all: a trainer goes on, and learns nothing from it."""
    runtimes = [
        runtime
        for runtime in {slot.runtime for slot in slots}
        if runtime is not None and not runtime.settings.group_scoring
    ]
    if any(slot.reward is not None for slot in slots) or all(runtime.unscored_warned for runtime in runtimes):
        return
    for runtime in runtimes:
        runtime.unscored_warned = True
    logs = [slot.log for slot in slots]
    calls = sum(len(log.calls) for log in logs)
    failed = sum(log.failure is not None for log in logs)
    logger.warning(
        "None of the %d rollouts of a batch was scored, so nothing is learnt from it: they made %d tool calls, and the "
        "infrastructure broke %d of them. A model that calls no tool needs another prompt or some warming up, and "
        "unscored=0.0 makes such rollouts zeros. Said once; environment/scored has the share of every batch.",
        len(slots),
        calls,
        failed,
    )


def _answer(slots: Sequence[RolloutSlot | None], completions: Sequence[Any] | None) -> None:
    """Hand the last messages to the terminal tools, all at once, and wait until they have scored them."""
    asked = [slot is not None and slot.handle.settings.terminal_tool for slot in slots]
    if not any(asked):
        return
    if completions is None:
        raise ValueError(
            "terminal_tool=True needs the completions, which TRL hands to every reward function; pass them on to this "
            "one."
        )
    answers = [
        slot.answer(message)
        for slot, completion, wanted in zip(slots, completions, asked, strict=True)
        if slot is not None and wanted and (message := final_answer(completion)) is not None
    ]
    for answer in answers:
        if answer is not None:
            wait(answer)


def _metrics(slots: Sequence[RolloutSlot]) -> dict[str, float]:
    """Return the metrics of a batch, as shares and means; a kind of failure or cut that occurred once stays listed."""
    logs = [slot.log for slot in slots]
    runtimes = {slot.runtime for slot in slots} - {None}
    endings = Counter(log.status.replace(": ", "/") for log in logs if log.failure or log.cut)
    if unusable := sum(slot.unusable_rewards > 0 for slot in slots):
        endings["unusable_rewards"] = unusable
    for runtime in runtimes:
        if runtime is not None:
            runtime.endings.update(endings)
            endings.update(dict.fromkeys(runtime.endings, 0))
    late_calls = sum(log.late_calls for log in logs)
    totals = {**_totals(slots), "late_calls": late_calls, **endings}
    means = {f"environment/{name}": total / len(slots) for name, total in totals.items()}
    sessions = sum(runtime.servers.sessions for runtime in runtimes if runtime is not None)
    return means | {"environment/sessions_open": float(sessions)}


def _metrics_by_name(slots: Sequence[RolloutSlot | None], names: Sequence[str]) -> dict[str, float]:
    """Return the metrics of each of several environments; the mean reward is that of the scored rollouts."""
    metrics: dict[str, float] = {}
    for name in sorted(set(names)):
        mine = [slot for slot, own in zip(slots, names, strict=True) if own == name and slot is not None]
        metrics |= {f"environments/{name}/{key}": total / len(mine) for key, total in _totals(mine).items() if mine}
        scored = [reward for slot in mine if (reward := slot.reward) is not None]
        if scored:
            metrics[f"environments/{name}/reward"] = math.fsum(scored) / len(scored)
    return metrics


def _totals(slots: Sequence[RolloutSlot]) -> dict[str, float]:
    logs = [slot.log for slot in slots]
    return {
        "scored": sum(slot.reward is not None for slot in slots),
        "finished": sum(log.finished for log in logs),
        "failed": sum(log.failure is not None for log in logs),
        "cut": sum(log.cut is not None for log in logs),
        "calls": sum(len(log.calls) for log in logs),
        "seconds": sum(slot.seconds for slot in slots),
    }
