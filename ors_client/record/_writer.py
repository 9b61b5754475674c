"""Episodes -> lines of a record, without keys and secrets.

A line is written in one piece under a lock on the file, so threads and processes do not cut into each other, and a
crash loses no episode that had ended. Knows nothing of servers, sessions or trainers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from ors_client._http.redaction import Redactor

from ._models import EpisodeRecord

try:
    import fcntl
except ImportError:  # Windows: threads are kept apart there, processes are not
    fcntl = None

_DEEPEST = 100  # levels of arguments and metadata that are kept; pydantic reads about 200 of JSON
_SHORTEST_SECRET = 4  # characters; blanking every "1" of a record would make it useless and hide nothing
_SHORTEST_IN_IMAGE = 8  # characters; four stand in a megabyte of base64 by chance


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
