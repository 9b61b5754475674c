"""Reads the rows that a trainer's data loader will put together in its next pass, and changes nothing by it.

Only where that is certain: TRL's sampler draws its order from a generator of its own, which is put back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, cast


def upcoming_rows(loader: Any, position: int) -> Sequence[Mapping[str, Any]] | None:
    """Return the rows of the batch at a position of the loader's next pass; `None` where they can't be known."""
    batches: Any = getattr(loader, "batch_sampler", None)
    sampler: Any = batches
    while (inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)) is not None:
        sampler = inner  # below what cuts batches, and what divides these among ranks
    rows: Any = getattr(loader, "dataset", None)
    if type(sampler) is not import_module("trl.trainer.utils").RepeatSampler or not _reads_alike(rows):
        return None
    state = sampler.generator.get_state() if sampler.shuffle else None
    try:
        indices = next(islice(cast("Iterable[list[int]]", batches), position, None), None)
    finally:
        if state is not None:
            sampler.generator.set_state(state)
    return None if indices is None else [rows[index] for index in indices]


def _reads_alike(rows: Any) -> bool:
    """Tell whether a row is the same each time: a transformation of the user's may draw random numbers."""
    datasets: Any = import_module("datasets")
    return isinstance(rows, datasets.Dataset) and rows.format["type"] != "custom"
