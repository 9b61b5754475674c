"""Replay: an ORS server that answers from a record, so that a training loop can be tested without its environment.

```python
async with Replay("episodes.jsonl") as replay:
    async with AsyncClient(replay.url) as client:
        ...
```

A session of a task takes one of the recorded episodes of that task. The task, the calls before, the tool and the
arguments decide the answer to a call. A call that is not in the record is rejected, with the reason `NOT_RECORDED`.
"""

from ._index import NOT_RECORDED, Script, read_tools
from ._server import Replay

__all__ = ["NOT_RECORDED", "Replay", "Script", "read_tools"]
