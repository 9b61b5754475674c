"""The client: it owns the connections and the keepalive of one server, and hands out environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from pydantic import SecretStr

from ._arguments import checked
from ._config import KeepalivePolicy, Limits, RetryPolicy, Timeouts
from ._environment import AsyncEnvironment
from ._errors import ClientStateError
from ._http.credentials import api_key as choose_key
from ._http.credentials import check_headers, credentials_in
from ._http.credentials import environment as variables
from ._http.pool import MakeTransport
from ._http.redaction import Redactor
from ._http.transport import Transport
from ._http.urls import CATALOGUE, Layout, resolve
from ._lifecycle.keepalive import Keepalive
from ._lifecycle.server import Server
from ._misuse import AsyncOnly
from ._rollouts.rollout import Rollouts
from ._rollouts.uploader import Uploader

_NOT_OPEN = (
    "The client is not open yet: write `async with AsyncClient(...) as client:`, or `with Client(...) as client:` in "
    "blocking code."
)


@checked
class AsyncClient(AsyncOnly, instead="Client"):
    """A client of one ORS server, for asyncio and trio, as an async context manager.

    Nothing is contacted and no thread is started until it is used. It belongs to the event loop that uses it, and may
    be entered again after it was left; when it was left open, its connections end with the loop and the next may use
    it. Sessions that are open when the interpreter exits are deleted then. SIGTERM ends a program without that, unless
    it is told to be as Ctrl-C is: `signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))`.

    Whatever asks the server may raise an `ORSError`: `TransportError` where it can't be reached, `DeadlineExceeded`
    where it does not answer in time, `AuthenticationError`, `BillingError`, `CapacityError` or another `StatusError`
    where it refuses, `ProtocolError` where it is no ORS server, and `ClientStateError` where the client is not open.
    Each class's docstring says what to do.

    Args:
        url: The server's address or a `Layout`; left out, the catalogue. A path prefix is kept.
        api_key: Sent to this server only. `None` takes `OPENREWARD_API_KEY` for the catalogue's own hosts, and no key
            for any other.
        retry: How often what is safe to repeat is repeated.
        keepalive: How open sessions are kept alive. Where even a listing takes a session's id, one serves for all
            that follows within three intervals, and half a minute at most.
        timeout: The limits on every wait.
        limits: How much the server can make this process hold.
        transport: Makes an `httpx.AsyncBaseTransport`. It is called more than once: calls and pings run on two event
            loops, and connections belong to one. The default is aiohttp's on asyncio and httpcore's on trio; it honours
            the proxies and certificates that the environment's variables name.
        headers: Sent with every request, as some proxies want. Those that authenticate show in no error.
        max_sessions: How many sessions may be open at a time; further ones wait, in their order, to be entered. Where
            none ends for `Timeouts.start_up`, as when one waits within another, that is a `DeadlineExceeded`.

    Raises:
        ValueError: The URL, the key, a header or `max_sessions` can't be used; `None` and "" are no URL.
        TypeError: A setting is of the wrong kind, as `timeout=5`.
    """

    def __init__(
        self,
        url: str | Layout = CATALOGUE,
        *,
        api_key: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        keepalive: KeepalivePolicy = KeepalivePolicy(),  # noqa: B008
        timeout: Timeouts = Timeouts(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        transport: MakeTransport | None = None,
        headers: Mapping[str, str] | None = None,
        max_sessions: int | None = None,
    ) -> None:
        if max_sessions is not None and max_sessions < 1:
            raise ValueError(f"max_sessions is at least 1, not {max_sessions!r}.")
        environ = variables()
        self._target = resolve(url, environ)
        self._api_key = SecretStr(choose_key(api_key, self._target, environ) or "")
        self._retry = retry
        self._keepalive_policy = keepalive
        self._timeouts = timeout
        self._limits = limits
        self._make = transport
        self._headers = check_headers({} if headers is None else headers)
        self._max_sessions = max_sessions
        self._redactor = Redactor(credentials_in(self._headers) | ({self._api_key.get_secret_value()} - {""}))
        self._server: Server | None = None
        self._uploader: Uploader | None = None

    def __repr__(self) -> str:
        layout = self._target.layout
        where = f"api={layout.api!r}, sessions={layout.sessions!r}" if layout.is_split else repr(layout.sessions)
        return f"{type(self).__name__}({where})"

    async def __aenter__(self) -> Self:
        if self._server is not None and self._server.open:
            raise ClientStateError("This client is open already; open another one beside it.")
        # A ping that is not answered within an interval has failed; a longer wait would hold up the next, and one of
        # more than a third of the tolerance would leave no time for three.
        policy = self._keepalive_policy
        pings = replace(self._timeouts, response=max(min(policy.interval, policy.tolerance / 3), 1.0))
        keepalive = Keepalive(
            lambda: self._transport(pings),
            policy=policy,
            split=self._target.layout.is_split,
            close=self._timeouts.close,
        )
        self._server = Server(self._transport(self._timeouts), keepalive, max_sessions=self._max_sessions)
        self._uploader = Uploader(lambda: self._transport(self._timeouts), close=self._timeouts.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Delete the sessions that are still open, upload the events of rollouts, and close the connections.

        It takes `Timeouts.close` seconds at most; six times as many while deletions or uploads make progress.
        """
        server, uploader = self._server, self._uploader
        if server is None or uploader is None or not server.open:
            return
        server.open = False
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as group:
                    group.start_soon(_end, uploader)
                    await _end(server.keepalive)
        finally:
            with anyio.CancelScope(shield=True):
                await server.transport.aclose()

    @property
    def layout(self) -> Layout:
        """Where requests go."""
        return self._target.layout

    @property
    def open_sessions(self) -> int:
        """How many sessions are open on the server, as far as this client knows."""
        return 0 if self._server is None else len(self._server.keepalive)

    @property
    def leaked_sessions(self) -> int:
        """How many sessions could not be confirmed deleted since the client was entered; each was logged once."""
        return 0 if self._server is None else self._server.keepalive.leaked

    @property
    def rollouts(self) -> Rollouts:
        """The rollouts that are uploaded to the catalogue; counts can be read when the client is closed, too.

        Raises:
            ClientStateError: The client was never open.
        """
        if self._uploader is None:
            raise ClientStateError(_NOT_OPEN)
        return Rollouts(self._uploader)

    async def list_environments(self, deployment: str | None = None) -> list[str]:
        """Return the names of the server's environments; the first is its default.

        Args:
            deployment: "owner/name" of the catalogue, whose variants these are.
        """
        return list(await self._open().names(deployment))

    async def server_version(self, deployment: str | None = None) -> str | None:
        """Return the server's version, or `None` where it has no such route.

        Args:
            deployment: "owner/name" of the catalogue.
        """
        return await self._open().version(deployment)

    def environment(self, name: str | None = None, *, variant: str | None = None) -> AsyncEnvironment:
        """Return an environment; nothing is asked yet.

        Args:
            name: As the server lists it, in any case. May be left out where there is one only. "owner/name" is a
                deployment where there are two hosts, as the catalogue's; on one URL it is a name like others.
            variant: One environment of a deployment that has several.
        """
        return AsyncEnvironment(self._open(), name, variant=variant)

    def _open(self) -> Server:
        if self._server is None:
            raise ClientStateError(_NOT_OPEN)
        self._server.check()
        return self._server

    def _transport(self, timeouts: Timeouts) -> Transport:
        return Transport(
            self._target,
            api_key=self._api_key.get_secret_value() or None,
            timeouts=timeouts,
            retry=self._retry,
            limits=self._limits,
            headers=self._headers,
            redactor=self._redactor,
            make=self._make,
        )


async def _end(part: Keepalive | Uploader) -> None:
    if part.running:
        # A limiter of its own: the default one may be full of a program's long blocking calls.
        await anyio.to_thread.run_sync(part.close, limiter=anyio.CapacityLimiter(1))
    else:  # no wait, and so no thread, which could not be started at interpreter exit
        part.close()
