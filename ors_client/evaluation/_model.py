"""A model behind an OpenAI-compatible endpoint for chat completions.

Knows how to ask it, and how often: a completion changes nothing on the server, so faults of the network, 429 and 5xx
are met with another request. Knows nothing of episodes. The key goes to the origin of the base URL alone, since no
redirect is followed, and is in no error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import anyio
import httpx
from pydantic import SecretStr

from ors_client._arguments import checked
from ors_client._brief import BriefFields
from ors_client._config import Limits, RetryPolicy
from ors_client._errors import LimitExceeded, ORSError, is_web_page, one_line
from ors_client._http.backends import content_coding, describe, foreign_errors, refuse_surplus, remedy
from ors_client._http.credentials import fits_header
from ors_client._http.deadline import Deadline
from ors_client._http.proxies import transport_for
from ors_client._http.redaction import Redactor
from ors_client._http.urls import origin
from ors_client._protocol.json import check_items
from ors_client._protocol.retry import delay, retry_after
from ors_client._types import JSONObject

from ._refusal import ConversationFault, conversation_fault

_PERMANENT = frozenset({401, 402, 403, 404, 405, 501})  # true of every request, not of this one
_RETRIED = frozenset({408, 409, 429, *range(500, 600)}) - _PERMANENT
_FIRST_CONTACT = 3  # attempts to reach an endpoint that never replied: a typing error deserves no more
_MAX_DELAY = 60.0  # seconds, where the server does not say how long to wait
_LONGEST_WAIT = 600.0  # seconds that a server may ask to wait, or it could make the run sleep for days
_INTERRUPTED = frozenset(
    {"abort", "error", "insufficient_system_resource"}
)  # ends of replies that are the server's fault
_CONNECT_SECONDS = 10.0
_EXCERPT_BYTES = 4096  # bytes of an answer that an error may quote
_EXCERPT_SECONDS = 1.0  # for it to come
_MAX_REPLY_BYTES = 64 * 1024 * 1024  # bytes of one reply
_LIMITS = Limits(items=1_000_000)  # nothing but dicts and lists is made of a reply, which may hold many probabilities


class ModelError(ORSError):
    """Raised when the model's endpoint gave no reply to one conversation; others may fare better.

    Cause: The endpoint was busy, failed, or gave an answer that is no reply.

    Tried: `ChatModel(attempts=...)` requests.

    Do: Nothing where it is rare. The episode counts as broken, and `--retry-failed` plays it again.

    Args:
        status: The HTTP status of the last answer, or `None` where none came.
    """

    def __init__(self, problem: str, *, status: int | None = None, url: str | None = None) -> None:
        self.status = status
        super().__init__(problem, url=url)


class ConversationRefused(ModelError):
    """Raised when the endpoint refuses this conversation as such: it outgrew the model, or a filter stopped it.

    Cause: The conversation itself.

    Tried: Nothing.

    Do: Nothing. The episode is cut (`cut: context`, `cut: filter`) and keeps its score.

    Args:
        fault: `context` or `filter`.
    """

    def __init__(
        self, problem: str, *, fault: ConversationFault, status: int | None = None, url: str | None = None
    ) -> None:
        self.fault: ConversationFault = fault
        super().__init__(problem, status=status, url=url)


class ModelRefused(ModelError):
    """Raised when no request will fare better: a wrong key, path or setting, no such model, nothing that answers.

    Cause: The endpoint answers every request like this, or nothing ever answered. Once it has replied, pages and broken
    connections are faults that pass, and so a `ModelError`.

    Tried: To reach it, three times.

    Do: Check the model's key and name, what is added to every request, and the base URL, which usually ends in
    `/v1`.
    """


@dataclass(frozen=True, slots=True, repr=False)
class Reply(BriefFields):
    """What the model answered.

    Args:
        message: The assistant's message, as the endpoint wrote it.
        usage: `prompt_tokens` and `completion_tokens`, where they were counted.
        finish_reason: Why it ended, as the endpoint says it: `stop`, `tool_calls`, `length`, `content_filter`, ...
    """

    message: JSONObject
    usage: Mapping[str, int]
    finish_reason: str | None = None

    @property
    def cut(self) -> str | None:
        """`length` or `filter` where the reply was cut off, else `None`."""
        reason = self.finish_reason or ""
        if reason in {"length", "max_tokens"}:
            return "length"
        return "filter" if reason.startswith("content_filter") else None  # Google adds what was found


@checked
class ChatModel:
    """A model to ask, as an async context manager.

    Args:
        name: As the endpoint knows it.
        base_url: What `/chat/completions` is added to, usually ending in `/v1`.
        api_key: Sent as a bearer token, to this URL's origin only.
        parameters: Added to every request, as `{"temperature": 0}`.
        attempts: Requests for one reply.
        first_delay: Seconds before the second attempt; doubled from one to the next.
        timeout: Seconds for one reply, from the request to its last byte.
        transport: For httpx, where requests should not take the usual way.

    Raises:
        ValueError: The URL, the key, `attempts` or `first_delay` can't be used.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        api_key: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        attempts: int = 5,
        first_delay: float = 1.0,
        timeout: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"A model is asked at least once, not {attempts!r} times.")
        origin(base_url)  # which says what is wrong with it
        url = httpx.URL(base_url)
        if url.userinfo or url.query or url.fragment:
            raise ValueError("A model's base URL has no place for a password, a query or a fragment; pass api_key=...")
        key = (api_key or "").strip()
        if not (fits_header(key) and key.isascii()) or " " in key:
            raise ValueError(
                "The model's key can't be sent in a header: it holds a blank, a control character or one outside of "
                "ASCII. Is it complete, and one line?"
            )
        self.name = name
        self.base_url = str(url).rstrip("/")
        self._key = SecretStr(key)
        self._redactor = Redactor([key])
        self.parameters = dict(parameters or {})
        self._retry = RetryPolicy(attempts, first_delay, max_delay=_MAX_DELAY)
        self.timeout = timeout
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._replied = False
        self._is_new = True  # until a request was sent that the endpoint did not refuse for good
        self._refused: ModelRefused | None = None
        self._first_contact = anyio.Lock()  # guards that one request alone learns that an endpoint refuses all

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.base_url!r})"

    async def __aenter__(self) -> Self:
        """Make ready to ask.

        Raises:
            ClientStateError: A proxy variable names no proxy that can be used.
        """
        self._is_new, self._refused = True, None
        authorization = (
            {"authorization": f"Bearer {self._key.get_secret_value()}"} if self._key.get_secret_value() else {}
        )
        self._client = httpx.AsyncClient(
            headers={
                "accept": "application/json",
                "accept-encoding": "identity",
                "content-type": "application/json",
                **authorization,
            },
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),  # all else is within the limit on one reply
            follow_redirects=False,
            # It has no limit on connections: whoever asks limits how many conversations there are.
            transport=self._transport or transport_for(httpx.URL(self.base_url)),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    @property
    def secrets(self) -> list[str]:
        """What a record must not show."""
        return [self._key.get_secret_value()] if self._key.get_secret_value() else []

    async def ask(self, request: Mapping[str, Any]) -> Reply:
        """Return the model's reply to a conversation.

        The first request is sent alone: an endpoint that refuses it gets no other.

        Args:
            request: `messages` and `tools`, as `OpenAIChat.request` writes them.

        Raises:
            ConversationRefused: The conversation is too long for the model, or a filter stopped it.
            ModelError: No reply came, however often it was asked.
            ModelRefused: None will come.
        """
        body = {"model": self.name, **self.parameters, **request}
        try:
            return await self._ask(body)
        except ORSError as error:
            raise error.at(url=self.base_url, session_id=None, show=self._redactor.redact) from None

    async def _ask(self, body: Mapping[str, Any]) -> Reply:
        attempts = self._retry.attempts
        for attempt in range(1, attempts + 1):
            try:
                reply = await self._send_first(body) if self._is_new else await self._send(body)
            except _RetryableFailure as failure:
                misdirected = failure.unreached and not self._replied
                asked = failure.wait or 0.0
                if asked >= _LONGEST_WAIT or attempt == (min(attempts, _FIRST_CONTACT) if misdirected else attempts):
                    tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                    kind = ModelRefused if misdirected else ModelError
                    wait = f", with a Retry-After of {asked:g} seconds" if asked >= _LONGEST_WAIT else ""
                    problem = f"The model gave no reply after {tries}: {failure.reason}{wait}"
                    raise kind(problem, status=failure.status, url=self.base_url) from None
                await anyio.sleep(delay(self._retry, attempt, failure.wait))
            else:
                self._replied = True
                return reply
        raise AssertionError("unreachable")

    async def _send_first(self, body: Mapping[str, Any]) -> Reply:
        """Send one request while the others wait; where the endpoint refuses it, it is the last."""
        async with self._first_contact:
            if self._refused is not None:
                # It holds for all: a run that is told of it needs a while to stop the others.
                raise copy(self._refused)
            if self._is_new:
                try:
                    return await self._send(body)
                except ModelRefused as error:
                    self._refused = error
                    raise
                finally:
                    self._is_new = self._refused is not None
        return await self._send(body)

    async def _send(self, body: Mapping[str, Any]) -> Reply:
        # ASCII: half a surrogate pair in what a model wrote goes back as it came.
        content = json.dumps(body).encode()
        if self._client is None:
            raise RuntimeError("Enter the model first: `async with ChatModel(...) as model`.")
        answer = bytearray()
        status = 0
        headers: Mapping[str, str] = {}
        with Deadline(self.timeout) as deadline:
            try:
                async with self._client.stream(
                    "POST", f"{self.base_url}/chat/completions", content=content
                ) as response:
                    status, headers = response.status_code, response.headers
                    await self._receive(response, answer, deadline)
            except foreign_errors() as error:
                if isinstance(error, ORSError):
                    raise
                advice = remedy(error)
                text = describe(error, connect=_CONNECT_SECONDS) if advice else str(error) or type(error).__name__
                reason = one_line(self._redactor.redact(text))
                if advice:
                    raise ModelRefused(f"The model gave no reply: {reason}. {advice}", url=self.base_url) from None
                raise _RetryableFailure(reason, unreached=True) from None
        if deadline.scope.cancelled_caught and not (status and status != 200):
            raise _RetryableFailure(f"no whole reply came within {self.timeout:g} s")
        if status != 200:
            raise self._refusal(status, headers, answer)
        completion = self._parse(answer)
        status = _status_within(completion)
        if status is not None:
            raise self._refusal(status, headers, answer)
        return self._read(completion, answer)

    def _refusal(self, status: int, headers: Mapping[str, str], answer: bytearray) -> Exception:
        """Return what an error means: for this request, for this conversation, or for all of them."""
        problem = self._describe_status(status, answer)
        fault = conversation_fault(answer[:_EXCERPT_BYTES])
        if fault is not None:
            return ConversationRefused(problem, fault=fault, status=status, url=self.base_url)
        if status in _RETRIED:
            return _RetryableFailure(problem, status, retry_after(headers, now=time.time()))
        # Before the first reply nothing shows that the endpoint takes any request of this kind.
        if status in _PERMANENT or 300 <= status < 400 or not self._replied:
            return ModelRefused(problem, status=status, url=self.base_url)
        return self._error(problem, status)

    async def _receive(self, response: httpx.Response, answer: bytearray, deadline: Deadline) -> None:
        packed = content_coding(response.headers)
        if response.status_code != 200:  # as much as is shown, and comes within a moment
            if not packed:
                with Deadline(_EXCERPT_SECONDS):
                    await _read_into(answer, response, _EXCERPT_BYTES, deadline)
            return
        if packed:
            raise self._error(f"The model's reply came packed ({one_line(packed, 40)!r}), which was not asked for", 200)
        await _read_into(answer, response, _MAX_REPLY_BYTES, deadline)
        if len(answer) > _MAX_REPLY_BYTES:
            raise self._error("The model's endpoint sent more than 64 MiB for one reply", None)

    def _parse(self, content: bytes | bytearray) -> JSONObject:
        try:
            text = content.decode("utf-8-sig")
            check_items(text, _LIMITS)
            return _object(json.loads(text))
        except LimitExceeded as error:
            raise self._error(f"The model's reply is too large: {error.problem}", 200) from None
        except (ValueError, TypeError, RecursionError):
            raise self._no_completion(content) from None

    def _no_completion(self, content: bytes | bytearray) -> ModelError:
        excerpt = self._excerpt(content)
        problem = f"The endpoint's answer is no chat completion; it begins {excerpt!r}"
        misdirected = is_web_page(excerpt) and not self._replied
        return (ModelRefused if misdirected else ModelError)(problem, status=200, url=self.base_url)

    def _read(self, completion: JSONObject, content: bytes | bytearray) -> Reply:
        try:
            choice = _object(cast("list[object]", completion["choices"])[0])
            message = _object(choice["message"])
        except (LookupError, TypeError):
            raise self._no_completion(content) from None
        ended = choice.get("finish_reason")
        reason = ended if isinstance(ended, str) else None
        if reason in _INTERRUPTED:
            raise _RetryableFailure(f"the reply ended with finish_reason {reason!r}")
        usage = completion.get("usage")
        counts = cast("dict[str, object]", usage) if isinstance(usage, dict) else {}
        names = ("prompt_tokens", "completion_tokens")
        return Reply(
            message,
            {name: count for name in names if isinstance(count := counts.get(name), int)},
            reason,
        )

    def _describe_status(self, status: int, content: bytes | bytearray) -> str:
        said = self._excerpt(content)
        return f"The model's endpoint answered with HTTP {status}" + (f": {said}" if said else "")

    def _error(self, problem: str, status: int | None) -> ModelError:
        return ModelError(problem, status=status, url=self.base_url)

    def _excerpt(self, content: bytes | bytearray) -> str:
        # Some endpoints repeat the key that they refuse. It is blanked before the text is cut, not cut in two.
        return one_line(self._redactor.redact(content[:_EXCERPT_BYTES].decode(errors="replace")))


async def _read_into(answer: bytearray, response: httpx.Response, most: int, deadline: Deadline) -> None:
    # As it came: httpx unpacks codings within each other in one step, whatever that makes of them.
    async for piece in cast("httpx.AsyncByteStream", response.stream):
        answer += piece
        deadline.note_progress()
        if len(answer) > most:
            return
    refuse_surplus(response.stream)


class _RetryableFailure(Exception):
    """Raised when the same request may succeed later."""

    def __init__(
        self, reason: str, status: int | None = None, wait: float | None = None, *, unreached: bool = False
    ) -> None:
        self.reason = reason
        self.status = status
        self.wait = wait
        self.unreached = unreached
        super().__init__(reason)


def _status_within(completion: JSONObject) -> int | None:
    """Return the status of an error that came as a success, as routers send it that had begun to answer."""
    error = completion.get("error")
    if not isinstance(error, dict) or completion.get("choices"):
        return None
    code = cast("JSONObject", error).get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 400


def _object(value: object) -> JSONObject:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return cast("JSONObject", value)
