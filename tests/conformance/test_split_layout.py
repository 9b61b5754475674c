"""Two hosts, as the catalogue has them: one tells about a deployment, the other serves it and demands credentials."""

import logging
import pickle
from contextlib import asynccontextmanager

import anyio
import pytest
from servers import serve

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import (
    AsyncClient,
    AuthenticationError,
    EnvironmentNotFound,
    KeepalivePolicy,
    Layout,
    StatusError,
    TaskRef,
)

pytestmark = pytest.mark.anyio

KEY = "sk-Split-77f0c1"
TASK = TaskRef("train", 0)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.fixture(scope="module")
def platform():
    with serve("ours", "--env", "many,secrets,slow", "--split", "--api-key", KEY) as server:
        yield server


@pytest.fixture
def hosts(platform):
    """Proxies before both hosts: what was sent to each."""
    with FaultProxy(platform.urls[0]) as api, FaultProxy(platform.urls[1]) as sessions:
        yield api, sessions


@asynccontextmanager
async def connected(hosts, **more):
    api, sessions = hosts
    async with AsyncClient(Layout(api=api.url, sessions=sessions.url), **{"api_key": KEY, **more}) as client:
        yield client


@BACKENDS
async def test_episode_of_a_deployment_runs_with_its_credentials(hosts, platform):
    _, sessions = hosts
    async with connected(hosts) as client:
        environment = client.environment("owner/name", variant="beta")
        async with environment.session(TaskRef("train", 2)) as session:
            assert await session.get_prompt()
            assert [tool.name for tool in await session.list_tools()] == ["ask", "beta_only"]
            assert (await session.call_tool("ask")).text == "beta: beta-train-2"
    assert {request.header("x-api-key") for request in sessions.requests} == {KEY}
    assert {request.header("x-deployment") for request in sessions.requests} == {"owner/name"}
    assert {request.upstream_status for request in sessions.requests} == {200}
    without_id = {request.path for request in sessions.requests if request.header("x-session-id") is None}
    assert without_id == {"/create_session"}
    assert session.session_id not in platform.live()


async def test_every_id_is_given_back(hosts):
    _, sessions = hosts
    async with connected(hosts) as client:
        await client.environment("owner/name").num_tasks("train")
        async with client.environment("owner/name").session(TASK):
            pass
    assert (client.open_sessions, client.leaked_sessions) == (0, 0)
    made = sessions.count("POST", "/create_session")
    assert made == 2
    given_back = {request.header("x-session-id") for request in sessions.find("POST", "/delete_session")}
    assert len(given_back) == made
    # The one that looked around has no episode to end.
    ended = [request.header("x-session-id") for request in sessions.find("POST", "/delete")]
    assert ended == [request.header("x-session-id") for request in sessions.find("POST", "/create")]


@BACKENDS
async def test_looking_around_costs_one_short_session_for_a_whole_client(hosts):
    _, sessions = hosts
    async with connected(hosts) as client:
        for variant in ("alpha", "beta"):
            environment = client.environment("owner/name", variant=variant)
            await environment.list_splits()
            await environment.list_tools()
            assert len(await environment.list_tasks("train", 0, 5)) == 5
        assert len(await client.environment("owner/name", variant="indexed").list_tasks("train")) == 12
    assert sessions.count("POST", "/create_session") == 1
    assert sessions.count("POST", "/create") == 0


@pytest.mark.slow
async def test_looking_around_with_pauses_costs_one_session_too(hosts):
    _, sessions = hosts
    async with connected(hosts) as client:
        await client.environment("owner/name").num_tasks("train")
        await anyio.sleep(3)
        await client.environment("owner/name").num_tasks("train")
    assert sessions.count("POST", "/create_session") == 1


async def test_id_that_nobody_looks_around_with_is_given_back_before_the_client_closes(hosts):
    _, sessions = hosts
    async with connected(hosts, keepalive=KeepalivePolicy(interval=0.1)) as client:
        await client.environment("owner/name").num_tasks("train")
        await sessions.wait_for_async("POST", "/delete_session")
        assert await client.environment("owner/name").num_tasks("train") == 70
    assert sessions.count("POST", "/create_session") == 2
    assert client.leaked_sessions == 0


async def test_deployment_without_a_variant_is_its_first_environment(hosts):
    async with connected(hosts) as client:
        assert await client.environment("owner/name").name() == "alpha"


@pytest.mark.parametrize(("fault", "kind"), [(None, EnvironmentNotFound), (Status(500, "no list"), StatusError)])
async def test_session_that_finds_no_environment_gives_its_id_back(hosts, fault, kind):
    _, sessions = hosts
    if fault is not None:
        sessions.add(Rule("GET", "/list_environments", fault))
    async with connected(hosts) as client:
        with pytest.raises(kind):
            await client.environment("owner/name", variant="nosuch").session(TASK).__aenter__()
        assert client.open_sessions == 0
    assert [request.path for request in sessions.requests] == [
        "/create_session",
        "/list_environments",
        "/delete_session",
    ]


async def test_unknown_deployment_is_the_servers_refusal(hosts):
    async with connected(hosts) as client:
        with pytest.raises(StatusError, match="Deployment not found") as caught:
            await client.environment("owner/other").num_tasks("train")
    assert caught.value.status == 404


async def test_secrets_go_in_the_header_alone(hosts):
    _, sessions = hosts
    async with connected(hosts) as client:
        environment = client.environment("owner/name", variant="secretsenvironment")
        async with environment.session(TASK, secrets={"K": ("vv-secret", ["example.com"])}) as session:
            assert (await session.call_tool("reveal")).text == '{"K": "vv-secret"}'
    assert sessions.count("GET", "/version") == 0
    assert not [request for request in sessions.requests if b"vv-secret" in request.body]


@BACKENDS
async def test_catalogue_tells_about_the_deployment_on_its_own_host(hosts):
    api, sessions = hosts
    async with connected(hosts) as client:
        environment = client.environment("owner/name", variant="beta")
        assert await environment.required_secrets() == ["K"]
        difficulties = await environment.task_difficulty(split="train")
    assert [difficulty.task_index for difficulty in difficulties] == list(range(10))
    assert difficulties[3].avg_reward == 0.75
    assert difficulties[3].response_chars.p50 is not None
    assert {(difficulty.split, difficulty.variant) for difficulty in difficulties} == {("train", "beta")}
    assert [(request.path, request.query) for request in api.requests] == [
        ("/v1/environments/owner/name/required-secrets", ""),
        ("/v1/environments/owner/name/task-difficulty", "variant=beta&split=train"),
    ]
    assert {request.header("x-api-key") for request in api.requests} == {KEY}
    assert not sessions.requests


async def test_question_to_the_catalogue_needs_a_catalogue_name(hosts):
    api, _ = hosts
    async with connected(hosts) as client:
        with pytest.raises(ValueError, match="owner/name"):
            await client.environment("beta").required_secrets()
    assert not api.requests


@pytest.mark.parametrize("key", ["sk-Wrong-10101", None])
async def test_wrong_or_missing_key_is_an_authentication_error_that_shows_none(hosts, monkeypatch, key, caplog):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)  # for the catalogue's own hosts, which these are not
    caplog.set_level(logging.DEBUG)
    _, sessions = hosts
    async with connected(hosts, api_key=key) as client:
        with pytest.raises(AuthenticationError) as caught:
            await client.environment("owner/name").num_tasks("train")
        shown = f"{client!r} {caught.value} {caught.value!r} {pickle.dumps(caught.value)!r} {caplog.text}"
    assert caught.value.status == 401
    assert len(sessions.requests) == 1
    assert KEY not in shown
    assert "sk-Wrong" not in shown
