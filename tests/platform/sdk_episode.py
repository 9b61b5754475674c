"""One visit of the platform with the openreward SDK, run as a program: what it found goes to stdout as JSON."""

import json
import sys

from openreward import OpenReward
from openreward.api.rollouts.serializers.base import ToolCall, ToolResult, UserMessage
from openreward.models import RolloutInfo, RunInfo


def main() -> None:
    client = OpenReward()
    environment = client.environments.get("owner/name", variant="beta")
    found = {
        "num_tasks": environment.num_tasks("train"),
        "tools": [tool.name for tool in environment.list_tools()],
        "secrets": environment.list_required_secrets(),
        "difficulty": len(environment.get_task_difficulty(split="train")),
    }
    task = environment.get_task("train", 1)
    with environment.session(
        task,
        secrets={"K": ("value", ["example.com"])},
        toolset="codex",
        env_overrides={"OPENAI_API_KEY": "token"},
    ) as session:
        found["prompt"] = len(session.get_prompt())
        found["text"] = session.call_tool("ask").blocks[0].text
    rollout = client.rollout.create(
        "run",
        rollout_name="one",
        environment="owner/name",
        variant="beta",
        split="train",
        task_spec=dict(task.task_spec),
        run_info=RunInfo(model_name="model", run_type="train"),
    )
    rollout.log(UserMessage("Ask."))
    rollout.log(ToolCall("ask", "{}", "call-1"))
    rollout.log(ToolResult("beta", "call-1"), reward=1.0, is_finished=True, rollout_info=RolloutInfo(task_index=1))
    client.rollout.close()
    client.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
