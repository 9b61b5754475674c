"""Two servers behind a balancer that pins by cookie: each session stays on its own, whoever sends its requests."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import anyio
import pytest
from aftermath import nothing_left_async
from servers import Server, serve

from fixtures.balancer import Balancer
from ors_client import AsyncClient, KeepalivePolicy, TaskRef

SESSIONS = 32


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[Server]]:
    with serve("ours", "--env", "counter") as one, serve("ours", "--env", "counter") as other:
        yield [one, other]


def test_sessions_stay_on_their_replica(replicas: list[Server], backend: str) -> None:
    with Balancer([server.url for server in replicas]) as balancer:
        anyio.run(_play, balancer, replicas, backend=backend)
        servers, paths = defaultdict(set), defaultdict(set)
        for request in balancer.forwarded:
            if request.session_id is not None:
                assert request.pinned, request
                servers[request.session_id].add(request.server)
                paths[request.session_id].add(request.path.rsplit("/", 1)[-1])
    assert len(servers) == SESSIONS
    assert all(len(found) == 1 for found in servers.values())
    counts = Counter(number for [number] in servers.values())
    assert min(counts[0], counts[1]) >= SESSIONS // 4
    for found in paths.values():
        assert {"create", "prompt", "call", "ping", "delete"} <= found


async def _play(balancer: Balancer, replicas: list[Server]) -> None:
    pinged: set[str | None] = set()
    async with AsyncClient(balancer.url, keepalive=KeepalivePolicy(interval=0.5, tolerance=60)) as client:
        environment = client.environment("counterenvironment")

        async def play() -> None:
            async with environment.session(TaskRef("train", 0)) as session:
                for count in ("1", "2"):
                    assert (await session.call_tool("step")).text == count
                with anyio.fail_after(60):
                    while session.session_id not in pinged:
                        pinged.update(one.session_id for one in balancer.forwarded if one.path == "/ping")
                        await anyio.sleep(0.05)
                assert (await session.call_tool("step")).text == "3"

        async with anyio.create_task_group() as group:
            for _ in range(SESSIONS):
                group.start_soon(play)
        assert client.leaked_sessions == 0
    for server in replicas:
        await nothing_left_async(server, within=30)
