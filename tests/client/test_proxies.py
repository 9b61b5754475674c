"""Requests go through the proxy that the environment's variables name, and past it where they say so."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import httpx
import pytest

from ors_client import AsyncClient, ClientStateError, RetryPolicy, TransportError
from ors_client._http.proxies import proxy_for
from ors_client.evaluation import ChatModel

KINDS = ("http", "https", "all", "no")
VARIABLES = {"REQUEST_METHOD", *(name for kind in KINDS for name in (f"{kind}_proxy", f"{kind.upper()}_PROXY"))}


@pytest.fixture
def variables(monkeypatch):
    """Set the proxy variables of this process to exactly these."""

    def name(**variables):
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)

    return name


@contextmanager
def listening(answer):
    """A proxy that gives every request one answer, and keeps what it was asked for, in the form that proxies are."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Proxy-Authorization"]))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815 - the parent's way to name methods

        def do_CONNECT(self):
            asked.append((self.path, self.headers["Proxy-Authorization"]))
            self.send_error(502)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


async def environments(url="http://peer.invalid"):
    async with AsyncClient(url, retry=RetryPolicy(attempts=1)) as client:
        return await client.list_environments()


async def reply():
    async with ChatModel("model", "http://peer.invalid/v1") as model:
        return await model.ask({"messages": []})


# --- Which one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "given", "proxy"),
    [
        ("http://a.test", {}, None),
        ("http://a.test", {"HTTP_PROXY": "http://upper.test:1"}, "http://upper.test:1"),
        (
            "http://a.test",
            {"HTTP_PROXY": "http://upper.test:1", "http_proxy": "http://lower.test:1"},
            "http://lower.test:1",
        ),
        ("http://a.test", {"HTTP_PROXY": "http://upper.test:1", "http_proxy": ""}, None),
        ("http://a.test", {"HTTPS_PROXY": "http://p.test:1"}, None),
        ("https://a.test", {"HTTPS_PROXY": "http://p.test:1"}, "http://p.test:1"),
        ("https://a.test", {"ALL_PROXY": "http://p.test:1"}, "http://p.test:1"),
        ("http://a.test", {"ALL_PROXY": "http://all.test:1", "HTTP_PROXY": "http://p.test:1"}, "http://p.test:1"),
        ("http://a.test", {"HTTP_PROXY": "http://p.test:1", "REQUEST_METHOD": "GET"}, None),
        ("http://a.test", {"http_proxy": "http://p.test:1", "REQUEST_METHOD": "GET"}, "http://p.test:1"),
        ("http://a.test", {"HTTP_PROXY": " p.test:3128 "}, "http://p.test:3128"),
        ("http://a.test", {"HTTP_PROXY": "HTTPS://p.test:1/"}, "https://p.test:1/"),
    ],
)
def test_variable_that_counts(variables, url, given, proxy):
    variables(**given)
    found = proxy_for(httpx.URL(url))
    assert (None if found is None else str(found.url)) == proxy


@pytest.mark.parametrize("written", ["me:p%2Fss@proxy.test:3128", "http://me:p%2Fss@proxy.test:3128"])
def test_login_is_taken_from_the_variable(variables, written):
    variables(https_proxy=written)
    found = proxy_for(httpx.URL("https://a.test"))
    assert (str(found.url), found.auth) == ("http://proxy.test:3128", ("me", "p/ss"))


@pytest.mark.parametrize(
    ("listed", "direct", "proxied"),
    [
        ("*", ["http://a.test", "http://127.0.0.1"], []),
        ("b.test, *", ["http://a.test"], []),
        ("a.test", ["http://a.test", "http://A.TEST.", "http://x.a.test:80"], ["http://aa.test", "http://a.test.b"]),
        (".a.test", ["http://a.test", "http://x.a.test"], ["http://aa.test"]),
        ("*.a.test", ["http://x.a.test"], ["http://aa.test"]),
        ("a.test b.test", ["http://a.test", "http://b.test"], ["http://c.test"]),
        ("a.test:80", ["http://a.test", "http://a.test:80"], ["http://a.test:81", "https://a.test"]),
        ("a.test:443", ["https://a.test"], ["http://a.test"]),
        ("127.0.0.0/8", ["http://127.0.0.1:8000", "http://127.9.9.9"], ["http://128.0.0.1", "http://a.test"]),
        ("10.1.2.3/8", ["http://10.9.9.9"], ["http://11.0.0.1"]),
        ("10.0.0.1:80", ["http://10.0.0.1"], ["http://10.0.0.1:81", "http://10.0.0.2"]),
        ("::1/128", ["http://[::1]:8000"], ["http://[::2]", "http://127.0.0.1"]),
        ("fd00::/8", ["http://[fd12::7]"], ["http://[fe80::1]"]),
        ("0:0:0:0:0:0:0:1", ["http://[::1]"], ["http://[::2]"]),
        ("[::1]", ["http://[::1]:8000"], ["http://[::2]"]),
        ("[::1]:8000", ["http://[::1]:8000"], ["http://[::1]:8001"]),
        (
            "localhost,127.0.0.1,::1/128",
            ["http://localhost:1", "http://127.0.0.1:1", "http://[::1]"],
            ["http://a.test"],
        ),
        (",, ,", [], ["http://a.test"]),
        ("10.0.0.0/99,:80,[,]:x,http://a.test", [], ["http://10.0.0.1", "http://a.test"]),
    ],
)
def test_hosts_that_no_proxy_lists_are_reached_without_one(variables, listed, direct, proxied):
    variables(ALL_PROXY="http://p.test:1", NO_PROXY=listed)
    assert [url for url in direct if proxy_for(httpx.URL(url)) is not None] == []
    assert [url for url in proxied if proxy_for(httpx.URL(url)) is None] == []


# --- Through it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_client_asks_the_proxy(variables, backend):
    with listening(b'["echo"]') as (address, asked):
        variables(HTTP_PROXY=f"http://me:€%2F@{address}", NO_PROXY="127.0.0.0/8")
        assert anyio.run(environments, backend=backend) == ["echo"]
    assert asked == [("http://peer.invalid/list_environments", "Basic bWU64oKsLw==")]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_login_is_in_the_request_for_a_tunnel(variables, backend):
    with listening(b"") as (address, asked):
        variables(HTTPS_PROXY=f"http://me:pass@{address}")
        with pytest.raises(TransportError, match="502"):
            anyio.run(environments, "https://peer.invalid", backend=backend)
    assert asked == [("peer.invalid:443", "Basic bWU6cGFzcw==")]


def test_model_is_asked_through_the_proxy(variables):
    with listening(b'{"choices": [{"message": {"role": "assistant"}}]}') as (address, asked):
        variables(ALL_PROXY=address, NO_PROXY="127.0.0.1,::1/128")
        anyio.run(reply)
    assert asked == [("http://peer.invalid/v1/chat/completions", None)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("ask", [environments, reply])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("ftp://sesame.test", "names no proxy of a known kind"),
        ("socks://sesame.test:1", "socks5://"),
        ("http://me:sesame/word@host.test:9", "write / as %2F"),
        ("http://me:123#sesame@host.test:9", "# as %23"),
        ("http://sesame.test:port", "is no URL of a proxy"),
        ("http://", "is no URL of a proxy"),
    ],
)
def test_variable_that_names_no_usable_proxy_is_named_without_its_value(variables, backend, ask, value, said):
    variables(HTTP_PROXY=value)
    with pytest.raises(ClientStateError, match=r"HTTP_PROXY .* listed in NO_PROXY") as caught:
        anyio.run(ask, backend=backend)
    assert said in str(caught.value)
    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)
