"""A transport that notes the client's own exchanges with a server, and can break one.

What a check wants to know shows in the answers that the client copes with by itself: which routes are missing, how
session ids come, whether pings arrive. `AsyncClient(transport=...)` is where they pass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

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
    """

    endpoint: str
    status: int
    kind: str
    seconds: float


class ExchangeRecorder:
    """What passed through the transports that it makes; pings come from another thread."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
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

    def cut_next_call(self) -> None:
        """Break the next call's connection when it has told the id that it can be resumed by."""
        self._cut_pending = True

    def record(self, request: httpx.Request, response: httpx.Response, seconds: float) -> None:
        """Note an exchange, and cut it if that was asked for."""
        endpoint = request.url.path.rpartition("/")[2]
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.exchanges.append(Exchange(endpoint, response.status_code, kind, seconds))
        if endpoint == "ping" and response.status_code == 200:
            self.ping_answered.set()
        if endpoint == "call" and self._cut_pending and isinstance(response.stream, httpx.AsyncByteStream):
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
        began = time.monotonic()
        response = await inner.handle_async_request(request)
        self._recorder.record(request, response, time.monotonic() - began)
        return response

    async def aclose(self) -> None:
        for inner in self._inner.values():
            await inner.aclose()


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
