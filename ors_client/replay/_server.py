"""The wire of a replay: HTTP/1.1 over asyncio's streams, as much of it as clients of the standard use.

Knows requests with a length or in chunks, connections that are kept, answers of JSON and of events. Knows nothing of
what is asked. Made for tests on one machine, it listens on the loopback address unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ors_client.record import read

from ._index import Script
from ._router import SESSION_SECONDS, Answer, Answers, Asked

_LARGEST_HEAD = 1024 * 1024  # secrets may travel in a header
_LARGEST_BODY = 64 * 1024 * 1024
_COMMENT_SECONDS = 10.0  # between the signs of life of a silent stream, as the official servers send them
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_REASONS = {200: "OK", 308: "Permanent Redirect", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class Replay:
    """A server that answers from a record, as an async context manager; for asyncio.

    Args:
        script: A record's file, or what was read from one.
        host: The address to listen on.
        port: 0 takes a free one.
        pace: By how much the recorded seconds of a call are multiplied; 0 answers at once.
        session_timeout: Seconds after which a session that is neither used nor pinged is ended, as by other servers.
    """

    def __init__(
        self,
        script: Script | str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        pace: float = 0.0,
        session_timeout: float = SESSION_SECONDS,
    ) -> None:
        self.script = script if isinstance(script, Script) else Script(read(script))
        self._answers = Answers(self.script, session_timeout=session_timeout)
        self._host = host
        self._port = port
        self._pace = pace
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            OSError: The port can't be had.
        """
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_LARGEST_HEAD)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("Enter the replay first: `async with Replay(...) as replay`.")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return self._answers.sessions(now=time.monotonic())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("asyncio runs this in a task")
        self._connections.add(task)
        try:
            # A client that goes away mid-way, or speaks no HTTP, is no concern of the others.
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, _Unreadable
            ):
                while (asked := await _read(reader)) is not None:
                    answer = self._answers.to(asked, now=time.monotonic())
                    await self._send(writer, answer, keep=(keep := _is_kept(asked)))
                    if not keep:
                        break
        except asyncio.CancelledError:
            pass  # the server is closed; asyncio would log a cancelled connection as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer, *, keep: bool) -> None:
        head = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Unprocessable Content')}"]
        if not keep:
            head.append("connection: close")
        if answer.location is not None:
            head.append(f"location: {answer.location}")
        if answer.events is None:
            body = b"" if answer.location is not None else json.dumps(answer.value, ensure_ascii=False).encode()
            head += ["content-type: application/json", f"content-length: {len(body)}"]
            writer.write(_head(head) + body)
            await writer.drain()
            return
        head += [
            "content-type: text/event-stream; charset=utf-8",
            "cache-control: no-cache",
            "transfer-encoding: chunked",
        ]
        writer.write(_head(head))
        async for event in self._events(answer):
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _events(self, answer: Answer) -> AsyncIterator[bytes]:
        for place, (name, text) in enumerate(answer.events or ()):
            if place == 1:
                left = answer.seconds * self._pace
                while left > 0:
                    await asyncio.sleep(min(left, _COMMENT_SECONDS))
                    left -= _COMMENT_SECONDS
                    if left > 0:
                        yield b": ping\r\n\r\n"
            # Only these three end a line of a stream; splitlines() would also break at U+2028.
            lines = "".join(f"data: {line}\r\n" for line in _LINE_ENDS.split(text))
            yield f"event: {name}\r\n{lines}\r\n".encode(errors="replace")


class _Unreadable(Exception):
    """Raised when a request is no HTTP that is understood here; the connection is closed."""


def _head(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace")


def _is_kept(asked: Asked) -> bool:
    return "close" not in asked.headers.get("connection", "").lower()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    """Read one request, or nothing where the connection ends before it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] != "HTTP/1.1" or not parts[1].startswith("/"):
        raise _Unreadable
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Asked(parts[0], parts[1], headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = b""
        while size := _size((await reader.readuntil(b"\r\n")).partition(b";")[0].strip(), 16):
            if len(body) + size > _LARGEST_BODY:
                raise _Unreadable
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
            pass
        return body
    size = _size(headers.get("content-length", "0").encode(), 10)
    if size > _LARGEST_BODY:
        raise _Unreadable
    return await reader.readexactly(size)


def _size(text: bytes, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError:
        raise _Unreadable from None
    if size < 0:
        raise _Unreadable
    return size
