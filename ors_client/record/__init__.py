"""Episodes as JSON lines: one object per finished episode, appended to a file that many may write at once."""

from ._models import CallRecord, EpisodeRecord
from ._reader import numbered, read
from ._writer import RecordWriter, redacted

__all__ = ["CallRecord", "EpisodeRecord", "RecordWriter", "numbered", "read", "redacted"]
