"""What to do after a failure, given what is known of the request's delivery: a delay, or the error to raise.

Three questions decide, in this order:

1. Did the server refuse to run it, or never see it? (connection never made, 429, 503 with `X-Backend-State: starting`)
   Sending it again is safe. Who said "not yet", and a server that has answered before and is gone, is waited for until
   `Timeouts.start_up`; an address that never answered gets `RetryPolicy.attempts`.
2. Did the call start under an id we know? Reconnecting resumes the same run. A connection that brought more of the
   result, or stayed alive for a while, is progress; `RetryPolicy.attempts` connections in a row without any are not.
3. Otherwise it may have run. What only reads is repeated, up to `RetryPolicy.attempts`. What steps an episode is not:
   `OutcomeUnknown`.

`Retry-After` is kept, unless it is longer than `Timeouts.start_up`: then there is no next attempt.

No I/O, no clock: time is an argument.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

from ors_client._config import RetryPolicy, Timeouts
from ors_client._errors import (
    AuthenticationError,
    BillingError,
    CapacityError,
    DeadlineExceeded,
    ORSError,
    OutcomeUnknown,
    SessionLost,
    StatusError,
    TransportError,
    means_no_route,
)

from .operations import Operation

# Not the global generator: a program that seeds it gets the same numbers, whether or not a request was repeated. This
# one can't be seeded, so that the workers of a fork do not return together.
_random = random.SystemRandom()

# A connection that lives this long has shown the server at work; shorter ones prove nothing but that it accepts.
_LIFE = 5.0

# Gateways answer these when they lost the server; 520 to 530 are a large CDN's. The server may have run the request.
_GATEWAY = frozenset({502, 503, 504, *range(520, 528), 530})

# What a gateway says that waited for a server in vain.
_GAVE_UP = frozenset({504, 524})
_HELD_BACK = (
    "It may have run and was not repeated. If a proxy stands before the server: turn off its buffering of answers, and "
    "raise its read time-out above the longest call."
)

_BEHIND_GATEWAY = (
    "A gateway answers, and not the server behind it: is it started? Or the gateway's read time-out is shorter than "
    "the environment's setup."
)

KeySent = Literal["given", "unset", "none"]
"""Whether a key went with a request: one did; none, as the catalogue's variable is unset; none, at another server."""
_KEY_ADVICE: dict[KeySent, str] = {
    "given": "The key was refused: is it complete, not expired, and for this server?",
    "unset": "OPENREWARD_API_KEY is not set: set it, or pass api_key=...",
    "none": "Pass api_key=...; a key from the environment is sent to the catalogue's own hosts only.",
}
_NO_DEPLOYMENT = re.compile(r"deployment\b.{,200}\bnot found", re.IGNORECASE)

_NO_EPISODE = "Active environment not found"
# The rest of a line is read from its first "session" alone: from each of many, it would be read as often.
_NO_SESSION = re.compile(
    r"^(?>.*?\bsession\b).*\b(?:not found|unknown|expired|deleted|terminated|gone)\b|\bunknown session\b",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt.

    Args:
        reason: What happened, for a message.
        delivered: Whether the server may have begun to act on the request.
        status: The HTTP status, where one came.
        detail: What the answer's body said.
        retry_after: Seconds that the server asked to wait.
        silent: The name of the limit that ran out, where one did.
        waited: Seconds that the attempt took.
        advanced: The stream brought more of the result than any before it.
        alive: Seconds from the connection's start to the last byte received.
        remedy: What to do, where no further attempt can succeed.
    """

    reason: str
    delivered: bool
    status: int | None = None
    detail: str = ""
    retry_after: float | None = None
    silent: str | None = None
    waited: float = 0.0
    advanced: bool = False
    alive: float = 0.0
    remedy: str = ""


def judge_status(
    operation: Operation[object],
    status: int,
    headers: Mapping[str, str],
    detail: str,
    *,
    url: str,
    now: float,
    key: KeySent = "given",
) -> FailedAttempt | ORSError:
    """Tell what an error status means: a fault to recover from, or an error to raise.

    Args:
        operation: What was asked.
        status: At least 300.
        headers: The answer's, with names in any case.
        detail: What its body says, redacted.
        url: Where it came from.
        now: Seconds since the epoch, for a `Retry-After` date.
        key: Whether a key went along, and where it would have come from.
    """
    wait = retry_after(headers, now=now)
    starting = status == 503 and headers.get("x-backend-state", "").lower() == "starting"
    if status == 429 or starting:
        reason = "the environment's backend is still starting" if starting else "the server has no room (HTTP 429)"
        return FailedAttempt(reason, delivered=False, status=status, detail=detail, retry_after=wait)
    # Behind the catalogue's API stands no environment whose exception a 500 would be.
    if status in _GATEWAY or (status == 500 and operation.host == "api"):
        return FailedAttempt(f"HTTP {status}", delivered=True, status=status, detail=detail, retry_after=wait)
    session_id = operation.session_id
    # A gateway has words of its own for a session that is gone.
    gone = status == 410 or (status == 404 and (detail.startswith(_NO_EPISODE) or _NO_SESSION.search(detail)))
    if session_id is not None and gone:
        return SessionLost(session_id, reason=f"HTTP {status} {detail}", url=url)
    kind = {401: AuthenticationError, 403: AuthenticationError, 402: BillingError}.get(status, StatusError)
    advice, named = None, operation.deployment
    if kind is AuthenticationError:
        advice = _KEY_ADVICE[key]
    elif named is not None and _NO_DEPLOYMENT.match(detail):
        advice = f"Is {named!r} spelt as in the catalogue, owner and name, and may the key's account use it?"
    return kind(operation.name, status=status, detail=detail, url=url, session_id=session_id, advice=advice)


def is_missing_route(error: StatusError) -> bool:
    """Tell a route that an older or hand-written server does not have from other meanings of 404.

    A proxy that has lost its server says the same of every path. Who asks must know whether the server is there.
    """
    return means_no_route(error.status, error.detail)


def backoff(policy: RetryPolicy, nth: int, *, draw: Callable[[], float] = _random.random) -> float:
    """Return the seconds to wait before the `nth` repetition, from 1, where the server asked for no other.

    Args:
        policy: How fast.
        nth: Which one.
        draw: A number in [0, 1), for the jitter.
    """
    # The exponent is capped because 2.0 ** 2000 overflows, not because a delay could be that long.
    delay = min(policy.max_delay, policy.first_delay * 2.0 ** min(nth - 1, 30))
    return delay * (1.0 - policy.jitter * draw())


def delay(policy: RetryPolicy, nth: int, asked: float | None, *, draw: Callable[[], float] = _random.random) -> float:
    """Return the seconds to wait before the `nth` repetition, from 1.

    Args:
        policy: How fast.
        nth: Which one.
        asked: Seconds that the server asked to wait, if it did.
        draw: A number in [0, 1), for the jitter.
    """
    if asked is None:
        return backoff(policy, nth, draw=draw)
    wait = max(asked, policy.first_delay)  # "0" is no invitation to ask in a loop
    # Never sooner than asked, but not all who were refused together at the same moment.
    return wait + policy.jitter * draw() * min(wait, policy.max_delay)


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Read `Retry-After`, in seconds or as an HTTP date (RFC 9110, 10.2.3); `None` where it says nothing usable."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        # The server's own clock, where it tells it: its date is meaningless on ours if they differ.
        sent = headers.get("date")
        return max(0.0, _timestamp(value) - (_timestamp(sent) if sent else now))
    except (ValueError, OverflowError):  # a year of twenty digits is the latter
        return None


def _timestamp(date: str) -> float:
    moment = parsedate_to_datetime(date)
    # An asctime date names no zone, and is in UTC like every HTTP date.
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


class RetryState:
    """The attempts of one operation, and whether there is a next one.

    Args:
        operation: What is attempted.
        policy: How often and how fast.
        timeouts: Of which `start_up` bounds waiting for a server that said, or has shown, that it will be there.
        url: For messages.
        answered_before: Whether this server has ever answered this client.
        draw: A number in [0, 1), for the jitter.
    """

    def __init__(
        self,
        operation: Operation[object],
        *,
        policy: RetryPolicy,
        timeouts: Timeouts,
        url: str,
        answered_before: bool,
        draw: Callable[[], float] = _random.random,
    ) -> None:
        self.count = 0
        self._operation = operation
        self._session_id = operation.session_id
        self._policy = policy
        self._timeouts = timeouts
        self._url = url
        self._answered_before = answered_before
        self._draw = draw
        self._fruitless = 0
        self._waits = 0
        self._waiting_since: float | None = None

    def after(self, failure: FailedAttempt, *, now: float, started: bool = False) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            failure: What ended the last one.
            now: On a monotonic clock.
            started: Whether the call runs under an id that is known, so that it can be resumed.

        Raises:
            ORSError: There is no next attempt.
        """
        self.count += 1
        if failure.status is not None or failure.delivered:  # it answered, or at least accepted the connection
            self._answered_before = True
        if started and (failure.advanced or failure.alive >= _LIFE):
            self._fruitless = self._waits = 0
            self._waiting_since = None
        if failure.remedy:
            raise TransportError(
                self._operation.name,
                reason=failure.reason,
                attempts=self.count,
                advice=failure.remedy,
                url=self._url,
                session_id=self._session_id,
            )
        if self._can_wait(failure):
            return self._wait(failure, now)
        self._waiting_since = None
        if failure.delivered and not started:
            if not self._operation.idempotent:
                raise OutcomeUnknown(
                    self._operation.name,
                    reason=failure.reason,
                    attempts=self.count,
                    advice=_HELD_BACK if failure.silent is not None or failure.status in _GAVE_UP else None,
                    url=self._url,
                    session_id=self._session_id,
                )
            if failure.silent is not None:
                seconds = getattr(self._timeouts, failure.silent)
                raise DeadlineExceeded(
                    self._operation.name,
                    limit=failure.silent,
                    seconds=seconds,
                    url=self._url,
                    session_id=self._session_id,
                )
        self._fruitless += 1
        asked = failure.retry_after or 0.0
        too_long = asked >= self._timeouts.start_up  # or a server could make its client sleep for days
        if too_long or self._fruitless >= self._policy.attempts:
            raise TransportError(
                self._operation.name,
                reason=f"{failure.reason}, with a Retry-After of {asked:g} seconds" if too_long else failure.reason,
                attempts=self.count,
                advice=_BEHIND_GATEWAY if failure.status in _GATEWAY and self._operation.host == "sessions" else None,
                url=self._url,
                session_id=self._session_id,
            )
        return delay(self._policy, self._fruitless, failure.retry_after, draw=self._draw)

    def _can_wait(self, failure: FailedAttempt) -> bool:
        if not failure.delivered:
            return failure.status is not None or self._answered_before
        # ors-sdk sends no byte until setup is done, for as long as that takes; asking again is safe.
        return failure.silent == "response" and self._operation.waits_for_setup and self._operation.idempotent

    def _wait(self, failure: FailedAttempt, now: float) -> float:
        if self._waiting_since is None:
            self._waiting_since = now - failure.waited
        self._waits += 1
        wait = 0.0 if failure.silent else delay(self._policy, self._waits, failure.retry_after, draw=self._draw)
        if now + wait < self._waiting_since + self._timeouts.start_up:
            return wait
        name = self._operation.name
        if failure.status == 429:
            raise CapacityError(
                name, detail=failure.detail, retry_after=failure.retry_after, url=self._url, session_id=self._session_id
            )
        if failure.delivered or failure.status is not None:
            raise DeadlineExceeded(
                f"{name} ({failure.reason})",
                limit="start_up",
                seconds=self._timeouts.start_up,
                url=self._url,
                session_id=self._session_id,
            )
        raise TransportError(
            name, reason=failure.reason, attempts=self.count, url=self._url, session_id=self._session_id
        )
