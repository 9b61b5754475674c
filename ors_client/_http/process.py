"""The process: which one a thing belongs to, and how many files it may open.

A forked child has its parent's objects, and none of its threads and sockets.
"""

from __future__ import annotations

import errno
import os
import sys

from ors_client._errors import OPENED_BEFORE_FORK, ClientStateError


class OwnProcess:
    """The process that something was made in."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether it is this one."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raise `ClientStateError` in a forked child."""
        if not self.is_current:
            raise ClientStateError(OPENED_BEFORE_FORK)


def explain_open_files(error: BaseException) -> str:
    """Say which limit was met where a file, a socket or an event loop could not be opened; nothing for other errors."""
    if not isinstance(error, OSError) or error.errno not in {errno.EMFILE, errno.ENFILE}:
        return ""
    if sys.platform == "win32":
        return "this process may open no more files"
    import resource  # noqa: PLC0415 - not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {limit} files open, each connection being one; raise that limit with `ulimit -n`"
