"""A call that was refused, raised or came too late is told apart, and costs the session nothing."""

import pytest

from ors_client import TaskRef, ToolFailed, ToolRejected

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def reason_on(server, reason):
    return None if server.kind == "ors-sdk" else reason  # ors-sdk refuses without a word for it


@BACKENDS
@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("nosuch", {}, "not_found"),
        ("echo", {"wrong": 1}, "input_validation"),
        ("echo", {}, "input_validation"),
        ("echo", {"text": 7}, "input_validation"),
    ],
)
async def test_refused_call_says_why_and_the_session_goes_on(client, server, tool, arguments, reason):
    async with client.environment("echoenvironment").session(TASK) as session:
        with pytest.raises(ToolRejected) as caught:
            await session.call_tool(tool, arguments)
        assert caught.value.reason == reason_on(server, reason)
        assert caught.value.tool == tool
        assert caught.value.session_id == session.session_id
        assert (await session.call_tool("echo", {"text": "hello"})).reward == 1.0


@BACKENDS
async def test_tool_that_raised_leaves_the_session_usable(client):
    async with client.environment("failingenvironment").session(TASK) as session:
        with pytest.raises(ToolFailed, match="a broken tool"):
            await session.call_tool("boom", {"message": "a broken tool"})
        assert session.lost is None
        assert (await session.call_tool("step", {"reward": 0.5})).reward == 0.5


async def test_call_after_the_end_is_rejected_without_a_request(watched, proxy):
    async with watched.environment("failingenvironment").session(TASK) as session:
        output = await session.call_tool("finish", {"reward": 1.0})
        assert (output.finished, session.finished) == (True, True)
        with pytest.raises(ToolRejected) as caught:
            await session.call_tool("step", {"reward": 0.0})
        assert caught.value.reason == "episode_finished"
    assert proxy.count("POST", "/call") == 1


async def test_finished_result_keeps_its_reward_and_the_prompt_can_still_be_read(client):
    async with client.environment("failingenvironment").session(TASK) as session:
        output = await session.call_tool("finish", {"reward": 0.75})
        assert output.reward == 0.75
        assert [block.text for block in await session.get_prompt()] == ["Break something."]


@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
async def test_end_that_only_the_server_knows_of_is_the_same_rejection(watched, proxy, stranger):
    async with watched.environment("failingenvironment").session(TASK) as session:
        await session.get_prompt()
        await stranger.post(
            "/failingenvironment/call",
            json={"name": "finish", "input": {"reward": 1.0}},
            headers={"x-session-id": session.session_id},
        )
        for _ in range(2):
            with pytest.raises(ToolRejected) as caught:
                await session.call_tool("step", {"reward": 0.0})
            assert caught.value.reason == "episode_finished"
    assert proxy.count("POST", "/call") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([1], TypeError),
        ("text", TypeError),
        ({1: "x"}, TypeError),
        ({"deep": {2: "x"}}, TypeError),
        ({"text": object()}, TypeError),
        ({"text": {1, 2}}, TypeError),
        ({"text": float("nan")}, ValueError),
        ({"text": [float("inf")]}, ValueError),
    ],
)
async def test_arguments_that_are_no_json_object_are_refused_without_a_request(watched, proxy, arguments, error):
    async with watched.environment("echoenvironment").session(TASK) as session:
        with pytest.raises(error):
            await session.call_tool("echo", arguments)
    assert proxy.count("POST", "/call") == 0


@pytest.mark.parametrize(
    "value",
    [
        "caf\u00e9 \u4e16\u754c \U0001f600",
        "\u2028\u2029\u0085\ufeff",
        'quote " backslash \\ nul \x00 newline \n',
        " " * 10_000,
    ],
)
async def test_arguments_reach_the_tool_to_the_letter(client, server, value):
    async with client.environment("schemasenvironment").session(TASK) as session:
        output = await session.call_tool("mapping", {"headers": {value: value}, "anything": [None, True, 1.5, {}]})
        [execution] = server.journal.executions("mapping", sid=session.session_id)
    assert execution["arguments"] == {"headers": {value: value}, "anything": [None, True, 1.5, {}]}
    assert output.blocks


@pytest.mark.parametrize("name", ["file-read", "file.read", "class", "_x", "2fast", "reset"])
async def test_tool_of_any_name_can_be_called(client, name):
    async with client.environment("schemasenvironment").session(TASK) as session:
        output = await session.call_tool(name, {"text": name})
    assert name in output.text


async def test_parameters_of_any_name_reach_the_tool(client):
    sent = {"from": "a", "class": 2, "x-y": True, "self": "me"}
    async with client.environment("schemasenvironment").session(TASK) as session:
        output = await session.call_tool("keywords", sent)
    assert output.text.count('"x-y": true') == 1
