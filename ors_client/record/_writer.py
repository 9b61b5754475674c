"""Episodes -> lines of a record, without keys and secrets.

What an episode shares with others is written before it, unless the file has it. All lines of an episode are written in
one piece under a lock on the file, so threads and processes do not cut into each other, and a crash loses no episode
that had ended. Knows nothing of servers, sessions or trainers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from ors_client._arguments import checked
from ors_client._http.redaction import Redactor
from ors_client._types import JSONObject

from . import _lines
from ._models import EpisodeRecord, WordsRecord

try:
    import fcntl
except ImportError:  # Windows: threads are kept apart there, processes are not
    fcntl = None

_DEEPEST = 100  # levels of arguments and metadata that are kept; pydantic reads about 200 of JSON
_SHORTEST_SECRET = 4  # characters; blanking every "1" of a record would make it useless and hide nothing
_SHORTEST_IN_IMAGE = 8  # characters; four stand in a megabyte of base64 by chance

_M = TypeVar("_M", bound=BaseModel)


@checked
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
        self._seen = _SharedLines()

    def append(self, episode: EpisodeRecord) -> None:
        """Write one episode as one line, and before it what the file does not have of its run, tools and images.

        Raises:
            OSError: The file can't be written.
        """
        shared: dict[tuple[str, str], JSONObject] = {}
        fields = _fields(_writable(episode, self._redactors))
        for kind in ("run", "tools"):
            if (value := fields.get(kind)) is not None:
                fields[kind] = _lines.content_id(value)
                shared[kind, fields[kind]] = value
        for name in ("messages", "shown"):
            self._refer_to_images(fields, name, shared)
        for call in fields["calls"]:
            self._refer_to_images(call, "blocks", shared)
        identity = fields.pop("id", None)
        self._write(shared, _lines.write("episode", identity, fields))

    def append_words(self, words: WordsRecord) -> None:
        """Write what a trainer tells of a rollout, once its episode was appended.

        Raises:
            OSError: The file can't be written.
        """
        shared: dict[tuple[str, str], JSONObject] = {}
        fields = _fields(_writable(words, self._redactors))
        for name in ("prompt", "completion"):
            self._refer_to_images(fields, name, shared)
        self._write(shared, _lines.write("words", fields.pop("id"), fields))

    def _refer_to_images(self, fields: JSONObject, name: str, shared: dict[tuple[str, str], JSONObject]) -> None:
        if fields.get(name):
            fields[name] = _lines.without_images(
                fields[name], lambda identity, image: shared.setdefault(("image", identity), image)
            )

    def _write(self, shared: dict[tuple[str, str], JSONObject], line: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            # Opened anew for each episode, so that a file that was moved away or a fork needs no care.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                self._seen.catch_up(file)
                missing = [key for key in shared if key not in self._seen.keys]
                line = b"".join(_lines.write(*key, shared[key]) for key in missing) + line
                if self._seen.torn:
                    line = b"\n" + line  # a crash left half a line, which would swallow this one
                _write_all(file, line)
                self._seen.add(missing, end=os.fstat(file).st_size)
            finally:
                os.close(file)  # which gives the lock back


class _SharedLines:
    """Which lines that others refer to a file has. Others may append to it, so it is read on from where it ended."""

    def __init__(self) -> None:
        self.keys: set[tuple[str, str]] = set()
        self.torn = False
        self._file: tuple[int, int] | None = None
        self._end = 0

    def catch_up(self, file: int) -> None:
        """Read what was appended since the last time; all of it where another file has taken the place."""
        status = os.fstat(file)
        if self._file != (status.st_dev, status.st_ino) or status.st_size < self._end:
            self.keys, self._file, self._end = set(), (status.st_dev, status.st_ino), 0
        self.torn = False
        if status.st_size == self._end:
            return
        with os.fdopen(os.dup(file), "rb") as lines:
            lines.seek(self._end)
            for line in lines:
                if not line.endswith(b"\n"):
                    self.torn = True
                    return
                self._end += len(line)
                kind, identity = _lines.kind_and_id(line)
                # Parsed whole: of a line that a crash left unfinished nobody can read what it was to hold.
                if kind in _lines.SHARED_KINDS and identity and _lines.parse(line) is not None:
                    self.keys.add((kind, identity))

    def add(self, keys: list[tuple[str, str]], *, end: int) -> None:
        """Note what was just appended, and where the file ends now."""
        self.keys.update(keys)
        self._end = end


@checked
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


def _writable(record: _M, redactors: _Redactors) -> _M:
    """Return `record` without secrets, in keys and values alike, and without what a line of JSON can't carry."""
    # A record names the same few fields over and over, and looking for secrets is most of what writing it costs.
    known: dict[tuple[Redactor, str], str] = {}

    def shown(text: str, redactor: Redactor) -> str:
        found = known.get((redactor, text))
        if found is None:
            # Half a surrogate pair, as a model or a tool that cuts at a UTF-16 unit makes it.
            found = redactor.redact(text).encode(errors="backslashreplace").decode()
            known[redactor, text] = found
        return found

    def clean(value: Any, depth: int = 0, redactor: Redactor = redactors.words) -> Any:
        if depth > _DEEPEST:
            return f"(nested more than {_DEEPEST} deep)"
        match value:
            case str():
                return shown(value, redactor)
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

    return type(record).model_validate(clean(record.model_dump()))


def _fields(record: BaseModel) -> JSONObject:
    return record.model_dump(mode="json")


def _write_all(file: int, line: bytes) -> None:
    while line:
        line = line[os.write(file, line) :]
