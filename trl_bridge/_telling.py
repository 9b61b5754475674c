"""An episode that has ended, told to the catalogue as a rollout.

What is told is what the environment saw: the prompt, the calls, and what came back. The model's other words are the
trainer's, and the episode does not have them. Knows records and rollouts, nothing of sessions.
"""

from __future__ import annotations

from ors_client import JSONValue, Message, Rollouts, TaskRef, TextBlock, ToolCallBlock, ToolOutput
from ors_client.record import EpisodeRecord


def words_of(episode: EpisodeRecord) -> EpisodeRecord:
    """Return an episode without what is not told: images make secrets slow to look for."""
    calls = [call.model_copy(update={"blocks": None}) for call in episode.calls]
    return episode.model_copy(update={"calls": calls, "messages": None, "spec": None})


def tell(rollouts: Rollouts, run: str, episode: EpisodeRecord, *, variant: str | None) -> None:
    """Hand an episode to the uploader, which does the rest in the background.

    Args:
        rollouts: Of the client that played it.
        run: The run's name.
        episode: Without secrets.
        variant: Of the environment.
    """
    rollout = rollouts.start(
        run,
        environment=episode.environment,
        variant=variant,
        task=TaskRef(episode.split, episode.index) if episode.split and episode.index is not None else None,
        metadata={"status": episode.status, "reward": episode.reward, "failure": episode.failure},
    )
    rollout.add(Message(role="user", blocks=[TextBlock(text=episode.prompt)]))
    for number, call in enumerate(episode.calls):
        call_id = f"call_{number}"
        said = [TextBlock(text=call.said)] if call.said else []
        asked = ToolCallBlock(id=call_id, name=call.tool, input=call.arguments)
        rollout.add(Message(role="assistant", blocks=[*said, asked]))
        text = call.output if call.output is not None else (call.error or "")
        output = ToolOutput(
            blocks=[TextBlock(text=text)], reward=call.reward, finished=call.finished, metadata=call.metadata
        )
        rollout.add(output, call_id=call_id)
    info: dict[str, JSONValue] = {"harness": "trl"}
    rollout.finish(info if episode.seconds is None else info | {"duration_ms": round(episode.seconds * 1000)})
