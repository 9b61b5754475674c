"""One request to one engine for the turns of several ranks, each with as many rows as it has.

TRL cuts the answer of a shared engine into parts of one size, and a rank whose rollouts have all ended asks no more
while the others wait for it. So the ranks put their rows together first, ask for equal parts of them, and give each
rank its own back; one that has nothing left to ask takes part until all are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Turns = tuple[list[list[int]], list[list[float]] | None]
"""The token ids of one turn for each row, and their log-probabilities where the generation tells them."""


class SharedEngine:
    """The requests of one batch. Every rank of the group has to make the same number of them.

    Args:
        generate: The trainer's way to a turn.
        group: The ranks that share the engine; `None` is all.
    """

    def __init__(self, generate: Callable[..., Turns], group: Any) -> None:
        self._generate = generate
        self._group = group
        self._done = False  # whether no rank had a row in the last request

    @classmethod
    def of(cls, trainer: Any, generate: Callable[..., Turns]) -> SharedEngine | None:
        """Return that of a trainer, or `None` where each rank generates by itself."""
        if trainer.accelerator.num_processes == 1 or not trainer.use_vllm:
            return None
        if trainer.vllm_mode == "server":
            return cls(generate, None)
        return cls(generate, trainer.vllm_generation.tp_group) if trainer.vllm_tensor_parallel_size > 1 else None

    def ask(self, prompt_ids: Sequence[list[int]], images: Sequence[list[Any] | None] | None) -> Turns:
        """Return the next turn of each row of this rank, which may have none."""
        distributed: Any = import_module("torch.distributed")
        ranks, rank = distributed.get_world_size(self._group), distributed.get_rank(self._group)
        mine = list(zip(prompt_ids, images or [None] * len(prompt_ids), strict=True))
        parts = self._gather(mine)
        rows = [row for part in parts for row in part]
        self._done = not rows
        if self._done:
            return [], []
        size = -(-len(rows) // ranks)
        rows += rows[:1] * (size * ranks - len(rows))  # their answers are thrown away
        asked = rows[rank * size : (rank + 1) * size]
        shown = [row[1] for row in asked]
        answer = self._generate([row[0] for row in asked], shown if any(shown) else None, {}, 1)
        answers = self._gather(answer)
        turns = [turn for part in answers for turn in part[0]]
        logprobs = None if answers[0][1] is None else [row for part in answers for row in part[1]]
        start = sum(len(part) for part in parts[:rank])
        own = slice(start, start + len(mine))
        return turns[own], None if logprobs is None else logprobs[own]

    def wait(self) -> None:
        """Take part in the requests of the other ranks until none has a row left."""
        while not self._done:
            self.ask([], None)

    def _gather(self, value: Any) -> list[Any]:
        distributed: Any = import_module("torch.distributed")
        values: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(values, value, group=self._group)
        return values
