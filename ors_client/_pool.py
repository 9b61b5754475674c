"""The connections of one event loop, and what their libraries' exceptions say about delivery.

The only module that names HTTP libraries beneath httpx. On asyncio the default is aiohttp's pool through httpx-aiohttp,
as httpcore walks all of its connections for each request (ten times the CPU at 256 sessions); on trio it is httpcore's.
Neither has a limit on connections: httpcore 1.0.9 loses slots for good when requests are cancelled under one, and
a hidden limit turns a busy rollout into a time-out. It knows nothing of ORS.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.lowlevel
import httpx

from ._errors import ClientStateError

MakeTransport = Callable[[], httpx.AsyncBaseTransport]

# Uvicorn closes idle connections after 5 seconds by default. A request sent on one that is just being closed may have
# been read or not, and for a call that is not good enough.
IDLE_SECONDS = 4.0


@dataclass(slots=True)
class Meter:
    """Where the time of one operation went, besides the server.

    Args:
        queued: Seconds until the server had room.
        connecting: Seconds until there was a connection.
    """

    queued: float = 0.0
    connecting: float = 0.0
    _began: float = 0.0

    def begin(self) -> None:
        """Note that a connection is being made."""
        self._began = time.monotonic()

    def end(self) -> None:
        """Note that it was made, or could not be."""
        self.connecting += time.monotonic() - self._began


# HTTP libraries report on connections by callback, in the context of the request that waits for one.
meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


async def trace(event: str, _: object) -> None:
    """Tell the meter what httpcore reports; for the `trace` extension of a request."""
    current = meter.get()
    if current is None or not event.startswith(("connection.connect_tcp.", "connection.start_tls.")):
        return
    if event.endswith(".started"):
        current.begin()
    else:
        current.end()


class Pool:
    """Connections, made on first use and bound to the event loop and process of that use.

    They are closed by `aclose`, or else by the event loop when it ends: `asyncio.run` and `trio.run` close the async
    generators that were begun in them, and one of those holds the connections. Another event loop may use the pool
    afterwards.

    Args:
        make: Makes the httpx transport for all requests; `None` chooses by event loop.
    """

    def __init__(self, make: MakeTransport | None = None) -> None:
        self._make = make
        self._transports: dict[tuple[str, str, int | None], httpx.AsyncBaseTransport] = {}
        self._loop: object = None
        self._process = 0
        self._closed = False
        self._holder: AsyncGenerator[None] | None = None

    async def handle(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the head of its answer.

        Raises:
            ClientStateError: The connections belong to another event loop or process.
        """
        await self._bind()
        url = request.url
        place = (url.scheme, url.host, url.port) if self._make is None else ("", "", None)
        transport = self._transports.get(place)
        if transport is None:
            transport = self._transports[place] = _default(url) if self._make is None else self._make()
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        holder, self._holder = self._holder, None
        # The parent's sockets are not the child's to close, and another event loop's can't be closed from here.
        if holder is not None and self._process == os.getpid() and self._loop is _current_loop():
            await holder.aclose()

    async def _bind(self) -> None:
        loop = _current_loop()
        if self._loop is loop and self._process == os.getpid():
            return
        if self._closed:
            raise ClientStateError("The client is closed; use it inside its `with` block.")
        if self._loop is not None and self._process != os.getpid():
            raise ClientStateError("This client was opened before a fork; open another one in the child process.")
        if self._loop is not None and not (
            isinstance(self._loop, asyncio.AbstractEventLoop) and self._loop.is_closed()
        ):
            raise ClientStateError("This client belongs to another event loop; open one for each loop.")
        self._loop, self._process, self._transports = loop, os.getpid(), {}
        self._holder = self._hold()
        await anext(self._holder)

    async def _hold(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            transports, self._transports, self._loop = self._transports, {}, None
            with anyio.CancelScope(shield=True):
                for transport in transports.values():
                    await transport.aclose()


def _current_loop() -> object:
    return anyio.lowlevel.current_token().native_token


def _default(url: httpx.URL) -> httpx.AsyncBaseTransport:
    secure = url.scheme == "https"
    proxy = _proxy(url)
    # Reading the certificates of a whole web for a plain connection would cost 20 ms.
    tls: ssl.SSLContext | Literal[False] = httpx.create_ssl_context() if secure else False
    # aiohttp takes any proxy for one of HTTP; httpcore knows SOCKS, or says which package does.
    spoken = proxy is None or proxy.url.scheme in {"http", "https"}
    if spoken and isinstance(_current_loop(), asyncio.AbstractEventLoop):
        return _aiohttp(tls, proxy)
    return httpx.AsyncHTTPTransport(
        verify=tls,
        proxy=proxy,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS),
    )


def _aiohttp(tls: ssl.SSLContext | Literal[False], proxy: httpx.Proxy | None) -> httpx.AsyncBaseTransport:
    import aiohttp  # noqa: PLC0415 - importing the package must not import aiohttp, which trio users never need
    import httpx_aiohttp  # noqa: PLC0415

    def session() -> aiohttp.ClientSession:
        # httpx-aiohttp 0.2.0 leaves aiohttp's own limit of 100 connections when it is told to have none.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=tls)
        jar = aiohttp.DummyCookieJar()
        return aiohttp.ClientSession(connector=connector, cookie_jar=jar, trace_configs=[tracing])

    async def begin(*_: object) -> None:
        current = meter.get()
        if current is not None:
            current.begin()

    async def end(*_: object) -> None:
        current = meter.get()
        if current is not None:
            current.end()

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_start.append(begin)
    tracing.on_connection_create_end.append(end)
    return httpx_aiohttp.AiohttpTransport(verify=tls, proxy=proxy, client=session)


def _proxy(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy that the environment names for `url`.

    Asked once per origin: aiohttp's `trust_env` asks for each request, on another thread.
    """
    place = url.host if url.port is None else f"{url.host}:{url.port}"
    if urllib.request.proxy_bypass(place):
        return None
    proxies = urllib.request.getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    # Written without a scheme, as other programs allow it, it would be refused in a message that shows its password.
    return httpx.Proxy(found if "://" in found else f"http://{found}") if found else None


def foreign_errors() -> tuple[type[Exception], ...]:
    """Return what HTTP libraries raise when the network or the peer fails.

    httpx-aiohttp lets some of aiohttp's own through. Evaluated in an `except` clause, so only after a failure.
    """
    theirs = (httpx.RequestError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
    client_error = _aiohttp_error()
    return theirs if client_error is None else (*theirs, client_error)


def _aiohttp_error() -> type[Exception] | None:
    # Missing from the module while another thread, as that of the keepalive, is still importing it.
    return getattr(sys.modules.get("aiohttp"), "ClientError", None)


def was_never_sent(error: Exception) -> bool:
    """Tell whether a failure proves that the server saw nothing of the request.

    httpx-aiohttp 0.2.0 calls a refused connection and a dropped keep-alive connection alike `ConnectTimeout`, so its
    cause decides.
    """
    cause = error.__cause__ or error
    client_error = _aiohttp_error()
    if client_error is not None and isinstance(cause, client_error):
        import aiohttp  # noqa: PLC0415 - it is there: this is one of its exceptions

        return isinstance(
            cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError
        )
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)


def describe(error: Exception) -> str:
    """Say what failed, in the words of the library that met it first."""
    first = error
    while first.__cause__ is not None and isinstance(first.__cause__, Exception):
        first = first.__cause__
    return f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
