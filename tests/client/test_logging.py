"""What is logged: requests at INFO, the rest at DEBUG, no key anywhere."""

import logging
import re

import anyio
import httpx
import pytest
from scripted import Peer, said

from ors_client import AsyncClient, KeepalivePolicy, RetryPolicy, TaskRef

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

KEY = "key-of-the-log-0123456789"
NAME = "ors_client.http"


def lines(caplog, level):
    """Return what stands in the log at one level, seconds left out."""
    texts = (r.getMessage() for r in caplog.records if r.name == NAME and r.levelno == level)
    return [re.sub(r"\d+\.\d{3} s", "N s", text) for text in texts]


async def episode(peer, **more):
    url = "http://peer.test"
    async with (
        AsyncClient(url, transport=peer.transport, **more) as client,
        client.environment().session(TaskRef("train", 0)) as session,
    ):
        await session.call_tool("go")


async def test_requests_are_logged_at_info_with_status_and_seconds(caplog):
    caplog.set_level(logging.INFO, NAME)
    await episode(Peer())
    shown = lines(caplog, logging.INFO)
    assert "POST http://peer.test/env/call 200 in N s" in shown
    assert not [line for line in shown if "/delete" in line or "s1" in line]


async def test_nothing_is_logged_unless_it_is_asked_for(caplog):
    caplog.set_level(logging.WARNING)
    await episode(Peer())
    assert not caplog.records


async def test_pings_and_deletions_are_logged_at_debug_with_their_session(caplog):
    caplog.set_level(logging.DEBUG, NAME)
    pinged = anyio.Event()

    async def call(_):
        with anyio.fail_after(30):
            while not [line for line in lines(caplog, logging.DEBUG) if "/ping" in line]:  # noqa: ASYNC110 - on another thread
                await anyio.sleep(0.01)
        pinged.set()
        return said("done")

    await episode(Peer({"POST /call": call}), keepalive=KeepalivePolicy(interval=0.02))
    assert pinged.is_set()
    shown = lines(caplog, logging.DEBUG)
    assert "POST http://peer.test/ping 200 in N s (session s1)" in shown
    assert "POST http://peer.test/delete 200 in N s (session s1)" in shown


FULL = httpx.Response(429, json={"detail": "full"})
LOST = httpx.Response(200, headers={"content-type": "text/event-stream"}, text="event: task_id\r\ndata: t1\r\n\r\n")


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        (FULL, "is sent again in N s: the server has no room (HTTP 429)"),
        (LOST, "is resumed in N s: the stream ended before its result"),
    ],
)
async def test_repetition_and_resume_are_logged_at_debug_with_session_and_reason(caplog, first, shown):
    caplog.set_level(logging.DEBUG, NAME)
    answers = iter([first, said("done")])

    async def call(_):
        return next(answers)

    await episode(Peer({"POST /call": call}), retry=RetryPolicy(first_delay=0.01, jitter=0))
    assert f"POST /env/call of session s1 {shown}" in lines(caplog, logging.DEBUG)


async def test_key_that_a_header_echoes_is_not_in_the_log_of_httpcore(caplog):
    caplog.set_level(logging.DEBUG)

    async def answer(stream):
        async with stream:
            head = await stream.receive(65536)
            assert KEY.encode() in head
            body = b'["env"]'
            await stream.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-echo: %b\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (KEY.encode(), len(body), body)
            )

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - no database
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        url = f"http://127.0.0.1:{port}"
        async with AsyncClient(url, api_key=KEY, transport=httpx.AsyncHTTPTransport) as client:
            assert await client.list_environments() == ["env"]
        tasks.cancel_scope.cancel()
    echoed = [record.getMessage() for record in caplog.records if "x-echo" in record.getMessage()]
    assert echoed
    assert KEY not in caplog.text
