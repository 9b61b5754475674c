"""The bytes of an event stream become events, by httpx-sse.

httpx-sse reads an `httpx.Response`. Here that response decodes strictly where httpx would alter text: invalid UTF-8 is
an error, whatever encoding the server announces, and a byte order mark is no part of the text. It knows neither what
events mean nor how bytes are read.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6. Deviation: an event without a
data line is delivered with empty data, as a hand-written server's `end` may be.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
from httpx_sse import EventSource

from ors_client._errors import ORSError, ProtocolError

_HEADERS = httpx.Headers({"content-type": "text/event-stream"})  # httpx-sse asks; who calls has read the server's
_NO_BODY = httpx.AsyncByteStream()  # without one, httpx makes and reads an empty one each time


async def read_events(read: Callable[[], Awaitable[bytes]], receive: Callable[[str, str], bool]) -> None:
    """Pass on the events of a stream, as name and data. One without its final blank line was cut short, and is none.

    Args:
        read: Returns the next bytes, and none at the end.
        receive: Takes an event, and tells whether it was the last one that matters.

    Raises:
        ProtocolError: The bytes are not UTF-8.
    """
    stream = _EventStream(read)
    failure: ORSError | None = None
    # The generators of httpx-sse are always read to their end: one that is left in the middle is closed by the garbage
    # collector, of which trio warns.
    async for event in EventSource(stream).aiter_sse():
        # After the fields `id` and `retry`, httpx-sse delivers events that hold nothing.
        if stream.stopped or (event.event == "message" and not event.data):
            continue
        try:
            stream.stopped = receive(event.event, event.data)
        except ORSError as error:
            failure, stream.stopped = error, True
    if failure is not None:
        raise failure


class _EventStream(httpx.Response):
    """The text of one connection, until it is stopped."""

    def __init__(self, read: Callable[[], Awaitable[bytes]]) -> None:
        super().__init__(200, headers=_HEADERS, stream=_NO_BODY)
        self.stopped = False
        self._read_bytes = read
        self._undecoded = b""  # the beginning of a character whose end has not come
        self._begun = False
        self._after_cr = False

    def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:  # noqa: ARG002 - the parent's signature
        """Return what httpx-sse splits into lines."""
        return self

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while not self.stopped:
            data = await self._read_bytes()
            if text := self._decode(data, final=not data):
                return text
            if not data:
                break
        raise StopAsyncIteration

    def _decode(self, data: bytes, *, final: bool) -> str:
        # The codec's own incremental decoder is written in Python, and costs twice as much.
        data = self._undecoded + data
        try:
            text, used = codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            raise ProtocolError(f"A stream is not UTF-8: {error.reason}") from None
        self._undecoded = data[used:]
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix("\ufeff")  # a byte order mark
        # A CR at the end may be half of CRLF. httpx-sse waits for what follows, but the line is whole already.
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if text.endswith("\r"):
            self._after_cr = True
            text += "\n"
        return text
