"""What happens in one episode: its opening, its calls and times, and how it ended; in the end one line of a record.

Training and evaluation both write it, so that a status or a time means the same in both. Bookkeeping without I/O: it
asks no server, and what a reward is worth is for others to say. A log ends once: what is entered later changes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Protocol

from ors_client._errors import ToolError
from ors_client._types import CallTimes, JSONObject, Message, ToolOutput
from ors_client.record import CallRecord, EpisodeRecord

from .block_recorder import BlockRecorder, conversation_text, is_one_text

REFUSALS = (ToolError, ValueError, TypeError)
"""What a call raises that is the model's own doing: the server refused it, the tool raised, or it can't be sent.

The model is told and the episode goes on. Any other `ORSError` breaks the episode."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke an episode: the error's type by name, and its message."""

    kind: str
    message: str


@dataclass(slots=True, kw_only=True)
class EpisodeLog:
    """The log of one episode.

    Args:
        split: Of the task.
        index: Of the task.
        block_recorder: Keeps what is more than a text, for the record; `None` keeps nothing of it.
        id: Of the episode, by which its record is referred to.
        session_id: `None` until a session is open.
        prompt: All of the opening's text.
        messages: The conversation for the record: what it began with and what `add_message` entered; `None` where that
            is one text.
        opening: How many of them it began with.
        said: What the model wrote and no call holds yet.
        finish_reasons: Why each reply of the model ended, as its endpoint says it.
        usage: Counts of the model's requests and tokens.
        timing: Seconds by part of the episode.
        failure: What broke it.
        cut: The budget that ended it; its score counts.
        last_output: What the model was shown last.
        shown_chars: How many characters it was shown, the opening not counted.
        late_calls: Calls that were made after the end and answered on the spot.
        started: When its session was asked for.
        seconds: How long it took; `None` while it is running.
    """

    split: str
    index: int
    block_recorder: BlockRecorder | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    session_id: str | None = None
    prompt: str = ""
    messages: list[JSONObject] | None = None
    opening: int = 0
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    said: str | None = None
    finish_reasons: list[str | None] = field(default_factory=list[str | None])
    usage: Counter[str] = field(default_factory=Counter[str])
    timing: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failure: Failure | None = None
    cut: str | None = None
    last_output: str = ""
    shown_chars: int = 0
    late_calls: int = 0
    started: datetime | None = None
    seconds: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.seconds is not None

    @property
    def finished(self) -> bool:
        """Whether the environment has ended the episode."""
        return any(call.finished for call in self.calls)

    @property
    def metadata(self) -> list[JSONObject | None]:
        """One entry per call, `None` where the environment gave none."""
        return [call.metadata for call in self.calls]

    @property
    def rewards(self) -> list[float | None]:
        """One entry per call, `None` where the step was not scored."""
        return [call.reward for call in self.calls]

    @property
    def status(self) -> str:
        """One of `scored`, `unscored`, `failed: kind` and `cut: kind`."""
        if self.failure is not None:
            return f"failed: {self.failure.kind}"
        if self.cut is not None:
            return f"cut: {self.cut}"
        return "unscored" if all(reward is None for reward in self.rewards) else "scored"

    def open(self, messages: Sequence[Message]) -> None:
        """Enter the conversation that the episode begins with."""
        if self.is_over:
            return
        self.prompt = conversation_text(messages)
        if self.block_recorder is not None:
            self.opening = len(messages)
            self.messages = None if is_one_text(messages) else self.block_recorder.messages(messages)

    def add_message(self, message: Message) -> None:
        """Enter a further message of the conversation, as the model wrote or saw it."""
        if not self.is_over and self.block_recorder is not None:
            if self.messages is None:
                self.messages = [{"role": "user", "blocks": [{"type": "text", "text": self.prompt}]}] * self.opening
            self.messages += self.block_recorder.messages([message])

    def show(self, text: str) -> None:
        """Enter what the model sees of the latest answer."""
        if not self.is_over:
            self.last_output = text
            self.shown_chars += len(text)

    def end(self, seconds: float, *, failure: Failure | None = None, cut: str | None = None) -> bool:
        """Close the log; return whether it was open."""
        if self.is_over:
            return False
        self.failure, self.cut, self.seconds = failure, cut, seconds
        return True

    def drop_blocks(self) -> None:
        """Let go of what only the record holds: blocks may be large, and a trainer keeps a log until the next."""
        self.messages = None
        self.calls = [call.model_copy(update={"blocks": None}) for call in self.calls]

    def to_record(self, *, reward: float | None, **about: Any) -> EpisodeRecord:
        """Return the episode as a record holds it.

        Args:
            reward: What it counts for.
            about: Further fields of the record.
        """
        added = self.messages is not None and len(self.messages) > self.opening
        return EpisodeRecord(
            id=self.id,
            split=self.split,
            index=self.index,
            session_id=self.session_id,
            prompt=self.prompt,
            calls=self.calls,
            rewards=self.rewards,
            reward=reward,
            status=self.status,
            failure=None if self.failure is None else self.failure.message,
            started=self.started,
            seconds=self.seconds,
            messages=None if self.messages is None else list(self.messages),
            opening=self.opening if added else None,
            said=self.said,
            finish_reasons=self.finish_reasons or None,
            usage=dict(self.usage) or None,
            timing={part: round(seconds, 6) for part, seconds in self.timing.items()} or None,
            **about,
        )


class Session(Protocol):
    """What makes calls, as far as their times are concerned."""

    @property
    def last_call(self) -> CallTimes | None:
        """The times of the latest call, a new object for each."""


class CallEntry:
    """A call under way: times it, and enters its answer. It takes what the model has said before the call.

    Args:
        log: Of the episode.
        session: Where the call is made.
        tool: The server's name of it.
        arguments: As they are sent.
        waiting_since: Since when it waited to be made, on `time.monotonic`; that counts as `queued`.
    """

    def __init__(
        self, log: EpisodeLog, session: Session, tool: str, arguments: JSONObject, *, waiting_since: float | None = None
    ) -> None:
        self._log = log
        self._session = session
        self._fields: dict[str, Any] = {"tool": tool, "arguments": arguments, "said": log.said}
        log.said = None
        self._times_before = session.last_call
        self._start = time.monotonic()
        self._waited = None if waiting_since is None else self._start - waiting_since

    def add_output(self, output: ToolOutput) -> None:
        """Enter a result."""
        if self._add(output=output.text, reward=output.reward, finished=output.finished, metadata=output.metadata):
            # Afterwards: nothing about a record may cost a reward.
            recorder, calls = self._log.block_recorder, self._log.calls
            if recorder is not None and (blocks := recorder.blocks(output.blocks)) is not None:
                calls[-1] = calls[-1].model_copy(update={"blocks": blocks})

    def add_error(self, text: str, *, kind: str | None = None, reason: str | None = None) -> None:
        """Enter what came instead of a result.

        Args:
            text: What was said.
            kind: The error's type by name.
            reason: Why the call was refused, in the server's word.
        """
        self._add(error=text, kind=kind, reason=reason)

    def _add(self, **answer: Any) -> bool:
        if self._log.is_over:
            return False
        seconds = time.monotonic() - self._start
        self._log.calls.append(CallRecord(**self._fields, **answer, seconds=seconds, timing=self._timing()))
        return True

    def _timing(self) -> dict[str, float] | None:
        """Return where the seconds went; `None` where the call never came to be sent and did not wait either."""
        times = self._session.last_call
        if times is not None and times is not self._times_before:
            parts = asdict(times)
        elif self._waited is not None:  # what the client would not send leaves the times of the call before it
            parts = {"queued": 0.0}
        else:
            return None
        parts["queued"] += self._waited or 0.0
        return {part: round(seconds, 6) for part, seconds in parts.items()}


def refusal_text(error: Exception) -> str:
    """Return what the model is told of one of `REFUSALS`: the server's own words, where they are the server's."""
    return error.text if isinstance(error, ToolError) else str(error)
