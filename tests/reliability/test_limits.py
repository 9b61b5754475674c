"""What a server can make the client hold or wait for is bounded, and the error names the setting."""

import gzip
import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import httpx
import pytest
from aftermath import NO_PINGS, slow
from servers import Server

from fixtures.proxy import EndlessStream, Fault, FaultProxy, HugeBody, ReplaceBody, Rule
from ors_client import (
    AsyncClient,
    AsyncSession,
    Client,
    DeadlineExceeded,
    LimitExceeded,
    Limits,
    ProtocolError,
    RetryPolicy,
    StatusError,
    Timeouts,
    TransportError,
)

MEGABYTE = 2**20
LIMITS = Limits(result_bytes=4 * MEGABYTE, events=2_000, tools=50, schema_depth=40)

# Generators of httpx and httpcore, where an answer is left in the middle; trio alone complains.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")


async def _call(session: AsyncSession) -> object:
    return await session.call_tool("count")


ENDLESS = {
    "comments": (EndlessStream(b": ping\r\n\r\n" * 5_000, interval=0.0), "result_bytes"),
    "comments_after_task_id": (EndlessStream(b": ping\r\n\r\n" * 5_000, interval=0.0, after="task_id"), "result_bytes"),
    "one_line": (EndlessStream(b"x" * 60_000, interval=0.0, after="task_id"), "result_bytes"),
    "one_data_line": (EndlessStream(b"data: " + b"x" * 60_000, interval=0.0, after="task_id"), "result_bytes"),
    "data_lines": (EndlessStream(b"data: xx\n" * 5_000, interval=0.0, after="task_id"), "result_bytes"),
    "chunks": (EndlessStream(b"event: chunk\ndata: x\n\n" * 100, interval=0.0, after="task_id"), "events"),
    "unknown_events": (EndlessStream(b"event: progress\ndata: x\n\n" * 100, interval=0.0, after="task_id"), "events"),
    "task_ids": (EndlessStream(b"event: task_id\ndata: x\n\n" * 100, interval=0.0), "events"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_stream_ends_in_an_error_that_names_the_limit(ours: Server, backend: str, name: str) -> None:
    fault, limit = ENDLESS[name]

    async def main(url: str) -> None:
        async with (
            AsyncClient(url, limits=LIMITS, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()
            with anyio.fail_after(20), pytest.raises(LimitExceeded) as caught:
                await _call(session)
            assert caught.value.limit == limit
            assert f"Limits.{limit}" in str(caught.value)

    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/call", fault, times=None))
        anyio.run(main, proxy.url, backend=backend)
        assert proxy.count("POST", "/call") == 1


def test_result_on_one_line_of_8_megabytes_arrives_whole(ours: Server, backend: str) -> None:
    """Readers of lines have limits of their own, aiohttp's at 64 KiB."""
    text = "x" * 8 * MEGABYTE
    output = {"blocks": [{"type": "text", "text": text}], "reward": 0.5, "finished": False}
    line = b"data: " + json.dumps({"ok": True, "output": output}).encode()

    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow()) as session,
        ):
            await session.get_prompt()
            result = await session.call_tool("count")
            assert (result.text == text, result.reward) == (True, 0.5)  # a failure does not print it

    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/call", ReplaceBody(b"event: task_id\ndata: a\n\nevent: end\n" + line + b"\n\n")))
        anyio.run(main, proxy.url, backend=backend)


_MANY_TOOLS = json.dumps({"tools": [{"name": f"tool{i}"} for i in range(5_000)]}).encode()
_DEEP = b'{"tools": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
_DEEPISH = b'[{"type": "text", "text": "x", "detail": ' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}]"
_ZEROS = b"[" + b"0," * MEGABYTE + b"0]"
_OBJECTS = b"[" + b"{}," * (MEGABYTE // 2) + b"{}]"
_BLOCKS = b"[" + b'"",' * 6_000 + b'""]'

TOO_MUCH = {
    "huge_prompt": ("GET", "/prompt", HugeBody(64 * MEGABYTE), "result_bytes"),
    "huge_tools": ("GET", "/task_tools", HugeBody(64 * MEGABYTE), "result_bytes"),
    "many_numbers": ("GET", "/prompt", ReplaceBody(_ZEROS), "items"),
    "many_objects": ("GET", "/task_tools", ReplaceBody(_OBJECTS), "items"),
    "many_items_in_a_result": ("POST", "/call", ReplaceBody(b"event: end\ndata: " + _ZEROS + b"\n\n"), "items"),
    "many_blocks": ("GET", "/prompt", ReplaceBody(_BLOCKS), "blocks"),
    "many_tools": ("GET", "/task_tools", ReplaceBody(_MANY_TOOLS), "tools"),
    "deep_json": ("GET", "/task_tools", ReplaceBody(_DEEP), "schema_depth"),
    "deep_block": ("GET", "/prompt", ReplaceBody(_DEEPISH), "schema_depth"),
    "deep_result": ("POST", "/call", ReplaceBody(b"event: end\ndata: " + _DEEP + b"\n\n"), "schema_depth"),
}


@contextmanager
def peak_of_memory() -> Iterator[Callable[[], int]]:
    """Trace what is allocated in the block; yield what returns, after it, the most bytes that were held in it."""
    peak = 0
    tracemalloc.start()
    try:
        yield lambda: peak
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TOO_MUCH)
def test_answer_that_is_too_much_names_the_limit_and_is_not_held(ours: Server, name: str) -> None:
    method, path, fault, limit = TOO_MUCH[name]
    with FaultProxy(ours.url) as proxy, Client(proxy.url, limits=LIMITS, keepalive=NO_PINGS) as client:
        with client.environment("slowenvironment").session(slow()) as session:
            session.get_prompt()
            session.list_tools()
            session._session._tools = None  # asked for again
            proxy.add(Rule(method, path, fault))
            ask = {"/prompt": session.get_prompt, "/task_tools": session.list_tools}.get(
                path, lambda: session.call_tool("count")
            )
            with peak_of_memory() as peak, pytest.raises(LimitExceeded) as caught:
                ask()
        assert caught.value.limit == limit
        assert peak() < 24 * MEGABYTE  # what is read before the limit is met, as bytes and as text


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """64 megabytes, packed three times."""
    packed = b'"' + b" " * (64 * MEGABYTE) + b'"'
    for _ in range(3):
        packed = gzip.compress(packed, 1)
    return packed


@pytest.mark.parametrize("transport", [None, httpx.AsyncHTTPTransport])
def test_packed_answer_is_refused_before_it_is_unpacked(ours: Server, backend: str, transport, bomb: bytes) -> None:
    async def main(url: str) -> int:
        async with AsyncClient(url, keepalive=NO_PINGS, transport=transport) as client:
            with peak_of_memory() as peak, pytest.raises(ProtocolError, match="gzip, gzip, gzip"):
                await client.list_environments()
            return peak()

    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("GET", "/list_environments", ReplaceBody(bomb, {"Content-Encoding": "gzip, gzip, gzip"})))
        assert anyio.run(main, proxy.url, backend=backend) < 8 * MEGABYTE


_NESTED = [{"type": "tool_result", "tool_call_id": "", "blocks": [{}] * 90}] * 90


def _object_of(keys: int) -> bytes:
    return json.dumps({f"{i:x}": 1.5 for i in range(keys)}, separators=(",", ":")).encode()


def _objects_of_own_keys(objects: int, keys: int) -> bytes:
    made = [{f"{i:x}.{key:x}": 1.5 for key in range(keys)} for i in range(objects)]
    return json.dumps(made, separators=(",", ":")).encode()


# As many as `Limits.items` and `Limits.result_bytes` allow, and yet more than their bytes are worth.
COSTLY = {
    "tasks": ("/tasks", b'{"tasks":[' + b"{}," * 49_000 + b"{}]}", "items"),
    "tasks_of_a_number": ("/tasks", b'{"tasks":[' + b'{"a":1},' * 49_000 + b"{}]}", "items"),
    "keys_of_one_object": ("/list_environments", _object_of(99_000), "items"),
    "keys_of_each_object": ("/list_environments", _objects_of_own_keys(4_600, 20), "items"),
    "keys_of_each_object_with_blanks": (
        "/list_environments",
        _objects_of_own_keys(4_600, 20).replace(b'":', b'" :'),
        "items",
    ),
    "splits": ("/splits", b"[" + b'"a",' * 49_000 + b'"a"]', "items"),
    "halves": ("/list_environments", b'["' + rb"\ud83d" * (5 * MEGABYTE) + b'"]', "escapes"),
    "line_ends": ("/list_environments", b'["' + rb"\n" * (15 * MEGABYTE) + b'"]', "escapes"),
    "nested_blocks": ("/prompt", json.dumps(_NESTED).encode(), "blocks"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_answer_that_costs_more_than_its_bytes_is_refused_within_the_default_limits(ours: Server, name: str) -> None:
    path, body, limit = COSTLY[name]
    with FaultProxy(ours.url) as proxy, Client(proxy.url, keepalive=NO_PINGS) as client:
        environment = client.environment("slowenvironment")
        with environment.session(slow()) as session:
            session.get_prompt()
            ask = {
                "/tasks": lambda: environment.list_tasks("train"),
                "/splits": environment.list_splits,
                "/prompt": session.get_prompt,
                "/list_environments": client.list_environments,
            }[path]
            client._client._server._names.clear()
            proxy.add(Rule(None, path, ReplaceBody(body)))
            with peak_of_memory() as peak, pytest.raises(LimitExceeded) as caught:
                ask()
    assert caught.value.limit == limit
    assert peak() < 10 * len(body) + 4 * MEGABYTE


def test_list_of_5000_tasks_and_a_long_text_are_within_the_limits(ours: Server) -> None:
    tasks = {"tasks": [{f"field{i}": "some, [text]" for i in range(15)} for _ in range(5_000)]}
    text = "a, [b], {c} \\" * 400_000
    with FaultProxy(ours.url) as proxy, Client(proxy.url, keepalive=NO_PINGS) as client:
        environment = client.environment("slowenvironment")
        proxy.add(Rule("POST", "/tasks", ReplaceBody(json.dumps(tasks).encode())))
        assert len(environment.list_tasks("train")) == 5_000
        with environment.session(slow()) as session:
            proxy.add(Rule("GET", "/prompt", ReplaceBody(json.dumps([{"type": "text", "text": text}]).encode())))
            assert session.get_prompt()[0].text == text


def test_error_page_without_end_is_read_no_further_than_its_beginning(ours: Server) -> None:
    with FaultProxy(ours.url) as proxy, Client(proxy.url, limits=LIMITS, keepalive=NO_PINGS) as client:
        proxy.add(Rule("GET", "/list_environments", _Page()))
        with pytest.raises(StatusError, match="HTTP 418"):
            client.list_environments()
        proxy.wait_until_idle()
        assert proxy.find("GET", "/list_environments")[0].sent < 32 * MEGABYTE


class _Page(Fault):
    """An error whose body never ends."""

    async def act(self, exchange) -> None:
        await exchange.send(b"HTTP/1.1 418 No\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await exchange.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")


# --- Long calls ------------------------------------------------------------------------------------------------------

SCALED = Timeouts(response=1.0, silence=1.0, start_up=2.0)  # a fortieth; the server's comments come five times a second


def test_call_that_shows_nothing_but_life_outlasts_every_limit(brisk: Server, backend: str) -> None:
    async def main(url: str) -> None:
        async with (
            AsyncClient(url, timeout=SCALED, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow(tool_seconds=4.0)) as session,
        ):
            assert (await session.call_tool("count")).text == "1"

    with FaultProxy(brisk.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)
        assert proxy.count("POST", "/call") == 1


def test_setup_slower_than_a_response_is_waited_for(ours: Server, backend: str) -> None:
    """ors-sdk and a proxy in front of it send no byte until the setup is done."""

    async def main(url: str) -> None:
        limits = Timeouts(response=0.5, start_up=20.0)
        async with (
            AsyncClient(url, timeout=limits, keepalive=NO_PINGS) as client,
            client.environment("slowenvironment").session(slow(setup_seconds=2.0)) as session,
        ):
            assert (await session.call_tool("count")).text == "1"

    with FaultProxy(ours.url) as proxy:
        anyio.run(main, proxy.url, backend=backend)
        assert proxy.count("GET", "/prompt") > 1
        assert proxy.count("POST", "/call") == 1


def test_setup_that_never_ends_meets_its_limit(ours: Server) -> None:
    limits = Timeouts(response=0.3, start_up=1.0)
    with (
        Client(ours.url, timeout=limits, keepalive=NO_PINGS) as client,
        client.environment("slowenvironment").session(slow(setup_seconds=60.0)) as session,
        pytest.raises(DeadlineExceeded) as caught,
    ):
        session.call_tool("count")
    assert (caught.value.limit, caught.value.seconds) == ("start_up", 1.0)
    assert ours.journal.executions("count", sid=session.session_id) == []


@pytest.mark.parametrize(
    ("limits", "argument", "name"),
    [(Timeouts(call=0.5), None, "call"), (Timeouts(), 0.5, "timeout")],
    ids=["setting", "argument"],
)
def test_call_that_takes_too_long_names_what_limited_it(ours: Server, limits, argument, name: str) -> None:
    with (
        Client(ours.url, timeout=limits, keepalive=NO_PINGS) as client,
        client.environment("slowenvironment").session(slow()) as session,
    ):
        session.get_prompt()
        with pytest.raises(DeadlineExceeded) as caught:
            session.call_tool("wait", {"seconds": 60}, timeout=argument)
        assert (caught.value.limit, caught.value.seconds) == (name, 0.5)


def test_connection_that_is_never_accepted_meets_its_limit_and_names_it(backend: str) -> None:
    async def main(url: str) -> TransportError:
        limits = Timeouts(connect=0.3)
        async with AsyncClient(url, timeout=limits, retry=RetryPolicy(attempts=2, first_delay=0.01)) as client:
            with pytest.raises(TransportError) as caught:
                await client.list_environments()
        return caught.value

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # what the backlog holds; the next connection is not answered
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            error = anyio.run(main, f"http://127.0.0.1:{address[1]}", backend=backend)
        finally:
            for filler in fillers:
                filler.close()
    assert error.attempts == 2
    assert error.reason == "no connection was made within connect=0.3 seconds"
