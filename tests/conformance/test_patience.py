"""Waits as long as the official servers make them: silence between keepalives, and a setup that takes half a minute.

What takes long runs once, all of it at the same time; the tests look at what came of it.
"""

from dataclasses import dataclass

import anyio
import pytest

from fixtures.proxy import FaultProxy, RecordedRequest
from ors_client import AsyncClient, Task, Timeouts

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

# Servers send a keepalive comment every ten seconds, which a busy machine may double. Without it, silence would be
# noticed here before the tool is done.
TOOL_SECONDS = 26.0
SILENCE = 20.0
# openreward answers 503 when a setup takes more than 25 seconds; ors-sdk sends no byte until it is done.
SETUP_SECONDS = 26.0


@dataclass
class Came:
    counts: list[int]
    requests: list[RecordedRequest]

    def statuses(self, path):
        return [request.upstream_status for request in self.requests if request.path.endswith(path)]


@pytest.fixture(scope="module")
def outcomes(openreward, ors_sdk):
    """What came of a long call and a long setup on both servers, by server and kind."""
    came = {}

    async def run(server, kind):
        spec = {"setup_seconds": SETUP_SECONDS} if kind == "setup" else {"tool_seconds": TOOL_SECONDS}
        patience = Timeouts(silence=SILENCE, response=SILENCE if kind == "setup" else 60.0)
        with FaultProxy(server.url) as proxy:
            async with (
                AsyncClient(proxy.url, timeout=patience) as client,
                client.environment("slowenvironment").session(Task(environment="", spec=spec)) as session,
            ):
                output = await session.call_tool("count")
            came[server.kind, kind] = Came([output.metadata["count"]], proxy.requests)

    async def run_all():
        async with anyio.create_task_group() as group:
            for server in (openreward, ors_sdk):
                for kind in ("setup", "tool"):
                    group.start_soon(run, server, kind)

    anyio.run(run_all)
    return came


@pytest.mark.parametrize("kind", ["openreward", "ors-sdk"])
def test_keepalive_comments_hold_a_silent_call(outcomes, kind):
    came = outcomes[kind, "tool"]
    assert came.counts == [1]
    assert came.statuses("/call") == [200]


@pytest.mark.parametrize("kind", ["openreward", "ors-sdk"])
def test_long_setup_costs_one_execution(outcomes, kind):
    came = outcomes[kind, "setup"]
    assert came.counts == [1]
    assert came.statuses("/call") == [200]
    assert came.statuses("/create") == [200]
    assert len(came.statuses("/prompt")) > 1
