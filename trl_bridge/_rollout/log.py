"""What happened in one episode: its calls, rewards and times, and how it ended.

Pure bookkeeping: no I/O, no clock, no locks. Times are handed in by whoever has the clock. A rollout ends once: what is
told to it afterwards changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ors_client import JSONObject, ToolOutput
from trl_bridge._scoring import Scoring

Cut = Literal["calls", "seconds", "characters"]


@dataclass(frozen=True, slots=True)
class CallTiming:
    """How long a call took.

    Args:
        seconds: From sending to the answer.
        parts: Where they went, and what was waited before; see `timing_parts`.
    """

    seconds: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that reached the server, or tried to.

    Args:
        tool: The server's name of it.
        output: All of the text, uncut; `None` where there was no result.
        error: What was said instead of a result.
        kind: The error's type by name.
        seconds: From sending to the answer.
        timing: Where they went, and what was waited before.
        blocks: The whole output for the record, where it is more than a text.
        metadata: As the environment gave it.
    """

    tool: str
    arguments: Mapping[str, Any]
    output: str | None = None
    reward: float | None = None
    finished: bool = False
    error: str | None = None
    kind: str | None = None
    seconds: float = 0.0
    timing: Mapping[str, float] | None = None
    blocks: list[JSONObject] | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke an episode: the error's type by name, and its message."""

    kind: str
    message: str


@dataclass(slots=True, kw_only=True)
class Rollout:
    """The course of one episode.

    Args:
        split: Of the task.
        index: Of the task.
        session_id: `None` until a session is open.
        prompt: All of the prompt's text, uncut.
        messages: The whole opening for the record, where it is more than a text.
        rewards: One entry per call, `None` where the step was not scored.
        metadata: One entry per call.
        last_output: What the model was shown last.
        characters: How many the model was shown, the prompt not counted.
        failure: What broke it; its score does not count unless asked for.
        cut: The budget that ended it; its score counts.
        late_calls: Calls that were made after the end and answered on the spot.
        started: When it was opened, in seconds since the epoch.
        seconds: How long it took; `None` while it is running.
    """

    split: str
    index: int
    session_id: str | None = None
    prompt: str = ""
    messages: list[JSONObject] | None = None
    calls: list[Call] = field(default_factory=list[Call])
    rewards: list[float | None] = field(default_factory=list[float | None])
    metadata: list[dict[str, Any] | None] = field(default_factory=list[dict[str, Any] | None])
    last_output: str = ""
    characters: int = 0
    finished: bool = False
    failure: Failure | None = None
    cut: Cut | None = None
    late_calls: int = 0
    started: float | None = None
    seconds: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.seconds is not None

    @property
    def status(self) -> str:
        """One of `scored`, `unscored`, `failed: kind` and `cut: kind`."""
        if self.failure is not None:
            return f"failed: {self.failure.kind}"
        if self.cut is not None:
            return f"cut: {self.cut}"
        return "unscored" if all(reward is None for reward in self.rewards) else "scored"

    def reward(self, scoring: Scoring) -> float | None:
        """Return what it is worth."""
        return scoring.score(self.rewards, failed=self.failure is not None, finished=self.finished)

    def answered(
        self, tool: str, arguments: Mapping[str, Any], output: ToolOutput, *, shown: str, timing: CallTiming
    ) -> None:
        """Enter a call that came back with a result, of which the model sees `shown`."""
        if self.over:
            return
        self._add(
            Call(
                tool=tool,
                arguments=arguments,
                output=output.text,
                reward=output.reward,
                finished=output.finished,
                seconds=timing.seconds,
                timing=timing.parts,
                metadata=output.metadata,
            )
        )
        self.last_output = shown
        self.characters += len(shown)
        self.finished = self.finished or output.finished

    def refused(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        error: str,
        *,
        shown: str,
        timing: CallTiming,
        kind: str | None = None,
    ) -> None:
        """Enter a call that came back without a result: the tool raised or would not run, or its answer was lost."""
        if self.over:
            return
        self._add(
            Call(tool=tool, arguments=arguments, error=error, kind=kind, seconds=timing.seconds, timing=timing.parts)
        )
        self.last_output = shown
        self.characters += len(shown)

    def end(self, seconds: float, *, failure: Failure | None = None, cut: Cut | None = None) -> bool:
        """Close the books; return whether they were open."""
        if self.over:
            return False
        self.failure, self.cut, self.seconds = failure, cut, seconds
        return True

    def keep_blocks(self, blocks: list[JSONObject] | None) -> None:
        """Enter what the record holds of the latest call."""
        if not self.over:
            self.calls[-1] = replace(self.calls[-1], blocks=blocks)

    def forget_blocks(self) -> None:
        """Let go of what only the record holds: blocks may be large, and a trainer keeps a rollout until the next."""
        self.messages = None
        self.calls = [replace(call, blocks=None) for call in self.calls]

    def _add(self, call: Call) -> None:
        self.calls.append(call)
        self.rewards.append(call.reward)
        self.metadata.append(call.metadata)
