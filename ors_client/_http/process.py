"""Which process a thing belongs to: a forked child has its parent's objects, and none of its threads and sockets."""

from __future__ import annotations

import os

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
