"""A raw server that speaks like an environment's, and a proxy before it."""

import pytest
from raw_peers import Upstream
from scripted_answers import JSON_BODY, JSON_HEAD, STREAM_CHUNKS, STREAM_HEAD

from fixtures.proxy import FaultProxy


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
