"""The events of one streamed operation, over as many connections as it takes, become one outcome.

No I/O and no clock: whoever reads connections says when one begins and passes on its events; whether a lost one is
resumed, and how often, is decided elsewhere. The text of a result is joined here and understood elsewhere.

Theory of operation
-------------------
A call is sent once. The server names the run (`task_id`), sends its result in pieces (`chunk`, the last one in `end`),
or its exception's text (`error`). When the connection is lost after `task_id`, the request is sent again with that id,
and the server replays the run from its first piece. So pieces count only together with all others of the same
connection: a new connection forgets the pieces before it, and keeps two things, the id, and how far the furthest
connection came, which tells a slow link that gets on from a dead one that does not.

| state   | event                                       | next state | effect                                        |
| ------- | ------------------------------------------- | ---------- | --------------------------------------------- |
| SENT    | `task_id`                                   | STARTED    | the id is kept: the run can be resumed        |
| STARTED | `task_id`, the same                         | STARTED    | none                                          |
| STARTED | `task_id`, another                          | -          | `ProtocolError`                               |
| SENT    | `chunk`                                     | SENT       | kept; hand-written servers leave out the id   |
| STARTED | `chunk`                                     | STARTED    | kept                                          |
| either  | `end`                                       | DONE       | `End`: this connection's chunks and its data  |
| STARTED | `error: unknown task_id`, alone on a resume | DONE       | `Forgotten`                                   |
| either  | `error`, any other                          | DONE       | `Raised`                                      |
| either  | anything else                               | the same   | none; an empty `message` follows each comment |
|         |                                             |            | once a server has sent an `id:` field         |
| either  | a new connection                            | the same   | its predecessor's chunks are forgotten        |
| DONE    | anything                                    | DONE       | none                                          |

"Alone" means that nothing came before it on its connection: official servers repeat the id before they replay a run, so
that a tool which raised these very words is not taken for a run that was forgotten.

Source: `sse_task_stream` of openreward 0.1.167 and ors-sdk 0.1.0, whose bytes are identical.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ors_client._config import Limits
from ors_client._errors import LimitExceeded, ProtocolError

_LONGEST_TASK_ID = 256  # official servers send 32 to 36 characters; an id also becomes a header and part of log lines
_FORGOTTEN = "unknown task_id"


class StreamState(enum.Enum):
    """What is known of an operation."""

    SENT = "sent"
    """Nothing: it may run or not, and can't be resumed."""
    STARTED = "started"
    """It runs under an id, and can be resumed."""
    DONE = "done"
    """Its outcome is here."""


@dataclass(frozen=True, slots=True)
class End:
    """The operation returned; `text` is its whole result, to the letter."""

    text: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The operation raised on the server; `text` is what the server says of it, and may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The server no longer knows the run that was to be resumed."""


Outcome = End | Raised | Forgotten


class Stream:
    """One operation, from its first connection to its outcome.

    Args:
        limits: How much of a result, and how many events on one connection, are taken.
    """

    def __init__(self, *, limits: Limits) -> None:
        self.state = StreamState.SENT
        self.task_id: str | None = None
        self._limits = limits
        self._outcome: Outcome | None = None
        self._furthest = 0  # characters that the best of the earlier connections brought
        self._begin_connection()

    def connect(self) -> None:
        """Note that a new connection begins: partial chunks are forgotten, the furthest point is kept."""
        self._furthest = max(self._furthest, self._length)
        self._begin_connection()

    def receive(self, event: str, data: str) -> None:
        """Take one event of the current connection.

        Raises:
            ProtocolError: The server names the run by something that is no id, or by two ids.
            LimitExceeded: The result is longer, or has more events, than `Limits` allow.
        """
        if self.state is StreamState.DONE:
            return
        self._events += 1
        if self._events > self._limits.events:
            raise LimitExceeded("A stream has too many events", limit="events", maximum=self._limits.events)
        match event:
            case "task_id":
                self._start(data)
            case "chunk":
                self._keep(data)
            case "end":
                self._keep(data)
                self._finish(End("".join(self._chunks)))
            case "error":
                forgotten = self._resuming and self._alone and data == _FORGOTTEN
                self._keep(data)
                self._finish(Forgotten() if forgotten else Raised(data))
            case _:
                return
        self._alone = False

    @property
    def advanced(self) -> bool:
        """Whether this connection brought more characters of the result than every one before it."""
        return self._length > self._furthest

    @property
    def outcome(self) -> Outcome | None:
        """How the operation ended, or `None` while that is open."""
        return self._outcome

    def _begin_connection(self) -> None:
        self._resuming = self.task_id is not None
        self._alone = True
        self._chunks: list[str] = []
        self._length = 0
        self._size = 0
        self._events = 0

    def _start(self, task_id: str) -> None:
        # Neither id is quoted: they are a server's text, which may be anything.
        readable = task_id.isascii() and task_id.isprintable()  # as the official servers' are: one look at all of it
        if not 0 < len(task_id) <= _LONGEST_TASK_ID or not (
            readable or all(" " <= c < "\x7f" or c > "\x9f" for c in task_id)
        ):
            raise ProtocolError(
                f"A task_id of {len(task_id)} characters is empty, longer than {_LONGEST_TASK_ID}, "
                "or holds control characters"
            )
        if self.task_id is not None and task_id != self.task_id:
            raise ProtocolError("A stream changed its task_id on the way")
        self.task_id = task_id
        self.state = StreamState.STARTED

    def _keep(self, data: str) -> None:
        # `isascii` looks at a flag, so that only text which needs it is encoded to be measured.
        self._size += len(data) if data.isascii() else len(data.encode("utf-8", "surrogatepass"))
        if self._size > self._limits.result_bytes:
            raise LimitExceeded("A result is too long", limit="result_bytes", maximum=self._limits.result_bytes)
        self._chunks.append(data)
        self._length += len(data)

    def _finish(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.state = StreamState.DONE
        self._chunks = []  # the outcome holds the text; a long result is not kept twice
