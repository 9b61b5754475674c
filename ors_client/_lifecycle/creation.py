"""How a session comes to be on a server, and how it ends there.

An id first, then the episode; whatever goes wrong in between, no id is left behind. It does not wait for the
environment's setup, and knows nothing of what the episode is for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import anyio

from ors_client._errors import (
    EnvironmentNotFound,
    ORSError,
    OutcomeUnknown,
    SessionLost,
    SetupFailed,
    StatusError,
    TransportError,
)
from ors_client._http.cancellation import run_shielded
from ors_client._http.credentials import Secrets
from ors_client._http.transport import BodySecretsRefused
from ors_client._protocol.operations import Address, Episode, create, create_session
from ors_client._protocol.retry import backoff
from ors_client._types import JSONValue

from .keepalive import TrackedSession, end
from .server import Server

_logger = logging.getLogger("ors_client")


class SessionCreation:
    """The way to an episode that runs. It may be cancelled at any moment, and tells what it has got by then.

    Args:
        server: Where.
        place: Which environment: its name and variant, as the caller gave them.
        episode: What to start.
        secrets: For the environment.
        env_overrides: For its container.
    """

    def __init__(
        self,
        server: Server,
        place: tuple[str | None, str | None],
        episode: Episode,
        *,
        secrets: Secrets | None,
        env_overrides: Mapping[str, JSONValue] | None,
    ) -> None:
        self.session_id: str | None = None
        """The latest id; it stays when the session is gone."""
        self.tracked: TrackedSession | None = None
        """The session, while there is one to delete."""
        self.address: Address | None = None
        """The environment, once it was found."""
        self._server = server
        self._place = place
        self._deployment = server.deployment_of(place[0])
        self._episode = episode
        self._secrets = secrets
        self._env_overrides = env_overrides

    async def run(self) -> None:
        """Start the episode.

        Raises:
            ORSError: It did not start; what was there of it is deleted.
        """
        server = self._server
        server.check()
        if not server.needs_session_id(*self._place):
            self.address = await server.address(*self._place)
        header, body = await server.secrets(self._secrets, self._deployment)
        attempts = server.transport.retry.attempts
        reason = ""
        for attempt in range(attempts):
            if attempt:
                await anyio.sleep(backoff(server.transport.retry, attempt))
            tracked = await self._obtain(header)
            try:
                if self.address is None:
                    self.address = await server.address(*self._place, session_id=tracked.session_id)
                await self._create(self.address, tracked, header, body)
            except SessionLost as error:
                # The catalogue ends a session that is not pinged, and a backend may take longer to start than that; an
                # id without an episode can't be pinged, and costs nothing.
                reason = error.reason
                server.keepalive.unregister(tracked)
                self.tracked = None
            except OutcomeUnknown as error:
                # On openreward a second /create during a slow constructor runs a second constructor, and ends in 400:
                # this id is given up, and deleted once more when the constructor may have registered it.
                reason = error.reason
                server.keepalive.delete_later(tracked)
                self.tracked = None
            except ORSError as error:
                self.tracked = None
                await remove(server, tracked)
                raise await self._as_failed_create(error) from error
            else:
                return
        url = server.transport.target.layout.sessions
        raise TransportError("opening a session", reason=reason, attempts=attempts, url=url)

    async def _obtain(self, secrets_header: str | None) -> TrackedSession:
        """Get a session's id; from then on it is in the ledger."""
        entries: list[TrackedSession] = []
        deployment = self._deployment

        def register(session_id: str) -> None:
            self.session_id = session_id
            self.tracked = self._server.keepalive.register(session_id, deployment=deployment)
            entries.append(self.tracked)

        operation = create_session(
            deployment=deployment,
            env_overrides=self._env_overrides,
            secrets_header=None if deployment is None else secrets_header,
        )
        await self._server.transport.send(
            operation, on_result=register, on_capacity_error=self._server.release_idle_sessions
        )
        return entries[0]

    async def _create(
        self, address: Address, tracked: TrackedSession, header: str | None, body: Mapping[str, str] | None
    ) -> None:
        def on_answer(_: None = None) -> None:
            tracked.create_pending = False

        send = self._server.transport.send
        make = partial(create, address, tracked.session_id, self._episode)
        tracked.create_pending = tracked.create_sent = True
        try:
            try:
                await send(make(secrets_header=header, secrets_body=body), on_result=on_answer)
            except BodySecretsRefused:  # this server reads the header; a refused request left nothing behind
                self._server.refused_body_secrets()
                await send(make(secrets_header=header), on_result=on_answer)
        except OutcomeUnknown:
            raise
        except ORSError as error:  # the server's answer, or the certainty that it saw no request
            on_answer()
            tracked.refused = isinstance(error, StatusError)
            raise

    async def _as_failed_create(self, error: ORSError) -> ORSError:
        if self.address is None or not isinstance(error, StatusError):
            return error
        if error.status == 404 and error.detail.startswith("unknown environment"):
            available: list[str] = []
            with suppress(ORSError):  # what was listed before is no longer so
                available = await self._server.list_anew(self._deployment)
            return EnvironmentNotFound(
                self.address.environment, available=available, url=error.url, session_id=error.session_id
            )
        if error.status == 500:
            return SetupFailed(error.detail, url=error.url, session_id=error.session_id)
        return error


async def remove(server: Server, tracked: TrackedSession) -> None:
    """Delete a session within `Timeouts.close` seconds; what fails is tried again in the background."""
    transport = server.transport
    confirmed = False

    async def delete() -> None:
        nonlocal confirmed
        tracked.on_lost = None
        with anyio.move_on_after(transport.timeouts.close):
            try:
                await end(tracked, transport.send, split=transport.target.layout.is_split)
            except ORSError as error:
                _logger.debug("A session was not deleted yet: %s", error)
                return
            server.keepalive.unregister(tracked)
            confirmed = True

    try:
        await run_shielded(delete, grace=transport.timeouts.close)
    finally:
        if not confirmed:
            server.keepalive.delete_later(tracked)
