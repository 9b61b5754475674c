"""Lines of a record -> episodes, each with its run, its tools, its images and its words.

Fields and kinds of lines that are not known are ignored, and a line that a crash left unfinished is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ors_client._arguments import checked
from ors_client._http.redaction import get_logger
from ors_client._types import JSONObject

from . import _lines
from ._models import EpisodeRecord, RunRecord, ToolsRecord, WordsRecord

logger = get_logger(__name__)

_MOST_WARNINGS = 5  # about lines of one file: another kind of file would fill the screen
_IMAGES_HELD = 64  # that were read last: an episode shows the same ones in its messages and its calls

_M = TypeVar("_M", bound=BaseModel)


@checked
def read(path: str | os.PathLike[str]) -> Iterator[EpisodeRecord]:
    """Yield the episodes of a file, in the order in which they ended.

    Lines that are no episode, as a crash may leave one, are passed over: the first few with a warning each.

    Raises:
        OSError: The file can't be read.
    """
    for _, episode in numbered(path):
        yield episode


@checked
def runs(path: str | os.PathLike[str]) -> list[RunRecord]:
    """Return the settings of the runs that are in a file, in its order.

    Raises:
        OSError: The file can't be read.
    """
    with Path(path).open("rb") as file:
        return list(_Index(file).runs.values())


@checked
def numbered(
    path: str | os.PathLike[str], *, only: Collection[int] | None = None
) -> Iterator[tuple[int, EpisodeRecord]]:
    """Yield the episodes of a file with the numbers of their lines, from 1.

    Args:
        path: The file.
        only: The lines that are wanted; other episodes are not even parsed.

    Raises:
        OSError: The file can't be read.
    """
    passed_over = 0
    with Path(path).open("rb") as file, Path(path).open("rb") as shared:
        index = _Index(shared)
        for number, line in enumerate(file, start=1):
            if file.tell() > index.end:  # appended since
                return
            if not line.strip() or (only is not None and number not in only):
                continue
            if _lines.kind_and_id(line)[0] not in {None, "episode"} and line.endswith(b"\n"):
                continue
            episode = index.episode(line)
            if isinstance(episode, EpisodeRecord):
                yield number, episode
                continue
            passed_over += 1
            if passed_over <= _MOST_WARNINGS:
                logger.warning("Line %d of %s is no episode and is passed over: %s.", number, path, episode)
    if passed_over > _MOST_WARNINGS:
        logger.warning("%d lines more of %s are no episodes.", passed_over - _MOST_WARNINGS, path)


class _Index:
    """What episodes of a file refer to, and what refers to them. Images and words stay in the file until wanted.

    Args:
        file: Open as long as episodes are read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.runs: dict[str, RunRecord] = {}
        self._tools: dict[str, ToolsRecord] = {}
        self._offsets: dict[tuple[str, str], int] = {}
        self._images: dict[str, JSONObject | None] = {}
        self._file = file
        self.end = 0
        for line in file:
            kind, identity = _lines.kind_and_id(line)
            if kind == "run" and identity and (run := _read(RunRecord, _lines.parse(line))):
                self.runs[identity] = run
            elif kind == "tools" and identity and (tools := _read(ToolsRecord, _lines.parse(line))):
                self._tools[identity] = tools
            elif kind in {"image", "words"} and identity:
                self._offsets[kind, identity] = self.end
            self.end += len(line)

    def episode(self, line: bytes) -> EpisodeRecord | str:
        """Return an episode with all that belongs to it, or what keeps a line from being one."""
        fields = _lines.parse(line)
        if fields is None:
            return _why_no_json(line)
        fields["run"] = self.runs.get(str(fields.get("run")))
        fields["tools"] = self._tools.get(str(fields.get("tools")))
        self._fill(fields, "messages")
        calls = fields.get("calls")
        for call in cast("list[object]", calls) if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._fill(cast("JSONObject", call), "blocks")
        try:
            episode = EpisodeRecord.model_validate(fields)
        except ValidationError as error:
            return error.errors(include_url=False, include_input=False)[0]["msg"]
        # Every field has a default, so that a line may lack what its writer did not know; these two all writers know.
        missing = {"v", "calls"} - episode.model_fields_set
        if missing:
            return f"it has no {' and no '.join(map(repr, sorted(missing)))}"
        return self._with_words(episode)

    def _with_words(self, episode: EpisodeRecord) -> EpisodeRecord:
        fields = None if episode.id is None else self._at("words", episode.id)
        if fields is None:
            return episode
        self._fill(fields, "completion")
        self._fill(fields, "prompt")
        words = _read(WordsRecord, fields)
        if words is None:
            return episode
        last = words.completion[-1:] if not episode.calls else []
        joined = {
            "said": _text_of(last[0]) if last and last[0].get("role") == "assistant" else episode.said,
            "messages": [*episode.opening_messages, *words.completion],
            "opening": len(episode.opening_messages),
            "shown": words.prompt,
            "step": words.step,
            "reward": words.reward,
            "status": words.status,
        }
        return episode.model_copy(update=joined)

    def _fill(self, fields: JSONObject, name: str) -> None:
        if isinstance(messages := fields.get(name), list):
            fields[name] = _lines.with_images(cast("list[JSONObject]", messages), self._image)

    def _image(self, identity: str) -> JSONObject | None:
        if identity not in self._images:
            while len(self._images) >= _IMAGES_HELD:
                del self._images[next(iter(self._images))]
            self._images[identity] = self._at("image", identity)
        return self._images[identity]

    def _at(self, kind: str, identity: str) -> JSONObject | None:
        offset = self._offsets.get((kind, identity))
        if offset is None:
            return None
        self._file.seek(offset)
        return _lines.parse(self._file.readline())


def _text_of(message: JSONObject) -> str | None:
    blocks = cast("list[JSONObject]", message.get("blocks") or [])
    return "\n".join(str(block.get("text")) for block in blocks if block.get("type") == "text") or None


def _read(model: type[_M], fields: JSONObject | None) -> _M | None:
    try:
        return None if fields is None else model.model_validate(fields)
    except ValidationError:
        return None


def _why_no_json(line: bytes) -> str:
    try:
        EpisodeRecord.model_validate_json(line.strip())  # or the end of the line would be named as the position
    except ValidationError as error:
        return error.errors(include_url=False, include_input=False)[0]["msg"]
    return "it is no object"
