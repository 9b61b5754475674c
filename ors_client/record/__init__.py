"""Episodes as JSON lines: one per episode, and one for whatever episodes share, in a file that many may append to."""

from ._models import CallRecord, EpisodeRecord, RunRecord, ToolsRecord, WordsRecord
from ._reader import numbered, read, runs
from ._writer import RecordWriter, redacted

__all__ = [
    "CallRecord",
    "EpisodeRecord",
    "RecordWriter",
    "RunRecord",
    "ToolsRecord",
    "WordsRecord",
    "numbered",
    "read",
    "redacted",
    "runs",
]
