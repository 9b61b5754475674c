"""Replay: an ORS server that answers from a record, so that a training loop can be tested without its environment.

```python
async with Replay("episodes.jsonl") as replay:
    async with AsyncClient(replay.url) as client:
        ...
```

A session of a task takes one of the episodes that the record holds of it. A call is answered as it was there: by the
task, the calls before it, the tool and the arguments. A call that is not in the record is refused, and says so.
"""

from ._index import NOT_RECORDED, Script, read_tools
from ._server import Replay

__all__ = ["NOT_RECORDED", "Replay", "Script", "read_tools"]
