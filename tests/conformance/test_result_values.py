"""Rewards, images, metadata and blocks mean the same from every server; nothing is guessed."""

import base64

import pytest

from fixtures.environments.images import png
from ors_client import AsyncClient, ImageBlock, TaskRef, TextBlock, ToolFailed, ToolOutput, UnknownBlock

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)


@pytest.mark.parametrize(
    ("tool", "arguments", "reward"),
    [
        ("null_reward", {}, None),
        ("nan_reward", {}, None),  # every official server writes it as null
        ("int_reward", {}, 1.0),
        ("step", {"reward": 0.25}, 0.25),
        ("step", {"reward": -1}, -1.0),
        ("reject", {"message": "no"}, 0.0),
    ],
)
async def test_reward_is_the_servers_own(client, tool, arguments, reward):
    async with client.environment("failingenvironment").session(TASK) as session:
        output = await session.call_tool(tool, arguments)
    assert output.reward == reward
    assert type(output.reward) is type(reward)


async def test_result_without_extras_takes_their_defaults(client):
    async with client.environment("awkwardenvironment").session(TASK) as session:
        output = await session.call_tool("blank")
    assert output == ToolOutput(blocks=[TextBlock(text="")], metadata=None, reward=None, finished=False)


async def test_metadata_arrives_as_sent(client):
    async with client.environment("counterenvironment").session(TASK) as session:
        first, second = await session.call_tool("step"), await session.call_tool("step")
    assert (first.metadata["session"], second.metadata["session"]) == (1, 2)
    assert second.metadata["total"] == first.metadata["total"] + 1


async def test_unknown_block_is_kept_in_its_place(ours):
    async with (
        AsyncClient(ours.url) as client,
        client.environment("awkwardenvironment").session(TASK) as session,
    ):
        output = await session.call_tool("novel")
    assert [block.type for block in output.blocks] == ["text", "novel", "text"]
    assert output.blocks[1] == UnknownBlock(type="novel", raw={"type": "novel", "shape": {"sides": 3}})
    assert output.text == "before\nafter"


async def test_images_are_identical_in_prompt_and_result(client):
    async with client.environment("imagesenvironment").session(TASK) as session:
        prompt = await session.get_prompt()
        output = await session.call_tool("paint", {"red": 1, "green": 2, "blue": 3})
    assert isinstance(prompt[1], ImageBlock)
    assert prompt[1].decode() == png(255, 0, 0)
    assert [type(block) for block in output.blocks] == [TextBlock, ImageBlock]
    [image] = output.images
    assert image.mime_type == "image/png"
    assert image.data == base64.b64encode(png(1, 2, 3)).decode()


async def test_images_and_text_keep_their_order(client):
    async with client.environment("imagesenvironment").session(TASK) as session:
        output = await session.call_tool("gallery")
    assert [block.type for block in output.blocks] == ["image", "text", "image", "image"]
    assert [image.decode() for image in output.images] == [png(1, 2, 3), png(4, 5, 6), png(7, 8, 9)]


@pytest.mark.parametrize("tool", ["lone_surrogate", "no_output"])
async def test_result_that_no_server_can_send_is_the_tools_failure(client, tool):
    async with client.environment("failingenvironment").session(TASK) as session:
        with pytest.raises(ToolFailed) as caught:
            await session.call_tool(tool)
    assert caught.value.tool == tool
    assert caught.value.detail
