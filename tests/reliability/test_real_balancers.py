"""Three servers behind nginx, haproxy or Envoy, which choose by session id or cookie: each session stays on its own.

Where a program is not installed, its tests are skipped.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
import yaml
from aftermath import nothing_left_async
from balancers import NGINX, balancer, free_port
from servers import Server, serve

from ors_client import AsyncClient, KeepalivePolicy, TaskRef

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SESSIONS = 200
PATHS = {"create", "prompt", "call", "ping", "delete"}

HAPROXY = """
global
    log stdout format raw local0
    maxconn 4096
defaults
    mode http
    log global
    timeout connect 5s
    timeout client 650s
    timeout server 650s
frontend environments
    bind 127.0.0.1:{port}
    capture request header X-Session-ID len 128
    capture request header Cookie len 256
    log-format "%[capture.req.hdr(0)]|%s|%HP|%[capture.req.hdr(1)]"
    default_backend servers
backend servers
{backend}
"""


def snippet(begin: str) -> str:
    """Return the configuration that begins so, as the page on self-hosting shows it."""
    [text] = re.findall(
        rf"^```\w+\n({begin}.*?)^```$", (ROOT / "docs" / "self-hosting.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return text


def nginx_by_header(port: int, servers: list[str]) -> str:
    text = (
        snippet("large_client_header_buffers").replace("listen 80;", f"listen 127.0.0.1:{port};").replace("/math/", "/")
    )
    lines = [line for line in text.splitlines() if not re.match(r"\s*server 127", line)]
    at = next(number for number, line in enumerate(lines) if "hash $" in line)
    lines[at + 1 : at + 1] = [f"server {server} max_fails=0;" for server in servers]
    return NGINX.format(snippet="\n".join(lines))


def haproxy_by_header(port: int, servers: list[str]) -> str:
    shown = snippet("backend environments").splitlines()
    kept = [line for line in shown if not re.match(r"\s*(backend|server)\b", line)]
    named = [f"    server s{number} {server}" for number, server in enumerate(servers)]
    return HAPROXY.format(port=port, backend="\n".join([*kept, *named]))


def haproxy_by_cookie(port: int, servers: list[str]) -> str:
    named = [f"    server s{number} {server} cookie s{number}" for number, server in enumerate(servers)]
    backend = "\n".join(["    balance roundrobin", "    cookie pin insert indirect nocache", *named])
    return HAPROXY.format(port=port, backend=backend)


def envoy_by_header(port: int, servers: list[str]) -> str:
    shown = yaml.safe_load(snippet("static_resources:"))
    [listener], [cluster] = shown["static_resources"]["listeners"], shown["static_resources"]["clusters"]
    listener["address"] = _envoy_address(f"127.0.0.1:{port}")
    [endpoints] = cluster["load_assignment"]["endpoints"]
    endpoints["lb_endpoints"] = [{"endpoint": {"address": _envoy_address(server)}} for server in servers]
    log = {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        "log_format": {"text_format_source": {"inline_string": "%REQ(X-SESSION-ID)%|%UPSTREAM_HOST%|%REQ(:PATH)%|-\n"}},
    }
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["access_log"] = [{"name": "sessions", "typed_config": log}]
    return yaml.safe_dump(shown)


def _envoy_address(server: str) -> dict[str, dict[str, str | int]]:
    host, port = server.split(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


WAYS: dict[str, tuple[Callable[[int, list[str]], str], str]] = {
    "nginx, by header": (nginx_by_header, "nginx"),
    "haproxy, by header": (haproxy_by_header, "haproxy"),
    "haproxy, by cookie": (haproxy_by_cookie, "haproxy"),
    "Envoy, by header": (envoy_by_header, "envoy"),
}


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[Server]]:
    with (
        serve("ours", "--env", "counter") as one,
        serve("ours", "--env", "counter") as two,
        serve("ours", "--env", "counter") as three,
    ):
        yield [one, two, three]


@contextmanager
def balanced(way: str, servers: list[Server], folder: Path) -> Iterator[tuple[str, Path]]:
    """Run a balancer; yield its URL and the file of what it passed on."""
    make, program = WAYS[way]
    port = free_port()
    configuration = make(port, [server.url.removeprefix("http://") for server in servers])
    with balancer(program, configuration, port, folder) as said:
        yield f"http://127.0.0.1:{port}", folder / "access.log" if program == "nginx" else said


@pytest.mark.parametrize("way", WAYS)
def test_each_session_stays_on_its_server(way: str, replicas: list[Server], tmp_path: Path, backend: str) -> None:
    with balanced(way, replicas, tmp_path) as (url, passed_on):
        anyio.run(_play, url, replicas, passed_on, backend=backend)
    requests = _requests(passed_on)
    servers, paths, cookies = defaultdict(set), defaultdict(set), defaultdict(set)
    for session_id, server, path, cookie in requests:
        if session_id not in {"", "-"}:
            servers[session_id].add(server)
            paths[session_id].add(path.rsplit("/", 1)[-1])
            cookies[session_id].add(cookie)
    assert len(servers) == SESSIONS
    assert all(len(found) == 1 for found in servers.values())
    assert all(found >= PATHS for found in paths.values())
    assert min(Counter(server for [server] in servers.values()).values()) >= SESSIONS // 8
    assert len({server for [server] in servers.values()}) == 3
    if "cookie" in way:
        assert all(
            found == {f"pin={server}"} for found, [server] in zip(cookies.values(), servers.values(), strict=True)
        )


def _requests(passed_on: Path) -> list[list[str]]:
    """Return what was passed on: session, server, path, cookie."""
    lines = passed_on.read_text().splitlines() if passed_on.exists() else []
    return [line.strip().split("|") for line in lines if line.count("|") == 3]


async def _play(url: str, replicas: list[Server], passed_on: Path) -> None:
    policy = KeepalivePolicy(interval=0.5, tolerance=60)
    all_pinged = anyio.Event()
    async with AsyncClient(url, keepalive=policy) as client:
        environment = client.environment("counterenvironment")

        async def play() -> None:
            async with environment.session(TaskRef("train", 0)) as session:
                assert (await session.call_tool("step")).text == "1"
                await all_pinged.wait()
                assert (await session.call_tool("step")).text == "2"

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for _ in range(SESSIONS):
                    group.start_soon(play)
                pinged: set[str] = set()
                while len(pinged) < SESSIONS:
                    await anyio.sleep(0.1)
                    pinged = {session_id for session_id, _, path, _ in _requests(passed_on) if path == "/ping"}
                all_pinged.set()
        assert client.leaked_sessions == 0
    for server in replicas:
        await nothing_left_async(server, within=30)
