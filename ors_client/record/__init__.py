"""Episodes as JSON lines: one object per finished episode, appended to a file that many may write at once."""

from ._writer import *  # noqa: F403
