"""What the lines of a record hold.

A file has lines of several kinds, told apart by `type`: `run`, `tools`, `image`, `episode` and `words`. What many
episodes share stands in a line of its own, once per file; a reader hands out each episode with all that belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from ors_client._brief import brief_fields, clipped
from ors_client._types import JSONObject, TerminalToolSpec, ToolSpec

# What only some writers know stands in a line only where it is known.
_OPTIONAL = frozenset(
    {
        *("attempt", "blocks", "finish_reasons", "id", "kind", "messages", "metadata", "model", "opening", "prompt"),
        *("reason", "run", "said", "shown", "spec", "step", "tasks", "timing", "tools", "usage"),
    }
)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        return brief_fields(super().__repr_args__())

    def __repr_str__(self, join_str: str) -> str:
        return clipped(super().__repr_str__(join_str))

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = cast("dict[str, Any]", serialize(self))
        return {name: value for name, value in written.items() if value is not None or name not in _OPTIONAL}


class RunRecord(_Model):
    """The settings of a run: one environment, and one model or one training.

    Args:
        kind: `evaluation` or `training`.
        environment: Its name on the server.
        target: Where the server is, without credentials.
        model: As its endpoint knows it.
        base_url: Of the model's endpoint, without credentials.
        parameters: Added to every request, as `temperature`.
        budget: What ends an episode: `turns`, `tokens` and `seconds`.
        settings: Whatever else shapes an episode, by the name of its option.
        noted: What may differ from one start to the next and explains figures, as how many episodes ran together.
        versions: Of `ors-client`, of what trained, and of the `server`, where it tells it.
        tasks: The indices that were to be played, all shards together, of each split as `0-99,105`; `None` where that
            would be long.
    """

    kind: str = "evaluation"
    environment: str | None = None
    target: str = ""
    model: str | None = None
    base_url: str | None = None
    parameters: JSONObject = Field(default_factory=dict[str, Any])
    budget: JSONObject = Field(default_factory=dict[str, Any])
    settings: JSONObject = Field(default_factory=dict[str, Any])
    noted: JSONObject = Field(default_factory=dict[str, Any])
    versions: dict[str, str] = Field(default_factory=dict[str, str])
    tasks: dict[str, str] | None = None


class ToolsRecord(_Model):
    """A set of tools, as the server lists them.

    Args:
        tools: What the model could call, in the order in which it was told of them.
        terminal_tool: What takes the final message, where there is such a tool.
        names: What the model calls a tool by, where that is not the server's name.
    """

    tools: list[ToolSpec] = Field(default_factory=list[ToolSpec])
    terminal_tool: TerminalToolSpec | None = None
    names: dict[str, str] = Field(default_factory=dict[str, str])


class CallRecord(_Model):
    """One call of an episode.

    Args:
        tool: The server's name of it.
        arguments: As they were sent.
        reward: Of this step; `None` where it was not scored.
        finished: Whether it ended the episode.
        output: All of the text that came back, or `None` where there was no result.
        error: What was said instead of a result.
        seconds: From sending to the answer.
        kind: The error's type by name.
        reason: Why it was refused, in the server's word, as `not_found`.
        blocks: The whole output as the standard writes it, where it is more than a text.
        metadata: As the environment gave it.
        said: What the model wrote before it called.
        timing: Seconds by part, named as in `CallTimes`; what was waited before the call was sent is in `queued` too.
    """

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    output: str | None = None
    reward: float | None = None
    finished: bool = False
    error: str | None = None
    seconds: float = 0.0
    kind: str | None = None
    reason: str | None = None
    blocks: list[JSONObject] | None = None
    metadata: JSONObject | None = None
    said: str | None = None
    timing: dict[str, float] | None = None


class EpisodeRecord(_Model):
    """One episode, from its prompt to its end.

    Args:
        v: The format's version; readers of 1 can read whatever only adds fields.
        id: By which its words refer to it.
        environment: Its name on the server, where it is known.
        target: Where the server is, without credentials.
        split: The task's split.
        index: The task's number in it, from 0.
        prompt: The text that the episode began with.
        calls: In order.
        session_id: `None` where no session could be opened.
        rewards: One entry per call, `None` where the step was not scored.
        reward: What the episode counts for; `None` where nothing was scored, or the infrastructure broke it.
        status: `scored`, `unscored`, `failed: kind` or `cut: kind`.
        failure: What broke it, in words.
        started: When its session was asked for.
        seconds: From then to its end.
        model: Who played it, where one record may hold several.
        attempt: Which attempt at this task it was, from 0, where each is made once.
        spec: The task as the server describes it.
        messages: The conversation as far as its writer knew it, as the standard writes it, where it is more than
            `prompt`; see `conversation`.
        opening: How many of the messages the episode began with; `None` is all of them.
        shown: What a trainer showed the model in place of the opening, where that was something else.
        finish_reasons: Why each reply of the model ended, as its endpoint says it.
        said: The model's last words, after its last call.
        step: Of the training that it was a rollout of.
        usage: Counts of the model's requests and tokens.
        timing: Seconds by part, as `opening` or `model`.
        run: The settings that it was played with.
        tools: What the model could call.
    """

    v: int = 2
    id: str | None = None
    environment: str | None = None
    target: str = ""
    split: str | None = None
    index: int | None = None
    session_id: str | None = None
    prompt: str = ""
    calls: list[CallRecord] = Field(default_factory=list[CallRecord])
    rewards: list[float | None] = Field(default_factory=list[float | None])
    reward: float | None = None
    status: str = "unscored"
    failure: str | None = None
    started: datetime | None = None
    seconds: float | None = None
    model: str | None = None
    attempt: int | None = None
    spec: JSONObject | None = None
    messages: list[JSONObject] | None = None
    opening: int | None = None
    shown: list[JSONObject] | None = None
    finish_reasons: list[str | None] | None = None
    said: str | None = None
    step: int | None = None
    usage: dict[str, int] | None = None
    timing: dict[str, float] | None = None
    run: RunRecord | None = None
    tools: ToolsRecord | None = None

    @property
    def opening_messages(self) -> list[JSONObject]:
        """The conversation that the episode began with, as the standard writes it."""
        if self.messages is not None:
            return self.messages[: self.opening]
        return [{"role": "user", "blocks": [_text(self.prompt)]}] if self.prompt else []

    @property
    def conversation(self) -> list[JSONObject]:
        """The whole conversation, as the standard writes it.

        Where the writer did not know what the model wrote, it is the opening and the calls with their results.
        """
        if self.messages is not None and self.opening is not None and len(self.messages) > self.opening:
            return self.messages
        messages = list(self.opening_messages)
        for number, call in enumerate(self.calls, start=1):
            call_id = f"call_{number}"
            said = [_text(call.said)] if call.said else []
            made = {"type": "tool_call", "id": call_id, "name": call.tool, "input": call.arguments}
            messages.append({"role": "assistant", "blocks": [*said, made]})
            result: JSONObject = {"type": "tool_result", "tool_call_id": call_id, "blocks": call.blocks}
            if call.blocks is None:
                result["blocks"] = [_text(call.output if call.output is not None else call.error or "")]
            if call.error is not None:
                result["is_error"] = True
            messages.append({"role": "user", "blocks": [result]})
        if self.said:
            messages.append({"role": "assistant", "blocks": [_text(self.said)]})
        return messages


class WordsRecord(_Model):
    """What a trainer tells of a rollout after its episode: the model's words, and what it came to.

    Args:
        id: The episode's.
        step: Of the training.
        completion: What followed the prompt, as the standard writes it: the model's words and calls, and the results as
            the model saw them.
        prompt: What the model was shown before, where that is not how the episode began.
        reward: What the rollout counts for in the end.
        status: As in an episode.
    """

    id: str
    step: int | None = None
    completion: list[JSONObject] = Field(default_factory=list[JSONObject])
    prompt: list[JSONObject] | None = None
    reward: float | None = None
    status: str = "unscored"


def _text(text: str) -> JSONObject:
    return {"type": "text", "text": text}
