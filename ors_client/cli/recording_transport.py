"""Listens in on the client's own exchanges with a server, and can break one.

What a doctor wants to know shows in the answers that the client copes with by itself: which routes are missing, how
session ids come, whether pings arrive. `AsyncClient(transport=...)` is where one can listen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from ors_client._proxies import transport_for


@dataclass(frozen=True, slots=True)
class Heard:
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


class Listener:
    """Makes transports that all note what passes; its pings come from another thread."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.ping_answered = threading.Event()
        self.cut = False
        """Whether a call was cut."""
        self._to_cut = False

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return a transport, as `AsyncClient(transport=...)` asks for one per event loop."""
        return _Transport(self)

    def last(self, endpoint: str) -> Heard | None:
        """Return the latest exchange with an endpoint."""
        return next((heard for heard in reversed(self.heard) if heard.endpoint == endpoint), None)

    def cut_next_call(self) -> None:
        """Break the next call's connection when it has told the id that it can be resumed by."""
        self._to_cut = True

    def note(self, request: httpx.Request, response: httpx.Response, seconds: float) -> None:
        """Take down an exchange."""
        endpoint = request.url.path.rpartition("/")[2]
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.heard.append(Heard(endpoint, response.status_code, kind, seconds))
        if endpoint == "ping" and response.status_code == 200:
            self.ping_answered.set()
        if endpoint == "call" and self._to_cut and isinstance(response.stream, httpx.AsyncByteStream):
            self._to_cut = False
            response.stream = _CutStream(response.stream, self)


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._inner: dict[str, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        inner = self._inner.get(origin)
        if inner is None:
            inner = self._inner[origin] = transport_for(request.url)
        began = time.monotonic()
        response = await inner.handle_async_request(request)
        self._listener.note(request, response, time.monotonic() - began)
        return response

    async def aclose(self) -> None:
        for inner in self._inner.values():
            await inner.aclose()


class _CutStream(httpx.AsyncByteStream):
    """A stream that breaks after its first event, if that is the call's id."""

    def __init__(self, whole: httpx.AsyncByteStream, listener: Listener) -> None:
        self._whole = whole
        self._listener = listener

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
            self._listener.cut = True
            raise httpx.ReadError("cut to see whether the call can be resumed")

    async def aclose(self) -> None:
        await self._whole.aclose()


def _end_of_first_event(seen: bytes) -> int | None:
    ends = [place + len(mark) for mark in (b"\r\n\r\n", b"\n\n") if (place := seen.find(mark)) >= 0]
    return min(ends, default=None)
