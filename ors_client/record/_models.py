"""What a line of a record holds."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from ors_client._types import JSONObject

# What only some writers know stands in a line only where it is known.
_OPTIONAL = frozenset(
    {
        "attempt",
        "blocks",
        "finish_reasons",
        "kind",
        "messages",
        "metadata",
        "model",
        "reason",
        "said",
        "spec",
        "timing",
        "usage",
    }
)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = cast("dict[str, Any]", serialize(self))
        return {name: value for name, value in written.items() if value is not None or name not in _OPTIONAL}


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
        messages: The conversation that it began with, as the standard writes it, where it is more than `prompt`.
        finish_reasons: Why each reply of the model ended, as its endpoint says it.
        said: The model's last words, after its last call.
        usage: Counts of the model's requests and tokens.
        timing: Seconds by part, as `opening` or `model`.
    """

    v: int = 1
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
    finish_reasons: list[str | None] | None = None
    said: str | None = None
    usage: dict[str, int] | None = None
    timing: dict[str, float] | None = None
