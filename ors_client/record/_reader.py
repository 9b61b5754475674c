"""Lines of a record -> episodes.

Fields that are not known are ignored, and a line that a crash left unfinished is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import ValidationError

from ors_client._http.redaction import get_logger

from ._models import EpisodeRecord

logger = get_logger(__name__)

_MOST_WARNINGS = 5  # about lines of one file: another kind of file would fill the screen


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
