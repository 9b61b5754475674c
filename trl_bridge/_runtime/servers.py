"""The servers of a spec, all with the same environment: which one opens the next session.

A session stays where it was opened. A server that stopped answering gets no more of them until it answers again, which
is looked at in the background, so that resets do not wait for it while others could serve them. Runs on one loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from ors_client import AsyncClient, AsyncEnvironment, DeadlineExceeded, ORSError, SessionLost, TransportError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNANSWERED = {"connect", "response", "silence", "start_up"}  # limits of `Timeouts` that a server at work keeps
_LOOK_LIMIT = 5.0  # seconds for a look: a server that needs longer for a list of splits should not get episodes


class Server:
    """One server, and how many sessions of this process are open on it."""

    def __init__(self, client: AsyncClient, environment: AsyncEnvironment) -> None:
        self.client = client
        self.environment = environment
        self.sessions = 0
        self.gone = False


class Servers:
    """All of them; open from construction, as their clients are.

    Args:
        servers: At least one.
        look_every: Seconds between looks at a server that is gone; restarting one takes longer than the default.
    """

    def __init__(self, servers: Sequence[Server], *, look_every: float = 5.0) -> None:
        self.look_every = look_every
        self._servers = list(servers)
        self._looks: set[asyncio.Task[None]] = set()

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
        *others, last = sorted(self._servers, key=lambda server: server.gone)
        for server in others:
            try:
                return await question(server.environment)
            except ORSError as error:
                if not _tells_of_absence(error):
                    raise
                self.report(server, error)
        return await question(last.environment)

    def pick(self, *, without: Server | None = None) -> Server:
        """Return a server that answers, with the fewest sessions; not `without`, if another one is there."""
        return min(self._servers, key=lambda server: (server is without, server.gone, server.sessions))

    def report(self, server: Server, error: ORSError) -> None:
        """Take note of what a session met; a server that seems gone is passed over until it answers."""
        if server.gone or len(self._servers) == 1 or not _tells_of_absence(error):
            return
        server.gone = True
        logger.warning("Sessions are opened elsewhere until %s answers again: %s", server.client.layout.sessions, error)
        look = asyncio.get_running_loop().create_task(self._await_return(server))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def close(self) -> None:
        """Close the clients, all at once, which deletes the sessions that are left."""
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*(server.client.__aexit__(None, None, None) for server in self._servers))

    async def _await_return(self, server: Server) -> None:
        while server.gone:
            await anyio.sleep(self.look_every)
            with anyio.move_on_after(_LOOK_LIMIT):
                try:
                    await server.environment.list_splits()
                except ORSError:
                    continue
                except Exception as error:  # noqa: BLE001 - the top of a task: without it the server stays out for good
                    logger.warning("A look at %s failed: %r", server.client.layout.sessions, error)
                    continue
                server.gone = False


def _tells_of_absence(error: ORSError) -> bool:
    """Tell whether the server, rather than an episode on it, seems to be at fault."""
    if isinstance(error, DeadlineExceeded):
        return error.limit in _UNANSWERED
    return isinstance(error, TransportError | SessionLost)
