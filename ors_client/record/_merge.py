"""Several records -> one: what each of several machines played, joined.

Lines are copied as they are. An attempt that several records hold is taken from one of them, with all its lines there;
what is then missing is told by the settings of the runs. In memory are an entry for each episode, and no episode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ors_client._arguments import checked
from ors_client._brief import BriefFields

from . import _lines
from ._models import EpisodeRecord, RunRecord
from ._reader import numbered
from ._tasks import read_ranges

_NUMBER = re.compile("[0-9]{1,18}")
_MOST_NAMED = 1_000_000
"""Attempts of a run that are sought one by one; a record may claim any number, and more are counted alone."""
_MOST_SHARDS = 10_000
"""Parts of a run that are named where they are missing."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """An attempt, as records tell it from others."""

    environment: str | None
    model: str | None
    split: str | None
    index: int | None
    attempt: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"attempt {self.attempt} of {self.split}/{self.index} by {self.model!r} in {self.environment!r}"


@dataclass(frozen=True, slots=True, repr=False)
class Merged(BriefFields):
    """What was merged, and what was not.

    Args:
        episodes: How many the new record holds.
        overlaps: What several records held, an attempt or the id of an episode of a training; and the records, the one
            that it was taken from first.
        missing: The attempts that the runs' settings ask for and no record holds.
        unnamed: How many more that are; their runs do not say which, or name more than a million.
        shards: The parts of which no record was given, where something is missing; as `3/8`.
    """

    episodes: int
    overlaps: dict[AttemptKey | str, list[str]]
    missing: list[AttemptKey]
    unnamed: int
    shards: list[str]


@checked
def merge(records: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Merged:
    """Write the episodes of several records into a new one.

    Of an attempt that several records hold, or of an episode of a training with the same id, that one is taken which
    the infrastructure did not break; else that of the record named first.

    Args:
        records: The files, of any version. They are read twice.
        output: The new file.

    Raises:
        FileExistsError: The new file is there already.
        OSError: A file can't be read or written.
        ValueError: A record is named twice, or two use one id for different things, as this package never does.
    """
    paths = [Path(record) for record in records]
    for number, path in enumerate(paths):
        if any(path.samefile(other) for other in paths[:number]):
            raise ValueError(f"The record {str(path)!r} is named twice.")
    chosen = _Chosen(paths)
    for number in range(len(paths)):
        chosen.read(number)
    with Path(output).open("xb") as file:
        try:
            _copy(paths, file, chosen)
        except BaseException:
            Path(output).unlink()
            raise
    return chosen.merged()


@dataclass(slots=True)
class _Source:
    """Where an attempt is: the record, the lines, and whether it failed in the end."""

    record: int
    lines: list[int] = field(default_factory=list[int])
    failed: bool = False


class _Chosen:
    """Which episodes are taken from which record."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._sources: dict[AttemptKey | str, _Source] = {}
        self._overlaps: dict[AttemptKey | str, list[int]] = {}
        self._plain: list[tuple[int, int]] = []  # episodes that can't be told from others
        self._runs: dict[int, RunRecord] = {}

    def read(self, record: int) -> None:
        """Take what a record holds and no other does, or no other does better."""
        here: dict[AttemptKey | str, _Source] = {}
        for line, episode in numbered(self._paths[record]):
            if episode.run is not None:
                self._runs[id(episode.run)] = episode.run  # one object for all its episodes
            key = _key(episode)
            if key is None:
                self._plain.append((record, line))
                continue
            source = here.setdefault(key, _Source(record))
            source.lines.append(line)
            source.failed = episode.status.startswith("failed")
        for key, source in here.items():
            before = self._sources.get(key)
            if before is not None:
                self._overlaps.setdefault(key, [before.record]).append(record)
            if before is None or (before.failed and not source.failed):
                self._sources[key] = source

    def lines(self) -> list[set[int]]:
        """Return the lines of episodes that are taken, for each record."""
        lines = [set[int]() for _ in self._paths]
        for record, line in self._plain:
            lines[record].add(line)
        for source in self._sources.values():
            lines[source.record].update(source.lines)
        return lines

    def has_words(self, episode: str, record: int) -> bool:
        """Return whether what a record tells of an episode later belongs to the episode that is taken."""
        return episode not in self._overlaps or self._sources[episode].record == record

    def merged(self) -> Merged:
        """Return what was taken, and what is missing."""
        overlaps: dict[AttemptKey | str, list[str]] = {}
        for key, records in self._overlaps.items():
            taken = self._sources[key].record
            overlaps[key] = [str(self._paths[taken]), *(str(self._paths[one]) for one in records if one != taken)]
        missing, unnamed, shards = list[AttemptKey](), 0, dict[str, None]()
        for (environment, model), runs in self._evaluations().items():
            held = {
                key
                for key in self._sources
                if isinstance(key, AttemptKey) and (key.environment, key.model) == (environment, model)
            }
            named = [run for run in runs if run.tasks is not None and _named(run) <= _MOST_NAMED]
            absent = sorted(
                _asked(environment, model, named) - held, key=lambda key: (key.attempt, str(key.split), key.index or 0)
            )
            more = max((max(_size(run), _named(run)) for run in runs if run not in named), default=0) - len(held)
            missing += absent
            unnamed += max(0, more)
            if absent or more > 0:
                shards.update(dict.fromkeys(_absent_shards(runs)))
        return Merged(sum(map(len, self.lines())), overlaps, missing, unnamed, list(shards))

    def _evaluations(self) -> dict[tuple[str | None, str | None], list[RunRecord]]:
        found: dict[tuple[str | None, str | None], list[RunRecord]] = {}
        for run in self._runs.values():
            if run.kind == "evaluation":
                found.setdefault((run.environment, run.model), []).append(run)
        return found


def _key(episode: EpisodeRecord) -> AttemptKey | str | None:
    if episode.attempt is None:
        return episode.id
    return AttemptKey(episode.environment, episode.model, episode.split, episode.index, episode.attempt)


def _asked(environment: str | None, model: str | None, runs: Iterable[RunRecord]) -> set[AttemptKey]:
    return {
        AttemptKey(environment, model, split, index, attempt)
        for run in runs
        for split, text in (run.tasks or {}).items()
        for indices in read_ranges(text)
        for index in indices
        for attempt in range(_count(run, "attempts"))
    }


def _named(run: RunRecord) -> int:
    """Return how many attempts a run names, those twice that it names twice."""
    # The length of a range beyond what an index can be is no length to Python.
    tasks = sum(max(0, each.stop - each.start) for text in (run.tasks or {}).values() for each in read_ranges(text))
    return tasks * _count(run, "attempts")


def _size(run: RunRecord) -> int:
    """Return how many attempts a run asks for, by all shards together."""
    return _count(run, "num_tasks") * _count(run, "attempts")


def _count(run: RunRecord, name: str) -> int:
    value = run.noted.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _absent_shards(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield the parts that others than these make up all with; one beyond the attempts is empty, and has no record."""
    sizes: dict[int, int] = {}
    there: dict[int, set[int]] = {}
    for run in runs:
        number, _, count = str(run.noted.get("shard")).partition("/")
        if _NUMBER.fullmatch(number) and _NUMBER.fullmatch(count):
            there.setdefault(int(count), set()).add(int(number))
            sizes[int(count)] = max(sizes.get(int(count), 0), _size(run))
    for count, numbers in there.items():
        for number in range(1, min(count, sizes[count], _MOST_SHARDS) + 1):
            if number not in numbers:
                yield f"{number}/{count}"


def _copy(paths: Sequence[Path], output: BinaryIO, chosen: _Chosen) -> None:
    shared: dict[tuple[str, str], int] = {}
    for record, (path, lines) in enumerate(zip(paths, chosen.lines(), strict=True)):
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                kind, identity = _lines.kind_and_id(line)
                if number in lines:
                    pass
                elif identity is None or not line.endswith(b"\n"):
                    continue
                elif kind in _lines.SHARED_KINDS:
                    # Parsed whole: of a line that a crash left unfinished nobody can read what it was to hold.
                    if shared.get((kind, identity)) == hash(line) or _lines.parse(line) is None:
                        continue
                    if shared.setdefault((kind, identity), hash(line)) != hash(line):
                        raise ValueError(f"{str(path)!r} has another {kind} with the id {identity!r} than one before.")
                elif kind != "words" or not chosen.has_words(identity, record):
                    continue
                output.write(line if line.endswith(b"\n") else line + b"\n")
