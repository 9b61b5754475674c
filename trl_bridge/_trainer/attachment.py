"""Puts every wrapped method of a trainer in its place, once, on the instance.

What the wrappers do is written where they are: `concurrency`, `turns`, `masking` and `prefetch`, each of which says
what it relies on. A trainer that does not have that stays as it is, with one warning that says what is lost.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this

from __future__ import annotations

import functools
from typing import Any

from ors_client._shared import get_logger

from . import concurrency, masking, turns
from .prefetch import Prefetcher
from .unknown import warn_unknown

logger = get_logger(__name__)

_MARK = "_trl_bridge_attached"
_PREFETCHER = "_trl_bridge_look_ahead"


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
    missing = concurrency.unknown(trainer)
    setattr(trainer, _MARK, not missing)
    if missing:
        effect = "its resets and calls stay one after the other" + (f", and {turns.EFFECT}" if stop_at_finish else "")
        warn_unknown(trainer, missing, effect)
        return False
    prefetcher = None
    if look_ahead:
        prefetcher = _make_prefetcher(trainer)
        setattr(trainer, _PREFETCHER, prefetcher)
    trainer._generate_and_score_completions = concurrency.with_prefetched_resets(trainer, prefetcher)
    trainer.train = concurrency.with_sessions_released(trainer, prefetcher)
    trainer._tool_call_loop = concurrency.with_eager_calls(trainer)
    if not (missing := turns.unknown(trainer)):
        trainer._tool_call_loop = turns.with_turns_stopped(trainer)
    elif stop_at_finish:
        warn_unknown(trainer, missing, turns.EFFECT)
    if missing := masking.unknown(trainer):
        effect = "what other reward functions give a failed rollout counts, and metrics are averages over ranks"
        warn_unknown(trainer, missing, effect)
        return False
    trainer._calculate_rewards = masking.with_failures_unscored(trainer)
    return True


def owner_of(log_metric: object) -> Any:
    """Return the trainer whose bound method `log_metric` is, if it is one that runs environments."""
    trainer = getattr(log_metric, "__self__", None)
    return trainer if hasattr(trainer, "environment_factories") else None


def _make_prefetcher(trainer: Any) -> Prefetcher | None:
    """Return what opens episodes of the trainer's next batch, or `None`, with a warning, where that can't be done."""
    if missing := Prefetcher.unknown(trainer):
        warn_unknown(trainer, missing, "look_ahead has no effect")
        return None
    if workers := trainer.args.dataloader_num_workers:
        logger.warning("look_ahead has no effect with dataloader_num_workers=%d, which reads rows elsewhere.", workers)
        return None
    prefetcher = Prefetcher(trainer, functools.partial(concurrency.slots_for_rows, trainer))
    prefetcher.watch()
    return prefetcher
