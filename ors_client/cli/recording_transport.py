"""A transport that notes the client's own exchanges with a server, and can break one.

What a check wants to know shows in the answers that the client copes with by itself: which routes are missing, how
session ids come, whether pings arrive, when the parts of a stream do. `AsyncClient(transport=...)` is where they pass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx

from ors_client._http.proxies import transport_for


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange.

    Args:
        endpoint: The last segment of its path.
        status: Of the answer.
        kind: The answer's content type.
        seconds: Until the answer's head.
        session_id: Whose it was; empty for nobody's.
        arrivals: Seconds from the request until each part of a call's stream came.
    """

    endpoint: str
    status: int
    kind: str
    seconds: float
    session_id: str
    arrivals: list[float] = field(default_factory=list[float])


class ExchangeRecorder:
    """What passed through the transports that it makes; pings come from another thread.

    Args:
        fresh_connections: Whether each request goes on a connection of its own, which a balancer may lead elsewhere.
    """

    def __init__(self, *, fresh_connections: bool = False) -> None:
        self.exchanges: list[Exchange] = []
        self.fresh_connections = fresh_connections
        self.ping_answered = threading.Event()
        self.cut = False
        """Whether a call was cut."""
        self._cut_pending = False

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return a transport, as `AsyncClient(transport=...)` asks for one per event loop."""
        return _RecordingTransport(self)

    def last(self, endpoint: str) -> Exchange | None:
        """Return the latest exchange with an endpoint."""
        return next((exchange for exchange in reversed(self.exchanges) if exchange.endpoint == endpoint), None)

    def all(self, endpoint: str, session_id: str) -> list[Exchange]:
        """Return a session's exchanges with an endpoint that had an answer."""
        return [one for one in self.exchanges if (one.endpoint, one.session_id) == (endpoint, session_id)]

    def cut_next_call(self) -> None:
        """Break the next call's connection when it has told the id that it can be resumed by."""
        self._cut_pending = True

    def record(self, request: httpx.Request, response: httpx.Response, began: float) -> None:
        """Note an exchange, and cut it if that was asked for."""
        endpoint = request.url.path.rpartition("/")[2]
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        seconds = time.monotonic() - began
        session_id = request.headers.get("x-session-id", "")
        exchange = Exchange(endpoint, response.status_code, kind, seconds, session_id)
        self.exchanges.append(exchange)
        if endpoint == "ping" and response.status_code == 200:
            self.ping_answered.set()
        if endpoint == "call" and isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _TimedStream(response.stream, exchange.arrivals, began)
            if self._cut_pending:
                self._cut_pending = False
                response.stream = _CutStream(response.stream, self)


class _RecordingTransport(httpx.AsyncBaseTransport):
    def __init__(self, recorder: ExchangeRecorder) -> None:
        self._recorder = recorder
        self._inner: dict[str, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        inner = self._inner.get(origin)
        if inner is None:
            inner = self._inner[origin] = transport_for(request.url)
        if self._recorder.fresh_connections:
            request.headers["Connection"] = "close"
        began = time.monotonic()
        response = await inner.handle_async_request(request)
        self._recorder.record(request, response, began)
        return response

    async def aclose(self) -> None:
        for inner in self._inner.values():
            await inner.aclose()


class _TimedStream(httpx.AsyncByteStream):
    """A stream that notes when its parts came, and its end as the last of them."""

    def __init__(self, whole: httpx.AsyncByteStream, arrivals: list[float], began: float) -> None:
        self._whole = whole
        self._arrivals = arrivals
        self._began = began

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._whole:
                self._arrivals.append(time.monotonic() - self._began)
                yield chunk
        finally:
            self._arrivals.append(time.monotonic() - self._began)

    async def aclose(self) -> None:
        await self._whole.aclose()


class _CutStream(httpx.AsyncByteStream):
    """A stream that breaks after its first event, if that is the call's id."""

    def __init__(self, whole: httpx.AsyncByteStream, recorder: ExchangeRecorder) -> None:
        self._whole = whole
        self._recorder = recorder

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = b""
        async for chunk in self._whole:
            before, seen = len(seen), seen + chunk
            end = _end_of_first_event(seen)
            if end is None or not seen.startswith(b"event: task_id"):
                yield chunk
                continue
            if end > before:
                yield seen[before:end]
            self._recorder.cut = True
            raise httpx.ReadError("cut to see whether the call can be resumed")

    async def aclose(self) -> None:
        await self._whole.aclose()


def _end_of_first_event(seen: bytes) -> int | None:
    ends = [position + len(mark) for mark in (b"\r\n\r\n", b"\n\n") if (position := seen.find(mark)) >= 0]
    return min(ends, default=None)
