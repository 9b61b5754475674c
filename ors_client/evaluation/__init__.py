"""Evaluation: a model behind an OpenAI-compatible endpoint plays tasks, and every episode is recorded.

```python
async with AsyncClient(url) as client:
    environment = client.environment()
    async with ChatModel("my-model", "http://localhost:9000/v1") as model:
        await evaluate(environment, tasks, model, record="episodes.jsonl", attempts=4)
```
"""

from ._budget import Budget
from ._evaluate import evaluate, remaining
from ._model import ChatModel, ConversationRefused, ModelError, ModelRefused, Reply

__all__ = ["Budget", "ChatModel", "ConversationRefused", "ModelError", "ModelRefused", "Reply", "evaluate", "remaining"]
