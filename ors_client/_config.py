"""Every limit and policy a caller can set, with its default and its reason. Knows nothing of how they are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ._arguments import checked_names


@checked_names
@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the client waits, in seconds; `None` waits without a limit of its own.

    Args:
        connect: For a connection to be made. A server that is up accepts at once; ten seconds cover a busy one.
        response: For a plain answer to its last byte, and for the headers of a call. Environments answer at once unless
            their event loop is blocked, which was seen for half a minute.
        silence: For the next byte of a stream. Servers send a keepalive comment every ten seconds, so four were missed.
        start_up: For an environment to set itself up, a starting backend to be ready, room to be free on a full server
            or the next place under `max_sessions`, or a server that has answered before to come back. Containers take
            minutes.
        call: For one tool call from beginning to end. None: a stream that shows life is not cut, as tools may run for
            an hour.
        close: For a session to be deleted, its environment's teardown included, and for a client to close, which may
            take six times as long while deletions or uploads make progress.
    """

    connect: float = 10.0
    response: float = 60.0
    silence: float = 45.0
    start_up: float = 600.0
    call: float | None = None
    close: float = 10.0

    def __post_init__(self) -> None:
        """Reject limits that no wait can keep."""
        for field in fields(self):
            value: object = getattr(self, field.name)
            if (value is not None or field.name != "call") and not _is_number(value, above=0):
                raise ValueError(f"Timeouts.{field.name} is a positive number of seconds, not {value!r}.")


@checked_names
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast what is safe to repeat is repeated.

    Args:
        attempts: Consecutive attempts without progress before giving up. A stream that gets further each time, or that
            stays alive for a while, may be resumed any number of times.
        first_delay: Seconds before the second attempt; each further delay doubles.
        max_delay: Seconds at most between attempts, unless the server asks for more with `Retry-After`, up to
            `Timeouts.start_up`.
        jitter: The share of a delay that is random, so that rollouts that failed together do not return together. What
            a server asked for is never shortened by it, and made longer by that share of `max_delay` at most.
    """

    attempts: int = 5
    first_delay: float = 0.5
    max_delay: float = 10.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        """Reject policies that can't be followed."""
        if not _is_count(self.attempts, least=1):
            raise ValueError(f"RetryPolicy.attempts is a whole number of at least 1, not {self.attempts!r}.")
        for name in ("first_delay", "max_delay"):
            delay: object = getattr(self, name)
            if not _is_number(delay, above=-math.ulp(0.0)) or delay == math.inf:
                raise ValueError(f"RetryPolicy.{name} is a number of seconds and not negative, unlike {delay!r}.")
        if not _is_number(self.jitter, above=-math.ulp(0.0)) or self.jitter > 1:
            raise ValueError(f"RetryPolicy.jitter is a share between 0 and 1, not {self.jitter!r}.")


@checked_names
@dataclass(frozen=True, slots=True)
class KeepalivePolicy:
    """How sessions are kept from being reaped while nothing else asks for them.

    Args:
        interval: Seconds between the pings of one session. Servers reap after 900; the standard's example is 10.
        tolerance: Seconds without any successful ping after which a session counts as lost, once three have failed: one
            fault never is enough. Where it is less than three intervals, pings follow a failure sooner, to fail in
            time. An answer of "not yet" (429, or a backend that is starting) is no failure, however often: the server
            is there, and the next call tells whether the session is.
    """

    interval: float = 10.0
    tolerance: float = 60.0

    def __post_init__(self) -> None:
        """Reject a rhythm that can't keep a session."""
        if not _is_number(self.interval, above=0) or self.interval == math.inf:
            raise ValueError(f"KeepalivePolicy.interval is a positive number of seconds, not {self.interval!r}.")
        if not _is_number(self.tolerance, above=0) or self.tolerance < self.interval:
            raise ValueError(
                f"KeepalivePolicy.tolerance ({self.tolerance!r}) is at least one interval ({self.interval!r})."
            )


@checked_names
@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server can make the client hold; each breach is a `LimitExceeded` that names the setting.

    Args:
        result_bytes: Of one answer, streamed or not, on the wire and decoded.
        events: Of one stream; a 64 MiB result in the official servers' chunks needs 16,384.
        items: Of all lists and objects in one answer, counted before it is parsed: each becomes an object of Python,
            many times as large as its text. A list of 5,000 tasks with 15 fields each has 80,000. Fewer where they
            would take more than 40 bytes for each allowed item and eight times their text, as many small objects do.
            Of tasks and splits a twentieth, and one more for every 80 bytes, as each becomes a model.
        escapes: Of backslashes in one answer, each of which is read by itself; four millions take a third of a second.
        blocks: In one answer, as each becomes a model.
        tools: In one list of tools.
        tasks: In one list of tasks that are asked for one by one, as the server tells their number only.
        schema_depth: Of nesting in a tool's schema or any other JSON.
        redirects: Followed for one request, within the same origin only.
    """

    result_bytes: int = 64 * 2**20
    events: int = 100_000
    items: int = 100_000
    escapes: int = 4_000_000
    blocks: int = 5_000
    tools: int = 1_000
    tasks: int = 1_000_000
    schema_depth: int = 200
    redirects: int = 3

    def __post_init__(self) -> None:
        """Reject limits below which nothing works."""
        for field in fields(self):
            value: object = getattr(self, field.name)
            if not _is_count(value, least=0 if field.name == "redirects" else 1):
                raise ValueError(f"Limits.{field.name} is a positive whole number, not {value!r}.")


def _is_number(value: object, *, above: float) -> bool:
    # A comparison with NaN is false, and True is a number to Python but to nobody else.
    return isinstance(value, int | float) and not isinstance(value, bool) and value > above


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
