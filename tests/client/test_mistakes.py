"""What a program's traceback ends with after a typical mistake, word for word; `tests/cli` has what `ors` says."""

import re
import socket
from collections.abc import Callable, Iterator

import pytest
from servers import Server, serve

from fixtures.proxy import FaultProxy, HtmlPage, Rule, Status
from ors_client import (
    AuthenticationError,
    Client,
    DeadlineExceeded,
    EnvironmentNotFound,
    ORSError,
    ProtocolError,
    RetryPolicy,
    StatusError,
    Timeouts,
    TransportError,
)

SOON = RetryPolicy(attempts=2, first_delay=0.01)


@pytest.fixture(scope="module")
def split_server() -> Iterator[Server]:
    """The catalogue's layout: an API host, and a sessions host that demands a key and a deployment."""
    with serve("ours", "--env", "echo", "--split") as server:
        yield server


@pytest.fixture
def proxy(echo_server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(echo_server.url) as proxy:
        yield proxy


def said(client: Client, kind: type[ORSError], mistake: Callable[[Client], object]) -> str:
    """Return the message of the error that a mistake ends in, the number of the system's own error left out."""
    with client, pytest.raises(kind) as caught:
        mistake(client)
    assert type(caught.value) is kind
    return re.sub(r"\[Errno \d+\]", "[Errno]", str(caught.value))


def list_splits(client: Client, name: str | None = None) -> object:
    return client.environment(name).list_splits()


def test_wrong_port():
    with socket.socket() as taken:  # bound, so that nobody else takes it, and not listened on
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        message = said(Client(f"http://127.0.0.1:{port}", retry=SOON), TransportError, list_splits)
    assert message == (
        "GET /list_environments failed after 2 attempts: ConnectionRefusedError: [Errno] Connect call failed "
        f"('127.0.0.1', {port}). Is the server running, and are host and port right? "
        f"[http://127.0.0.1:{port}/list_environments]"
    )


def test_no_environment_of_that_name(ours):
    names = ", ".join(map(repr, _names(ours)))
    message = said(Client(ours.url), EnvironmentNotFound, lambda client: list_splits(client, "ecoenvironment"))
    assert message == (f"No environment named 'ecoenvironment'; this server has: {names}. [{ours.url}]")


def test_no_name_where_there_are_several_environments(ours):
    names = ", ".join(map(repr, _names(ours)))
    assert said(Client(ours.url), EnvironmentNotFound, list_splits) == (
        f"This server has several environments; name one of: {names}. [{ours.url}]"
    )


def test_missing_key(split_server):
    _, sessions = split_server.urls
    assert said(Client(sessions), AuthenticationError, list_splits) == (
        "GET /list_environments was answered with HTTP 401: A valid X-API-Key header is required. Pass api_key=...; "
        f"a key from the environment is sent to the catalogue's own hosts only. [{sessions}/list_environments]"
    )


def test_layout_guessed_wrong(split_server):
    api, _ = split_server.urls
    assert said(Client(api, api_key="test-key"), StatusError, list_splits) == (
        "GET /list_environments was answered with HTTP 404: Not Found. There is no such route: an older server, or not "
        "the URL of an ORS server (its port, its path prefix; Layout(api=..., sessions=...) where sessions have a host "
        f"of their own). [{api}/list_environments]"
    )


def test_server_that_is_still_starting(proxy):
    proxy.add(Rule(None, None, Status.starting(), times=None))
    assert said(Client(proxy.url, timeout=Timeouts(start_up=1)), DeadlineExceeded, list_splits) == (
        "GET /list_environments (the environment's backend is still starting) did not finish within start_up=1 "
        f"seconds; raise that limit if the wait is expected. [{proxy.url}/list_environments]"
    )


def test_login_page(proxy):
    proxy.add(Rule(None, None, HtmlPage(), times=None))
    assert said(Client(proxy.url), ProtocolError, list_splits) == (
        "GET /list_environments was answered with something else than the standard says (Expecting value: line 1 "
        "column 1 (char 0)); it begins '<!DOCTYPE html> <html><head><title>Sign in</title></head><body><h1>Sign in</h1>"
        "</body></html>'. "
        f"Is this a login page, or another program's? [{proxy.url}/list_environments]"
    )


def _names(server: Server) -> list[str]:
    with Client(server.url) as client:
        return client.list_environments()
