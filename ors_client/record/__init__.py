"""Episodes as JSON lines: one per episode, and one for whatever episodes share, in a file that many may append to."""

from ._merge import AttemptKey, Merged, merge
from ._models import CallRecord, EpisodeRecord, RunRecord, ToolsRecord, WordsRecord
from ._reader import numbered, read, runs
from ._writer import RecordWriter, redacted

__all__ = [
    "AttemptKey",
    "CallRecord",
    "EpisodeRecord",
    "Merged",
    "RecordWriter",
    "RunRecord",
    "ToolsRecord",
    "WordsRecord",
    "merge",
    "numbered",
    "read",
    "redacted",
    "runs",
]
