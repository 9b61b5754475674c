"""A raw server that speaks like an environment's, and a proxy before it."""

import pytest
from raw_peers import Upstream

from fixtures.proxy import FaultProxy

TASK_ID = b"event: task_id\r\ndata: abc\r\n\r\n"
PING = b": ping\r\n\r\n"
CHUNK_1 = b"event: chunk\r\ndata: 0123456789\r\n\r\n"
CHUNK_2 = b"event: chunk\r\ndata: abcdefghij\r\n\r\n"
END = b"event: end\r\ndata: last\r\n\r\n"
EVENTS = [TASK_ID, PING, CHUNK_1, CHUNK_2, END]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type:text/event-stream;  charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_CHUNKS = [b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS]
JSON_BODY = b'{"status":"ok"}'
JSON_HEAD = b"HTTP/1.1 200 Okay\r\ncontent-type: application/json\r\nContent-Length: 15\r\nX-Odd:  a  \r\n\r\n"


@pytest.fixture
def upstream():
    scripts = {
        "/env/call": [STREAM_HEAD, *STREAM_CHUNKS, b"0\r\n\r\n"],
        "/env/prompt?x=1": [JSON_HEAD + JSON_BODY],
        "/ping": [JSON_HEAD + JSON_BODY],
        "/empty": [b"HTTP/1.1 204 No Content\r\n\r\n"],
        "/until_close": [b"HTTP/1.1 200 OK\r\n\r\nto the end", None],
    }
    with Upstream(scripts) as server:
        yield server


@pytest.fixture
def proxy(upstream):
    with FaultProxy(upstream.url) as running:
        yield running
