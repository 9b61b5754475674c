"""The reward function that has the environment score the rollouts of one task beside each other.

The environment's scores come beside its own rewards and never instead of them; TRL adds the two up, with
`reward_weights` as weights. What cannot be scored is `None`, never a guessed zero: the other rewards then decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ors_client import GroupCandidate, ORSError, StatusError, TaskRef
from ors_client._shared import get_logger, wait
from trl_bridge._chat.conversation import from_chat
from trl_bridge._rollout.environment import slot_of, tool_names
from trl_bridge._runtime.runtime import Runtime
from trl_bridge._scoring import is_usable

from .rewards import LogMetric

logger = get_logger(__name__)


def group_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    environments: Sequence[Any] | None = None,
    *,
    log_metric: LogMetric | None = None,
    **_: Any,
) -> list[float | None]:
    """Return how every rollout compares with the others of its task in this batch, as the environment sees it.

    `None` for a rollout that the infrastructure broke, which is shown to no judge, for all of a group whose scoring
    failed, and for one of an environment that was not asked for it.

    Args:
        prompts: Of the rollouts.
        completions: What the model said, and the answers to its calls.
        environments: What TRL holds, in the order of the rollouts.
        log_metric: TRL's, if it hands one.

    Raises:
        ValueError: There are no environments.
    """
    if environments is None:
        raise ValueError("This trainer hands reward functions no environments, so that groups can't be scored.")
    groups: dict[tuple[Runtime, TaskRef], list[int]] = defaultdict(list)
    for position, environment in enumerate(environments):
        slot = slot_of(environment)
        if slot is None or slot.runtime is None or not slot.handle.settings.group_scoring:
            continue
        if slot.log.failure is None:
            groups[slot.runtime, TaskRef(slot.log.split, slot.log.index)].append(position)
    scoring: list[tuple[list[int], Future[list[float | None]]]] = []
    for (runtime, task), members in groups.items():
        candidates = [
            GroupCandidate(
                messages=from_chat([*prompts[member], *completions[member]], names=tool_names(environments[member]))
            )
            for member in members
        ]
        scoring.append((members, runtime.loop.submit(_score(runtime, task, candidates))))
    rewards: list[float | None] = [None] * len(environments)
    failed = 0
    for members, future in scoring:
        try:
            scores = wait(future)
        except ORSError as error:
            failed += 1
            logger.warning("The rollouts of one task were not scored beside each other: %s", error)
            continue
        for member, score in zip(members, scores, strict=True):
            rewards[member] = score if score is None or is_usable(score) else None
    if log_metric is not None and scoring:
        log_metric("environment/group_scoring_failed", failed / len(scoring))
    return rewards


async def _score(runtime: Runtime, task: TaskRef, candidates: list[GroupCandidate]) -> list[float | None]:
    """Score candidates in a session of their own: those of the rollouts are over and gone."""
    async with runtime.request_slot():
        server = runtime.servers.pick()
        try:
            async with server.environment.session(
                task, secrets=runtime.secrets, toolset=runtime.settings.toolset
            ) as session:
                return [score.reward for score in await session.score_group(candidates)]
        except StatusError as error:
            if error.status == 404:
                raise ValueError(
                    f"group_scoring=True, but this environment does not score groups ({error.detail}); leave it out."
                ) from error
            raise
        except ORSError as error:
            runtime.servers.report(server, error)
            raise
