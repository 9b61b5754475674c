"""Opens the episodes of a trainer's next batch while it trains on this one, where a setup takes minutes.

The trainer's data loader puts the rows of the next batch together one batch before it hands them over; they are read
there. What the loader will begin its next pass with is read from the order of its sampler, see `row_order`. Once the
current batch is scored, as many of the next one's episodes as the spec allows start to open; those of the first batch
do when the training begins. The resets of the next batch take the episodes of their tasks and open the rest. An episode
that no reset takes is discarded: prefetching costs sessions and never changes a rollout.
"""

# ruff: noqa: SLF001 - the trainer has no public way to this

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, cast

from ors_client import TaskRef
from ors_client._shared import get_logger
from trl_bridge._rollout.slot import PendingEpisode, RolloutSlot
from trl_bridge._runtime.runtime import RuntimeHandle

from .row_order import upcoming_rows

logger = get_logger(__name__)

Row = Mapping[str, Any]
SlotsForRows = Callable[[Sequence[Row]], Iterable[tuple[RolloutSlot, Row]]]


class Prefetcher:
    """What is known of a trainer's next batch, and the episodes that were opened for it.

    Args:
        trainer: A `GRPOTrainer` that has not begun to train.
        slots_for_rows: Returns the slots that rows will have.
    """

    def __init__(self, trainer: Any, slots_for_rows: SlotsForRows) -> None:
        self._trainer = trainer
        self._slots_for_rows = slots_for_rows
        self._loaded = 0  # batches that the loader has put together, in the trainer's own count of its steps
        self._generated: int | None = None  # the step for which the trainer generated last
        self._next: tuple[int, Sequence[Row]] | None = None  # the step that rows are for, and the rows
        self._loader: Any = None  # the trainer's, once it has one
        self._pass_begins = 0  # how many batches were loaded before the current pass over the dataset
        self._foreseen: int | None = None  # the step whose rows were read before the loader put them together
        self.begins_at_first_row = False  # whether the loader that is made next begins with its first batch
        self._ready: defaultdict[tuple[RuntimeHandle, TaskRef], deque[PendingEpisode]] = defaultdict(deque)

    @staticmethod
    def unknown(trainer: Any) -> str:
        """Name what this class relies on and a trainer does not have; empty if it has everything."""
        names = ("_step", "num_iterations", "data_collator", "get_train_dataloader", "add_callback")
        missing = [name for name in names if not hasattr(trainer, name)]
        return ", ".join(missing)

    def watch(self) -> None:
        """Read the rows that the trainer's loader puts together from now on, and notice where its passes begin."""
        # It is there where a trainer is, and slow to import. Of `transformers` itself a type checker reads every model.
        from transformers.trainer_callback import TrainerCallback  # noqa: PLC0415

        trainer, make = self._trainer, self._trainer.get_train_dataloader

        @functools.wraps(make)
        def make_watched(*args: Any, **kwargs: Any) -> Any:
            collate = trainer.data_collator
            self._loaded, self._generated, self._next, self._foreseen = trainer._step, None, None, None

            def collate_and_note(rows: Sequence[Row]) -> Any:
                self._note_rows(rows)
                return collate(rows)

            trainer.data_collator = collate_and_note
            try:
                self._loader = make(*args, **kwargs)
            finally:
                trainer.data_collator = collate
            if self.begins_at_first_row and self._loaded % self._steps_per_batch == 0:
                self._foresee(self._loaded, 0)
            self.begins_at_first_row = False
            return self._loader

        def begin_pass() -> None:
            self._pass_begins = self._loaded

        class NotePasses(TrainerCallback):
            def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
                del args, kwargs
                begin_pass()

        trainer.get_train_dataloader = make_watched
        trainer.add_callback(NotePasses())

    def take(self, slot: RolloutSlot, row: Row) -> PendingEpisode | None:
        """Return an episode that was opened for a row's task and has not failed, if there is one."""
        ready = self._ready.get((slot.handle, slot.handle.settings.task(row)), ())
        while ready:
            pending = ready.popleft()
            if pending.claim():
                return pending
            pending.discard()
        return None

    def generated(self) -> None:
        """Note that the trainer has scored a batch and will train on it now."""
        self.drop()  # what the batch did not ask for
        generated: int = self._trainer._step
        self._generated = generated
        self._open()
        step = generated + self._steps_per_batch
        last = self._pass_begins + _length(self._loader)
        steps = self._trainer.state.max_steps * self._trainer.args.gradient_accumulation_steps
        if last <= step < steps:
            self._foresee(step, step - last)

    def drop(self) -> None:
        """Discard what was opened and not taken."""
        for episodes in self._ready.values():
            for pending in episodes:
                pending.discard()
        self._ready.clear()

    @property
    def _steps_per_batch(self) -> int:
        """For how many steps the trainer uses what it generated."""
        return self._trainer.args.steps_per_generation * self._trainer.num_iterations

    def _note_rows(self, rows: Sequence[Row]) -> None:
        # The trainer is handed a batch at every step, and generates with those whose number says so.
        if self._loaded % self._steps_per_batch == 0 and self._loaded != self._foreseen:
            self._next = self._loaded, rows
            self._open()
        self._loaded += 1

    def _open(self) -> None:
        # The loader may be so far ahead that another batch is still to be generated; then it is too early.
        if self._next is None or self._generated is None or self._next[0] != self._generated + self._steps_per_batch:
            return
        self._open_rows(self._next[1])
        self._next = None

    def _foresee(self, step: int, position: int) -> None:
        """Open the episodes of a step whose rows the loader will put together in its next pass, at this position."""
        rows = upcoming_rows(self._loader, position)
        if rows is not None:
            self._foreseen = step
            self._open_rows(rows)

    def _open_rows(self, rows: Sequence[Row]) -> None:
        opened: defaultdict[RuntimeHandle, int] = defaultdict(int)
        for slot, row in self._slots_for_rows(rows):
            handle = slot.handle
            if opened[handle] < (handle.settings.look_ahead or 0):
                opened[handle] += 1
                self._ready[handle, handle.settings.task(row)].append(slot.open_ahead(row))


def _length(loader: Any) -> int:
    return len(cast("Sized", loader)) if hasattr(loader, "__len__") else 0
