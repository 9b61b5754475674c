"""Rollouts, uploaded to the catalogue while they happen.

A rollout is a beginning, then messages, calls and results, and facts about the whole. They are made JSON here and
handed to the uploader: nothing here waits for the catalogue or raises for its sake. Source of the events' fields:
openreward 0.1.167.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, cast

from ors_client._arguments import checked
from ors_client._errors import ClientStateError
from ors_client._protocol.json import encode
from ors_client._types import (
    Block,
    ImageBlock,
    JSONValue,
    Message,
    ReasoningBlock,
    Task,
    TaskRef,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
)

from .uploader import Event, RolloutSource, Uploader

_EVENT_TYPES: Mapping[str, str] = {"user": "user_message", "assistant": "assistant_message", "system": "system_message"}


@checked
class Rollouts:
    """The rollouts that a client uploads to the catalogue. Made by `AsyncClient.rollouts`; safe from many threads.

    Events wait in a bounded queue and are uploaded by a thread, at the latest a second after they were added. What does
    not fit there, and what can't be uploaded, is counted and logged once, and never delays anything. What waits when
    the client closes is uploaded within `Timeouts.close` seconds, or six times as many while it goes on; when the
    interpreter exits, within four.
    """

    def __init__(self, uploader: Uploader) -> None:
        self._uploader = uploader

    @property
    def uploaded(self) -> int:
        """How many events the catalogue has taken."""
        return self._uploader.uploaded

    @property
    def dropped(self) -> int:
        """How many events did not fit in the queue, or came when the client was closed."""
        return self._uploader.dropped

    @property
    def failed(self) -> int:
        """How many events could not be uploaded."""
        return self._uploader.failed

    @property
    def pending(self) -> int:
        """How many events wait or are on their way."""
        return self._uploader.pending

    def start(
        self,
        run: str,
        *,
        name: str | None = None,
        environment: str | None = None,
        variant: str | None = None,
        split: str | None = None,
        task: Task | TaskRef | None = None,
        metadata: Mapping[str, JSONValue] | None = None,
        run_info: Mapping[str, JSONValue] | None = None,
    ) -> Rollout:
        """Begin to tell of a rollout; returns at once.

        Args:
            run: The run's name; rollouts of one training or evaluation share it.
            name: The rollout's own.
            environment: "owner/name" in the catalogue.
            variant: One environment of a deployment that has several.
            split: Of the task; taken from `task` where that says it.
            task: What the rollout plays.
            metadata: Anything else.
            run_info: What holds for the whole run: `model_name`, `run_type` (`train`, `eval` or `adhoc`),
                `model_params`, `training_stage`, `rl_algorithm`, `lr`, `framework`, ...

        Raises:
            ClientStateError: The client is closed, or another process's.
            TypeError: Something is not JSON.
            ValueError: A number is not finite.
        """
        self._uploader.check()
        spec = task.spec if isinstance(task, Task) else None
        fields = {
            "runName": run,
            "rolloutName": name,
            "environment": environment,
            "variant": variant,
            "split": split or (None if task is None else task.split),
            "metadata": metadata,
            "task_spec": spec,
            "run_info": run_info,
        }
        index = None if task is None else task.index
        return Rollout(self._uploader, (environment, variant), fields, index=index)

    def flush(self, within: float = 10.0) -> bool:
        """Upload what waits at once, and block until that is done; tell whether nothing is left.

        On an event loop: `await anyio.to_thread.run_sync(client.rollouts.flush)`.

        Args:
            within: Seconds at most.
        """
        return self._uploader.flush(within)


@checked
class Rollout:
    """One rollout, uploaded event by event. Made by `Rollouts.start`; as a context manager it is finished at the end.

    Nothing here waits for the catalogue or raises for its sake.
    """

    def __init__(
        self, uploader: Uploader, source: RolloutSource, fields: Mapping[str, object], *, index: int | None = None
    ) -> None:
        self.id = str(uuid.uuid4())
        self._uploader = uploader
        self._source = source
        self._count = 0
        self._info: dict[str, JSONValue] = {} if index is None else {"task_index": index}
        self._began = time.monotonic()
        self._finished = False
        self._turn = threading.Lock()  # guards that the numbers of events follow their order in the queue
        self._upload("rollout", fields, event_id=self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{' finished' if self._finished else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()

    def add(
        self,
        what: Message | ToolOutput,
        *,
        call_id: str | None = None,
        reward: float | None = None,
        finished: bool | None = None,
        metadata: Mapping[str, JSONValue] | None = None,
    ) -> None:
        """Tell what was said, or what a call came back with.

        A message becomes an event for each kind of thing in it: thoughts, words, calls, results. Images are named by
        their type and size alone.

        Args:
            what: A turn of the conversation, or a call's output.
            call_id: Of the call that an output answers.
            reward: Of this step; an output knows its own.
            finished: Whether the episode is over; an output knows.
            metadata: Anything else; an output brings its own.

        Raises:
            ClientStateError: The rollout is finished.
            TypeError: Something is not JSON.
            ValueError: A number is not finite, or a role is unknown.
        """
        if isinstance(what, ToolOutput):
            reward = what.reward if reward is None else reward
            finished = what.finished if finished is None else finished
            metadata = what.metadata if metadata is None else metadata
            events: list[dict[str, Any]] = [
                {"type": "tool_result", "content": _plain_blocks(what.blocks), "callId": call_id}
            ]
        else:
            events = list(_events(what))
        if not events:
            return
        events[-1] |= {"reward": reward, "isFinished": bool(finished), "metadata": metadata}
        for event in events:
            self._upload("message", {"rolloutEventId": self.id, **event}, event_id=str(uuid.uuid4()))

    def update(self, info: Mapping[str, JSONValue]) -> None:
        """Tell more about the rollout itself; what was said before stays.

        Args:
            info: `task_index`, `current_step`, `temperature`, `max_tokens`, `num_compactions`, `harness`, ...
        """
        self._update(info)

    def finish(self, info: Mapping[str, JSONValue] | None = None) -> None:
        """Tell that it is over, and how long it took; may be called again, to no effect.

        Args:
            info: As for `update`.
        """
        if not self._finished:
            self._update({"duration_ms": round((time.monotonic() - self._began) * 1000)} | dict(info or {}), ends=True)
            self._finished = True

    def _update(self, info: Mapping[str, JSONValue], *, ends: bool = False) -> None:
        self._info |= info
        self._upload("rollout_update", {"rollout_info": self._info}, event_id=self.id, ends=ends)

    def _upload(
        self,
        kind: Literal["rollout", "message", "rollout_update"],
        fields: Any,
        *,
        event_id: str,
        ends: bool = False,
    ) -> None:
        if self._finished:
            raise ClientStateError("This rollout is finished; start another one.")
        with self._turn:
            event = {"eventId": event_id, "timestamp": time.time_ns() // 1_000_000, "eventType": kind}
            if kind == "message":
                event["index"] = self._count
            body = encode(_sendable(event | fields))
            self._count += kind == "message"
            self._uploader.put(Event(kind, self.id, body, self._source, ends))


def _events(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message's parts; neighbouring words are one."""
    event_type = _EVENT_TYPES.get(message.role)
    if event_type is None:
        raise ValueError(f"A message of a rollout is a user's, an assistant's or the system's, not {message.role!r}'s.")
    words: list[Block] = []
    for block in message.blocks:
        if not isinstance(block, ReasoningBlock | ToolCallBlock | ToolResultBlock):
            words.append(block)
            continue
        if words:
            yield {"type": event_type, "content": _plain_blocks(words)}
            words = []
        match block:
            case ReasoningBlock():
                yield {"type": "reasoning", "content": block.text, "contentReference": block.signature}
            case ToolCallBlock():
                arguments = encode(block.input).decode("ascii")
                yield {"type": "tool_call", "name": block.name, "content": arguments, "callId": block.id}
            case ToolResultBlock():
                yield {"type": "tool_result", "content": _plain_blocks(block.blocks), "callId": block.tool_call_id}
    if words:
        yield {"type": event_type, "content": _plain_blocks(words)}


def _plain_blocks(blocks: Iterable[Block]) -> str:
    return "\n".join(_plain_block(block) for block in blocks)


def _plain_block(block: Block) -> str:
    match block:
        case TextBlock():
            return block.text
        case ImageBlock():
            return f"[{block.mime_type}, {len(block.data)} characters of base64]"
        case _:
            return f"[{block.type}]"


def _sendable(value: Any) -> Any:
    """Return an event as the platform takes it: no key that is null, no text that it can't store."""
    if isinstance(value, str):
        return value.replace("\x00", "").encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_sendable(key): _sendable(item) for key, item in items if item is not None}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in cast("Sequence[Any]", value)]
    return value
