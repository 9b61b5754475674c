"""The one module that sends requests, reads streams and sleeps between attempts.

It carries out what the modules above it judge: an `Operation` says what to send, `stream` what the events mean,
`retry` what to do after a failure. It knows keys and the limits on waiting, and nothing of episodes or of how
connections are made.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import anyio

from ors_client._config import Limits, RetryPolicy, Timeouts
from ors_client._errors import (
    LimitExceeded,
    ORSError,
    ProtocolError,
    ResultLost,
    StatusError,
    TransportError,
    one_line,
)
from ors_client._protocol.json import decode, detail, refuses_body_secrets
from ors_client._protocol.operations import Operation
from ors_client._protocol.responses import check_blocks, check_models
from ors_client._protocol.retry import FailedAttempt, KeySent, RetryState, judge_status
from ors_client._protocol.stream import End, Forgotten, Raised, Stream, StreamState

from .backends import HTTPResponse, Timing, content_coding, describe, foreign_errors, remedy, timing, was_never_sent
from .cancellation import run_shielded
from .deadline import Deadline, Loop
from .pool import MakeTransport, Pool
from .redaction import Redactor, get_logger
from .sse import read_events
from .urls import Target, follow

T = TypeVar("T")

_logger = get_logger("ors_client.http")
_ERROR_BODY = 64 * 2**10  # bytes of an error's body that are read: enough for a traceback
_EXCERPT_SECONDS = 1.0  # for it to come
_LATE_EXCERPT_SECONDS = 0.5  # for it to come where the limit on the attempt has run out meanwhile
_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 64 * 2**10


_USER_AGENT = f"ors-client/{version('ors-client')}"


class RetryLater(TransportError):
    """Raised by `send_once` where to ask later: there is no room, or a backend or an environment is starting."""


class BodySecretsRefused(StatusError):
    """Raised when a server takes secrets in the header only; the request left nothing behind."""


class Transport:
    """Sends operations to one target.

    Args:
        target: Where to.
        api_key: Sent to the target's own hosts, and to no other.
        timeouts: How long each wait may be.
        retry: How often what is safe to repeat is repeated.
        limits: How much a server can make us hold.
        headers: Sent with every request.
        redactor: What no error shows; a client's transports share one.
        make: Makes the httpx transport; the default is aiohttp's on asyncio, httpcore's on trio.
    """

    def __init__(
        self,
        target: Target,
        *,
        api_key: str | None,
        timeouts: Timeouts,
        retry: RetryPolicy,
        limits: Limits,
        headers: Mapping[str, str] | None = None,
        redactor: Redactor | None = None,
        make: MakeTransport | None = None,
    ) -> None:
        self.target = target
        self.timeouts = timeouts
        self.limits = limits
        self.retry = retry
        self.redactor = redactor or Redactor([] if api_key is None else [api_key])
        self._hosts = {"api": target.layout.api, "sessions": target.layout.sessions}
        self._pool = Pool(make, connect=timeouts.connect)
        self._answered = False
        given = {name.lower(): value for name, value in (headers or {}).items()}
        base = {"user-agent": _USER_AGENT, "accept": "*/*", "accept-encoding": "identity"} | given
        self._anonymous = [(name.encode("ascii"), value.encode("latin-1")) for name, value in base.items()]
        self._signed = list(self._anonymous)
        self._key_sent: KeySent = "given" if api_key is not None else "unset" if target.catalogue else "none"
        if api_key is not None:
            self._signed.append((b"x-api-key", api_key.encode("latin-1")))

    def show(self, text: str) -> str:
        """Return a server's text without the keys and secrets that it may echo."""
        return self.redactor.redact(text)

    async def send(
        self,
        operation: Operation[T],
        *,
        on_result: Callable[[T], object] | None = None,
        on_capacity_error: Callable[[], object] | None = None,
        times: Timing | None = None,
    ) -> T:
        """Send an operation, repeat or resume it where that is safe, and read its answer.

        Args:
            operation: What to send.
            on_result: Called with the answer's value as soon as it is known. With it, a request that is on its way when
                the caller is cancelled is waited for, for `Timeouts.close` seconds.
            on_capacity_error: Called each time the server says that it has no room, before the operation is sent again.
            times: Where to note what was not the server's time.

        Raises:
            ORSError: See `_errors`.
        """
        token = timing.set(times)
        try:
            return await self._send(operation, on_result, on_capacity_error, times)
        except ORSError as error:
            raise self._with_location(error, operation) from error.__cause__
        finally:
            timing.reset(token)

    async def send_once(self, operation: Operation[T], *, within: float | None = None) -> T:
        """Send an operation that is not streamed once; raise `TransportError` where `send` might try again.

        Args:
            operation: What to send.
            within: Seconds that it may take, where that is less than its limit.
        """
        try:
            result = await self._attempt(operation, None, within=within)
            if isinstance(result, FailedAttempt):
                asked_later = not result.delivered and result.status is not None
                asked_later |= result.silent == "response" and operation.waits_for_setup
                raise (RetryLater if asked_later else TransportError)(
                    operation.name, reason=result.reason, advice=result.remedy or None
                )
            return self._parse(operation, result)
        except ORSError as error:
            raise self._with_location(error, operation) from error.__cause__

    async def loop(self) -> Loop:
        """Return the running event loop, which is the connections' own.

        Raises:
            ClientStateError: It is not.
        """
        return await self._pool.bind()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def _send(
        self,
        operation: Operation[T],
        on_result: Callable[[T], object] | None,
        on_capacity_error: Callable[[], object] | None,
        times: Timing | None,
    ) -> T:
        stream: Stream | None = None
        retry_state: RetryState | None = None
        answered_before = self._answered
        loop = await self._pool.bind()
        while True:
            if operation.streamed and (stream is None or operation.idempotent):
                # What may be sent afresh is never resumed: a second /create_session gets another id.
                stream = Stream(limits=self.limits)
            if on_result is None:
                result = await self._attempt(operation, stream)
            else:
                result = await run_shielded(
                    partial(self._attempt_and_report, operation, stream, on_result), grace=self.timeouts.close
                )
            if isinstance(result, str):
                return self._parse(operation, result)
            if retry_state is None:
                retry_state = RetryState(
                    operation,
                    policy=self.retry,
                    timeouts=self.timeouts,
                    url=self._address(operation),
                    answered_before=answered_before,
                )
            started = stream is not None and stream.state is StreamState.STARTED and not operation.idempotent
            if on_capacity_error is not None and result.status == 429:
                on_capacity_error()
            delay = retry_state.after(result, now=loop.now(), started=started)
            self._log_repetition(operation, result, resumed=started, delay=delay)
            if times is not None and not result.delivered:
                if result.status is None:
                    times.connecting += delay
                else:
                    times.queued += result.waited + delay
            await anyio.sleep(delay)

    # --- One attempt -------------------------------------------------------------------------------------------------

    async def _attempt(
        self, operation: Operation[Any], stream: Stream | None, *, within: float | None = None
    ) -> str | FailedAttempt:
        if stream is not None:
            stream.connect()
        loop = await self._pool.bind()
        await self._pool.admit()  # before its limits begin: it is this process that it waits for
        deadline = _AttemptDeadline(self.timeouts, operation, loop, within=within)
        failure: FailedAttempt | None = None
        with deadline:
            try:
                response = await self._exchange(operation, stream)
                deadline.note_progress()
                try:
                    return await self._read(operation, response, stream, deadline)
                finally:
                    self._log_answer(operation, response.status, loop.now() - deadline.began)
                    if not response.ended:
                        await _close(response)
            except foreign_errors() as error:
                if isinstance(error, ORSError):  # one of ours is a TimeoutError, and so an OSError
                    raise
                reason = self.show(describe(error, connect=self.timeouts.connect))
                failure = FailedAttempt(reason, delivered=not was_never_sent(error), remedy=remedy(error))
        if stream is not None and stream.outcome is not None:  # the connection failed after the result was whole
            return self._conclude(operation, stream)
        if failure is None:
            failure = FailedAttempt(deadline.reason, delivered=True, silent=deadline.limit)
        return replace(
            failure,
            waited=loop.now() - deadline.began,
            alive=deadline.last_progress - deadline.began,
            advanced=stream is not None and stream.advanced,
        )

    async def _attempt_and_report(
        self, operation: Operation[T], stream: Stream | None, on_result: Callable[[T], object]
    ) -> str | FailedAttempt:
        result = await self._attempt(operation, stream)
        if isinstance(result, str):
            on_result(self._parse(operation, result))
        return result

    async def _exchange(self, operation: Operation[Any], stream: Stream | None) -> HTTPResponse:
        """Send the request and return the answer's head, following redirects within the origin by hand."""
        url = self._hosts[operation.host] + operation.path
        headers = [*(self._signed if operation.authenticated else self._anonymous), *operation.headers]
        body = operation.body
        if stream is not None and stream.task_id is not None and body is not None:
            body = _resuming(body, stream.task_id)
        if body is not None:
            headers.append((b"content-type", b"application/json"))
        cookies = operation.cookies
        if cookies is not None and operation.session_id is None:
            cookies.clear()  # of an attempt before, whose session is not the one that this one makes
        for _ in range(self.limits.redirects + 1):
            sent = headers if cookies is None else _with_cookies(headers, cookies.header(url))
            response = await self._pool.send(operation.method, url, sent, body)
            self._answered = True
            if cookies is not None and "set-cookie" in response.headers:
                cookies.store(url, response.set_cookies())
            # The others may turn the request into another one.
            if response.status not in {307, 308} or not operation.follows_redirects:
                return response
            await _close(response)
            url = follow(url, response.headers.get("location", ""), layout=self.target.layout)
        raise LimitExceeded("A request was redirected too often", limit="redirects", maximum=self.limits.redirects)

    async def _read(
        self, operation: Operation[Any], response: HTTPResponse, stream: Stream | None, deadline: _AttemptDeadline
    ) -> str | FailedAttempt:
        if response.status in {301, 302, 303}:
            follow(self._address(operation), response.headers.get("location", ""), layout=self.target.layout)
        if not 200 <= response.status < 300:
            return self._judge(operation, response, await self._excerpt(response, deadline))
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if stream is None or (operation.may_be_json and kind == "application/json"):
            _check_coding(response)
            text = await self._body(response, deadline)
            # A page for people comes from something before the server, which saw nothing of the request.
            return "null" if operation.ignores_body and kind != "text/html" else text
        if kind != "text/event-stream":
            excerpt = await self._excerpt(response, deadline)
            raise ProtocolError(f"An event stream was expected, not {kind or 'an untyped body'}", excerpt=excerpt)
        _check_coding(response)
        deadline.note_stream_progress()
        await self._follow(response, stream, deadline)
        if stream.outcome is None:
            return FailedAttempt("the stream ended before its result", delivered=True)
        return self._conclude(operation, stream)

    async def _follow(self, response: HTTPResponse, stream: Stream, deadline: _AttemptDeadline) -> None:
        """Read a stream to its outcome, or to its end."""
        size = 0

        async def read() -> bytes:
            nonlocal size
            data = b""
            while not data and not response.ended:
                data = await response.read()
            if data:
                deadline.note_stream_progress()
            size += len(data)
            if size > self.limits.result_bytes:
                raise LimitExceeded("A stream is too long", limit="result_bytes", maximum=self.limits.result_bytes)
            return data

        def receive(event: str, text: str) -> bool:
            stream.receive(event, text)
            return stream.outcome is not None

        await read_events(read, receive)
        if not response.ended:
            await _drain(response, deadline)

    async def _body(self, response: HTTPResponse, deadline: _AttemptDeadline) -> str:
        """Read the whole body of an answer that is no stream."""
        limit = self.limits.result_bytes
        body = bytearray()
        while not response.ended:
            body += await response.read()
            deadline.note_progress()
            if len(body) > limit:
                raise LimitExceeded("An answer is too long", limit="result_bytes", maximum=limit)
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            excerpt = self.show(body[:_ERROR_BODY].decode("utf-8", "replace"))
            raise ProtocolError(f"An answer is not UTF-8 at byte {error.start}", excerpt=excerpt) from None

    async def _excerpt(self, response: HTTPResponse, deadline: _AttemptDeadline) -> str:
        """Return the beginning of a body, fit to be shown: as much of it as comes within a moment."""
        body = bytearray()
        if content_coding(response.headers):
            return ""
        with deadline.for_excerpt():
            while not response.ended and len(body) < _ERROR_BODY:
                body += await response.read()
        return self.show(body[:_ERROR_BODY].decode("utf-8", "replace"))

    def _judge(self, operation: Operation[Any], response: HTTPResponse, text: str) -> FailedAttempt:
        try:
            body = decode(text, limits=self.limits)
        except (ValueError, ORSError):
            message = text
        else:
            message = self.show(detail(body))  # again, as it may have been spelt otherwise
            if response.status == 422 and refuses_body_secrets(body):
                raise BodySecretsRefused(operation.name, status=422)
        url = self._address(operation)
        judgement = judge_status(
            operation, response.status, response.headers, message, url=url, now=time.time(), key=self._key_sent
        )
        if isinstance(judgement, ORSError):
            raise judgement
        return judgement

    def _address(self, operation: Operation[Any]) -> str:
        return self._hosts[operation.host] + operation.path.partition("?")[0]

    def _with_location(self, error: ORSError, operation: Operation[Any]) -> ORSError:
        """Add the place to an error, which most who raise one do not know, and keep keys and secrets out of it."""
        return error.at(url=self._address(operation), session_id=operation.session_id, show=self.show)

    # --- Log ---------------------------------------------------------------------------------------------------------

    def _log_answer(self, operation: Operation[Any], status: int, seconds: float) -> None:
        level = logging.DEBUG if operation.is_upkeep else logging.INFO
        if _logger.isEnabledFor(level):
            url = self._address(operation)
            session = f" (session {operation.session_id})" if operation.is_upkeep else ""
            _logger.log(level, "%s %s %d in %.3f s%s", operation.method, url, status, seconds, session)

    def _log_repetition(
        self, operation: Operation[Any], failure: FailedAttempt, *, resumed: bool, delay: float
    ) -> None:
        if _logger.isEnabledFor(logging.DEBUG):
            what = "is resumed" if resumed else "is sent again"
            session = f" of session {operation.session_id}" if operation.session_id else ""
            _logger.debug("%s%s %s in %.3f s: %s", operation.name, session, what, delay, failure.reason)

    # --- Outcomes ----------------------------------------------------------------------------------------------------

    def _conclude(self, operation: Operation[Any], stream: Stream) -> str:
        outcome = stream.outcome
        if isinstance(outcome, End):
            if operation.may_be_json and stream.task_id is not None and '"sid"' not in outcome.text:
                return json.dumps({"sid": stream.task_id})  # the stream's id is the session's
            return outcome.text
        if isinstance(outcome, Forgotten):
            raise ResultLost(
                operation.name, reason="the server no longer knows the call", session_id=operation.session_id
            )
        if isinstance(outcome, Raised) and operation.make_error is not None:
            raise operation.make_error(self.show(outcome.text))  # before its message is cut, maybe within a secret
        raise ProtocolError(f"{operation.name} ended without a result")

    def _parse(self, operation: Operation[T], text: str) -> T:
        try:
            value = decode(text, limits=self.limits)
            # A block takes two characters at least.
            if operation.holds_blocks and len(text) > 2 * self.limits.blocks:
                check_blocks(value, self.limits)
            if operation.lists_models:
                check_models(value, self.limits, size=len(text))
            return operation.parse(value)
        except ValueError as error:
            # A model's own message quotes its input, which may be anything; the first line says what is wrong.
            reason = self.show(str(error)).partition("\n")[0]
            problem = f"{operation.name} was answered with something else than the standard says ({reason})"
            raise ProtocolError(problem, excerpt=self.show(text[:_ERROR_BODY])) from None


class _AttemptDeadline(Deadline):
    """The limit on the present wait of one attempt, and when the server was last heard.

    A plain answer is due as a whole. A stream has its limit on silence as soon as it has begun.
    """

    __slots__ = ("_end", "_loop_now", "_seconds", "_silence", "began", "last_progress", "limit")

    def __init__(
        self, timeouts: Timeouts, operation: Operation[Any], loop: Loop, *, within: float | None = None
    ) -> None:
        # A constructor may take as long as a start-up and is never run twice, so its one request waits as long.
        self.limit = "start_up" if operation.waits_for_setup and not operation.idempotent else "response"
        if operation.waits_for_teardown and timeouts.close > timeouts.response:  # pings are not waited for as long
            self.limit = "close"
        self._loop_now = loop.now
        self.began = self.last_progress = loop.now()
        seconds = getattr(timeouts, self.limit)
        self._seconds = seconds if within is None else min(seconds, within)
        self._silence = timeouts.silence
        super().__init__(self._seconds, loop=loop, soonest=timeouts.silence if operation.streamed else math.inf)
        # The stream that starts a session may show life for ever and bring nothing; a call may run while it does.
        self._end = self.began + timeouts.start_up if operation.streamed and operation.idempotent else math.inf

    @property
    def reason(self) -> str:
        """What to say of an attempt that it ended."""
        if self.limit == "silence":
            return f"nothing came for {self._silence:g} seconds"
        if self.last_progress > self.began:
            return f"no whole answer came within {self._seconds:g} seconds"
        return f"nothing came for {self._seconds:g} seconds"

    def note_progress(self) -> None:
        """Note a sign of life of a plain answer: it is read on, and due all the same."""
        self.last_progress = self._loop_now()
        super().note_progress()

    def note_stream_progress(self) -> None:
        """Note a sign of life of a stream: from now on the limit is on silence."""
        self.last_progress = self._loop_now()
        # An answer that comes at the very moment the limit runs out does not change which limit it was.
        if not self.scope.cancel_called:
            silent = self.last_progress + self._silence
            if silent < self._end:
                self.limit = "silence"
                self.reschedule(silent)
            elif self.limit != "start_up":  # set once: setting it again would put off its last look
                self.limit = "start_up"
                self._seconds = self._end - self.began
                self.reschedule(self._end)

    def drain(self) -> None:
        """Note that the result is whole: what follows is worth a moment, for the connection's sake."""
        self.reschedule(self._loop_now() + _DRAIN_SECONDS)

    def for_excerpt(self) -> Deadline:
        """Return the limit on reading a body of which only the beginning is shown; it takes the place of this one."""
        now = self._loop_now()
        until = max(now + _LATE_EXCERPT_SECONDS, min(now + _EXCERPT_SECONDS, self.began + self._seconds))
        self.reschedule(math.inf)
        return Deadline(until - now, loop=self._loop)


def _check_coding(response: HTTPResponse) -> None:
    # A few bytes may unpack to gigabytes, and codings within each other in one step.
    if coding := content_coding(response.headers):
        raise ProtocolError(f"An answer came packed ({one_line(coding, 40)!r}), which was not asked for")


def _resuming(body: bytes, task_id: str) -> bytes:
    # The body is ours, a JSON object; writing the id into its end spares parsing arguments that may be large.
    return body[:-1] + b',"task_id":' + json.dumps(task_id).encode("ascii") + b"}"


def _with_cookies(headers: list[tuple[bytes, bytes]], cookies: str | None) -> list[tuple[bytes, bytes]]:
    """Add a session's cookies to those that the caller sends with every request; there is one such header."""
    if cookies is None:
        return headers
    given = [value for name, value in headers if name == b"cookie"]
    others = [(name, value) for name, value in headers if name != b"cookie"]
    return [*others, (b"cookie", b"; ".join([*given, cookies.encode("ascii")]))]


async def _drain(response: HTTPResponse, deadline: _AttemptDeadline) -> None:
    """Read what follows the outcome, for a moment: only at its end can a connection be used again."""
    deadline.drain()
    size = 0
    while not response.ended and size <= _DRAIN_BYTES:
        size += len(await response.read())


async def _close(response: HTTPResponse) -> None:
    # Cancellation must not leave a connection behind that neither side uses.
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _DRAIN_SECONDS):
        try:
            await response.aclose()
        except foreign_errors():  # it was broken, and is closed now
            pass
