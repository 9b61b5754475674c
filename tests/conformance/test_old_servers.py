"""What servers without the newer routes make harder to tell: a setup that failed, and tasks without a list."""

import pytest

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import AsyncClient, SetupFailed, StatusError, Task, TaskRef

pytestmark = pytest.mark.anyio

BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def broken(stage):
    return Task(environment="failingenvironment", spec={"raises": stage, "message": "no disk"})


@BACKENDS
@pytest.mark.parametrize("stage", ["constructor", "setup"])
async def test_failed_setup_is_told_without_task_tools_to_tell_it_by(sparse_server, stage):
    async with (
        AsyncClient(sparse_server.url) as client,
        client.environment("failingenvironment").session(broken(stage)) as session,
    ):
        for ask in (session.get_prompt, session.get_messages, lambda: session.call_tool("step", {"reward": 1})):
            with pytest.raises(SetupFailed) as caught:
                await ask()
            assert caught.value.detail == "EnvironmentBrokenError: no disk"
    assert not sparse_server.journal.executions(sid=session.session_id)


@BACKENDS
async def test_first_call_tells_that_the_setup_failed_and_is_not_sent(sparse_server):
    with FaultProxy(sparse_server.url) as proxy:
        async with (
            AsyncClient(proxy.url) as client,
            client.environment("failingenvironment").session(broken("setup")) as session,
        ):
            with pytest.raises(SetupFailed, match="no disk"):
                await session.call_tool("step", {"reward": 1})
    assert "step" not in [request.json()["name"] for request in proxy.find("POST", "/call")]


@BACKENDS
async def test_prompt_that_raises_is_no_failed_setup_without_task_tools_either(sparse_server):
    async with (
        AsyncClient(sparse_server.url) as client,
        client.environment("failingenvironment").session(broken("prompt")) as session,
    ):
        with pytest.raises(StatusError, match="no disk") as caught:
            await session.get_prompt()
        assert caught.value.status == 500
        assert (await session.call_tool("step", {"reward": 0.5})).reward == 0.5
    [ran] = sparse_server.journal.executions(sid=session.session_id)
    assert ran["tool"] == "step"


@BACKENDS
async def test_list_that_an_old_server_fails_to_give_is_asked_for_task_by_task(sparse_server):
    with FaultProxy(sparse_server.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            tasks = await client.environment("indexed").list_tasks("train", 2, 5)
    assert [task.spec["number"] for task in tasks] == [2, 3, 4]
    assert [request.upstream_status for request in proxy.find("POST", "/tasks")] == [500]


async def test_task_that_raises_is_no_missing_list(sparse_server):
    async with AsyncClient(sparse_server.url) as client:
        with pytest.raises(StatusError, match="Invalid split"):
            await client.environment("indexed").list_tasks("nosuch")
        async with client.environment("indexed").session(TaskRef("train", 3)) as session:
            assert (await session.call_tool("who")).text == "indexed: indexed-train-3"


@BACKENDS
async def test_server_with_the_fewest_routes_runs_an_episode(spec_server):
    with FaultProxy(spec_server.url) as proxy:
        for method, path in (("GET", "/list_environments"), ("POST", "/ping"), ("GET", "/tools"), ("POST", "/tasks")):
            proxy.add(Rule(method, path, Status(404, "Not Found"), times=None))
        async with AsyncClient(proxy.url) as client:
            environment = client.environment("echoenvironment")
            tasks = await environment.list_tasks("train", 0, 2)
            async with environment.session(tasks[1]) as session:
                output = await session.call_tool("echo", {"text": "world"})
    assert (output.text, output.reward, output.finished) == ("match", 1.0, True)
    assert session.session_id not in spec_server.live()
