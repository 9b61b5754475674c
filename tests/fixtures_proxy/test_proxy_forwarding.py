"""Without a fault the proxy is not there: bytes pass as they are, when they come, and are counted."""

import asyncio
import threading

import httpx
import pytest
import trio
from raw_peers import LIMIT, ask, client, connect, read_to_end, read_until, request, split
from scripted_answers import JSON_BODY, JSON_HEAD, STREAM_CHUNKS, STREAM_HEAD, TASK_ID

from fixtures.proxy import FaultProxy


def test_request_reaches_the_server_byte_for_byte(upstream, proxy):
    odd = b"POST /ping HTTP/1.1\r\nhOST:x\r\nX-Twice: 1\r\nX-Twice:  2 \r\nContent-Length: 3\r\n\r\nab\xff"
    with connect(proxy.url) as connection:
        connection.sendall(odd)
        read_until(connection, JSON_BODY)
    assert upstream.journal == [odd]


def test_chunked_request_reaches_the_server_byte_for_byte(upstream, proxy):
    odd = b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n02\r\nde\r\n0\r\n\r\n"
    with connect(proxy.url) as connection:
        connection.sendall(odd)
        read_until(connection, JSON_BODY)
    assert upstream.journal == [odd]
    assert proxy.requests[0].body == b"abcde"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/ping", JSON_HEAD + JSON_BODY),
        ("/env/call", STREAM_HEAD + b"".join(STREAM_CHUNKS) + b"0\r\n\r\n"),
        ("/empty", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("/until_close", b"HTTP/1.1 200 OK\r\n\r\nto the end"),
    ],
)
def test_answer_reaches_the_client_byte_for_byte(proxy, path, answer):
    assert ask(proxy.url, path) == (answer, "fin")
    proxy.wait_until_idle()
    assert proxy.requests[0].sent == len(answer)
    assert proxy.requests[0].ending == "complete"


def test_trailers_reach_the_client_byte_for_byte(upstream, proxy):
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
    upstream.scripts["/trailers"] = [answer]
    assert ask(proxy.url, "/trailers") == (answer, "fin")


def test_interim_answer_is_followed_by_the_final_one(upstream, proxy):
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + JSON_HEAD + JSON_BODY
    upstream.scripts["/hints"] = [answer]
    assert ask(proxy.url, "/hints") == (answer, "fin")


def test_answer_to_head_has_no_body(upstream, proxy):
    upstream.scripts["/ping"] = [JSON_HEAD]
    assert ask(proxy.url, "/ping", method="HEAD", body=b"") == (JSON_HEAD, "fin")


def test_body_of_a_client_that_asks_first_is_invited(upstream, proxy):
    head = b"POST /ping HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    upstream.scripts["/ping"] = [b"HTTP/1.1 100 Continue\r\n\r\n", JSON_HEAD + JSON_BODY]
    with connect(proxy.url) as connection:
        connection.sendall(head)
        assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert read_until(connection, JSON_BODY) == JSON_HEAD + JSON_BODY


def test_stream_arrives_while_the_server_still_writes(upstream, proxy):
    gate = threading.Event()
    upstream.scripts["/env/call"] = [STREAM_HEAD, STREAM_CHUNKS[0], gate, STREAM_CHUNKS[1], b"0\r\n\r\n"]
    with connect(proxy.url) as connection:
        connection.sendall(request())
        assert read_until(connection, TASK_ID + b"\r\n") == STREAM_HEAD + STREAM_CHUNKS[0]
        gate.set()
        read_until(connection, b"0\r\n\r\n")


def test_half_a_chunk_arrives_before_its_rest(upstream, proxy):
    gate = threading.Event()
    upstream.scripts["/env/call"] = [STREAM_HEAD, STREAM_CHUNKS[2][:9], gate, STREAM_CHUNKS[2][9:] + b"0\r\n\r\n"]
    with connect(proxy.url) as connection:
        connection.sendall(request())
        assert read_until(connection, STREAM_CHUNKS[2][:9]) == STREAM_HEAD + STREAM_CHUNKS[2][:9]
        gate.set()
        read_until(connection, b"0\r\n\r\n")


def test_connection_is_kept_between_requests(upstream, proxy):
    with connect(proxy.url) as connection:
        for _ in range(3):
            connection.sendall(request("/ping"))
            assert read_until(connection, JSON_BODY) == JSON_HEAD + JSON_BODY
    assert proxy.connections == 1
    assert [made.connection for made in proxy.requests] == [1, 1, 1]
    assert len(upstream.journal) == 3


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\n\r\nto the end", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"],
)
def test_connection_ends_with_an_answer_that_ends_it(upstream, proxy, answer):
    upstream.scripts["/last"] = [answer, None]
    with connect(proxy.url) as connection:
        connection.sendall(request("/last"))
        assert read_to_end(connection) == (answer, "fin")


def test_pipelined_requests_are_answered_in_order(proxy):
    with connect(proxy.url) as connection:
        connection.sendall(request("/ping") + request("/empty", close=True))
        answers, ending = read_to_end(connection)
    assert answers == JSON_HEAD + JSON_BODY + b"HTTP/1.1 204 No Content\r\n\r\n"
    assert ending == "fin"


def test_idle_connection_is_closed_after_the_idle_timeout(upstream):
    with FaultProxy(upstream.url, idle_timeout=0.05) as proxy, connect(proxy.url) as connection:
        connection.sendall(request("/ping"))
        assert read_to_end(connection) == (JSON_HEAD + JSON_BODY, "fin")


def test_server_is_left_when_the_client_leaves(upstream, proxy):
    upstream.scripts["/env/call"] = [STREAM_HEAD]
    with connect(proxy.url) as connection:
        connection.sendall(request())
        read_until(connection, b"\r\n\r\n")
    assert upstream.left.wait(LIMIT)
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == "client_gone"


def test_server_that_is_down_becomes_a_502():
    with FaultProxy("http://127.0.0.1:1") as proxy:
        answer, _ = ask(proxy.url, "/ping")
        assert split(answer)[0] == "HTTP/1.1 502 Bad Gateway"
        assert proxy.requests[0].forwarded is False


def test_server_that_breaks_the_chunked_coding_leaves_the_client(upstream, proxy):
    upstream.scripts["/env/call"] = [STREAM_HEAD, b"3\r\nabcdef\r\n0\r\n\r\n"]
    assert ask(proxy.url) == (STREAM_HEAD + b"3\r\nabc", "fin")
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == "upstream_gone"


def test_server_that_leaves_within_its_answer_leaves_the_client_too(upstream, proxy):
    upstream.scripts["/env/call"] = [STREAM_HEAD, STREAM_CHUNKS[0], None]
    assert ask(proxy.url) == (STREAM_HEAD + STREAM_CHUNKS[0], "fin")
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == "upstream_gone"


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"])
def test_what_is_no_request_is_answered_with_400(proxy, raw):
    with connect(proxy.url) as connection:
        connection.sendall(raw)
        answer, _ = read_to_end(connection)
    assert split(answer)[0] == "HTTP/1.1 400 Bad Request"
    assert proxy.requests == []


def test_record_holds_what_the_client_sent(proxy):
    with client(proxy.url) as pool:
        pool.post("/env/prompt?x=1", json={"a": 1}, headers=[("X-Key", "k"), ("X-Key", "l")])
    (made,) = proxy.find("POST", "/prompt")
    assert (made.method, made.path, made.query) == ("POST", "/env/prompt", "x=1")
    assert [value for name, value in made.headers if name == "X-Key"] == ["k", "l"]
    assert made.header("x-key") == "k"
    assert made.json() == {"a": 1}
    assert (made.forwarded, made.upstream_status, made.rule) == (True, 200, None)


def test_answer_to_a_client_that_leaves_once_it_has_it_is_complete(proxy):
    for _ in range(20):
        for path in ("/ping", "/env/call"):
            with client(proxy.url) as pool:
                pool.post(path)
    proxy.wait_until_idle()
    assert {made.ending for made in proxy.requests} == {"complete"}


def test_record_does_not_show_keys(proxy):
    with client(proxy.url) as pool:
        pool.post("/ping", content=b"secret-1", headers={"X-API-Key": "secret-2"})
    assert "secret" not in repr(proxy.requests)


def test_count_matches_whole_segments_at_the_end_of_a_path(upstream, proxy):
    upstream.scripts["/recall"] = [JSON_HEAD + JSON_BODY]
    for path in ("/env/call", "/recall"):
        ask(proxy.url, path)
    assert proxy.count("POST", "/call") == 1
    assert proxy.count("GET", "/call") == 0
    assert proxy.count("POST") == proxy.count() == 2


def test_wait_for_returns_when_the_requests_have_arrived(proxy):
    thread = threading.Thread(target=lambda: [ask(proxy.url, "/ping") for _ in range(2)])
    thread.start()
    assert len(proxy.wait_for("POST", "/ping", 2)) == 2
    thread.join(LIMIT)


def test_wait_for_says_what_came_instead(proxy):
    ask(proxy.url, "/ping")
    with pytest.raises(TimeoutError, match=r"0 of 1 POST /call within 0\.01 s; there came: POST /ping"):
        proxy.wait_for("POST", "/call", timeout=0.01)


def _ask_twice_and_wait(proxy):
    async def run():
        async with httpx.AsyncClient() as pool:
            await pool.post(f"{proxy.url}/ping")
            return await proxy.wait_for_async("POST", "/ping")

    return run


@pytest.mark.parametrize("run", [lambda function: asyncio.run(function()), trio.run], ids=["asyncio", "trio"])
def test_wait_for_async_returns_when_the_requests_have_arrived(proxy, run):
    assert len(run(_ask_twice_and_wait(proxy))) == 1


def test_prefix_of_the_server_is_part_of_the_url(upstream):
    upstream.scripts["/prefix/ping"] = [JSON_HEAD + JSON_BODY]
    with FaultProxy(f"{upstream.url}/prefix/") as proxy:
        with client(proxy.url) as pool:
            assert pool.get("/ping").json() == {"status": "ok"}
        assert proxy.requests[0].path == "/prefix/ping"


def test_many_connections_are_served_at_once(upstream, proxy):
    gate = threading.Event()
    upstream.scripts["/env/call"] = [gate, JSON_HEAD + JSON_BODY]
    threads = [threading.Thread(target=ask, args=(proxy.url,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    proxy.wait_for("POST", "/call", 20)
    gate.set()
    for thread in threads:
        thread.join(LIMIT)
    assert proxy.count("POST", "/call", forwarded=True) == 20


def test_close_ends_every_connection_and_the_thread(upstream):
    upstream.scripts["/env/call"] = [STREAM_HEAD]
    with FaultProxy(upstream.url) as proxy:
        idle, busy = connect(proxy.url), connect(proxy.url)
        busy.sendall(request())
        read_until(busy, b"\r\n\r\n")
    with idle, busy:
        assert read_to_end(idle) == (b"", "reset")
        assert read_to_end(busy) == (b"", "reset")
    assert proxy.requests[0].ending == "proxy_closed"
    assert not [thread for thread in threading.enumerate() if thread.name == "fault-proxy"]


def test_close_a_second_time_does_nothing(upstream):
    with FaultProxy(upstream.url) as proxy:
        pass
    proxy.close()


def test_port_in_use_is_raised_by_entering(upstream):
    with (
        FaultProxy(upstream.url) as first,
        pytest.raises(OSError, match="in use"),
        FaultProxy(upstream.url, port=first.port),
    ):
        pass


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:80", ""])
def test_upstream_that_is_no_http_url_is_refused(url):
    with pytest.raises(ValueError, match="http://host:port"):
        FaultProxy(url)
