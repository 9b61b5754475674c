"""What all ranks of a trainer agree on about a scored batch: which rollouts failed, and the metrics of the whole.

One exchange tells both. The metrics are those that TRL's averages would distort: TRL divides by the ranks and batches
that logged a metric, not by all of them.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from trl_bridge._rollout.environment import slot_of

ENDINGS = ("environment/failed/", "environment/cut/", "environment/unusable_rewards")
"""How the metrics begin that are logged only once they are not zero."""


class RankReport(NamedTuple):
    """What one rank knows of its rollouts of a batch.

    Args:
        failed: For each rollout, whether its rewards must not count.
        rewards: The group and the reward of each that is ours, by the name of its environment; all under `None`.
        endings: Names of metrics, see `ENDINGS`.
        sessions: That are open; `None` if the rank logged none.
    """

    failed: list[bool]
    rewards: dict[str | None, list[tuple[Hashable, float | None]]]
    endings: list[str]
    sessions: float | None


def unknown(trainer: Any) -> str:
    """Name what this module relies on and a trainer does not have; empty if it has everything."""
    missing = (name for name in ("_metrics", "_pending_metrics") if not isinstance(getattr(trainer, name, None), dict))
    return next(missing, "")


def agree(trainer: Any, environments: Sequence[Any], names: Sequence[str | None]) -> list[bool]:
    """Make the metrics that are about to be logged those of all ranks; return which rollouts of all failed.

    Every rank must call this for the same batch.

    Args:
        trainer: Whose reward functions have logged their metrics.
        environments: Of this rank's rollouts.
        names: Of their environments, where they have any.
    """
    gather: Any = import_module("accelerate.utils").gather_object  # it has no stubs, and is slow to import

    pending = trainer._pending_metrics
    slots = [slot_of(environment) for environment in environments]
    sessions = pending.get("environment/sessions_open")
    report = RankReport(
        failed=[slot is not None and slot.teaches_nothing for slot in slots],
        rewards=grouped_rewards(environments, names),
        endings=[name for name in pending if name.startswith(ENDINGS)],
        sessions=sum(sessions) / len(sessions) if sessions else None,
    )
    reports: list[RankReport] = gather([report])
    logged = [report.sessions for report in reports if report.sessions is not None]
    if logged:
        pending["environment/sessions_open"] = [sum(logged)]
        merged: defaultdict[str | None, list[tuple[Hashable, float | None]]] = defaultdict(list)
        for report in reports:
            for name, rewards in report.rewards.items():
                merged[name] += rewards
        pending.update({name: [value] for name, value in zero_variance(merged).items()})
    entries = trainer._metrics["train" if trainer.model.training else "eval"]
    batches = len(entries.get("environment/scored", ()))  # since the last time that metrics were logged
    for name in {name for report in reports for name in report.endings}:
        pending.setdefault(name, [0.0])
        entries[name] = [0.0] * (batches - len(entries.get(name, ()))) + list(entries.get(name, ()))
    return [lost for report in reports for lost in report.failed]


def grouped_rewards(
    environments: Sequence[Any], names: Iterable[str | None]
) -> dict[str | None, list[tuple[Hashable, float | None]]]:
    """Return each rollout's task and reward, all under `None`, and those with a name under that as well."""
    rewards: defaultdict[str | None, list[tuple[Hashable, float | None]]] = defaultdict(list)
    for environment, name in zip(environments, names, strict=True):
        slot = slot_of(environment)
        if slot is None:
            continue
        settings, log = slot.handle.settings, slot.log
        task = (name, settings.target, settings.name, settings.variant, log.split, log.index)
        for key in {None, name}:
            rewards[key].append((task, slot.reward))
    return dict(rewards)


def zero_variance(rewards: Mapping[str | None, Sequence[tuple[Hashable, float | None]]]) -> dict[str, float]:
    """Return the share of groups whose scored rewards are all equal: such a group teaches nothing."""
    metrics: dict[str, float] = {}
    for name, pairs in rewards.items():
        groups: defaultdict[Hashable, set[float]] = defaultdict(set)
        for task, reward in pairs:
            groups[task].update(() if reward is None else (reward,))
        prefix = "environment" if name is None else f"environments/{name}"
        metrics[f"{prefix}/zero_variance"] = sum(len(values) < 2 for values in groups.values()) / len(groups)
    return metrics
