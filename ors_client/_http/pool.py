"""The connections of one event loop and process: made on first use, chosen by event loop, closed with it.

On asyncio they are aiohttp's, as httpcore walks all of its connections for each request (ten times the CPU at 256
sessions); on trio they are httpcore's. Neither has a limit on connections: httpcore 1.0.9 loses slots for good when
requests are cancelled under one, and a hidden limit turns a busy rollout into a time-out. It knows nothing of ORS.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import anyio
import httpx

from ors_client._errors import CLIENT_CLOSED, ClientStateError

from .admission import Admission
from .backends import (
    AiohttpConnections,
    Connections,
    Headers,
    HTTPResponse,
    HttpxConnections,
    Send,
)
from .deadline import Loop
from .process import OwnProcess
from .proxies import proxy_for, tls_for, transport_for

# A server has few paths, and a program that lists thousands of environments starts over.
_MOST_ROUTES = 1024

MakeTransport = Callable[[], httpx.AsyncBaseTransport]


class Pool:
    """Connections, made on first use and bound to the event loop and process of that use.

    They are closed by `aclose`, or else by the event loop when it ends: `asyncio.run` and `trio.run` close the async
    generators that were begun in them, and one of those holds the connections. Another event loop may use the pool
    afterwards.

    Args:
        make: Makes the httpx transport for all requests; `None` chooses by event loop.
        connect: Seconds for a connection to be made.
    """

    def __init__(self, make: MakeTransport | None = None, *, connect: float) -> None:
        self._make = make
        self._connect = connect
        self._origins: dict[tuple[str, str, int | None], Connections] = {}
        self._routes: dict[str, Send] = {}  # by URL, so that it is taken apart once
        self._loop: Loop | None = None
        self._admission: Admission
        self._process = OwnProcess()
        self._closed = False
        self._holder: AsyncGenerator[None] | None = None

    async def bind(self) -> Loop:
        """Belong to the running event loop, and return it.

        Raises:
            ClientStateError: The connections belong to another event loop or process.
        """
        bound = self._loop
        if bound is not None and self._process.is_current and bound.is_running():
            return bound
        if self._closed:
            raise ClientStateError(CLIENT_CLOSED)
        if bound is not None:
            self._process.check()
        if bound is not None and not bound.is_closed():
            raise ClientStateError("This client belongs to another event loop; open one for each loop.")
        self._loop, self._process, self._origins, self._routes = Loop.running(), OwnProcess(), {}, {}
        self._admission = Admission(self._loop)
        self._holder = self._hold()
        await anext(self._holder)
        return self._loop

    async def admit(self) -> None:
        """Wait until another request may begin; the pool was bound before."""
        await self._admission.wait()

    async def send(self, method: str, url: str, headers: Headers, body: bytes | None) -> HTTPResponse:
        """Send a request and return the head of its answer; the pool was bound before."""
        send = self._routes.get(url)
        if send is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            send = self._routes[url] = self._route(url)
        return await send(method, headers, body)

    async def aclose(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        holder, self._holder = self._holder, None
        # The parent's sockets are not the child's to close, and another event loop's can't be closed from here.
        if holder is not None and self._process.is_current and self._loop is not None and self._loop.is_running():
            await holder.aclose()

    async def _hold(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            origins, self._origins, self._routes, self._loop = self._origins, {}, {}, None
            with anyio.CancelScope(shield=True):
                for connections in origins.values():
                    await connections.aclose()

    def _route(self, url: str) -> Send:
        address = httpx.URL(url)
        origin = (address.scheme, address.host, address.port) if self._make is None else ("", "", None)
        connections = self._origins.get(origin)
        if connections is None:
            connections = self._origins[origin] = self._connections(address)
        return connections.to(address)

    def _connections(self, url: httpx.URL) -> Connections:
        if self._make is not None:
            return HttpxConnections(self._make(), connect=self._connect)
        # Asked once per origin: aiohttp's `trust_env` asks for each request, on another thread.
        proxy = proxy_for(url)
        # aiohttp takes any proxy for one of HTTP; httpcore knows SOCKS.
        spoken = proxy is None or proxy.url.scheme in {"http", "https"}
        if spoken and self._loop is not None and self._loop.is_asyncio:
            return AiohttpConnections(tls_for(url), proxy, connect=self._connect)
        return HttpxConnections(transport_for(url), connect=self._connect)
