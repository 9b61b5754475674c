"""Tools: the environment's, the task's, the terminal one, and what older servers do not say."""

import pytest

from fixtures.proxy import FaultProxy
from ors_client import AsyncClient, SessionLost, TaskRef, TerminalToolSpec, ToolList, ToolRejected

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


async def test_schemas_and_descriptions_arrive_word_for_word(client, stranger):
    told = await stranger.get("/schemasenvironment/tools")
    tools = await client.environment("schemasenvironment").list_tools()
    assert [tool.model_dump() for tool in tools] == told.json()["tools"]


async def test_tool_without_parameters_has_no_schema(client):
    tools = {tool.name: tool for tool in await client.environment("schemasenvironment").list_tools()}
    assert tools["plain"].input_schema is None
    assert tools["undocumented"].description == ""


@BACKENDS
async def test_session_lists_the_tools_of_its_task(client):
    environment = client.environment("tasktoolsenvironment")
    assert [tool.name for tool in await environment.list_tools()] == ["look"]
    async with environment.session(TaskRef("train", 3)) as session:
        assert [tool.name for tool in await session.list_tools()] == ["look", "open_3", "shortcut"]
        assert (await session.call_tool("open_3", {"key": "3"})).reward == 1.0


async def test_session_asks_for_its_tools_once(watched, proxy):
    async with watched.environment("tasktoolsenvironment").session(TASK) as session:
        assert await session.list_tools() == await session.list_tools()
        await session.terminal_tool()
    assert proxy.count("GET", "tools") == 1


async def test_tool_that_is_not_listed_can_still_be_called(client):
    async with client.environment("tasktoolsenvironment").session(TASK) as session:
        assert (await session.call_tool("open_3", {"key": "3"})).text == "wrong"


async def test_server_without_task_tools_gives_the_environments(sparse_server):
    async with (
        AsyncClient(sparse_server.url) as client,
        client.environment("tasktoolsenvironment").session(TASK) as session,
    ):
        assert [tool.name for tool in await session.list_tools()] == ["look"]


async def test_missing_task_tools_are_asked_for_once(old_server):
    with FaultProxy(old_server.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            for _ in range(2):
                async with client.environment("tasktoolsenvironment").session(TASK) as session:
                    await session.list_tools()
    assert proxy.count("GET", "/task_tools") == 1
    assert proxy.count("GET", "/tools") == 2


async def test_tools_of_a_lost_session_are_an_error_and_not_the_environments(watched, proxy, stranger):
    async with watched.environment("tasktoolsenvironment").session(TASK) as session:
        await stranger.post("/delete", headers={"x-session-id": session.session_id})
        with pytest.raises(SessionLost) as caught:
            await session.list_tools()
    assert caught.value.session_id == session.session_id
    assert proxy.count("GET", "/tools") == 0


@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
async def test_terminal_tool_is_told_apart_and_takes_the_message(client, server):
    async with client.environment("chatenvironment").session(TASK) as session:
        assert [tool.name for tool in await session.list_tools()] == ["note"]
        assert await session.terminal_tool() == TerminalToolSpec(
            name="submit", arg="text", description="Take the answer."
        )
        output = await session.call_terminal_tool("It is Paris.")
    assert (output.reward, output.finished) == (1.0, True)
    [execution] = server.journal.executions("submit", sid=session.session_id)
    assert execution["arguments"] == {"text": "It is Paris."}


async def test_no_terminal_tool_is_a_rejection_without_a_request(watched, proxy):
    async with watched.environment("echoenvironment").session(TASK) as session:
        assert await session.terminal_tool() is None
        with pytest.raises(ToolRejected) as caught:
            await session.call_terminal_tool("done")
    assert caught.value.reason == "not_found"
    assert proxy.count("POST", "/call") == 0


@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
async def test_description_of_a_newer_server_is_complete(client):
    described = await client.environment("chatenvironment").describe_tools()
    assert described.terminal_tool is not None
    assert described.supports_score_group is True
    assert described.message_block_types == ["text", "image", "reasoning", "tool_call", "tool_result"]


@pytest.mark.parametrize("name", ["ors_sdk", "spec_server", "old_server"])
async def test_description_of_an_older_server_takes_its_defaults(request, name):
    async with AsyncClient(request.getfixturevalue(name).url) as client:
        described = await client.environment("echoenvironment").describe_tools()
    assert described == ToolList(
        tools=described.tools,
        terminal_tool=None,
        supports_score_group=False,
        message_block_types=["text", "image"],
    )
    assert [tool.name for tool in described.tools] == ["echo"]
