"""Episodes as JSON lines: one object per finished episode, appended to a file that many may write at once.

Knows the format and how to keep it whole; knows nothing of servers, sessions or trainers. A line is written in one
piece under a lock on the file, so threads and processes do not cut into each other, and a crash loses no episode that
had ended. Readers ignore fields that they do not know and pass over a line that a crash left unfinished.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from ors_client._http.credentials import credentials_in
from ors_client._http.redaction import Redactor
from ors_client._shared.block_recorder import Transcriber, told, written
from ors_client._shared.block_text import images_absent, left_out, unnested, worded
from ors_client._types import CallTimes, JSONObject

try:
    import fcntl
except ImportError:  # Windows: threads are kept apart there, processes are not
    fcntl = None

__all__ = [
    "CallRecord",
    "EpisodeRecord",
    "RecordWriter",
    "Transcriber",
    "credentials_in",
    "images_absent",
    "left_out",
    "numbered",
    "parts",
    "read",
    "redacted",
    "told",
    "unnested",
    "worded",
    "written",
]

logger = logging.getLogger(__name__)

_DEEPEST = 100  # levels of arguments and metadata that are kept; pydantic reads about 200 of JSON
_MOST_WARNINGS = 5  # about lines of one file: another kind of file would fill the screen
_SHORTEST_SECRET = 4  # characters; blanking every "1" of a record would make it useless and hide nothing
_SHORTEST_IN_IMAGE = 8  # characters; four stand in a megabyte of base64 by chance

# What only some writers know stands in a line only where it is known.
_OPTIONAL = frozenset({"attempt", "blocks", "kind", "messages", "metadata", "model", "said", "spec", "timing", "usage"})


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
        blocks: The whole output as the standard writes it, where it is more than a text.
        metadata: As the environment gave it.
        said: What the model wrote before it called.
        timing: Seconds by part, as `parts` gives them; what was waited before the call was sent is in `queued` too.
    """

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    output: str | None = None
    reward: float | None = None
    finished: bool = False
    error: str | None = None
    seconds: float = 0.0
    kind: str | None = None
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
    said: str | None = None
    usage: dict[str, int] | None = None
    timing: dict[str, float] | None = None


class RecordWriter:
    """Appends episodes to a file; safe from threads and, on POSIX, from processes.

    Args:
        path: The file; it and its folder are made when the first episode ends.
        hide: Keys and secrets, as for `redacted`.
    """

    def __init__(self, path: str | os.PathLike[str], *, hide: Collection[str] = ()) -> None:
        self._path = Path(path)
        self._redactors = _Redactors.of(hide)
        # One write at a time within the process: a lock on a file is one per process, not one per thread.
        self._lock = threading.Lock()

    def append(self, episode: EpisodeRecord) -> None:
        """Write one episode as one line.

        Raises:
            OSError: The file can't be written.
        """
        line = _writable(episode, self._redactors).model_dump_json().encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            # Opened anew for each episode, so that a file that was moved away or a fork needs no care.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(file).st_size
                if size and not _ends_with_newline(file, size):
                    line = b"\n" + line  # a crash left half a line, which would swallow this one
                _write_all(file, line)
            finally:
                os.close(file)  # which gives the lock back


def redacted(episode: EpisodeRecord, hide: Collection[str]) -> EpisodeRecord:
    """Return an episode as it may be shown: without keys and secrets, wherever they turn up in it.

    Args:
        episode: The episode; it is not changed.
        hide: The keys and secrets; those of fewer than four characters are left, as hiding them would hide nothing. In
            the data of images those of fewer than eight are left too, as they stand there by chance.
    """
    return _writable(episode, _Redactors.of(hide))


def read(path: str | os.PathLike[str]) -> Iterator[EpisodeRecord]:
    """Yield the episodes of a file, in the order in which they ended.

    Lines that are no episode, as a crash may leave one, are passed over: the first few with a warning each.

    Raises:
        OSError: The file can't be read.
    """
    for _, episode in numbered(path):
        yield episode


def numbered(
    path: str | os.PathLike[str], *, only: Collection[int] | None = None
) -> Iterator[tuple[int, EpisodeRecord]]:
    """Yield the episodes of a file with the numbers of their lines, from 1.

    Args:
        path: The file.
        only: The lines that are wanted; others are not even parsed.

    Raises:
        OSError: The file can't be read.
    """
    passed_over = 0
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip() or (only is not None and number not in only):
                continue
            episode = _parse(line)
            if isinstance(episode, EpisodeRecord):
                yield number, episode
                continue
            passed_over += 1
            if passed_over <= _MOST_WARNINGS:
                logger.warning("Line %d of %s is no episode and is passed over: %s.", number, path, episode)
    if passed_over > _MOST_WARNINGS:
        logger.warning("%d lines more of %s are no episodes.", passed_over - _MOST_WARNINGS, path)


def _parse(line: bytes) -> EpisodeRecord | str:
    """Return an episode, or what keeps a line from being one."""
    try:
        episode = EpisodeRecord.model_validate_json(line.strip())  # or the end of the line would be told as the place
    except ValidationError as error:
        return error.errors(include_url=False, include_input=False)[0]["msg"]
    # Every field has a default, so that a line may lack what its writer did not know; these two all writers know.
    missing = {"v", "calls"} - episode.model_fields_set
    return f"it has no {' and no '.join(map(repr, sorted(missing)))}" if missing else episode


def parts(times: CallTimes | None, *, waited: float = 0.0) -> dict[str, float]:
    """Return where a call's seconds went, as a record holds it.

    Args:
        times: As its session tells them; `None` where the call never came to be sent.
        waited: Seconds before the session was asked, which count as `queued`.
    """
    told = {"queued": 0.0} if times is None else asdict(times)
    return {part: round(seconds, 6) for part, seconds in {**told, "queued": told["queued"] + waited}.items()}


@dataclass(frozen=True, slots=True)
class _Redactors:
    """What is hidden in words, and what in the data of images."""

    words: Redactor
    images: Redactor

    @classmethod
    def of(cls, secrets: Collection[str]) -> _Redactors:
        redactors = (
            Redactor(secret for secret in secrets if len(secret) >= shortest)
            for shortest in (_SHORTEST_SECRET, _SHORTEST_IN_IMAGE)
        )
        return cls(*redactors)


def _writable(episode: EpisodeRecord, redactors: _Redactors) -> EpisodeRecord:
    """Return `episode` without secrets, in keys and values alike, and without what a line of JSON can't carry."""

    def clean(value: Any, depth: int = 0, redactor: Redactor = redactors.words) -> Any:
        if depth > _DEEPEST:
            return f"(nested more than {_DEEPEST} deep)"
        match value:
            case str():
                # Half a surrogate pair, as a model or a tool that cuts at a UTF-16 unit makes it.
                return redactor.redact(value).encode(errors="backslashreplace").decode()
            case dict():
                fields = cast("dict[Any, Any]", value)
                image = fields.get("type") == "image"
                return {
                    clean(key): clean(item, depth + 1, redactors.images if image and key == "data" else redactors.words)
                    for key, item in fields.items()
                }
            case list() | tuple():
                return [clean(item, depth + 1) for item in cast("list[Any]", value)]
            case None | bool() | int() | float() | datetime():
                return value
            case _:  # an argument that the client refused to send
                return clean(repr(value))

    return EpisodeRecord.model_validate(clean(episode.model_dump()))


def _ends_with_newline(file: int, size: int) -> bool:
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) == b"\n"


def _write_all(file: int, line: bytes) -> None:
    while line:
        line = line[os.write(file, line) :]
