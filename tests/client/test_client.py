"""The client: nothing happens before it is entered, and everything it holds is let go."""

import asyncio
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from scripted import Peer

import ors_client
from ors_client import AsyncClient, Client, ClientStateError, Layout, StatusError, TaskRef, Timeouts

ROOT = Path(__file__).parent.parent.parent
TASK = TaskRef("train", 0)

QUIET = """
import socket, sys, threading

def refuse(*_, **__):
    raise AssertionError("There was a connection.")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import ors_client
ors_client.AsyncClient("http://localhost:8000"), ors_client.AsyncClient(), ors_client.Client(api_key="k")
assert threading.active_count() == 1, threading.enumerate()
print([name for name in ("aiohttp", "torch", "datasets", "trl", "openreward", "trio") if name in sys.modules])
"""


def threads_of_ours():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ors-client")]


def test_import_and_construction_touch_no_network_and_start_no_thread():
    done = subprocess.run([sys.executable, "-c", QUIET], cwd=ROOT, check=True, timeout=60, capture_output=True)
    assert done.stdout.decode().strip() == "[]"


def test_public_names_are_sorted_and_there():
    assert ors_client.__all__ == sorted(ors_client.__all__)
    assert all(hasattr(ors_client, name) for name in ors_client.__all__)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "http://", 7])
def test_address_that_can_not_be_one_is_refused(url):
    with pytest.raises((ValueError, TypeError)):
        AsyncClient(url)


@pytest.mark.parametrize("url", [None, ""])
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_url_from_an_unset_variable_is_refused(kind, url):
    with pytest.raises(ValueError, match="may be unset"):
        kind(url)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"secrets": "x"}, "secrets .*not str"),
        ({"secrets": {"a": 3}}, "'a'"),
        ({"toolset": 3}, "toolset takes a string, not 3"),
    ],
)
def test_option_of_a_session_of_the_wrong_kind_is_refused_before_it_is_entered(settings, named):
    with Client("http://peer.test") as client, pytest.raises(TypeError, match=named):
        client.environment("echo").session(TaskRef("train", 0), **settings)


@pytest.mark.parametrize("kind", [AsyncClient, Client])
@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"retry": 3}, r"retry .*RetryPolicy\(attempts="),
        ({"retry": None}, "retry .*not None"),
        ({"timeout": 5}, r"timeout .*Timeouts\(response=5\).*Timeouts\(call=5\)"),
        ({"timeout": {"call": 5}}, "timeout .*Timeouts"),
        ({"keepalive": 5}, r"keepalive .*KeepalivePolicy\(interval="),
        ({"limits": 2**20}, r"limits .*Limits\(result_bytes="),
        ({"transport": httpx.MockTransport(print)}, "transport .*lambda"),
        ({"headers": "X-A: b"}, "headers .*not str"),
        ({"max_sessions": "3"}, "max_sessions .*'3'"),
        ({"api_key": 3}, "api_key .*not int"),
    ],
)
def test_setting_of_the_wrong_kind_is_refused_where_it_is_given(kind, settings, remedy):
    with pytest.raises(TypeError, match=remedy):
        kind("http://peer.test", **settings)


def test_subclass_of_a_setting_is_one():
    class Patient(Timeouts):
        pass

    assert repr(AsyncClient("http://peer.test", timeout=Patient(), transport=httpx.AsyncHTTPTransport))


@pytest.mark.parametrize(
    "headers", [{"x": "a\r\nb: c"}, {"x": "\u20ac"}, {"x": " padded"}, {"a b": "x"}, {"": "x"}, {"x": 7}, {7: "x"}]
)
def test_header_that_can_not_be_sent_is_refused_when_the_client_is_made(headers):
    with pytest.raises((ValueError, TypeError)):
        AsyncClient("http://peer.test", headers=headers)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["Authorization", "Proxy-Authorization", "X-Api-Token"])
async def test_header_that_authenticates_shows_in_no_error(name):
    echo = httpx.Response(500, json={"detail": "got 'Bearer sk-1234567' (sk-1234567)"})
    peer = Peer({"GET /list_environments": echo})
    headers = {name: "Bearer sk-1234567"}
    async with AsyncClient("http://peer.test", headers=headers, transport=peer.transport) as client:
        with pytest.raises(StatusError) as caught:
            await client.list_environments()
    assert peer.requests[0].headers[name] == "Bearer sk-1234567"
    assert "sk-1234567" not in f"{caught.value!r} {caught.value.detail}"
    assert b"sk-1234567" not in pickle.dumps(caught.value)


@pytest.mark.anyio
async def test_client_closes_while_the_program_keeps_every_thread_busy():
    peer = Peer()
    free = threading.Event()
    freed: list[bool] = []

    async def block():
        freed.append(await anyio.to_thread.run_sync(free.wait, 20.0))

    async with anyio.create_task_group() as group:
        async with AsyncClient("http://peer.test", transport=peer.transport) as client:
            async with client.environment().session(TASK):
                pass
            limiter = anyio.to_thread.current_default_thread_limiter()
            for _ in range(int(limiter.total_tokens)):
                group.start_soon(block)
            while limiter.available_tokens:
                await anyio.lowlevel.checkpoint()
        free.set()
    assert all(freed)  # none of them had to give up for the client's sake


def test_repr_shows_where_and_no_key():
    assert repr(AsyncClient("http://peer.test/x", api_key="sk-1234567")) == "AsyncClient('http://peer.test/x')"
    split = AsyncClient(Layout(api="http://a.test", sessions="http://s.test"), api_key="sk-1234567")
    assert repr(split) == "AsyncClient(api='http://a.test', sessions='http://s.test')"
    assert split.layout == Layout(api="http://a.test", sessions="http://s.test")


@pytest.mark.anyio
async def test_client_that_was_not_entered_is_an_error():
    client = AsyncClient("http://peer.test")
    with pytest.raises(ClientStateError, match="async with"):
        await client.list_environments()
    with pytest.raises(ClientStateError, match="async with"):
        client.environment()
    assert (client.open_sessions, client.leaked_sessions) == (0, 0)
    await client.aclose()


@pytest.mark.anyio
async def test_closed_client_is_an_error_for_all_that_came_from_it():
    peer = Peer()
    async with AsyncClient("http://peer.test", transport=peer.transport) as client:
        environment = client.environment()
        await environment.list_tools()
    before = peer.paths()
    for ask in (client.list_environments, client.server_version, lambda: environment.num_tasks("train")):
        with pytest.raises(ClientStateError, match="closed"):
            await ask()
    with pytest.raises(ClientStateError, match="closed"):
        await environment.session(TASK).__aenter__()
    await client.aclose()
    assert peer.paths() == before


@pytest.mark.anyio
async def test_client_is_not_entered_twice_but_again():
    peer = Peer()
    client = AsyncClient("http://peer.test", transport=peer.transport)
    async with client:
        with pytest.raises(ClientStateError, match="open already"):
            await client.__aenter__()
        assert await client.list_environments() == ["env"]
    async with client:
        assert await client.list_environments() == ["env"]
    assert peer.paths() == ["GET /list_environments"] * 2


@pytest.mark.anyio
async def test_headers_go_with_every_request_and_the_user_agent_names_us():
    peer = Peer()
    async with (
        AsyncClient("http://peer.test", transport=peer.transport, headers={"X-Proxy": "yes"}) as client,
        client.environment().session(TASK) as session,
    ):
        await session.call_tool("go")
    assert {request.headers["x-proxy"] for request in peer.requests} == {"yes"}
    assert all(request.headers["user-agent"].startswith("ors-client/") for request in peer.requests)


@pytest.mark.anyio
async def test_calls_and_background_have_a_transport_each_and_all_are_closed():
    closed = []

    class Counted(httpx.MockTransport):
        async def aclose(self):
            closed.append(self)

    peer = Peer({"POST /delete": httpx.Response(503)})
    made = []

    def transport():
        made.append(Counted(peer._answer))
        return made[-1]

    async with AsyncClient("http://peer.test", transport=transport, timeout=Timeouts(close=0.5)) as client:
        session = client.environment().session(TASK)
        await session.__aenter__()
    assert len(made) == 2
    assert set(closed) == set(made)
    assert client.leaked_sessions == 1  # its deletion was never confirmed
    assert not threads_of_ours()


def test_client_of_another_running_event_loop_is_an_error_and_no_hang():
    peer = Peer()

    async def elsewhere(client):
        with pytest.raises(ClientStateError, match="event loop"):
            await client.environment().list_tools()

    async def main():
        async with AsyncClient("http://peer.test", transport=peer.transport) as client:
            await client.list_environments()
            await asyncio.to_thread(asyncio.run, elsewhere(client))

    asyncio.run(main())
    assert peer.paths() == ["GET /list_environments"]


def test_client_that_one_event_loop_left_open_serves_the_next():
    peer = Peer()
    client = AsyncClient("http://peer.test", transport=peer.transport)

    async def list_tools():
        return [tool.name for tool in await client.environment().list_tools()]

    asyncio.run(client.__aenter__())
    assert [asyncio.run(list_tools()) for _ in range(2)] == [["go"], ["go"]]
    asyncio.run(client.aclose())


def test_client_may_be_entered_in_one_event_loop_after_another():
    peer = Peer()
    client = AsyncClient("http://peer.test", transport=peer.transport)

    async def episode():
        async with client, client.environment().session(TASK) as session:
            return (await session.call_tool("go")).text

    assert [asyncio.run(episode()) for _ in range(2)] == ["gone", "gone"]
