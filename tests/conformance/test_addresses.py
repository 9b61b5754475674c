"""A given URL is used as it is: with a prefix, with IPv6, and beside another one in the same process."""

import threading
from contextlib import contextmanager

import pytest
import uvicorn
from servers import serve
from starlette.applications import Starlette
from starlette.routing import Mount
from waiting import eventually

from fixtures.environments import Ledger, load
from fixtures.listening import bind, url_of
from fixtures.server.app import make_app
from fixtures.server.dialects import DIALECTS
from fixtures.server.host import Host, Settings
from ors_client import AsyncClient, Client, TaskRef

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)


async def win(client, word="hello"):
    async with client.environment("echoenvironment").session(TASK) as session:
        return (await session.call_tool("echo", {"text": word})).reward


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_two_servers_work_in_one_process(ours, openreward):
    async with (
        AsyncClient(ours.url) as first,
        AsyncClient(openreward.url) as second,
        first.environment("counterenvironment").session(TASK) as one,
        second.environment("counterenvironment").session(TASK) as two,
    ):
        await one.call_tool("step")
        await two.call_tool("step")
    assert len(ours.journal.executions("step", sid=one.session_id)) == 1
    assert len(openreward.journal.executions("step", sid=two.session_id)) == 1


async def test_variables_of_another_host_do_not_capture_a_given_url(monkeypatch, server):
    for name in ("OPENREWARD_URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(name, "http://elsewhere.invalid:9")
    async with AsyncClient(server.url) as client:
        assert await win(client) == 1.0


async def test_ipv6_address_is_reached():
    with serve("ours", "--env", "echo", "--host", "::1") as server:
        assert "[::1]" in server.url
        async with AsyncClient(server.url) as client:
            assert await win(client) == 1.0


@contextmanager
def mounted(prefix):
    """Our server below a path prefix, as behind a gateway; without redirects, which name no prefix."""
    environments = load("echo")
    host = Host(environments, dialect=DIALECTS["spec"], settings=Settings(), ledger=Ledger())
    app = Starlette(routes=[Mount(prefix, app=make_app(host))])
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield url_of(listener) + prefix
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("prefix", ["/prefix", "/deep/er"])
async def test_path_prefix_is_kept(prefix, ending):
    with mounted(prefix) as url:
        async with AsyncClient(url + ending) as client:
            assert await client.list_environments() == ["echoenvironment"]
            assert await win(client) == 1.0
            assert client.open_sessions == 0


def test_blocking_client_knows_only_its_own_server(ours, ors_sdk):
    with Client(ours.url) as first, Client(ors_sdk.url) as second:
        assert first.server_version() == "0.1.167"
        assert second.server_version() is None


async def test_clients_one_after_another_leave_no_thread(server):
    for _ in range(3):
        async with AsyncClient(server.url) as client:
            await win(client)
    await eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("ors-client")])
