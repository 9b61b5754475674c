"""Asks the model for no turn after the end of an episode: nothing that it says there reaches the environment.

A trainer lets every rollout that called go on, whatever the answer was. With `stop_at_finish`, those whose episode is
over are taken out of the request for the next turns. To the trainer they said nothing, so that no message is added.
After its loop their token ids get the end-of-turn token, which neither a loss nor a length counts: such a rollout has
ended and was not clipped.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ors_client._shared import get_logger
from trl_bridge._rollout.environment import slot_of
from trl_bridge._rollout.slot import RolloutSlot

from .shared_engine import SharedEngine, Turns

logger = get_logger(__name__)

EFFECT = "stop_at_finish has no effect"
"""What a trainer of another kind means."""

_LOOP = ("prompt_ids", "completion_ids", "completions", "logprobs")
_TURN = ("prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images")
_OF_IMAGES = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")


def unknown(trainer: Any) -> str:
    """Name what this module relies on and a trainer does not have; empty if it has everything."""
    loop = getattr(trainer, "_tool_call_loop", None)
    # The first class that has a method says how it is called; those derived from it may name parameters anew.
    name = "_generate_single_turn"
    owner = next((vars(each) for each in reversed(type(trainer).__mro__) if name in vars(each)), {name: None})
    for method, parameters in ((loop, _LOOP), (owner[name], _TURN)):
        if not callable(method) or not {*parameters} <= {*inspect.signature(method).parameters}:
            return f"{'_tool_call_loop' if method is loop else name}({', '.join(parameters)})"
    names = ("eos_token_ids", "_tokenizer", "max_completion_length", "use_vllm", "environments")
    return next((name for name in names if not hasattr(trainer, name)), "")


def _wanted(trainer: Any) -> bool:
    """Whether any of the trainer's environments wants this; the same on all ranks, whatever rows they have."""
    slots = (slot_of(pool[0]) for pool in trainer._environment_pool.values())
    return any(slot is not None and slot.stops for slot in slots)


def with_turns_stopped(trainer: Any) -> Callable[..., Any]:
    """Wrap the loop that makes the calls of a batch and lets the model go on, until no rollout calls any more."""
    loop = trainer._tool_call_loop
    signature = inspect.signature(loop)
    known = True

    @functools.wraps(loop)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal known
        given = signature.bind(*args, **kwargs).arguments
        environments: list[Any] = trainer.environments or []
        slots = [slot_of(environment) for environment in environments]
        if not known or not _wanted(trainer) or len(slots) != len(given["completions"]):
            return loop(*args, **kwargs)
        generate = trainer._generate_single_turn
        turns = NextTurns(trainer, generate, slots, given["completions"], given["completion_ids"])
        trainer._generate_single_turn = turns.generate
        try:
            result = loop(*args, **kwargs)
        finally:
            trainer._generate_single_turn = generate
        if turns.engine is not None:
            turns.engine.wait()
        if not turns.known:
            known = False
            logger.warning("%s asks for other turns than trl 1.16; %s.", type(trainer).__name__, EFFECT)
        turns.end(given["completion_ids"], result[0], given["logprobs"])
        return result

    return wrapped


class NextTurns:
    """The turns that follow the calls of one batch, without those of rollouts whose episode is over.

    Args:
        trainer: Whose rollouts they are.
        generate: The trainer's own way to a turn.
        slots: One for each rollout; `None` where the environment is somebody else's.
        completions: For each rollout, its messages; the trainer appends to them.
        completion_ids: For each rollout, its tokens; the trainer replaces them once a turn is there.
    """

    def __init__(
        self,
        trainer: Any,
        generate: Callable[..., Turns],
        slots: Sequence[RolloutSlot | None],
        completions: Sequence[list[dict[str, Any]]],
        completion_ids: Sequence[list[int]],
    ) -> None:
        self._trainer = trainer
        self._generate = generate
        self.engine = SharedEngine.of(trainer, generate)
        self._slots = slots
        self._completions = completions
        self._completion_ids = completion_ids
        self._lengths = [len(messages) for messages in completions]  # when turns were last asked for
        self.known = True  # whether the trainer asks for turns as this class expects
        self._ends: dict[int, int] = {}  # the end-of-turn token of each rollout that was stopped

    def generate(
        self,
        prompt_ids: list[list[int]],
        images: list[list[Any] | None] | None,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,  # noqa: FBT001, FBT002 - called in the place of the trainer's own method
    ) -> Turns:
        """Return the next turn of every row, an empty one where the episode is over."""
        rollouts = self._rollouts()
        self.known = self.known and len(rollouts) == len(prompt_ids)
        over = [position for position, rollout in enumerate(rollouts) if self.known and self._is_over(rollout)]
        for position in over:
            self._ends[rollouts[position]] = self._end_of_turn(rollouts[position])
        going = [position for position in range(len(prompt_ids)) if position not in over]
        if self.engine is None and not over:
            return self._generate(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images=has_tool_images
            )
        # Where a model's weights are spread over ranks, all of them generate or none: with a row that nobody reads.
        spread = self._trainer.is_deepspeed_enabled or self._trainer.is_fsdp_enabled
        asked = going or over[: int(spread)]
        chosen = None if images is None else [images[position] for position in asked]
        rows = [prompt_ids[position] for position in asked]
        if self.engine is not None:
            turns, asked_logprobs = self.engine.ask(rows, chosen)
        elif asked:
            turns, asked_logprobs = self._generate(
                rows,
                chosen,
                _fields(self._trainer, multimodal_fields, images, asked, has_tool_images=has_tool_images),
                num_generations,
                has_tool_images=has_tool_images and any(chosen or ()),
            )
        else:
            turns, asked_logprobs = [], []
        ids: list[list[int]] = [[] for _ in prompt_ids]
        logprobs: list[list[float]] = [[] for _ in prompt_ids]
        for row, position in enumerate(going):
            ids[position] = turns[row]
            logprobs[position] = [] if asked_logprobs is None else asked_logprobs[row]
        return ids, logprobs

    def end(self, completion_ids: list[list[int]], tool_mask: list[list[int]], logprobs: Any) -> None:
        """Put the end-of-turn token behind the last result of each rollout that was stopped, with no weight."""
        for rollout, token in self._ends.items():
            ids = completion_ids[rollout]
            if len(ids) < self._trainer.max_completion_length:
                ids.append(token)
                tool_mask[rollout].append(0)
                if logprobs is not None:
                    logprobs[rollout].append(0.0)
            else:
                ids[-1] = token  # of what leads to the next turn, and has no weight either

    def _rollouts(self) -> list[int]:
        """Return whose turns are asked for: those whose calls were just answered, and the answers kept."""
        lengths, self._lengths = self._lengths, [len(messages) for messages in self._completions]
        return [
            rollout
            for rollout, messages in enumerate(self._completions)
            if len(messages) > lengths[rollout] and messages[-1]["role"] == "tool"
        ]

    def _is_over(self, rollout: int) -> bool:
        slot = self._slots[rollout]
        return slot is not None and slot.stops and slot.log.is_over

    def _end_of_turn(self, rollout: int) -> int:
        """Return the token with which the model ended the turn that called, as some have several."""
        last = self._completion_ids[rollout][-1]
        return last if last in self._trainer.eos_token_ids else self._trainer._tokenizer.eos_token_id


def _fields(
    trainer: Any,
    fields: dict[str, Any],
    images: list[list[Any] | None] | None,
    asked: Sequence[int],
    *,
    has_tool_images: bool,
) -> dict[str, Any]:
    """Return what the model is given beside the tokens of some of the rows: what images became, as TRL makes it."""
    if not fields:
        return {}
    if has_tool_images:
        shown = [image for position in asked for image in (images or [])[position] or ()]
        if not shown:
            return {}
        made = trainer.processing_class.image_processor(images=shown, return_tensors="pt")
        # The trainer's own method of this name generates.
        return dict(import_module("transformers").Trainer._prepare_inputs(trainer, made))
    utils: Any = import_module("trl.trainer.utils")
    if images is not None:
        fields = {**fields, "num_images": [len(each or ()) for each in images]}
    split: dict[str, Any] = utils.split_pixel_values_by_grid(fields)
    chosen: dict[str, Any] = utils.unsplit_pixel_values_by_grid(
        {
            name: [values[position] for position in asked] if isinstance(values, list) else values[list(asked)]
            for name, values in split.items()
        }
    )
    chosen.pop("num_images", None)
    if "pixel_values" in chosen and not chosen["pixel_values"].numel():
        return {name: values for name, values in chosen.items() if name not in _OF_IMAGES}
    return chosen
