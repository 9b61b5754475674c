"""An episode that has ended, uploaded to the catalogue as a rollout.

It holds what the environment saw: the opening, the calls, and the text and rewards that came back. The model's other
text is the trainer's, and the episode does not have it. Knows records and rollouts, nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ors_client import (
    Block,
    JSONValue,
    Message,
    ReasoningBlock,
    Rollouts,
    TaskRef,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
)
from ors_client._shared import flatten, placeholder, plain_text
from ors_client.record import EpisodeRecord

_ROLES = frozenset({"system", "user", "assistant"})


def text_only(opening: Iterable[Message]) -> list[Message]:
    """Return a conversation as it is uploaded: without images and without what only its author reads."""
    return [
        Message(
            role=message.role if message.role in _ROLES else "user",
            blocks=[_text_block(block) for block in message.blocks],
        )
        for message in opening
    ]


def redactable(episode: EpisodeRecord, opening: Sequence[Message]) -> EpisodeRecord:
    """Return an episode as it is uploaded: texts alone, which are quick to search for secrets.

    Args:
        episode: As it is recorded.
        opening: What it began with, from `text_only`.
    """
    calls = [call.model_copy(update={"blocks": None, "metadata": None}) for call in episode.calls]
    messages = [message.model_dump(by_alias=True, exclude_none=True) for message in opening]
    texts = {"calls": calls, "messages": messages or None, "opening": None, "spec": None}
    return episode.model_copy(update=texts)


def upload(rollouts: Rollouts, run: str, episode: EpisodeRecord, *, variant: str | None) -> None:
    """Hand an episode to the uploader, which does the rest in the background.

    Args:
        rollouts: Of the client that played it.
        run: The run's name.
        episode: From `redactable`, and without secrets.
        variant: Of the environment.
    """
    # A model may write NaN, and rewards may add up to infinity: JSON has neither, and a record's is written with null.
    episode = EpisodeRecord.model_validate_json(episode.model_dump_json())
    rollout = rollouts.start(
        run,
        environment=episode.environment,
        variant=variant,
        task=TaskRef(episode.split, episode.index) if episode.split and episode.index is not None else None,
        metadata={"status": episode.status, "reward": episode.reward, "failure": episode.failure},
    )
    opening = episode.messages or [{"role": "user", "blocks": [{"type": "text", "text": episode.prompt}]}]
    for message in opening:
        rollout.add(Message.model_validate(message))
    for number, call in enumerate(episode.calls):
        call_id = f"call_{number}"
        said = [TextBlock(text=call.said)] if call.said else []
        asked = ToolCallBlock(id=call_id, name=call.tool, input=call.arguments)
        rollout.add(Message(role="assistant", blocks=[*said, asked]))
        text = call.output if call.output is not None else (call.error or "")
        output = ToolOutput(blocks=[TextBlock(text=text)], reward=call.reward, finished=call.finished)
        rollout.add(output, call_id=call_id)
    info: dict[str, JSONValue] = {"harness": "trl"}
    rollout.finish(info if episode.seconds is None else info | {"duration_ms": round(episode.seconds * 1000)})


def _text_block(block: Block) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text=block.text)
        case ReasoningBlock():
            return ReasoningBlock(text=block.text, signature=block.signature)
        case ToolCallBlock():
            return ToolCallBlock(id=block.id, name=block.name, input=block.input)
        case ToolResultBlock():
            text = "\n".join(plain_text(inner) for inner in flatten(block.blocks))
            return ToolResultBlock(tool_call_id=block.tool_call_id, blocks=[TextBlock(text=text)])
        case _:
            return TextBlock(text=placeholder(block))
