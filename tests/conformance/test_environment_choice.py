"""The environment that was named is the one that answers, whatever its position in the server's list."""

import logging

import pytest
from servers import serve

from fixtures.proxy import ReplaceBody, Rule
from ors_client import AsyncClient, EnvironmentNotFound, TaskRef

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


async def test_environments_are_listed_in_the_servers_order(client):
    names = await client.list_environments()
    assert names[0] == "echoenvironment"
    assert {"alpha", "beta", "gamma", "indexed"} < set(names)


@pytest.mark.parametrize("name", ["beta", "BETA"])
async def test_description_is_that_of_the_named_environment(client, name):
    environment = client.environment(name)
    assert await environment.name() == "beta"
    assert [tool.name for tool in await environment.list_tools()] == ["ask", "beta_only"]
    assert await environment.num_tasks("train") == 10
    assert [split.name for split in await environment.list_splits()] == ["train"]
    task = await environment.get_task("train", 3)
    assert (task.environment, task.spec, task.split, task.index) == (
        "beta",
        {"id": "beta-train-3", "number": 3},
        "train",
        3,
    )


@BACKENDS
async def test_episode_by_index_runs_in_the_named_environment(client):
    async with client.environment("beta").session(TaskRef("train", 2)) as session:
        assert [tool.name for tool in await session.list_tools()] == ["ask", "beta_only"]
        assert [block.text for block in await session.get_prompt()] == ["beta: beta-train-2"]
        assert (await session.call_tool("beta_only")).text == "beta: beta-train-2"


async def test_episode_of_a_listed_task_runs_in_the_named_environment(client):
    environment = client.environment("beta")
    task = (await environment.list_tasks("train"))[4]
    async with environment.session(task) as session:
        assert (await session.call_tool("ask")).text == "beta: beta-train-4"


async def test_tool_of_another_environment_is_unknown_to_the_named_one(client, server):
    async with client.environment("gamma").session(TaskRef("hard", 1)) as session:
        assert (await session.call_tool("who")).text == "gamma: gamma-hard-1"
    executed = server.journal.executions("who", sid=session.session_id)
    assert [entry["env"] for entry in executed] == ["gamma"]


@pytest.mark.parametrize("name", [None, "nosuch"])
async def test_unknown_or_missing_name_among_several_lists_them(client, name):
    with pytest.raises(EnvironmentNotFound) as caught:
        await client.environment(name).list_tasks("train")
    assert caught.value.name == name
    assert "beta" in caught.value.available
    assert "'beta'" in str(caught.value)


async def test_unknown_name_opens_no_session(watched, proxy):
    with pytest.raises(EnvironmentNotFound):
        async with watched.environment("nosuch").session(TASK):
            pass
    assert [request.path for request in proxy.requests] == ["/list_environments"]


async def test_environment_that_only_the_list_knows_is_not_found_and_leaves_nothing(watched, proxy):
    proxy.add(Rule("GET", "/list_environments", ReplaceBody(b'["echoenvironment", "ghost"]')))
    with pytest.raises(EnvironmentNotFound) as caught:
        async with watched.environment("ghost").session(TASK):
            pass
    assert caught.value.name == "ghost"
    assert proxy.count("POST", "/create") == 1
    [deleted] = proxy.find("POST", "/delete")
    assert deleted.header("x-session-id") == proxy.find("POST", "/create")[0].header("x-session-id")


@pytest.mark.parametrize("kind", ["ours", "ors-sdk"])
async def test_any_name_or_none_reaches_the_only_environment(kind, caplog):
    with serve(kind, "--env", "echo") as server:
        async with AsyncClient(server.url) as client:
            with caplog.at_level(logging.WARNING, "ors_client"):
                assert await client.environment().name() == "echoenvironment"
                assert not caplog.records
                async with client.environment("other").session(TASK) as session:
                    assert (await session.call_tool("echo", {"text": "hello"})).reward == 1.0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'other'" in caplog.text
    assert "'echoenvironment'" in caplog.text


async def test_no_request_is_redirected(watched, proxy):
    environment = watched.environment("Beta")
    await environment.list_tasks("train", 0, 2)
    await environment.list_tools()
    async with environment.session(TASK) as session:
        await session.get_prompt()
        await session.list_tools()
        await session.call_tool("ask")
    assert {request.upstream_status for request in proxy.requests} == {200}
