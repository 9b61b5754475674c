"""A session is opened with what was asked for and nothing else; what can't be opened leaves nothing behind."""

import pytest
from servers import serve

from fixtures.proxy import FaultProxy
from ors_client import AsyncClient, SetupFailed, StatusError, Task, TaskRef, Timeouts, ToolFailed

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def task(environment, **spec):
    return Task(environment=environment, spec=spec)


@BACKENDS
async def test_id_of_a_stream_without_data_is_the_streams_id(client, server):
    async with client.environment("echoenvironment").session(TASK) as session:
        await session.get_prompt()
        assert session.session_id in server.live()


@BACKENDS
async def test_id_of_a_json_answer_is_its_sid(sparse_server):
    async with (
        AsyncClient(sparse_server.url) as client,
        client.environment("echoenvironment").session(TASK) as session,
    ):
        await session.get_prompt()
        assert session.session_id in sparse_server.live()
        assert (await session.call_tool("echo", {"text": "hello"})).finished


@pytest.mark.parametrize(
    ("opened", "sent"),
    [
        (TASK, {"env_name": "echoenvironment", "split": "train", "index": 0}),
        (
            Task(environment="echoenvironment", spec={"target": "x", "none": None}, split="train", index=9),
            {"env_name": "echoenvironment", "task_spec": {"target": "x", "none": None}},
        ),
    ],
)
async def test_request_holds_what_is_set_and_nothing_else(watched, proxy, opened, sent):
    async with watched.environment("echoenvironment").session(opened):
        pass
    [create] = proxy.find("POST", "/create")
    assert create.json() == sent
    assert create.header("x-secrets") is None


async def test_negative_index_is_the_last_task(client):
    async with client.environment("beta").session(TaskRef("train", -1)) as session:
        assert (await session.call_tool("ask")).text == "beta: beta-train-9"


async def test_listed_task_arrives_as_it_was_listed(client, server):
    environment = client.environment("imagesenvironment")
    listed = (await environment.list_tasks("train"))[1]
    async with environment.session(listed) as session:
        await session.get_prompt()
    [constructed] = [entry for entry in server.journal.entries("construct") if entry["sid"] == session.session_id]
    assert constructed["task_spec"] == {"id": "green", "colour": [0, 255, 0]}


@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
async def test_toolset_is_named_to_the_server(watched, proxy, server):
    with pytest.raises(StatusError, match="unknown toolset") as caught:
        async with watched.environment("echoenvironment").session(TASK, toolset="nosuch"):
            pass
    assert caught.value.status == 400
    assert proxy.find("POST", "/create")[0].json()["toolset_name"] == "nosuch"
    server.set_aside(seconds=0)  # openreward 0.1.167 constructs first, refuses then, and forgets what it constructed


async def test_toolset_that_an_older_server_does_not_know_is_an_error(ors_sdk):
    async with AsyncClient(ors_sdk.url) as client:
        with pytest.raises(StatusError, match="toolset_name") as caught:
            async with client.environment("echoenvironment").session(TASK, toolset="web"):
                pass
    assert caught.value.status == 422


@BACKENDS
@pytest.mark.parametrize("opened", [TaskRef("nosuch", 0), TaskRef("train", 99)])
async def test_task_that_is_not_there_is_refused_and_its_id_given_back(watched, proxy, opened):
    with pytest.raises(StatusError, match="Invalid") as caught:
        async with watched.environment("echoenvironment").session(opened):
            pass
    assert caught.value.status == 400
    paths = [request.path for request in proxy.requests]
    assert paths[:5] == ["/list_environments", "/create_session", "/create", "/delete", "/delete_session"]
    assert set(paths[5:]) <= {"/echoenvironment/splits", "/echoenvironment/num_tasks"}  # for the message
    assert watched.open_sessions == 0


@BACKENDS
async def test_failed_setup_is_told_once_and_the_session_deleted(watched, proxy, server):
    session = watched.environment("failingenvironment").session(task("failingenvironment", raises="setup"))
    async with session:
        for ask in (session.get_prompt, session.get_messages, lambda: session.call_tool("step", {"reward": 1})):
            with pytest.raises(SetupFailed) as caught:
                await ask()
            assert caught.value.detail == "EnvironmentBrokenError: the setup is broken"
    assert proxy.count("GET", "/prompt") == 1
    assert proxy.count("POST", "/call") == 0
    assert proxy.count("POST", "/delete") == 1
    assert session.session_id not in server.live()


@BACKENDS
async def test_first_call_tells_that_the_setup_failed(watched, proxy):
    broken = task("failingenvironment", raises="setup")
    async with watched.environment("failingenvironment").session(broken) as session:
        with pytest.raises(SetupFailed, match="the setup is broken"):
            await session.call_tool("step", {"reward": 1})
    assert proxy.count("POST", "/call") == 0


@BACKENDS
async def test_failed_constructor_is_a_failed_setup_wherever_it_shows(client, server):
    with pytest.raises(SetupFailed) as caught:
        async with client.environment("failingenvironment").session(
            task("failingenvironment", raises="constructor", message="no money")
        ) as session:
            await session.get_prompt()
    assert caught.value.detail == "EnvironmentBrokenError: no money"
    assert client.open_sessions == 0
    assert caught.value.session_id not in server.live()


async def test_prompt_that_raises_is_no_failed_setup(client):
    broken = task("failingenvironment", raises="prompt")
    async with client.environment("failingenvironment").session(broken) as session:
        with pytest.raises(StatusError, match="the prompt is broken") as caught:
            await session.get_prompt()
        assert caught.value.status == 500
        assert (await session.call_tool("step", {"reward": 0.5})).reward == 0.5


async def test_tool_that_fails_is_no_failed_setup(client):
    async with client.environment("failingenvironment").session(TASK) as session:
        with pytest.raises(ToolFailed):
            await session.call_tool("boom", {"message": "x"})
        assert await session.get_prompt()


async def test_teardown_that_raises_is_not_the_callers_problem(client):
    broken = task("failingenvironment", raises="teardown")
    async with client.environment("failingenvironment").session(broken) as session:
        await session.get_prompt()
    assert client.open_sessions == 0


async def test_setup_longer_than_the_response_limit_costs_no_second_execution(proxy, server):
    patient = Timeouts(response=0.5)
    async with AsyncClient(proxy.url, timeout=patient) as client:
        slow = task("slowenvironment", setup_seconds=1.5)
        async with client.environment("slowenvironment").session(slow) as session:
            output = await session.call_tool("count")
    assert output.metadata == {"count": 1}
    assert proxy.count("POST", "/call") == 1
    assert len(server.journal.executions("count", sid=session.session_id)) == 1
    assert proxy.count("GET", "/prompt") > 1


async def test_backend_that_says_it_is_starting_is_waited_for():
    with serve("ours", "--env", "slow", "--ready-wait", "0.1") as server, FaultProxy(server.url) as proxy:
        slow = task("slowenvironment", setup_seconds=1.0)
        async with AsyncClient(proxy.url) as client, client.environment().session(slow) as session:
            output = await session.call_tool("count")
    assert output.metadata == {"count": 1}
    statuses = [request.upstream_status for request in proxy.find("GET", "/prompt")]
    assert statuses[0] == 503
    assert statuses[-1] == 200
    assert proxy.count("POST", "/call") == 1


@BACKENDS
async def test_entering_does_not_wait_for_the_setup(watched, proxy, server):
    slow = task("slowenvironment", setup_seconds=20.0)
    async with watched.environment("slowenvironment").session(slow) as session:
        pass
    # Setups are waited for with a request for the prompt, the messages or the tools.
    paths = {request.path for request in proxy.requests}
    assert paths == {"/list_environments", "/create_session", "/create", "/delete"}
    assert session.session_id not in server.live()


async def test_constructor_longer_than_the_response_limit_runs_once(proxy, server):
    async with AsyncClient(proxy.url, timeout=Timeouts(response=0.4)) as client:
        slow = task("slowenvironment", constructor_seconds=1.0)
        async with client.environment("slowenvironment").session(slow) as session:
            await session.get_prompt()
    assert proxy.count("POST", "/create") == 1
    constructed = [entry for entry in server.journal.entries("construct") if entry["sid"] == session.session_id]
    assert len(constructed) == 1
