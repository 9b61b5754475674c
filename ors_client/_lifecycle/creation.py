"""Creates and deletes a session on the server: an id first, then the episode.

Whatever goes wrong in between, no id is left behind. It does not wait for the environment's setup, and knows nothing of
what the episode is for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

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
from ors_client._http.cookies import SessionCookies
from ors_client._http.credentials import Secrets
from ors_client._http.redaction import get_logger
from ors_client._http.transport import BodySecretsRefused
from ors_client._protocol.operations import Address, Episode, Operation, create, create_session
from ors_client._protocol.retry import backoff
from ors_client._types import JSONValue, Task

from .deletion import TrackedSession, end
from .server import EnvironmentKey, Server

_logger = get_logger("ors_client")


class TaskSource(NamedTuple):
    """What is known of a task that is named by split and index.

    Args:
        find: Looks it up.
        explain: Says what there is where it is missing.
    """

    find: Callable[[], Awaitable[Task]]
    explain: Callable[[StatusError], Awaitable[StatusError]]


class SessionCreation:
    """Creates one session. It may be cancelled at any moment; its attributes say what exists by then.

    Args:
        server: Where.
        key: Which environment.
        episode: What to start.
        source: Of its task, where that is named by split and index.
        secrets: For the environment.
        env_overrides: For its container.
    """

    def __init__(
        self,
        server: Server,
        key: EnvironmentKey,
        episode: Episode,
        *,
        source: TaskSource | None,
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
        self._key = key
        self._episode = episode
        self._source = source
        self._secrets = secrets
        self._env_overrides = env_overrides

    async def run(self) -> None:
        """Start the episode.

        Raises:
            ORSError: It did not start; what was there of it is deleted.
        """
        server, transport = self._server, self._server.transport
        server.check()
        if not server.needs_session_id(self._key):
            self.address = await server.address(self._key)
        deployment = server.deployment_of(self._key)
        header, body = await server.secrets(self._secrets, deployment)
        ask_for_id = create_session(
            deployment=deployment,
            env_overrides=self._env_overrides,
            secrets_header=None if deployment is None else header,
        )
        reason = ""
        for attempt in range(transport.retry.attempts):
            if attempt:
                await anyio.sleep(backoff(transport.retry, attempt))
            tracked = await self._create_id(ask_for_id)
            try:
                if self.address is None:
                    self.address = await server.address(self._key, session=tracked)
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
                raise server.shown(await self._explained(error)) from error.__cause__
            else:
                return
        raise TransportError(
            "opening a session",
            reason=reason,
            attempts=transport.retry.attempts,
            url=transport.target.layout.sessions,
        )

    async def _create_id(self, operation: Operation[str]) -> TrackedSession:
        """Get a session's id, which from then on will be deleted."""
        created: list[TrackedSession] = []
        cookies = SessionCookies()
        deployment = self._server.deployment_of(self._key)

        def register(session_id: str) -> None:
            created.append(self._server.keepalive.register(session_id, deployment=deployment, cookies=cookies))
            self.session_id, self.tracked = session_id, created[0]

        self._server.keepalive.start()
        await self._server.transport.send(
            operation.with_cookies(cookies),
            on_result=register,
            on_capacity_error=self._server.discovery.release_idle_sessions,
        )
        return created[0]

    async def _create(
        self, address: Address, tracked: TrackedSession, header: str | None, body: Mapping[str, str] | None
    ) -> None:
        def on_answer(_: None = None) -> None:
            tracked.create_pending = False

        if self._server.needs_task_spec:
            await self._look_up_spec()
        try:
            while True:
                operation = create(address, tracked.session_id, self._episode, secrets_header=header, secrets_body=body)
                tracked.create_pending = tracked.create_sent = True
                try:
                    await self._server.transport.send(tracked.own(operation), on_result=on_answer)
                except StatusError as error:  # a refused request left nothing behind
                    on_answer()
                    body = await self._adapt(error, body)
                else:
                    return
        except OutcomeUnknown:
            raise
        except ORSError as error:  # the server's answer, or the certainty that it saw no request
            on_answer()
            tracked.refused = isinstance(error, StatusError)
            raise

    async def _adapt(self, refusal: StatusError, body: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Return the secrets for the body of another try, where this server takes the request in another shape."""
        if isinstance(refusal, BodySecretsRefused) and body is not None:  # it reads the header
            self._server.refused_body_secrets()
            return None
        if self._source is not None and self._episode.spec is None and _demands_spec(refusal):
            await self._look_up_spec()
            self._server.needs_task_spec = True
            return body
        raise refusal

    async def _look_up_spec(self) -> None:
        """Name the task by its specification, for servers that take no index."""
        if self._source is not None:
            task = await self._source.find()
            self._episode = Episode(spec=task.spec, toolset=self._episode.toolset)

    async def _explained(self, error: ORSError) -> ORSError:
        if self.address is None or not isinstance(error, StatusError):
            return error
        if error.status == 404 and error.detail.startswith("unknown environment"):
            available: list[str] = []
            with suppress(ORSError):  # what was listed before is no longer so
                available = await self._server.refresh_names(self.address.deployment)
            return EnvironmentNotFound(
                self.address.environment, available=available, url=error.url, session_id=error.session_id
            )
        if error.status == 500:
            return SetupFailed(error.detail, url=error.url, session_id=error.session_id)
        return error if self._source is None else await self._source.explain(error)


def _demands_spec(error: StatusError) -> bool:
    # So does the server that the standard's page shows.
    return error.status in {400, 422} and "task_spec" in error.detail


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
