"""The HTTP libraries behind one face: send a request, read its answer, say of a failure whether it was ever sent.

The only module that names them, besides the one that chooses. On asyncio it is aiohttp, spoken to directly, as the
requests, headers and answers of httpx around it would cost more than aiohttp itself; everywhere else, and for a
transport that a caller brings, it is httpx's transport interface. It knows nothing of ORS, of event loops or of who
owns a connection.
"""

from __future__ import annotations

import select
import ssl
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast
from weakref import WeakSet

import anyio.lowlevel
import httpx

from .process import explain_open_files

if TYPE_CHECKING:
    import asyncio

    import aiohttp
    import yarl
    from aiohttp.client_proto import ResponseHandler

Headers = Sequence[tuple[bytes, bytes]]

# Uvicorn closes idle connections after 5 seconds by default. A request sent on one that is just being closed may have
# been read or not, and for a call that is not good enough.
IDLE_SECONDS = 4.0


@dataclass(slots=True)
class Timing:
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


# HTTP libraries make connections in the context of the request that waits for one.
timing: ContextVar[Timing | None] = ContextVar("timing", default=None)


class HTTPResponse(Protocol):
    """The head of an answer, and what its body is read from."""

    status: int
    headers: Mapping[str, str]
    """With names in any case."""
    ended: bool
    """Whether the body is known to have been read to its end, so that there is nothing to close."""

    def set_cookies(self) -> Sequence[str]:
        """Return the values of its `Set-Cookie` headers, which can't be read as one."""
        ...

    async def read(self) -> bytes:
        """Return the next bytes of the body as they came; none at its end."""
        ...

    async def aclose(self) -> None:
        """Give the connection back, or end it where the body was not read to its end."""
        ...


Send = Callable[[str, Headers, bytes | None], Awaitable[HTTPResponse]]
"""Sends a request of a method, headers and a body, and returns the head of its answer; follows no redirect."""


class Connections(Protocol):
    """Connections to one origin."""

    def to(self, url: httpx.URL) -> Send:
        """Return what sends requests to `url`, to be kept: preparing the URL costs more than a request's headers."""
        ...

    async def aclose(self) -> None:
        """Close them."""
        ...


class HttpxConnections:
    """Through an httpx transport.

    Args:
        transport: Has a limit on neither connections nor waiting for one.
        connect: Seconds for a connection to be made.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, *, connect: float) -> None:
        self._transport = transport
        # One dict for all requests: transports only read it. The limits on silence are kept elsewhere.
        timeout = {"connect": connect, "read": None, "write": None, "pool": None}
        self._extensions = {"timeout": timeout, "trace": _trace}

    def to(self, url: httpx.URL) -> Send:
        """Return what sends requests to `url`."""
        return partial(self._send, url)

    async def _send(self, url: httpx.URL, method: str, headers: Headers, body: bytes | None) -> HTTPResponse:
        request = httpx.Request(method, url, headers=[*headers], content=body, extensions=self._extensions)
        request.headers.encoding = "latin-1"  # else httpx tries three encodings whenever headers are read as text
        if body:
            request.stream = _Body(body)
        return _HttpxResponse(await self._transport.handle_async_request(request))

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()


class _Body(httpx.AsyncByteStream):
    """A request's body; httpx's own is a generator, of which trio complains when a request is cancelled within it."""

    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


class _HttpxResponse:
    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.ended = False
        self._response = response
        # As it came: httpx unpacks codings within each other in one step, whatever that makes of them.
        self._body = cast("httpx.AsyncByteStream", response.stream).__aiter__()

    def set_cookies(self) -> Sequence[str]:
        return self._response.headers.get_list("set-cookie")

    async def read(self) -> bytes:
        async for data in self._body:
            if data:
                return data
        refuse_surplus(self._response.stream)
        await self._response.aclose()
        self.ended = True
        return b""

    async def aclose(self) -> None:
        await self._response.aclose()


# From what an httpx response is read from to the parser of its connection, each within the one before.
_WITHIN = ("_httpcore_stream", "_stream", "_connection", "_h11_state")


def refuse_surplus(stream: httpx.AsyncByteStream | httpx.SyncByteStream) -> None:
    """Let a connection not be used again where more came than the answer, which was read to its end.

    httpcore keeps what came beyond an answer, and reads it as the next one. It tells nobody, so its parser has to be
    asked; a connection whose parser has failed is not used again.
    """
    part: Any = stream
    while (name := next((name for name in _WITHIN if hasattr(part, name)), None)) is not None:
        part = getattr(part, name)
    surplus: tuple[bytes, bool] | None = getattr(part, "trailing_data", None)
    if surplus is not None and surplus[0]:
        part.send_failed()


async def _trace(event: str, _: object) -> None:
    current = timing.get()
    if current is None or not event.startswith(("connection.connect_tcp.", "connection.start_tls.")):
        return
    if event.endswith(".started"):
        current.begin()
    else:
        current.end()


class AiohttpConnections:
    """Through aiohttp, without a limit on connections.

    Args:
        tls: For https; `False` for a plain origin.
        proxy: On the way to the origin.
        connect: Seconds for a connection to be made.
    """

    def __init__(self, tls: ssl.SSLContext | Literal[False], proxy: httpx.Proxy | None, *, connect: float) -> None:
        # Importing the package must not import aiohttp, which trio users never need.
        import aiohttp  # noqa: PLC0415
        import multidict  # noqa: PLC0415
        import yarl  # noqa: PLC0415

        class TimedConnector(aiohttp.TCPConnector):
            """Tells how long a request waits for a connection; aiohttp's tracing builds URLs for every request.

            A connection on which something came unasked is not used again.
            """

            _used: ClassVar[WeakSet[object]] = WeakSet()  # this class is made anew for each of the connectors

            async def connect(
                self,
                req: aiohttp.ClientRequest,
                traces: list[aiohttp.tracing.Trace],
                timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the parent's signature
            ) -> aiohttp.connector.Connection:
                current = timing.get()
                if current is None:
                    return await self._connect(req, traces, timeout)
                current.begin()
                try:
                    return await self._connect(req, traces, timeout)
                finally:
                    current.end()

            async def _connect(
                self,
                req: aiohttp.ClientRequest,
                traces: list[aiohttp.tracing.Trace],
                timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the parent's signature
            ) -> aiohttp.connector.Connection:
                while True:
                    connection = await super().connect(req, traces, timeout)
                    protocol = connection.protocol
                    if protocol is None or protocol not in self._used:
                        break
                    quiet = False
                    try:
                        quiet = await _is_quiet(protocol, connection.transport)
                    finally:
                        if not quiet:
                            connection.close()
                    if quiet:
                        return connection
                if protocol is not None:
                    self._used.add(protocol)
                return connection

        self._session = aiohttp.ClientSession(
            connector=TimedConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect),
        )
        self._proxy = None if proxy is None else str(proxy.url)
        # Sent when a tunnel is asked for. To a plain origin there is none, and the request itself has to say it.
        self._proxy_headers = _login(proxy)
        self._login = self._proxy_headers if tls is False else {}
        self._make_url = partial(yarl.URL, encoded=True)  # httpx knows best how to write a URL
        self._make_headers = multidict.CIMultiDict[str]

    def to(self, url: httpx.URL) -> Send:
        """Return what sends requests to `url`."""
        return partial(self._send, self._make_url(str(url)))

    async def _send(self, url: yarl.URL, method: str, headers: Headers, body: bytes | None) -> HTTPResponse:
        response = await self._session.request(
            method,
            url,
            headers=self._make_headers(
                [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers], **self._login
            ),
            data=body,
            allow_redirects=False,
            proxy=self._proxy,
            proxy_headers=self._proxy_headers,
        )
        return _AiohttpResponse(response)

    async def aclose(self) -> None:
        """Close the session and its connections."""
        await self._session.close()


def _login(proxy: httpx.Proxy | None) -> dict[str, str]:
    if proxy is None or proxy.auth is None:
        return {}
    return {"Proxy-Authorization": f"Basic {b64encode(':'.join(proxy.auth).encode()).decode()}"}


class _AiohttpResponse:
    __slots__ = ("_response", "ended", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.ended = False
        self._response = response

    def set_cookies(self) -> Sequence[str]:
        return self._response.headers.getall("set-cookie", ())

    async def read(self) -> bytes:
        content = self._response.content
        data = await content.readany()
        self.ended = content.at_eof()
        return data

    async def aclose(self) -> None:
        self._response.release()
        await self._response.wait_for_close()


async def _is_quiet(protocol: ResponseHandler, transport: asyncio.Transport | None) -> bool:
    """Tell whether an idle connection can be used again: it was not closed, and nothing came on it unasked.

    After a blocked event loop, one whose closing has arrived still looks usable, and aiohttp takes what came meanwhile
    for the answer to the next request.
    """
    if transport is not None and transport.get_extra_info("ssl_object") is not None:
        # TLS has messages of its own, which are no answers: only the loop can tell them apart, in two turns.
        for _ in range(2):
            await anyio.lowlevel.checkpoint()
        return protocol.is_connected() and not protocol.should_close
    return not protocol.should_close and not _is_readable(transport)


def _is_readable(transport: asyncio.Transport | None) -> bool:
    if transport is None:
        return False
    socket = transport.get_extra_info("socket")
    if sys.platform == "win32":  # which has no poll; elsewhere, select can't look at the thousandth file and later ones
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def content_coding(headers: Mapping[str, str]) -> str:
    """Return how a body is packed, though no request asks for that; nothing where it is plain."""
    coding = headers.get("content-encoding", "").strip()
    return "" if coding.lower() == "identity" else coding


def foreign_errors() -> tuple[type[Exception], ...]:
    """Return what HTTP libraries raise when the network or the peer fails.

    Evaluated in an `except` clause, so only after a failure.
    """
    theirs = (httpx.RequestError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
    client_error = _aiohttp_error()
    return theirs if client_error is None else (*theirs, client_error)


def _aiohttp_error() -> type[Exception] | None:
    # Missing from the module while another thread, as that of the keepalive, is still importing it.
    return getattr(sys.modules.get("aiohttp"), "ClientError", None)


def was_never_sent(error: Exception) -> bool:
    """Tell whether a failure proves that the server saw nothing of the request.

    httpx-aiohttp 0.2.0, which a caller may bring, calls a refused connection and a dropped keep-alive connection alike
    `ConnectTimeout`, so its cause decides.
    """
    client_error = _aiohttp_error()
    if client_error is not None:
        for each in (error, error.__cause__):
            if isinstance(each, client_error):
                import aiohttp  # noqa: PLC0415 - it is there: this is one of its exceptions

                return isinstance(
                    each, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError
                )
    if explain_open_files(error):  # there was no file for a connection, or for the certificates that it needs
        return True
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)


def describe(error: Exception, *, connect: float) -> str:
    """Say what failed, in the words of the library that met it first, or which limit ran out.

    Args:
        error: What a library raised.
        connect: Seconds that a connection had to be made.
    """
    first = _tls_error(error) or error
    while first.__cause__ is not None and isinstance(first.__cause__, Exception):
        first = first.__cause__
    # What the system or httpx-aiohttp calls a time-out of connecting has a number, and may be another failure.
    if _is_connect_timeout(error) and getattr(first, "errno", None) is None:
        return f"no connection was made within connect={connect:g} seconds"
    if limit := explain_open_files(first):
        return f"{type(first).__name__}: {limit}"
    return f"{type(first).__name__}: {first}" if str(first) else type(first).__name__


# What OpenSSL says of bytes that are no TLS, as a plain server's are.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})


def remedy(error: Exception) -> str:
    """Return what to do about a failure that no further attempt can change; nothing for every other."""
    tls = _tls_error(error)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return (
            "The server's certificate is not trusted for this host; set SSL_CERT_FILE to a file with the certificate "
            "of its issuer."
        )
    if tls is not None and tls.reason in _NO_TLS:
        return "The server speaks no TLS on this port; use http://."
    return ""


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    # httpcore on trio leaves it in the context alone. aiohttp's own kinds, which have no reason, are caused by one.
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None or (isinstance(seen, ssl.SSLError) and getattr(seen, "reason", None)):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _is_connect_timeout(error: Exception) -> bool:
    if isinstance(error, httpx.ConnectTimeout):
        return True
    timeout = getattr(sys.modules.get("aiohttp"), "ConnectionTimeoutError", None)
    return timeout is not None and isinstance(error, timeout)
