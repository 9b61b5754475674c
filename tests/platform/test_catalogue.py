"""A deployment of the catalogue by its name: what it is asked, what sessions are opened with, and who is refused."""

import logging

import pytest
from platforms import KEY, NAME

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import (
    AuthenticationError,
    BillingError,
    EnvironmentNotFound,
    Layout,
    Secret,
    StatusError,
    TaskRef,
)

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 1)


async def test_variants_of_a_deployment_are_its_environments(client_of, calm):
    async with client_of(calm.urls) as client:
        assert (await client.list_environments(NAME))[:2] == ["alpha", "beta"]
        for variant, tool in (("alpha", "who"), ("beta", "ask")):
            environment = client.environment(NAME, variant=variant)
            async with environment.session(TASK) as session:
                assert (await session.call_tool(tool)).text == f"{variant}: {variant}-train-1"


async def test_unknown_variant_is_an_error_that_lists_them(client_of, calm):
    async with client_of(calm.urls) as client:
        with pytest.raises(EnvironmentNotFound) as caught:
            await client.environment(NAME, variant="nosuch").list_splits()
    assert caught.value.available[:2] == ["alpha", "beta"]


@pytest.mark.parametrize(("variant", "tool"), [(None, "who"), ("beta", "ask")])
async def test_deployment_that_lists_no_environments_is_reached_all_the_same(client_of, calm, variant, tool):
    with FaultProxy(calm.urls[1]) as proxy:
        proxy.add(Rule("GET", "/list_environments", Status(404, "Not Found"), times=None))
        async with client_of((calm.urls[0], proxy.url)) as client:
            environment = client.environment(NAME, variant=variant)
            assert await environment.num_tasks("train") >= 10
            async with environment.session(TASK) as session:
                assert (await session.call_tool(tool)).text == f"{variant or 'alpha'}: {variant or 'alpha'}-train-1"


async def test_version_of_a_deployment_is_told(client_of, calm):
    async with client_of(calm.urls) as client:
        assert await client.server_version(NAME) == "0.1.167"
        assert await client.environment(NAME).server_version() == "0.1.167"


async def test_api_host_tells_secrets_and_difficulty(client_of, calm):
    async with client_of(calm.urls) as client:
        environment = client.environment(NAME, variant="beta")
        assert await environment.required_secrets() == ["K"]
        assert [task.task_index for task in await environment.task_difficulty(split="train")] == list(range(10))


async def test_session_is_asked_for_with_toolset_variables_and_secrets(client_of, calm, state_of):
    secrets = {"K": ("vv-secret", ["example.com"]), "L": Secret("ww-secret", ("example.org",))}
    async with client_of(calm.urls) as client:
        environment = client.environment(NAME, variant="secretsenvironment")
        session = environment.session(
            TaskRef("train", 0), secrets=secrets, toolset="codex", env_overrides={"LEVEL": "2"}
        )
        async with session:
            assert (await session.call_tool("reveal")).text == '{"K": "vv-secret", "L": "ww-secret"}'
    state = state_of(calm)
    assert state["openings"][-1] == {"env": {"LEVEL": "2"}, "secrets": {"K": ["example.com"], "L": ["example.org"]}}
    assert state["toolsets"][-1] == "codex"


async def test_unknown_toolset_is_the_servers_refusal(client_of, calm):
    async with client_of(calm.urls) as client:
        with pytest.raises(StatusError, match="unknown toolset 'nosuch'"):
            async with client.environment(NAME).session(TASK, toolset="nosuch"):
                pass
    assert client.leaked_sessions == 0


async def test_guest_may_set_the_variables_of_providers_alone(client_of, calm):
    async with client_of(calm.urls, api_key="sk-guest") as client:
        environment = client.environment(NAME)
        async with environment.session(TASK, env_overrides={"OPENAI_BASE_URL": "http://127.0.0.1:1"}):
            pass
        with pytest.raises(StatusError, match="Only the owner") as caught:
            async with environment.session(TASK, env_overrides={"LEVEL": "2"}):
                pass
    assert caught.value.status == 400


async def test_secret_goes_with_the_request_for_an_id_and_with_the_episode(client_of, calm):
    with FaultProxy(calm.urls[1]) as proxy:
        async with client_of((calm.urls[0], proxy.url)) as client:
            environment = client.environment(NAME, variant="secretsenvironment")
            async with environment.session(TaskRef("train", 0), secrets={"K": ("vv-secret", ["example.com"])}):
                pass
        carried = [request.path for request in proxy.requests if request.header("x-secrets")]
        assert carried == ["/create_session", "/create"]


async def test_secret_without_domains_never_reaches_the_catalogue(face, calm, monkeypatch):
    from faces import Awaited

    from ors_client import AsyncClient, Client

    monkeypatch.setenv("OPENREWARD_API_URL", calm.urls[0])
    with FaultProxy(calm.urls[1]) as proxy:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", proxy.url)
        async with Awaited(Client(api_key=KEY)) if face == "blocking" else AsyncClient(api_key=KEY) as client:
            with pytest.raises(ValueError, match=r"'K'"):
                async with client.environment(NAME).session(TASK, secrets={"K": "vv-secret"}):
                    pass
        assert not [request for request in proxy.requests if request.header("x-secrets")]


@pytest.mark.parametrize(
    ("key", "kind", "status"),
    [("sk-wrong-1", AuthenticationError, 401), (None, AuthenticationError, 401), ("sk-unpaid", BillingError, 402)],
)
async def test_refused_key_is_an_error_of_its_kind_wherever_it_is_met(  # noqa: PLR0917 - a row and its fixtures
    client_of, calm, key, kind, status, caplog
):
    caplog.set_level(logging.DEBUG)
    async with client_of(calm.urls, api_key=key) as client:
        environment = client.environment(NAME)
        for ask in (
            environment.list_splits,
            environment.required_secrets,
            environment.session(TASK).__aenter__,
            lambda: client.server_version(NAME),
        ):
            with pytest.raises(kind) as caught:
                await ask()
            assert caught.value.status == status
            assert "sk-" not in f"{caught.value!r}"
    assert "sk-" not in caplog.text


async def test_hosts_of_the_catalogue_come_from_the_variables(face, calm, monkeypatch):
    from faces import Awaited
    from platforms import variables

    from ors_client import AsyncClient, Client

    for name, value in variables(calm).items():
        monkeypatch.setenv(name, value)
    async with Awaited(Client()) if face == "blocking" else AsyncClient() as client:
        assert client.layout == Layout(api=calm.urls[0], sessions=calm.urls[1])
        assert await client.environment(NAME, variant="beta").num_tasks("train") == 10
