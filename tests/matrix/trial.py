"""One feature tried on one server: what a trial holds, how it may end, and how its end is judged.

A feature is a coroutine that uses the client and looks at what came of it. It returns nothing where the server has the
thing itself and words where the client made do with another, raises `Absent` where the server has nothing of the kind,
and anything else where the client fails.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import httpx
from servers import Server

from fixtures.proxy import FaultProxy
from ors_client import AsyncClient, AsyncSession, Task, TaskRef

from .subjects import Subject

# One trial at most, on a machine that is busy: the longest waits 27 s for a setup.
_LIMIT = 150.0

# Most of a trial is waiting, but two cores have to serve both sides.
_TOGETHER = 4

FIRST = TaskRef("train", 0)


class Absent(Exception):
    """Raised when the server has nothing of the kind."""


@dataclass(frozen=True)
class Trial:
    """What a feature works with: a server, a proxy before it that keeps what was sent, and a client of the proxy."""

    server: Server
    proxy: FaultProxy
    client: AsyncClient
    setup_seconds: float

    def session(self, environment: str, task: Task | TaskRef | dict[str, Any] = FIRST, **options: Any) -> AsyncSession:
        """Return a session of a listed task, or of one with this specification."""
        if isinstance(task, dict):
            task = Task(environment=environment, spec=task)
        return self.client.environment(environment).session(task, **options)

    def missed(self, path: str) -> bool:
        """Tell whether the client asked for a route that is not there."""
        return any(request.upstream_status in (308, 404) for request in self.proxy.find(None, path))

    def executions(self, session: AsyncSession, tool: str) -> int:
        """Return how often a tool ran in a session, as the environment tells it."""
        return len(self.server.journal.executions(tool, sid=session.session_id))

    async def raw(self, method: str, path: str, *, sid: str = "", json: Any = None) -> httpx.Response:
        """Ask the server past our client."""
        headers = {"x-session-id": sid} if sid else {}
        async with httpx.AsyncClient(base_url=self.server.url, trust_env=False, timeout=_LIMIT) as stranger:
            return await stranger.request(method, path, headers=headers, json=json)


@dataclass(frozen=True)
class Feature:
    """Something that a user does.

    Attributes:
        name: In the tables.
        use: Does it.
        since: openreward 0.1.N has it, and every later release; 0 for what every server has.
    """

    name: str
    use: Callable[[Trial], Awaitable[str | None]]
    since: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and what there is to say about it."""

    kind: Literal["works", "by fallback", "not there", "fails"]
    words: str = ""

    def __str__(self) -> str:
        """Return the cell of a table."""
        kind = {"works": "yes", "by fallback": "yes, by fallback", "not there": "the server has none"}.get(self.kind)
        return ": ".join(filter(None, (kind or "**fails**", self.words)))


async def attempt_all(features: Sequence[Feature], subject: Subject, server: Server) -> dict[str, Outcome]:
    """Try features, some at a time, and return their outcomes by name, in their order."""
    found: dict[str, Outcome] = {}
    limiter = anyio.CapacityLimiter(_TOGETHER)

    async def run(feature: Feature) -> None:
        async with limiter:
            found[feature.name] = await attempt(feature, subject, server)

    async with anyio.create_task_group() as group:
        for feature in features:
            group.start_soon(run, feature)
    return {feature.name: found[feature.name] for feature in features}


async def attempt(feature: Feature, subject: Subject, server: Server) -> Outcome:
    """Try a feature with a client that knows nothing of the server yet."""
    try:
        with FaultProxy(server.url) as proxy, anyio.fail_after(_LIMIT):
            async with AsyncClient(proxy.url) as client:
                words = await feature.use(Trial(server, proxy, client, subject.setup_seconds))
    except Absent as absence:
        outcome = Outcome("not there", str(absence))
    except Exception as error:  # noqa: BLE001 - whatever it is, the next trial has to run
        return Outcome("fails", f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
    else:
        outcome = Outcome("works") if words is None else Outcome("by fallback", words)
    if outcome.kind != "works" and feature.since <= subject.level:
        return Outcome("fails", f"the server has it since 0.1.{feature.since}, and the client says: {outcome}")
    return outcome
