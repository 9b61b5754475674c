"""Messages and group scoring, where a server has them, and what stands in for them where it has not."""

import pytest

from fixtures.proxy import FaultProxy
from ors_client import (
    AsyncClient,
    GroupCandidate,
    Message,
    StatusError,
    TaskRef,
    TextBlock,
    ToolFailed,
)

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
MODERN = pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
OLDER = pytest.mark.parametrize("name", ["ors_sdk", "spec_server", "old_server"])


def candidate(text, **more):
    return GroupCandidate(messages=[Message(role="assistant", blocks=[TextBlock(text=text)])], **more)


@MODERN
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_conversation_arrives_with_every_kind_of_block(client, stranger):
    async with client.environment("chatenvironment").session(TASK) as session:
        messages = await session.get_messages()
        told = await stranger.get("/chatenvironment/messages", headers={"x-session-id": session.session_id})
    assert [message.model_dump(by_alias=True) for message in messages] == told.json()
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert [block.type for block in messages[2].blocks] == ["reasoning", "text", "tool_call"]
    assert messages[3].blocks[0].blocks == [TextBlock(text="noted")]
    assert messages[3].detail == {"turn": 2}


@MODERN
async def test_conversation_of_an_environment_without_one_is_its_prompt(client):
    async with client.environment("imagesenvironment").session(TASK) as session:
        assert await session.get_messages() == [Message(role="user", blocks=await session.get_prompt())]


@OLDER
async def test_server_without_conversations_gives_the_prompt_as_one_user_turn(request, name):
    with FaultProxy(request.getfixturevalue(name).url) as proxy:
        async with AsyncClient(proxy.url) as client:
            for _ in range(2):
                async with client.environment("chatenvironment").session(TASK) as session:
                    [message] = await session.get_messages()
                assert (message.role, message.text) == ("user", "Answer with 'Paris'.")
    assert proxy.count("GET", "/messages") == 1  # what is missing is asked for once


@MODERN
async def test_scores_are_those_of_the_candidates_in_order(client):
    group = [candidate("a"), candidate("a" * 500, metadata={"n": 2}), candidate("a" * 50)]
    async with client.environment("chatenvironment").session(TASK) as session:
        assert await session.supports_score_group() is True
        scores = await session.score_group(group)
    rewards = [score.reward for score in scores]
    assert rewards[1] == 1.0
    assert rewards[0] < rewards[2] < rewards[1]
    assert [score.metadata for score in scores] == [None, {"n": 2}, None]


@MODERN
async def test_conversation_of_a_task_can_be_sent_back_as_a_candidate(client):
    async with client.environment("chatenvironment").session(TASK) as session:
        messages = await session.get_messages()
        [score] = await session.score_group([GroupCandidate(messages=messages)])
    assert score.reward == 1.0


@MODERN
async def test_judge_that_raised_is_a_failure_in_its_own_words(client):
    async with client.environment("chatenvironment").session(TASK) as session:
        with pytest.raises(ToolFailed) as caught:
            await session.score_group([candidate("a", metadata={"raise": True})])
        assert caught.value.detail == "the judge is out"
        assert len(await session.score_group([candidate("a")])) == 1


@MODERN
async def test_environment_without_group_scoring_refuses(client):
    async with client.environment("echoenvironment").session(TASK) as session:
        assert await session.supports_score_group() is False
        with pytest.raises(StatusError, match="does not implement score_group") as caught:
            await session.score_group([candidate("a")])
        assert caught.value.status == 404
        assert session.lost is None


@OLDER
async def test_server_without_group_scoring_says_so(request, name):
    async with (
        AsyncClient(request.getfixturevalue(name).url) as client,
        client.environment("chatenvironment").session(TASK) as session,
    ):
        assert await session.supports_score_group() is False
