"""The servers of a spec, all with the same environment: which one opens the next session.

A session stays where it was opened. A server that stopped answering gets no more of them until it answers again. It is
probed in the background, so that resets do not wait for it while others could serve them. Runs on one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from ors_client import AsyncClient, AsyncEnvironment, DeadlineExceeded, ORSError, SessionLost, TransportError
from ors_client._shared import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

_UNANSWERED = {"connect", "response", "silence", "start_up"}  # limits of `Timeouts` that a server at work keeps
_PROBE_TIMEOUT = 5.0  # seconds for a probe: a server that needs longer for a list of splits should not get episodes


class Server:
    """One server, and how many sessions of this process are open on it."""

    def __init__(self, client: AsyncClient, environment: AsyncEnvironment) -> None:
        self.client = client
        self.environment = environment
        self.sessions = 0
        self.is_down = False


class Servers:
    """All of them; open from construction, as their clients are.

    Args:
        servers: At least one.
        probe_every: Seconds between probes of a server that is down; restarting one takes longer than the default.
    """

    def __init__(self, servers: Sequence[Server], *, probe_every: float = 5.0) -> None:
        self.probe_every = probe_every
        self._servers = list(servers)
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def first(self) -> Server:
        """The first of them, whether it answers or not."""
        return self._servers[0]

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return sum(server.sessions for server in self._servers)

    async def ask(self, question: Callable[[AsyncEnvironment], Awaitable[T]]) -> T:
        """Ask one of them what all of them know: the first that answers.

        Raises:
            TransportError: None of them does.
            DeadlineExceeded: The last of them accepts requests and does not answer.
        """
        *others, last = sorted(self._servers, key=lambda server: server.is_down)
        for server in others:
            try:
                return await question(server.environment)
            except ORSError as error:
                if not _server_is_at_fault(error):
                    raise
                self.report(server, error)
        return await question(last.environment)

    def pick(self, *, without: Server | None = None) -> Server:
        """Return a server that answers, with the fewest sessions; not `without`, if there is another one."""
        return min(self._servers, key=lambda server: (server is without, server.is_down, server.sessions))

    def report(self, server: Server, error: ORSError) -> None:
        """Note an error of a session; a server that seems down gets no sessions until it answers."""
        if server.is_down or len(self._servers) == 1 or not _server_is_at_fault(error):
            return
        server.is_down = True
        logger.warning("Sessions are opened elsewhere until %s answers again: %s", server.client.layout.sessions, error)
        probe = asyncio.get_running_loop().create_task(self._await_return(server))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def close(self) -> None:
        """Close the clients, all at once, which deletes the sessions that are left."""
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*(server.client.__aexit__(None, None, None) for server in self._servers))

    async def _await_return(self, server: Server) -> None:
        while server.is_down:
            await anyio.sleep(self.probe_every)
            with anyio.move_on_after(_PROBE_TIMEOUT):
                try:
                    await server.environment.list_splits()
                except ORSError:
                    continue
                except Exception as error:  # noqa: BLE001 - the top of a task: without it the server stays out for good
                    logger.warning("A probe of %s failed: %r", server.client.layout.sessions, error)
                    continue
                server.is_down = False


def _server_is_at_fault(error: ORSError) -> bool:
    """Tell whether the server, rather than an episode on it, seems to be at fault."""
    if isinstance(error, DeadlineExceeded):
        return error.limit in _UNANSWERED
    return isinstance(error, TransportError | SessionLost)
