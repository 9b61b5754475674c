"""Which cookies go with a session's requests, and to whom."""

import httpx
import pytest
from scripted import Peer, said

from ors_client import AsyncClient, KeepalivePolicy, Layout, TaskRef
from ors_client._http.cookies import SessionCookies

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8000",
        "http://127.0.0.1",
        "http://[::1]:8000",
        "http://localhost:8000",
        "https://env.example",
        "https://env.example:8443",
    ],
)
@pytest.mark.parametrize("line", ["pin=a+b/c=", "pin=a+b/c=; Path=/; HttpOnly; SameSite=None"])
def test_cookie_goes_back_to_its_origin_as_it_came(origin, line):
    cookies = SessionCookies()
    cookies.store(f"{origin}/env/prompt", [line])
    assert cookies.header(f"{origin}/delete") == "pin=a+b/c="


@pytest.mark.parametrize(
    "other", ["http://127.0.0.1:8001", "https://127.0.0.1:8000", "http://127.0.0.2:8000", "http://localhost:8000"]
)
def test_cookie_goes_to_no_other_scheme_host_or_port(other):
    cookies = SessionCookies()
    cookies.store("http://127.0.0.1:8000/create_session", ["pin=a"])
    assert cookies.header(f"{other}/ping") is None


def test_cookie_of_a_domain_goes_to_no_other_host_of_it():
    cookies = SessionCookies()
    cookies.store("https://api.env.example/x", ["pin=a; Domain=env.example"])
    assert cookies.header("https://sessions.env.example/ping") is None
    assert cookies.header("https://api.env.example/ping") == "pin=a"


def test_later_cookie_replaces_one_and_an_expired_one_removes_it():
    cookies = SessionCookies()
    url = "http://127.0.0.1:8000/env/prompt"
    cookies.store(url, ["pin=a", "other=1"])
    cookies.store("http://127.0.0.1:8000/create", ["pin=b"])
    assert cookies.header(url) == "pin=b; other=1"
    cookies.store(url, ["pin=; Max-Age=0"])
    assert cookies.header(url) == "other=1"


def test_what_no_header_can_carry_and_what_is_too_much_is_not_kept():
    cookies = SessionCookies()
    url = "http://127.0.0.1:8000/ping"
    cookies.store(url, ["pin=\udcff", "long=" + "x" * 5000, *(f"c{n}=1" for n in range(200))])
    assert (cookies.header(url) or "").count("=") == 50


def test_cookies_show_in_no_repr():
    cookies = SessionCookies()
    cookies.store("http://127.0.0.1:8000/ping", ["pin=sk-secret"])
    assert "sk-secret" not in repr(cookies)


class PinningPeer(Peer):
    """Gives each session a cookie of its own, and a new one with each answer to a call."""

    def __init__(self):
        self.made = 0

        async def create_session(_):
            self.made += 1
            return httpx.Response(200, json={"sid": f"s{self.made}"}, headers={"set-cookie": f"pin={self.made}"})

        async def call(request):
            answer = said("gone")
            answer.headers["set-cookie"] = f"turn={request.headers['x-session-id']}"
            return answer

        super().__init__({"POST /create_session": create_session, "POST /call": call})


@pytest.mark.parametrize("layout", ["http://peer.test", Layout(api="http://api.test", sessions="http://peer.test")])
async def test_each_request_of_a_session_carries_its_cookies_and_no_other(layout):
    peer = PinningPeer()
    name = "owner/name" if isinstance(layout, Layout) else None
    async with AsyncClient(layout, transport=peer.transport, keepalive=KeepalivePolicy(interval=60)) as client:
        environment = client.environment(name)
        for _ in range(2):
            async with environment.session(TaskRef("train", 0)) as session:
                await session.get_prompt()
                await session.list_tools()
                await session.call_tool("go")
                await session.call_tool("go")
    sent = [
        (request.url.path, request.headers.get("x-session-id"), request.headers.get("cookie"))
        for request in peer.requests
    ]
    assert {cookie for path, _, cookie in sent if path == "/create_session"} == {None}
    for path, session_id, cookie in sent:
        if session_id is not None:
            assert cookie is not None, path
            assert cookie.startswith(f"pin={session_id[1:]}"), path
    calls = [(session_id, cookie) for path, session_id, cookie in sent if path.endswith("/call")]
    first, second, *_ = calls
    assert first[1] == f"pin={first[0][1:]}"
    assert second[1] == f"pin={second[0][1:]}; turn={second[0]}"
    deleted = [cookie for path, _, cookie in sent if path == "/delete"]
    assert all("turn=" in cookie for cookie in deleted)


async def test_cookie_of_an_attempt_that_made_no_session_is_forgotten():
    async def fail_first(_):
        if sum(each.url.path == "/create_session" for each in peer.requests) == 1:
            return httpx.Response(429, headers={"set-cookie": "stale=1", "retry-after": "0"})
        return httpx.Response(200, json={"sid": "s1"}, headers={"set-cookie": "pin=1"})

    peer = Peer({"POST /create_session": fail_first})
    async with AsyncClient("http://peer.test", transport=peer.transport) as client:
        await client.environment().session(TaskRef("train", 0)).__aenter__()
    cookies = {request.headers.get("cookie") for request in peer.requests if "x-session-id" in request.headers}
    assert cookies == {"pin=1"}


async def test_cookies_join_those_that_a_caller_sends_with_every_request():
    peer = PinningPeer()
    async with AsyncClient("http://peer.test", transport=peer.transport, headers={"Cookie": "mine=1"}) as client:
        await client.environment().session(TaskRef("train", 0)).__aenter__()
    [created] = [request for request in peer.requests if request.url.path == "/create"]
    assert created.headers.get_list("cookie") == ["mine=1; pin=1"]
