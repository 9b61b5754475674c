"""One server, as all sessions and environments of a client share it: how to reach it, what it serves, what it demands.

Servers differ by age and author, and say so only when asked. What is learnt once is kept here: the environments, the
shape of secrets, the routes that are missing, and whether even looking around needs a session id. It opens no episode.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TypeVar

import anyio

from ._credentials import Secret, Secrets, encode_body, encode_header
from ._errors import ClientStateError, EnvironmentNotFound, SessionLost, StatusError
from ._keepalive import Keepalive
from ._operations import Address, Operation, create_session, list_environments, version
from ._retry import is_missing_route
from ._transport import Transport

_logger = logging.getLogger("ors_client")

T = TypeVar("T")


class Seat:
    """One session's place among those that may be open at a time; not the session, which it must not keep alive.

    Args:
        room: All places; `None` is room without end.
    """

    def __init__(self, room: anyio.CapacityLimiter | None) -> None:
        self._room = room
        self._taken = False

    async def take(self) -> None:
        """Wait for a place, in the order of asking."""
        if self._room is not None:
            await self._room.acquire_on_behalf_of(self)
            self._taken = True

    def give_back(self) -> None:
        """Leave the place, if it is held; on the event loop that took it."""
        if self._room is not None and self._taken:
            self._taken = False
            self._room.release_on_behalf_of(self)


class Server:
    """What a client knows of its server.

    Args:
        transport: For everything but pings.
        keepalive: The ledger of open sessions.
        max_sessions: How many may be open at a time; more wait.
    """

    def __init__(self, transport: Transport, keepalive: Keepalive, *, max_sessions: int | None = None) -> None:
        self.transport = transport
        self.keepalive = keepalive
        self.room = None if max_sessions is None else anyio.CapacityLimiter(max_sessions)
        self.missing: set[str] = set()
        """Routes that this server was found not to have."""
        self.open = True
        self._process = os.getpid()
        self._learning = anyio.Lock()  # guards that each fact below is asked for once
        self._names: dict[str | None, list[str]] = {}
        self._addresses: dict[tuple[str | None, str | None], Address] = {}
        self._version: list[str | None] = []
        self._takes_body_secrets = not (transport.destination.catalogue or transport.destination.layout.is_split)
        self._demands_session = transport.destination.layout.is_split
        self._session_ids: dict[str | None, str] = {}

    def check(self) -> None:
        """Raise `ClientStateError` where the client can't be used."""
        if self._process != os.getpid():
            raise ClientStateError("This client was opened before a fork; open another one in the child process.")
        if not self.open:
            raise ClientStateError("The client is closed; use it inside its `with` block.")

    async def names(self, deployment: str | None = None) -> list[str]:
        """Return the names of the environments, asked once."""
        self.check()
        async with self._learning:
            if deployment not in self._names:
                self._names[deployment] = await self._discover(
                    lambda session_id: list_environments(deployment=deployment, session_id=session_id), deployment
                )
            return self._names[deployment]

    async def address(self, name: str | None, variant: str | None) -> Address:
        """Find the environment that a caller means.

        Raises:
            EnvironmentNotFound: There are several, and none or another was named.
        """
        known = self._addresses.get((name, variant))
        if known is not None:
            self.check()
            return known
        deployment = name if name is not None and "/" in name else None
        wanted = variant if deployment is not None or variant is not None else name
        try:
            available = await self.names(deployment)
        except StatusError as error:
            if wanted is None or not is_missing_route(error):
                raise
            available = [wanted]  # a hand-written server without the list: its routes will tell
        address = Address(self._choose(available, wanted, deployment), deployment)
        self._addresses[name, variant] = address
        return address

    async def discover(self, make: Callable[[str | None], Operation[T]], deployment: str | None) -> T:
        """Send a request that belongs to no episode, under a session id where the server demands one."""
        self.check()
        if self._demands_session and deployment not in self._session_ids:
            async with self._learning:
                return await self._discover(make, deployment)
        return await self._discover(make, deployment)

    async def secrets(self, secrets: Secrets | None) -> tuple[str | None, dict[str, str] | None]:
        """Return secrets as a header and as a body, each where this server reads it.

        openreward since 0.1.70 has a version route, reads the header and refuses the body; ors-sdk, older ones and the
        standard's pages read the body and ignore the header. A server that tells nothing gets both.
        """
        if not secrets:
            return None, None
        header = encode_header(secrets, catalogue=self.transport.destination.catalogue)
        self.transport.hide([*_values(secrets), header])
        if self._takes_body_secrets and await self.version() is not None:
            self._takes_body_secrets = False
        return header, encode_body(secrets) if self._takes_body_secrets else None

    def refused_body_secrets(self) -> None:
        """Note that this server reads the header only."""
        self._takes_body_secrets = False

    async def version(self) -> str | None:
        """Return the server's version, or `None` where it has no such route."""
        self.check()
        async with self._learning:
            if not self._version:
                self._version.append(await self._ask_version())
            return self._version[0]

    async def _ask_version(self) -> str | None:
        try:
            return await self.transport.send(version())
        except StatusError:  # ors-sdk redirects to an environment's own path, which answers 404
            return None

    async def _discover(self, make: Callable[[str | None], Operation[T]], deployment: str | None) -> T:
        session_id = await self._session_id(deployment) if self._demands_session else None
        try:
            return await self.transport.send(make(session_id))
        except SessionLost:
            self._session_ids.pop(deployment, None)  # it was idle for too long; another one serves as well
        except StatusError as error:
            if self._demands_session or error.status != 400 or "session" not in error.detail.lower():
                raise
            self._demands_session = True
        return await self.transport.send(make(await self._session_id(deployment)))

    async def _session_id(self, deployment: str | None) -> str:
        session_id = self._session_ids.get(deployment)
        if session_id is None:
            # The ledger gives it back when the client is closed. It holds no episode, so there is nothing to ping.
            session_id = await self.transport.send(
                create_session(deployment=deployment),
                settled=lambda made: self.keepalive.own(made, deployment=deployment),
            )
            self._session_ids[deployment] = session_id
        return session_id

    def _choose(self, available: list[str], wanted: str | None, deployment: str | None) -> str:
        url = self.transport.destination.layout.sessions
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
        raise EnvironmentNotFound(wanted, available=available, url=url)


def _values(secrets: Secrets) -> list[str]:
    return [
        secret if isinstance(secret, str) else secret.value if isinstance(secret, Secret) else secret[0]
        for secret in secrets.values()
    ]
