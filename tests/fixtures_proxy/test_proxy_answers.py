"""What a client reads when the answer is the proxy's own, or the server's rewritten."""

import json
import threading

import pytest
from raw_peers import LIMIT, ask, chunks, client, connect, read_until, request, split
from scripted_answers import CHUNK_1, END, EVENTS, JSON_BODY, PING, STREAM_CHUNKS, STREAM_HEAD

from fixtures.proxy import (
    BadJson,
    Custom,
    DuplicateHeaders,
    EndlessStream,
    FaultProxy,
    HtmlPage,
    HugeBody,
    OneByteAtATime,
    PrependBom,
    Redirect,
    ReplaceBody,
    ReplaceHeaders,
    RewriteLineEnds,
    Rule,
    Status,
    StatusAfterForward,
)

STREAM = b"".join(EVENTS)


def hit(proxy, fault, path="/env/call"):
    proxy.add(Rule("POST", path, fault))
    return split(ask(proxy.url, path)[0])


def test_status_answers_without_the_server(upstream, proxy):
    first, headers, body = hit(proxy, Status(429, headers={"Retry-After": "7"}))
    assert first == "HTTP/1.1 429 Too Many Requests"
    assert (headers["retry-after"], headers["content-type"]) == ("7", "application/json")
    assert json.loads(body) == {"detail": "Too Many Requests"}
    assert upstream.journal == []
    assert proxy.requests[0].forwarded is False


def test_status_takes_a_detail(proxy):
    body = hit(proxy, Status(404, "Active environment not found"))[2]
    assert json.loads(body) == {"detail": "Active environment not found"}


def test_status_takes_its_body_and_content_type(proxy):
    _, headers, body = hit(proxy, Status(500, body="boom", headers={"content-type": "text/plain"}))
    assert (headers["content-type"], body) == ("text/plain", b"boom")


def test_status_of_no_standard_can_be_sent(proxy):
    assert hit(proxy, Status(299))[0] == "HTTP/1.1 299 Unknown"


def test_status_starting_looks_like_an_environment_in_setup(proxy):
    first, headers, _ = hit(proxy, Status.starting("3"))
    assert first == "HTTP/1.1 503 Service Unavailable"
    assert (headers["x-backend-state"], headers["retry-after"]) == ("starting", "3")


def test_status_keeps_the_connection(proxy):
    proxy.add(Rule("POST", "/ping", Status(503)))
    with client(proxy.url) as pool:
        assert [pool.post("/ping").status_code for _ in range(2)] == [503, 200]
    assert proxy.connections == 1


def test_status_after_forward_lets_the_server_answer_to_the_end(upstream, proxy):
    first, _, _ = hit(proxy, StatusAfterForward(504))
    assert first == "HTTP/1.1 504 Gateway Timeout"
    assert len(upstream.journal) == 1
    assert (proxy.requests[0].forwarded, proxy.requests[0].upstream_status) == (True, 200)


def test_status_after_forward_waits_for_the_end_of_the_answer(upstream, proxy):
    gate = threading.Event()
    upstream.scripts["/env/call"] = [STREAM_HEAD, *STREAM_CHUNKS, gate, b"0\r\n\r\n"]
    proxy.add(Rule("POST", "/call", StatusAfterForward()))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        gate.set()
        connection.settimeout(LIMIT)
        read_until(connection, b'{"detail": "Bad Gateway"}')


def test_html_page_is_html(upstream, proxy):
    first, headers, body = hit(proxy, HtmlPage())
    assert (first, headers["content-type"]) == ("HTTP/1.1 200 OK", "text/html; charset=utf-8")
    assert body.startswith(b"<!DOCTYPE html>")
    assert upstream.journal == []


def test_redirect_fills_in_the_path_and_query(proxy):
    proxy.add(Rule("POST", "/prompt", Redirect("http://127.0.0.1:9{path}", 307)))
    first, headers, body = split(ask(proxy.url, "/env/prompt?x=1")[0])
    assert (first, body) == ("HTTP/1.1 307 Temporary Redirect", b"")
    assert headers["location"] == "http://127.0.0.1:9/env/prompt?x=1"


def test_huge_body_has_its_announced_size_and_is_json(upstream, proxy):
    _, headers, body = hit(proxy, HugeBody(1_000_000))
    assert headers["content-length"] == "1000000"
    assert len(body) == 1_000_000
    assert isinstance(json.loads(body), str)
    assert upstream.journal == []


@pytest.mark.parametrize("data", [PING, CHUNK_1])
def test_endless_stream_repeats_until_the_client_leaves(upstream, proxy, data):
    proxy.add(Rule("POST", "/call", EndlessStream(data, interval=0)))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        received = b""
        while received.count(data) < 1000:
            received += connection.recv(65536)
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == "client_gone"
    assert upstream.journal == []


def test_endless_stream_begins_behind_an_event_of_the_server(upstream, proxy):
    proxy.add(Rule("POST", "/call", EndlessStream(after="task_id", interval=0)))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        received = b""
        while len(received) < 1000:
            received += connection.recv(65536)
    assert split(received)[2].startswith(STREAM_CHUNKS[0] + 2 * (b"a\r\n" + PING + b"\r\n"))
    assert len(upstream.journal) == 1


def test_replace_body_keeps_the_rest_of_the_answer(upstream, proxy):
    first, headers, body = hit(proxy, ReplaceBody(b"other", {"Content-Type": "text/plain"}), "/ping")
    assert (first, headers["x-odd"], headers["content-type"]) == ("HTTP/1.1 200 Okay", "a", "text/plain")
    assert chunks(body) == [b"other"]
    assert len(upstream.journal) == 1


def test_bad_json_replaces_a_plain_body(proxy):
    _, _, body = hit(proxy, BadJson(), "/ping")
    with pytest.raises(json.JSONDecodeError):
        json.loads(b"".join(chunks(body)))


def test_bad_json_replaces_the_data_of_the_end_event_of_a_stream(proxy):
    _, _, body = hit(proxy, BadJson(b"{"))
    assert b"".join(chunks(body)) == STREAM.removesuffix(END) + b"event: end\r\ndata: {\r\n\r\n"


def test_replace_headers_touches_nothing_else(proxy):
    first, headers, body = hit(
        proxy, ReplaceHeaders({"Content-Type": "text/event-stream; charset=latin-1", "X-New": "1"})
    )
    assert first == "HTTP/1.1 200 OK"
    assert headers == {
        "transfer-encoding": "chunked",
        "content-type": "text/event-stream; charset=latin-1",
        "x-new": "1",
    }
    assert body == b"".join(STREAM_CHUNKS) + b"0\r\n\r\n"


def test_replace_headers_takes_out_what_is_none(proxy):
    assert "content-type" not in hit(proxy, ReplaceHeaders({"content-TYPE": None}))[1]


def test_duplicate_headers_sends_a_line_twice(proxy):
    proxy.add(Rule("POST", "/ping", DuplicateHeaders()))
    answer, _ = ask(proxy.url, "/ping")
    assert answer.count(b"content-type: application/json\r\n") == 2
    assert answer.count(b"Content-Length: 15\r\n") == 1
    assert answer.endswith(JSON_BODY)


def test_bom_comes_once_before_the_body(proxy):
    _, headers, body = hit(proxy, PrependBom())
    assert headers["transfer-encoding"] == "chunked"
    assert b"".join(chunks(body)) == b"\xef\xbb\xbf" + STREAM


def test_bom_before_a_body_with_a_length_is_framed_anew(proxy):
    _, headers, body = hit(proxy, PrependBom(), "/ping")
    assert "content-length" not in headers
    assert b"".join(chunks(body)) == b"\xef\xbb\xbf" + JSON_BODY


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_line_ends_are_rewritten_wherever_the_pieces_are_cut(upstream, proxy, end, size):
    parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    upstream.scripts["/env/call"] = [
        STREAM_HEAD,
        *(b"%x\r\n%b\r\n" % (len(part), part) for part in parts),
        b"0\r\n\r\n",
    ]
    _, _, body = hit(proxy, RewriteLineEnds(end))
    assert b"".join(chunks(body)) == STREAM.replace(b"\r\n", end.encode())


def test_one_byte_at_a_time_is_one_byte_in_a_chunk(proxy):
    _, _, body = hit(proxy, OneByteAtATime())
    assert chunks(body) == [bytes([byte]) for byte in STREAM]


def test_one_byte_at_a_time_in_writes_leaves_the_bytes_alone(proxy):
    proxy.add(Rule("POST", "/call", OneByteAtATime(chunks=False)))
    assert ask(proxy.url) == (STREAM_HEAD + b"".join(STREAM_CHUNKS) + b"0\r\n\r\n", "fin")


@pytest.mark.parametrize("fault", [PrependBom(), RewriteLineEnds("\n"), OneByteAtATime(), ReplaceBody(b"x")], ids=repr)
def test_rewritten_answer_keeps_the_connection(proxy, fault):
    proxy.add(Rule("GET", "/prompt", fault))
    with client(proxy.url) as pool:
        pool.get("/env/prompt?x=1")
        assert pool.get("/ping").json() == {"status": "ok"}
    assert proxy.connections == 1


def test_rewritten_answer_without_a_body_stays_without(proxy):
    assert hit(proxy, PrependBom(), "/empty") == ("HTTP/1.1 204 No Content", {}, b"")


def test_custom_does_what_it_is_told(upstream, proxy):
    async def forward_twice(exchange):
        await (await exchange.forward()).read()
        await exchange.pass_on()

    assert hit(proxy, Custom(forward_twice), "/ping")[2] == JSON_BODY
    assert len(upstream.journal) == 2


def test_custom_that_raises_is_raised_by_leaving_the_proxy(upstream):
    async def fail(_):
        raise LookupError("a mistake in the test")

    def run():
        with FaultProxy(upstream.url) as proxy:
            proxy.add(Rule("POST", "/call", Custom(fail)))
            assert ask(proxy.url) == (b"", "fin")

    with pytest.raises(LookupError, match="a mistake"):
        run()
