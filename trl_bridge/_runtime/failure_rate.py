"""The rate at which resets fail, and the point at which a run is not worth going on with.

Counts; opens nothing and decides nothing else.
"""

from __future__ import annotations

import threading
from collections import Counter, deque

from ors_client import ORSError

WINDOW = 32
"""Resets over which the rate is taken: a batch or two, so that one bad task or one restart does not end a run.

A run whose failures are too many for any full window ends before it is full: with a rate of 0, at the first."""


class FailureRateExceeded(ORSError):
    """Raised by a reset when more of the last resets failed than `max_failure_rate` allows.

    Cause: The failures that the message counts; it ends with the last one.

    Tried: Each of them once more, on a fresh session.

    Do: See what that error says. Raise `max_failure_rate=` for a run that shall go on.

    Args:
        kinds: The failures' kinds, each with how often it occurred.
        resets: How many resets were looked at.
        rate: The share that was allowed.
        last: The message of the last failure.
    """

    def __init__(self, *, kinds: dict[str, int], resets: int, rate: float, last: str) -> None:
        self.kinds = kinds
        self.resets = resets
        self.rate = rate
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        super().__init__(
            f"{sum(kinds.values())} of the last {resets} resets failed ({listed}), more than max_failure_rate={rate:g} "
            f"allows; the last one: {last}"
        )


class ResetRate:
    """The outcomes of the last resets. Safe from many threads.

    Args:
        allowed: The share of failures that is tolerated.
    """

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._kinds: deque[str | None] = deque(maxlen=WINDOW)
        self._exceeded: FailureRateExceeded | None = None
        self._lock = threading.Lock()  # guards that `_exceeded` follows from `_kinds`

    def succeeded(self) -> None:
        """Count a reset that opened an episode."""
        with self._lock:
            self._kinds.append(None)
            self._exceeded = None

    def failed(self, kind: str, message: str) -> None:
        """Count a reset that did not."""
        with self._lock:
            self._kinds.append(kind)
            kinds = Counter(kind for kind in self._kinds if kind is not None)
            # Before the window is full, what is still to come counts as if it would succeed.
            if kinds.total() > self._allowed * WINDOW:
                resets = len(self._kinds)
                self._exceeded = FailureRateExceeded(kinds=dict(kinds), resets=resets, rate=self._allowed, last=message)

    def check(self) -> None:
        """Let a run go on, or end it.

        Raises:
            FailureRateExceeded: The last failure was one too many.
        """
        exceeded = self._exceeded
        if exceeded is not None:
            raise exceeded
