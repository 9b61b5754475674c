"""What a client reads, and what the server got, when a connection is lost, cut or silent."""

import socket
import threading

import httpx
import pytest
from raw_peers import LIMIT, ask, chunks, client, connect, read_to_end, read_until, request, split
from scripted_answers import (
    CHUNK_1,
    CHUNK_2,
    END,
    EVENTS,
    JSON_BODY,
    JSON_HEAD,
    PING,
    STREAM_CHUNKS,
    STREAM_HEAD,
    TASK_ID,
)

from fixtures.proxy import (
    AfterEvent,
    BeforeEvent,
    CleanEndWithout,
    CloseIdleAfter,
    CutAfterBytes,
    CutAfterEvent,
    CutBeforeFinalBlankLine,
    CutInsideEvent,
    DelayRequest,
    FaultProxy,
    Refuse,
    ResetAfterForward,
    ResetAfterRead,
    ResetBeforeRead,
    Rule,
    Silence,
)

WHOLE = STREAM_HEAD + b"".join(STREAM_CHUNKS) + b"0\r\n\r\n"


def hit(proxy, fault, path="/env/call"):
    proxy.add(Rule("POST", path, fault))
    return ask(proxy.url, path)


def test_refusing_refuses_connections_and_keeps_the_port(proxy):
    url = proxy.url
    with proxy.refusing(), pytest.raises(ConnectionRefusedError):
        connect(url)
    assert ask(url, "/ping") == (JSON_HEAD + JSON_BODY, "fin")


def test_refusing_lets_nobody_else_have_the_port(proxy):
    with proxy.refusing(), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", proxy.port))


@pytest.mark.parametrize(("existing", "ending"), [("close_idle", "fin"), ("reset", "reset")])
def test_refusing_ends_idle_connections(proxy, existing, ending):
    with connect(proxy.url) as connection:
        connection.sendall(request("/ping"))
        read_until(connection, JSON_BODY)
        proxy.wait_until_idle()
        with proxy.refusing(existing=existing):
            assert read_to_end(connection) == (b"", ending)


@pytest.mark.parametrize("existing", ["keep", "close_idle"])
def test_refusing_lets_a_running_answer_come_to_its_end(upstream, proxy, existing):
    gate = threading.Event()
    upstream.scripts["/env/call"] = [JSON_HEAD, gate, JSON_BODY]
    with connect(proxy.url) as connection:
        connection.sendall(request())
        read_until(connection, JSON_HEAD)
        with proxy.refusing(existing=existing):
            gate.set()
            read_until(connection, JSON_BODY)


def test_refusing_before_the_proxy_runs_says_how_to_run_it(upstream):
    with pytest.raises(RuntimeError, match="not running"), FaultProxy(upstream.url).refusing():
        pass


def test_refuse_is_down_from_the_request_on_and_comes_back(upstream, proxy):
    with connect(proxy.url) as bystander:
        bystander.sendall(request("/ping"))
        read_until(bystander, JSON_BODY)
        assert hit(proxy, Refuse(0.2)) == (b"", "reset")
        with pytest.raises(ConnectionRefusedError):
            connect(proxy.url)
        assert read_to_end(bystander) == (b"", "reset")
    transport = httpx.HTTPTransport(retries=5)  # waits 0, 0.5, 1, 2 s between attempts to connect
    with client(proxy.url, transport=transport) as pool:
        assert pool.post("/ping").status_code == 200
    assert [made.split(b" ")[1] for made in upstream.journal] == [b"/ping", b"/ping"]
    assert proxy.find("POST", "/call")[0].ending == "reset"


def test_reset_before_read_of_any_connection_comes_before_a_request(upstream, proxy):
    injection = proxy.add(Rule(None, None, ResetBeforeRead()))
    with connect(proxy.url) as connection:
        connection.sendall(b"P")
        assert read_to_end(connection) == (b"", "reset")
    assert ask(proxy.url, "/ping")[1] == "fin"
    assert (injection.acted, proxy.connections, len(upstream.journal)) == (1, 2, 1)


def test_reset_before_read_of_a_path_comes_before_the_body(upstream, proxy):
    proxy.add(Rule("POST", "/call", ResetBeforeRead()))
    with connect(proxy.url) as connection:
        connection.sendall(b"POST /env/call HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        assert read_to_end(connection) == (b"", "reset")
    proxy.wait_until_idle()
    assert upstream.journal == []
    assert proxy.requests[0].forwarded is False


@pytest.mark.parametrize("end", ["reset", "fin"])
def test_reset_after_read_keeps_the_request_from_the_server(upstream, proxy, end):
    assert hit(proxy, ResetAfterRead(end)) == (b"", end)
    proxy.wait_until_idle()
    assert upstream.journal == []
    assert (proxy.requests[0].body, proxy.requests[0].forwarded) == (b"{}", False)
    assert proxy.requests[0].ending == {"reset": "reset", "fin": "closed"}[end]


@pytest.mark.parametrize("end", ["reset", "fin"])
@pytest.mark.parametrize(("wait_for", "status"), [("sent", None), ("headers", 200), ("body", 200)])
def test_reset_after_forward_gives_the_client_no_byte(proxy, wait_for, status, end):
    assert hit(proxy, ResetAfterForward(wait_for, end)) == (b"", end)
    proxy.wait_until_idle()
    (made,) = proxy.requests
    assert (made.forwarded, made.upstream_status, made.sent) == (True, status, 0)


def test_reset_after_forward_waits_for_the_end_of_the_answer(upstream, proxy):
    gate = threading.Event()
    upstream.scripts["/env/call"] = [STREAM_HEAD, *STREAM_CHUNKS, gate, b"0\r\n\r\n"]
    proxy.add(Rule("POST", "/call", ResetAfterForward()))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        gate.set()
        connection.settimeout(LIMIT)
        assert read_to_end(connection) == (b"", "reset")
    assert len(upstream.journal) == 1


@pytest.mark.parametrize("end", ["reset", "fin"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (CutAfterBytes(0), STREAM_HEAD),
        (CutAfterBytes(4), STREAM_HEAD + STREAM_CHUNKS[0][:8]),
        (CutAfterBytes(0, of="whole"), b""),
        (CutAfterBytes(20, of="whole"), WHOLE[:20]),
        (CutAfterBytes(len(WHOLE) - 1, of="whole"), WHOLE[:-1]),
        (CutAfterEvent("task_id"), WHOLE[: WHOLE.index(TASK_ID) + len(TASK_ID)]),
        (CutAfterEvent("chunk", 2), WHOLE[: WHOLE.index(CHUNK_2) + len(CHUNK_2)]),
        (CutAfterEvent("end"), WHOLE[: -len(b"\r\n0\r\n\r\n")]),
        (CutInsideEvent("chunk"), WHOLE[: WHOLE.index(b"456789")]),
        (CutInsideEvent("chunk", 2, skip=0), WHOLE[: WHOLE.index(b"data: abcdefghij")]),
        (CutInsideEvent("chunk", skip=10**6), WHOLE[: WHOLE.index(CHUNK_1) + len(CHUNK_1) - 2]),
        (CutBeforeFinalBlankLine(), WHOLE[: -len(b"\r\n\r\n0\r\n\r\n")]),
        (CleanEndWithout("end"), WHOLE[: WHOLE.index(END)]),
    ],
    ids=repr,
)
def test_cut_sends_exactly_the_bytes_up_to_it(proxy, fault, expected, end):
    fault = type(fault)(**{**vars(fault), "end": end})
    assert hit(proxy, fault) == (expected, end)
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == {"reset": "reset", "fin": "closed"}[end]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (CutAfterBytes(4), EVENTS[0][:4]),
        (CutAfterBytes(0), b""),
        (CutAfterEvent("task_id", end="last_chunk"), TASK_ID),
        (CutInsideEvent("chunk", end="last_chunk"), TASK_ID + PING + CHUNK_1[:-10]),
        (CutBeforeFinalBlankLine(end="last_chunk"), b"".join(EVENTS)[:-2]),
        (CleanEndWithout(), b"".join(EVENTS[:-1])),
        (CleanEndWithout("chunk"), TASK_ID + PING),
        (CleanEndWithout("task_id"), b""),
    ],
    ids=repr,
)
def test_cut_with_a_last_chunk_is_a_well_formed_answer(proxy, fault, expected):
    fault = type(fault)(**{**vars(fault), "end": "last_chunk"})
    with connect(proxy.url) as connection:
        proxy.add(Rule("POST", "/call", fault))
        connection.sendall(request())
        first, headers, body = split(read_until(connection, b"0\r\n\r\n"))
        assert (first, headers["content-type"]) == ("HTTP/1.1 200 OK", "text/event-stream;  charset=utf-8")
        assert b"".join(chunks(body)) == expected
        connection.sendall(request("/ping"))
        read_until(connection, JSON_BODY)
    assert proxy.connections == 1


def test_clean_end_without_holds_back_an_event_that_comes_in_pieces(upstream, proxy):
    pieces = [b"1\r\n%b\r\n" % bytes([byte]) for byte in TASK_ID + END]
    upstream.scripts["/env/call"] = [STREAM_HEAD, *pieces, b"0\r\n\r\n"]
    answer, _ = hit(proxy, CleanEndWithout())
    assert b"".join(chunks(split(answer)[2])) == TASK_ID


def test_clean_end_of_an_answer_with_a_length_is_well_formed(proxy):
    answer, _ = hit(proxy, CutAfterBytes(5, end="last_chunk"), "/ping")
    _, headers, body = split(answer)
    assert "content-length" not in headers
    assert b"".join(chunks(body)) == JSON_BODY[:5]


def test_cut_at_a_place_that_never_comes_leaves_the_answer_whole(proxy):
    assert hit(proxy, CutAfterEvent("error")) == (WHOLE, "fin")
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == "complete"


def test_cut_of_the_whole_with_a_last_chunk_is_refused():
    with pytest.raises(ValueError, match="end a body only"):
        CutAfterBytes(5, of="whole", end="last_chunk")


def test_reset_comes_behind_all_that_was_sent_to_a_slow_reader(upstream, proxy):
    size = 4 * 2**20
    upstream.scripts["/env/call"] = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, b"x" * size]
    with connect(proxy.url) as connection:
        proxy.add(Rule("POST", "/call", CutAfterBytes(size - 1)))
        connection.sendall(request())
        received, ending = read_to_end(connection)
    assert len(split(received)[2]) == size - 1
    assert ending == "reset"


@pytest.mark.parametrize(
    ("stage", "before"),
    [
        ("before_headers", b""),
        ("after_headers", STREAM_HEAD),
        ("after_task_id", WHOLE[: WHOLE.index(TASK_ID) + len(TASK_ID)]),
        ("mid_chunk", WHOLE[: WHOLE.index(CHUNK_1) + len(CHUNK_1) - 2]),
        (AfterEvent("chunk", 2), WHOLE[: WHOLE.index(CHUNK_2) + len(CHUNK_2)]),
        (BeforeEvent("end"), WHOLE[: WHOLE.index(END)]),
    ],
    ids=repr,
)
def test_silence_sends_nothing_from_its_stage_on(upstream, proxy, stage, before):
    proxy.add(Rule("POST", "/call", Silence(None, stage)))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        assert read_until(connection, before) == before
        assert upstream.answered.wait(LIMIT)
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)


@pytest.mark.parametrize("stage", ["before_headers", "after_headers", "after_task_id", "mid_chunk", BeforeEvent("end")])
def test_silence_is_followed_by_the_rest(proxy, stage):
    assert hit(proxy, Silence(0.05, stage)) == (WHOLE, "fin")


def test_silence_for_ever_ends_when_the_proxy_closes(upstream):
    with FaultProxy(upstream.url) as proxy, connect(proxy.url) as connection:
        proxy.add(Rule("POST", "/call", Silence(None)))
        connection.sendall(request())
        proxy.wait_for("POST", "/call")
        proxy.close()
        assert read_to_end(connection) == (b"", "reset")


def test_silence_for_ever_ends_when_the_client_leaves(proxy):
    proxy.add(Rule("POST", "/call", Silence(None)))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        proxy.wait_for("POST", "/call")
    proxy.wait_until_idle()
    assert proxy.requests[0].ending == "client_gone"


def test_delayed_request_reaches_the_server_later(proxy):
    assert hit(proxy, DelayRequest(0.05)) == (WHOLE, "fin")


def test_delayed_request_of_a_client_that_leaves_never_reaches_the_server(upstream, proxy):
    proxy.add(Rule("POST", "/call", DelayRequest(None)))
    with connect(proxy.url) as connection:
        connection.sendall(request())
        proxy.wait_for("POST", "/call")
    proxy.wait_until_idle()
    assert upstream.journal == []


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_close_idle_after_closes_behind_a_whole_answer_that_does_not_say_so(proxy, seconds):
    proxy.add(Rule("POST", "/ping", CloseIdleAfter(seconds)))
    with connect(proxy.url) as connection:
        connection.sendall(request("/ping"))
        assert read_to_end(connection) == (JSON_HEAD + JSON_BODY, "fin")
