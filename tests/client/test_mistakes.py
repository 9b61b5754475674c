"""What a program's traceback ends with after a typical mistake, word for word; `tests/cli` has what `ors` says."""

import math
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from servers import Server, serve

from fixtures.proxy import FaultProxy, HtmlPage, Rule, Status
from ors_client import (
    AsyncClient,
    AuthenticationError,
    Client,
    ClientStateError,
    DeadlineExceeded,
    EnvironmentNotFound,
    Layout,
    ORSError,
    ProtocolError,
    RetryPolicy,
    StatusError,
    TaskRef,
    Timeouts,
    ToolRejected,
    TransportError,
)

TESTS = Path(__file__).parent.parent
TASK = TaskRef("train", 0)
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


# --- What a program gets wrong before or beside its requests ----------------------------------------------------------


def test_split_task_and_tool_that_are_not_there_are_answered_with_those_that_are(echo_server):
    with Client(echo_server.url) as client:
        environment = client.environment()
        with pytest.raises(StatusError, match=r"There is no split 'trian'; there are: 'train'\."):
            environment.list_tasks("trian")
        with pytest.raises(StatusError, match=r"There is no task 99 in split 'train', which has 4\."):
            environment.get_task("train", 99)
        with environment.session(TASK) as session:
            with pytest.raises(ToolRejected, match=r"'ecko' is not a valid tool; there are: 'echo'") as caught:
                session.call_tool("ecko")
            assert caught.value.detail == "'ecko' is not a valid tool"  # what a model is told is the server's own
            assert "echo" in caught.value.available
            assert session.call_tool("echo", {"text": "on"}).text == "no match (got 'on')"


def test_tls_to_a_plain_port_is_tried_once_and_named(echo_server):
    message = said(Client(echo_server.url.replace("http:", "https:")), TransportError, list_splits)
    assert "failed after 1 attempt:" in message
    assert "The server speaks no TLS on this port; use http://." in message


def test_user_name_in_a_url_is_told_where_credentials_go():
    with pytest.raises(ValueError, match=r"api_key=.*headers=\{'Authorization': 'Basic \.\.\.'\}") as caught:
        Client("http://user:hidden@localhost:8000")
    assert "hidden" not in str(caught.value)


def test_client_that_is_not_entered_or_entered_the_other_way_is_told_how():
    for kind in (AsyncClient, Client):
        with pytest.raises(ClientStateError, match=r"`async with AsyncClient\(.*`with Client\("):
            kind("http://localhost:8000").environment()
    with pytest.raises(TypeError, match=r"AsyncClient is entered with `async with`; .* there is Client"):
        AsyncClient("http://localhost:8000").__enter__()
    with pytest.raises(TypeError, match=r"Client is entered with `with`; .* there is AsyncClient"):
        anyio.run(Client("http://localhost:8000").__aenter__)


def test_session_that_is_not_entered_or_entered_the_other_way_is_told_how(echo_server):
    with Client(echo_server.url) as client:
        session = client.environment().session(TASK)
        with pytest.raises(ClientStateError, match="has to be entered first: write `async with"):
            session.get_prompt()
        with pytest.raises(TypeError, match="Session is entered with `with`"):
            anyio.run(session.__aenter__)


@pytest.mark.parametrize(
    ("name", "instead"), [("environments", r"client\.environment\(name"), ("rollout", r"client\.rollouts\.start")]
)
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_name_of_the_sdk_is_answered_with_the_one_here(kind, name, instead):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; write {instead}"):
        getattr(kind("http://localhost:8000"), name)
    with pytest.raises(AttributeError, match=r"no attribute 'else_'$"):
        _ = kind("http://localhost:8000").else_


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (
            object(),
            TypeError,
            r"^arguments\.a\[\] is <object object at .*, of the type object, which JSON does not have",
        ),
        (math.nan, ValueError, r"^arguments\.a\[\] is nan, which JSON does not have; write None"),
        ({1: 2}, TypeError, r"^A key of arguments\.a\[\] .*is 1; the keys of a JSON object are strings"),
    ],
)
def test_argument_that_is_no_json_is_named_as_the_caller_wrote_it(echo_server, value, kind, message):
    with Client(echo_server.url) as client:
        environment = client.environment()
        with environment.session(TASK) as session, pytest.raises(kind, match=message):
            session.call_tool("echo", {"a": [value]})
        with pytest.raises(kind, match=message.replace("arguments", "env_overrides")):
            environment.session(TASK, env_overrides={"a": [value]})


def test_arguments_of_a_tool_given_as_keywords_are_told_where_they_go():
    told = r"no parameter 'text'; .* one mapping: arguments=\{'text': \.\.\.\}"
    with Client("http://peer.test") as client, pytest.raises(TypeError, match=told):
        client.environment("echo").session(TASK).call_tool("echo", text="hello")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Client(time_out=3), r"^Client\(\) has no parameter 'time_out'; did you mean timeout\?$"),
        (lambda: Timeouts(respons=3), r"^Timeouts\(\) has no parameter 'respons'; did you mean response\?$"),
        (lambda: RetryPolicy(zzz=3), "there are: attempts, first_delay, max_delay, jitter"),
    ],
)
def test_unknown_keyword_is_answered_with_the_likely_one_or_all(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("key", "advice"),
    [("wrong", "The key was refused: is it complete, not expired, and for this server?"), (None, "Pass api_key=...;")],
)
def test_wrong_key_and_no_key_are_told_apart(split_server, key, advice):
    _, sessions = split_server.urls
    assert advice in said(Client(sessions, api_key=key), AuthenticationError, list_splits)


def test_catalogue_without_a_key_names_the_variable(split_server, monkeypatch):
    api, sessions = split_server.urls
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    monkeypatch.setenv("OPENREWARD_API_URL", api)
    monkeypatch.setenv("OPENREWARD_SESSION_URL", sessions)
    message = said(Client(), AuthenticationError, lambda client: list_splits(client, "owner/name"))
    assert "OPENREWARD_API_KEY is not set: set it, or pass api_key=..." in message


def test_deployment_that_is_not_there_is_named(split_server):
    api, sessions = split_server.urls
    client = Client(Layout(api=api, sessions=sessions), api_key="test-key")
    message = said(client, StatusError, lambda client: list_splits(client, "owner/other"))
    assert "Is 'owner/other' spelt as in the catalogue, owner and name" in message


def test_gateway_that_gave_up_is_told_from_a_server_that_is_not_there(proxy):
    proxy.add(Rule(None, None, Status(504), times=None))
    assert "Or the gateway's read time-out is shorter than the environment's setup." in said(
        Client(proxy.url, retry=SOON), TransportError, list_splits
    )


# Other mistakes, and the file and the test that tries each.
ELSEWHERE = {
    "a wrong kind, for every public parameter": ("client/test_arguments.py", "argument_of_another_kind_is_refused"),
    "an unknown keyword, for every public function": ("client/test_arguments.py", "keyword_that_is_not_there"),
    "settings out of range": ("client/test_config.py", "timeout_that_is_not_positive_is_refused_by_name"),
    "an untrusted certificate, http on a TLS port": ("reliability/test_tls.py", ""),
    "a key in the environment, for the command": ("cli/test_catalogue.py", ""),
    "a model without calls, a refusal of its endpoint": ("cli/test_run_models.py", ""),
    "remove_unused_columns=True": ("bridge/test_early_errors.py", "configuration_that_strips_the_columns_is_an_error"),
    "too few tasks for a batch": ("bridge/test_early_errors.py", "check_names_both_numbers"),
    "check of no configuration": ("bridge/test_spec.py", ""),
}


@pytest.mark.parametrize(("file", "name"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_mistake_is_tried_elsewhere(file, name):
    assert f"def test_{name}" in (TESTS / file).read_text(encoding="utf-8")
