"""Indices of tasks <-> a short text, as a run's settings name what was to be played."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_RANGE = re.compile(r"(-?[0-9]{1,18})(?:-(-?[0-9]{1,18}))?")  # an index may count from the end
_MOST_CHARS = 10_000  # a run is written, and hidden secrets sought in it, with each episode


def task_ranges(tasks: Iterable[tuple[str, int]]) -> dict[str, str] | None:
    """Return the indices of each split, as `0-99,105`; `None` where that would be long.

    Args:
        tasks: Split and index of each.
    """
    splits: dict[str, list[int]] = {}
    for split, index in sorted(set(tasks)):
        splits.setdefault(split, []).append(index)
    found = {split: ",".join(_ranges(indices)) for split, indices in splits.items()}
    return None if sum(map(len, found.values())) > _MOST_CHARS else found


def read_ranges(text: str) -> Iterator[range]:
    """Yield the indices that a text of `task_ranges` names, which may be any number; what is no range names none."""
    for part in text.split(","):
        if found := _RANGE.fullmatch(part):
            yield range(int(found[1]), int(found[2] or found[1]) + 1)


def _ranges(indices: list[int]) -> Iterator[str]:
    first = indices[0]
    for index, following in zip(indices, [*indices[1:], None], strict=True):
        if following != index + 1:
            yield str(first) if first == index else f"{first}-{index}"
            first = following if following is not None else index
