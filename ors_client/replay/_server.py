"""The HTTP server of a replay, on asyncio.

Turns aiohttp's requests into the router's, and writes the router's responses. Knows nothing of routes and records.
Made for tests on one machine, it listens on the loopback address unless told otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from ors_client._arguments import checked
from ors_client.record import read

from ._index import Script
from ._router import SESSION_SECONDS, ReplayRequest, ReplayResponse, Router

if TYPE_CHECKING:
    from aiohttp import web

_LARGEST_FIELD = 1024 * 1024  # secrets may travel in a header
_LARGEST_BODY = 64 * 1024 * 1024
_COMMENT_SECONDS = 10.0  # between the signs of life of a silent stream, as the official servers send them
_SHUTDOWN_SECONDS = 0.01  # a replay owes nobody the rest of a stream; aiohttp takes 0 for no limit
_LINE_ENDS = re.compile(r"\r\n|\r|\n")

_logger = logging.getLogger(__name__)


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Drop aiohttp's errors about clients that speak no HTTP or go away: those that can listen get an found."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ConnectionError) and not type(error).__module__.startswith("aiohttp.")


_logger.addFilter(_is_own_fault)


@checked
class Replay:
    """A server that answers from a record; an async context manager, for asyncio.

    Args:
        script: The path of a record, or a `Script`.
        host: The address to listen on.
        port: 0 takes a free port.
        pace: Factor on the recorded duration of a call; 0 answers at once.
        session_timeout: Seconds without a request or a ping after which a session is ended, as by other servers.
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
        self._router = Router(self.script, session_timeout=session_timeout)
        self._host = host
        self._port = port
        self._pace = pace
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            OSError: The port is in use or not allowed.
        """
        from aiohttp import web  # noqa: PLC0415 - most users of the package never start a server

        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=_logger,
            max_line_size=_LARGEST_FIELD,
            max_field_size=_LARGEST_FIELD,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            with anyio.CancelScope(shield=True):  # Ctrl-C arrives as a cancellation
                await runner.cleanup()

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._runner is None:
            raise RuntimeError("Enter the replay first: `async with Replay(...) as replay`.")
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return self._router.sessions(now=time.monotonic())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web  # noqa: PLC0415 - see `__aenter__`

        target, body = request.rel_url.raw_path_qs, await request.read()
        asked = ReplayRequest(request.method, target, request.headers, body)
        answer = self._router.respond(asked, now=time.monotonic())
        if answer.location is not None:
            return web.Response(status=answer.status, headers={"location": answer.location})
        if answer.events is None:
            return web.json_response(answer.value, status=answer.status)
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        async for event in self._events(answer):
            await response.write(event)
        return response

    async def _events(self, response: ReplayResponse) -> AsyncIterator[bytes]:
        for index, (name, text) in enumerate(response.events or ()):
            if index == 1:
                left = response.seconds * self._pace
                while left > 0:
                    await asyncio.sleep(min(left, _COMMENT_SECONDS))
                    left -= _COMMENT_SECONDS
                    if left > 0:
                        yield b": ping\r\n\r\n"
            # Only these three end a line of an event stream; splitlines() also splits at U+2028.
            lines = "".join(f"data: {line}\r\n" for line in _LINE_ENDS.split(text))
            yield f"event: {name}\r\n{lines}\r\n".encode(errors="replace")
