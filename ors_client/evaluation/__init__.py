"""Evaluation: a model behind an OpenAI-compatible endpoint plays tasks, and every episode is recorded.

```python
async with AsyncClient(url) as client:
    environment = client.environment()
    async with ChatModel("my-model", "http://localhost:9000/v1") as model:
        await evaluate(environment, tasks, model, record="episodes.jsonl", attempts=4)
```
"""

from ._budget import Budget
from ._dispatcher import WorkerDied
from ._evaluate import evaluate
from ._model import ChatModel, ConversationRefused, ModelError, ModelRefused, Reply
from ._plan import Plan, make_plan
from ._ray import evaluate_on_ray
from ._requests import requests
from ._rules import Rules
from ._run import SettingsDiffer

__all__ = [
    "Budget",
    "ChatModel",
    "ConversationRefused",
    "ModelError",
    "ModelRefused",
    "Plan",
    "Reply",
    "Rules",
    "SettingsDiffer",
    "WorkerDied",
    "evaluate",
    "evaluate_on_ray",
    "make_plan",
    "requests",
]
