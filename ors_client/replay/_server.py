"""The HTTP server of a replay, on asyncio.

Knows how a request becomes the router's value, and how the router's answer is written. Knows nothing of what is asked.
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

from ors_client.record import read

from ._index import Script
from ._router import SESSION_SECONDS, Answer, Answers, Asked

if TYPE_CHECKING:
    from aiohttp import web

_LARGEST_FIELD = 1024 * 1024  # secrets may travel in a header
_LARGEST_BODY = 64 * 1024 * 1024
_COMMENT_SECONDS = 10.0  # between the signs of life of a silent stream, as the official servers send them
_SHUTDOWN_SECONDS = 0.01  # a replay owes nobody the rest of a stream; aiohttp takes 0 for no limit
_LINE_ENDS = re.compile(r"\r\n|\r|\n")

_logger = logging.getLogger(__name__)


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Drop aiohttp's errors about clients that speak no HTTP or go away: those that can listen get an answer."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ConnectionError) and not type(error).__module__.startswith("aiohttp.")


_logger.addFilter(_is_own_fault)


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
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            OSError: The port can't be had.
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
        return self._answers.sessions(now=time.monotonic())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web  # noqa: PLC0415 - see `__aenter__`

        asked = Asked(request.method, request.rel_url.raw_path_qs, request.headers, await request.read())
        answer = self._answers.to(asked, now=time.monotonic())
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
