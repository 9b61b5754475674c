"""Secrets reach the environment on every server, and nobody else: no key and no secret where it was not asked for."""

import base64
import copy
import json
import logging
import pickle
import traceback

import pytest

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import AsyncClient, Layout, Secret, SetupFailed, StatusError, Task, TaskRef, ToolFailed

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
KEY = "sk-Key-6f1d2a93"
VALUE = "hunter2-correct-horse"
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
ALL_SERVERS = pytest.mark.parametrize("name", ["ours", "openreward", "ors_sdk", "spec_server", "old_server"])


async def reveal(client, secrets):
    async with client.environment("secretsenvironment").session(TASK, secrets=secrets) as session:
        return json.loads((await session.call_tool("reveal")).text)


@BACKENDS
@ALL_SERVERS
async def test_secret_reaches_the_environment(request, name):
    async with AsyncClient(request.getfixturevalue(name).url) as client:
        assert await reveal(client, {"K": VALUE}) == {"K": VALUE}
        assert await reveal(client, {"K": "another"}) == {"K": "another"}


@ALL_SERVERS
async def test_secret_reaches_the_environment_of_a_server_that_is_known_by_two_names(request, name):
    url = request.getfixturevalue(name).url
    two_names = Layout(api=url.replace("127.0.0.1", "localhost"), sessions=url)
    async with AsyncClient(two_names) as client:
        assert await reveal(client, {"K": VALUE}) == {"K": VALUE}
    assert (client.open_sessions, client.leaked_sessions) == (0, 0)


@pytest.mark.parametrize("secret", [VALUE, Secret(VALUE, ("example.com",)), (VALUE, ["example.com"])])
async def test_secret_of_any_name_and_shape_is_accepted(client, secret):
    secrets = {"my_db_password": secret, "caf\u00e9": "\u00fc \n\u2028"}
    assert await reveal(client, secrets) == {"my_db_password": VALUE, "caf\u00e9": "\u00fc \n\u2028"}


async def test_no_secrets_are_an_empty_mapping(client):
    assert await reveal(client, None) == {}
    assert await reveal(client, {}) == {}


async def test_header_is_the_only_place_on_a_server_that_reads_it(openreward):
    with FaultProxy(openreward.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            await reveal(client, {"K": VALUE})
            await reveal(client, {"K": VALUE})
    assert not [request for request in proxy.requests if VALUE.encode() in request.body]
    assert [request.path for request in proxy.requests if request.header("x-secrets")] == ["/create", "/create"]
    content = json.loads(base64.b64decode(proxy.find("POST", "/create")[0].header("x-secrets")))
    assert content == {"K": {"value": VALUE, "allowed_domains": []}}
    assert proxy.count("GET", "/version") == 1


async def test_server_that_hides_its_version_and_refuses_the_body_is_asked_again_without_it(openreward, caplog):
    caplog.set_level(logging.DEBUG)
    with FaultProxy(openreward.url) as proxy:
        proxy.add(Rule("GET", "/version", Status(404), times=None))
        async with AsyncClient(proxy.url) as client:
            assert await reveal(client, {"K": VALUE}) == {"K": VALUE}
            assert await reveal(client, {"K": VALUE}) == {"K": VALUE}
    creations = proxy.find("POST", "/create")
    assert [request.upstream_status for request in creations] == [422, 200, 200]
    assert ["secrets" in request.json() for request in creations] == [True, False, False]
    assert VALUE not in caplog.text


async def test_secrets_are_never_sent_without_a_session(watched, proxy):
    await reveal(watched, {"K": VALUE})
    encoded = base64.b64encode(VALUE.encode())[:-4]
    for request in proxy.requests:
        if not request.path.endswith("/create"):
            assert request.header("x-secrets") is None
            assert VALUE.encode() not in request.body
            assert encoded not in request.body


async def test_key_of_the_catalogue_stays_at_home(proxy, monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    async with AsyncClient(proxy.url) as client:
        await client.environment("echoenvironment").list_tasks("train")
        await reveal(client, {"K": VALUE})
    assert proxy.requests
    for request in proxy.requests:
        assert request.header("x-api-key") is None
        assert request.header("authorization") is None
        assert request.header("x-deployment") is None
        assert KEY.encode() not in request.body
        assert KEY not in base64.b64decode(request.header("x-secrets") or "").decode()


async def test_explicit_key_goes_with_every_request_and_never_into_the_secrets(proxy):
    async with AsyncClient(proxy.url, api_key=KEY) as client:
        assert await reveal(client, {"K": VALUE}) == {"K": VALUE}
    assert {request.header("x-api-key") for request in proxy.requests} == {KEY}
    assert KEY not in base64.b64decode(proxy.find("POST", "/create")[0].header("x-secrets")).decode()


def shown(error):
    """Everything that a log, a report or another process may show of an error."""
    whole = [error, error.__cause__, error.__context__, copy.copy(error), pickle.loads(pickle.dumps(error))]  # noqa: S301 - our own
    texts = [f"{e} {e!r} {e.__dict__}" for e in whole if e is not None]
    return "\n".join([*texts, pickle.dumps(error).decode("latin-1"), *traceback.format_exception(error)])


@pytest.mark.parametrize("stage", ["constructor", "setup", "prompt"])
async def test_environment_that_shouts_its_secret_is_not_quoted(server, stage, caplog):
    caplog.set_level(logging.DEBUG)
    loud = Task(environment="failingenvironment", spec={"raises": stage, "message": f"can't use {VALUE} and {KEY}"})
    async with AsyncClient(server.url, api_key=KEY) as client:
        with pytest.raises((SetupFailed, StatusError)) as caught:
            async with client.environment("failingenvironment").session(loud, secrets={"K": VALUE}) as session:
                await session.get_prompt()
        reprs = f"{client!r} {session!r}" if stage != "constructor" else repr(client)
    assert "can't use *** and ***" in caught.value.detail
    for text in (shown(caught.value), caplog.text, reprs):
        assert VALUE not in text
        assert KEY not in text


async def test_tool_that_shouts_its_secret_is_not_quoted(server, caplog):
    caplog.set_level(logging.DEBUG)
    async with (
        AsyncClient(server.url, api_key=KEY) as client,
        client.environment("failingenvironment").session(TASK, secrets={"K": VALUE}) as session,
    ):
        with pytest.raises(ToolFailed) as caught:
            await session.call_tool("boom", {"message": f"{KEY} {VALUE}"})
    assert caught.value.detail == "*** ***"
    assert VALUE not in shown(caught.value) + caplog.text
    assert KEY not in shown(caught.value) + caplog.text


async def test_refusal_that_echoes_the_request_does_not_show_it(ors_sdk, caplog):
    caplog.set_level(logging.DEBUG)
    async with AsyncClient(ors_sdk.url, api_key=KEY) as client:
        # A toolset is what this server refuses, with the whole body in its answer.
        with pytest.raises(StatusError) as caught:
            async with client.environment("secretsenvironment").session(TASK, secrets={"K": VALUE}, toolset=VALUE):
                pass
    assert caught.value.status == 422
    assert VALUE not in shown(caught.value) + caplog.text


@pytest.mark.parametrize("secrets", [{"K": 7}, {"K": None}, {7: VALUE}, [VALUE], {"K": (VALUE, "example.com")}])
async def test_secret_of_no_known_shape_is_refused_without_showing_it(watched, proxy, secrets):
    with pytest.raises(TypeError) as caught:
        async with watched.environment("secretsenvironment").session(TASK, secrets=secrets):
            pass
    assert VALUE not in str(caught.value)
    assert proxy.count("POST", "/create_session") == 0
