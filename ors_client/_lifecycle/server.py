"""One server, as all sessions and environments of a client share it: how to reach it, what it serves, what it demands.

Servers differ by age and author, and say so only when asked. What is learnt once is kept here: the environments, the
shape of secrets, and the routes that are missing. It opens no episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import anyio

from ors_client._errors import (
    CLIENT_CLOSED,
    AuthenticationError,
    BillingError,
    ClientStateError,
    EnvironmentNotFound,
    ORSError,
    StatusError,
)
from ors_client._http.credentials import Secrets, encode_body, encode_header, secret_values
from ors_client._http.process import OwnProcess
from ors_client._http.redaction import get_logger
from ors_client._http.transport import Transport
from ors_client._protocol.operations import Address, Operation, list_environments, version
from ors_client._protocol.retry import is_missing_route

from .deletion import TrackedSession
from .discovery import Discovery
from .keepalive import Keepalive
from .limiter import SessionLimiter

_logger = get_logger("ors_client")

T = TypeVar("T")
E = TypeVar("E", bound=ORSError)

Route = tuple[str, str | None]
"""The last segment of a path, and the deployment: the servers behind one catalogue differ by age."""


class EnvironmentKey(NamedTuple):
    """How a caller names an environment.

    Args:
        name: The environment's own, or a deployment's; `None` where the server has one only.
        variant: One environment of a deployment that has several.
    """

    name: str | None
    variant: str | None = None


class Server:
    """What a client knows of its server.

    Args:
        transport: For everything but pings.
        keepalive: Knows the sessions that are open.
        max_sessions: How many may be open at a time; more wait.
    """

    def __init__(self, transport: Transport, keepalive: Keepalive, *, max_sessions: int | None = None) -> None:
        self.transport = transport
        self.keepalive = keepalive
        self.discovery = Discovery(transport, keepalive)
        self.limiter = (
            None
            if max_sessions is None
            else SessionLimiter(max_sessions, seconds=transport.timeouts.start_up, url=transport.target.layout.sessions)
        )
        self.missing: set[Route] = set()
        """Routes that were found not to be there."""
        self.needs_task_spec = False
        """Whether it takes a task's specification only, and no split and index."""
        self._present: set[Route] = set()
        self.open = True
        self._process = OwnProcess()
        self._learning = anyio.Lock()  # guards that each fact below is asked for once
        self._names: dict[str | None, list[str]] = {}
        self._addresses: dict[EnvironmentKey, Address] = {}
        self._versions: dict[str | None, str | None] = {}
        self._takes_body_secrets = True

    def check(self) -> None:
        """Raise `ClientStateError` where the client can't be used."""
        self._process.check()
        if not self.open:
            raise ClientStateError(CLIENT_CLOSED)

    def shown(self, error: E) -> E:
        """Return an error that is raised outside of the transport without the keys and secrets that a server echoes."""
        return error.at(url=None, session_id=None, show=self.transport.show)

    def deployment_of(self, key: EnvironmentKey) -> str | None:
        """Return the deployment that is named, or `None` where it is an environment's own name.

        Raises:
            EnvironmentNotFound: No header can carry it, and so it is none.
        """
        target = self.transport.target
        deployment = target.deployment(key.name)
        if deployment is not None and not (deployment.isascii() and deployment.isprintable()):
            raise self.shown(EnvironmentNotFound(deployment, available=[], url=target.layout.sessions))
        return deployment

    def needs_session_id(self, key: EnvironmentKey) -> bool:
        """Tell whether finding an environment takes a session's id, which a session that begins can lend."""
        return key not in self._addresses and self.discovery.needs_session_id(self.deployment_of(key))

    async def names(self, deployment: str | None = None, *, session: TrackedSession | None = None) -> list[str]:
        """Return the names of the environments, asked once.

        Args:
            deployment: Of the catalogue.
            session: One to ask with, if it takes any; by default one for discovery.
        """

        def ask(session_id: str | None) -> Operation[list[str]]:
            return list_environments(deployment=deployment, session_id=session_id)

        self.check()
        async with self._learning:
            if deployment not in self._names:
                self._names[deployment] = await (
                    self.discovery.send(ask, deployment)
                    if session is None
                    else self.transport.send(session.own(ask(session.session_id)))
                )
            return self._names[deployment]

    async def refresh_names(self, deployment: str | None) -> list[str]:
        """Return the names of the environments as they are now, and forget the addresses that those of before had."""
        async with self._learning:
            self._names.pop(deployment, None)
            for key in [key for key, address in self._addresses.items() if address.deployment == deployment]:
                del self._addresses[key]
        return await self.names(deployment)

    async def address(self, key: EnvironmentKey, *, session: TrackedSession | None = None) -> Address:
        """Find the environment that a caller means, with a session where one is lent.

        Raises:
            EnvironmentNotFound: There are several, and none or another was named.
        """
        found = self._addresses.get(key)
        if found is not None:
            self.check()
            return found
        deployment = self.deployment_of(key)
        wanted = key.variant if deployment is not None or key.variant is not None else key.name
        try:
            available = await self.names(deployment, session=session)
        except StatusError as error:
            if (wanted is None and deployment is None) or not is_missing_route(error):
                raise
            # A server without the list: its routes will tell, and a deployment's redirect to its default environment.
            self.missing.add(("list_environments", deployment))
            available = [wanted or ""]
        address = self._addresses[key] = Address(self._choose(available, wanted, deployment), deployment)
        return address

    async def discover(self, make: Callable[[str | None], Operation[T]], deployment: str | None) -> T:
        """Send a request that belongs to no episode, under a session id where the server demands one."""
        self.check()
        return await self.discovery.send(make, deployment)

    async def ask_optional(
        self, route: Route, ask: Callable[[], Awaitable[T]], *, instead: Callable[[], Awaitable[T]]
    ) -> T:
        """Ask a route that not every server has, or something else where it is missing.

        A restarted proxy that has not found its server yet answers 404 to everything. So a route that has answered is
        never held to be missing, and another one only once what is asked instead was answered.
        """
        if route not in self.missing:
            try:
                value = await ask()
            except StatusError as error:
                if route in self._present or not is_missing_route(error):
                    raise
            else:
                self._present.add(route)
                return value
        value = await instead()
        self.missing.add(route)
        return value

    async def secrets(
        self, secrets: Secrets | None, deployment: str | None = None
    ) -> tuple[str | None, dict[str, str] | None]:
        """Return secrets as a header and as a body, each where this server reads it.

        The catalogue reads the header alone. So does openreward since 0.1.70, which has a version route and refuses the
        body; ors-sdk, older ones and the standard's pages read the body and ignore the header. A server that tells
        nothing gets both.
        """
        if not secrets:
            return None, None
        target = self.transport.target
        header = encode_header(secrets, catalogue=target.catalogue)
        self.transport.redactor.add([*secret_values(secrets), header])
        if target.is_catalogue(deployment):
            return header, None
        if self._takes_body_secrets:
            with suppress(AuthenticationError, BillingError):  # a gateway may refuse what it does not know
                self._takes_body_secrets = await self.version() is None
        return header, encode_body(secrets) if self._takes_body_secrets else None

    def refused_body_secrets(self) -> None:
        """Note that this server reads the header only."""
        self._takes_body_secrets = False

    async def version(self, deployment: str | None = None) -> str | None:
        """Return the server's version, asked once, or `None` where it has no such route."""

        def ask(session_id: str | None) -> Operation[str | None]:
            return version(deployment=deployment, session_id=session_id)

        self.check()
        async with self._learning:
            if deployment not in self._versions:
                try:
                    self._versions[deployment] = await self.discovery.send(ask, deployment)
                except (AuthenticationError, BillingError):
                    raise
                except StatusError:  # of a redirect to an environment's own path, too
                    self._versions[deployment] = None
            return self._versions[deployment]

    def _choose(self, available: list[str], wanted: str | None, deployment: str | None) -> str:
        url = self.transport.target.layout.sessions
        if wanted is not None and wanted in available:
            return wanted
        match = next((name for name in available if wanted is not None and name.lower() == wanted.lower()), None)
        if match is not None:
            return match
        if len(available) == 1:
            if wanted is not None:
                _logger.warning(
                    "No environment named %r at %s; it has one environment, %r, which is used.",
                    wanted,
                    url,
                    available[0],
                )
            return available[0]
        if available and wanted is None and deployment is not None:
            return available[0]  # a deployment's first environment is its default
        raise self.shown(EnvironmentNotFound(wanted, available=available, url=url))
