"""Records -> the tasks that are worth training on."""

from __future__ import annotations

import os

from ors_client._shared import checked
from ors_client.report import profile


@checked
def tasks_between(
    record: str | os.PathLike[str],
    low: float,
    high: float,
    *,
    min_attempts: int = 1,
    pass_at: float = 1.0,
    split: str | None = None,
    model: str | None = None,
    environment: str | None = None,
) -> list[int]:
    """Return the indices of the tasks whose measured pass rate lies between two bounds, both included.

    Args:
        record: The file, as `ors run` and `OpenRewardSpec(record=...)` write it.
        low: The lower bound, from 0.
        high: The upper bound, up to 1.
        min_attempts: Tasks with fewer attempts are left out; those that the infrastructure broke do not count.
        pass_at: The reward from which an attempt passes.
        split: Of the tasks, where the record has several splits.
        model: Whose attempts, where it has several.
        environment: Likewise.

    Raises:
        OSError: The record can't be read.
        ValueError: It holds no such episode, or of several splits, models or environments, and none was named.
    """
    found = profile(record, pass_at=pass_at, split=split, model=model, environment=environment)
    return [task.index for task in found.between(low, high, min_attempts=min_attempts)]
