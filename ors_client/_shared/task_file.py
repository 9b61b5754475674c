"""Files that name tasks: those that `ors profile` writes, or a plain list of indices.

```json
{"environment": "echo", "target": "http://host:8000", "split": "train", "model": "m", "pass_at": 1.0,
 "tasks": [{"index": 3, "attempts": 4, "passed": 2, "rate": 0.5}]}
```

The one reader of them, for evaluation and training. Only what names the tasks is read: `environment`, `split` and
the indices.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ors_client._types import JSONObject


@dataclass(frozen=True, slots=True)
class TaskFile:
    """The tasks that a file names.

    Args:
        path: The file.
        indices: In its order, each once.
        environment: Of which they are, or `None` where the file does not say.
        split: Of which they are, or `None` likewise.
    """

    path: str
    indices: list[int]
    environment: str | None = None
    split: str | None = None

    def require(self, *, environment: str | None = None, split: str | None = None) -> None:
        """Make sure that the tasks are those that are asked for, as far as both sides say.

        Raises:
            ValueError: They are of another environment or split.
        """
        # A client finds an environment in any case, and a split to the letter.
        environments = ("environment", self.environment, environment, str.lower)
        for what, here, asked, fold in (environments, ("split", self.split, split, str)):
            if here is not None and asked is not None and fold(here) != fold(asked):
                raise ValueError(f"The tasks in {self.path!r} are of the {what} {here!r}, not of {asked!r}.")


def read_task_file(path: str | os.PathLike[str]) -> TaskFile:
    """Read a file of tasks.

    Raises:
        OSError: It can't be read.
        ValueError: It holds neither a list of indices nor what `ors profile` writes, or no task at all.
    """
    name = os.fspath(path)
    problem = (
        f"{name!r} is no file of tasks; it holds a JSON list of indices, as [0, 3, 5], or what `ors profile` writes"
    )
    try:
        held = cast("object", json.loads(Path(path).read_text(encoding="utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{problem}: {error}.") from None
    fields = cast("JSONObject", held) if isinstance(held, dict) else {"tasks": held}
    listed = fields.get("tasks")
    if not isinstance(listed, list):
        raise ValueError(f"{problem}.")  # noqa: TRY004 - it is about the file
    indices = [_index(item) for item in cast("list[object]", listed)]
    found = [index for index in indices if index is not None]
    if len(found) != len(indices):
        wrong = cast("list[object]", listed)[indices.index(None)]
        raise ValueError(f"{problem}: {str(wrong)[:60]!r} names no task by its index from 0.")
    if not found:
        raise ValueError(f"{name!r} names no task.")
    environment, split = (
        value if isinstance(value := fields.get(key), str) else None for key in ("environment", "split")
    )
    return TaskFile(name, list(dict.fromkeys(found)), environment, split)


def _index(item: object) -> int | None:
    index = cast("JSONObject", item).get("index") if isinstance(item, dict) else item
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None
