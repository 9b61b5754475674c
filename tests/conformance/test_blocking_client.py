"""The blocking client does on every server what the asynchronous one does."""

import threading

import pytest
from servers import serve

from ors_client import (
    Client,
    EnvironmentNotFound,
    GroupCandidate,
    Message,
    TaskRef,
    TextBlock,
    ToolFailed,
    ToolRejected,
)

TASK = TaskRef("train", 0)


@pytest.fixture
def blocking(server):
    with Client(server.url) as client:
        yield client


def test_episode_is_won(blocking, server):
    environment = blocking.environment("echoenvironment")
    task = environment.list_tasks("train", 0, 2)[1]
    with environment.session(task) as session:
        assert "text='world'" in session.get_prompt()[0].text
        assert session.get_messages()[0].role == "user"
        assert [tool.name for tool in session.list_tools()] == ["echo"]
        assert session.call_tool("echo", {"text": "no"}).reward == 0.0
        assert (session.finished, session.lost) == (False, None)
        output = session.call_tool("echo", {"text": "world"})
        assert (output.text, output.reward, output.finished) == ("match", 1.0, True)
        assert session.finished
        with pytest.raises(ToolRejected):
            session.call_tool("echo", {"text": "world"})
    assert session.session_id not in server.live()
    assert len(server.journal.executions("echo", sid=session.session_id)) == 2


def test_server_is_described(blocking, server):
    environment = blocking.environment("beta")
    assert "beta" in blocking.list_environments()
    assert blocking.server_version() == (None if server.kind == "ors-sdk" else "0.1.167")
    assert environment.name() == "beta"
    assert [split.name for split in environment.list_splits()] == ["train"]
    assert environment.num_tasks("train") == 10
    assert environment.get_task("train", -1).spec["number"] == 9
    assert [tool.name for tool in environment.list_tools()] == ["ask", "beta_only"]
    assert environment.describe_tools().tools == environment.list_tools()


def test_unknown_environment_is_not_found(blocking):
    with pytest.raises(EnvironmentNotFound):
        blocking.environment("nosuch").num_tasks("train")


def test_tool_that_raised_leaves_the_session_usable(blocking):
    with blocking.environment("failingenvironment").session(TASK) as session:
        with pytest.raises(ToolFailed, match="broken"):
            session.call_tool("boom", {"message": "broken"})
        assert session.call_tool("step", {"reward": 0.5}).reward == 0.5


@pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True)
def test_conversation_is_ended_and_scored(blocking):
    with blocking.environment("chatenvironment").session(TASK) as session:
        assert session.supports_score_group()
        candidate = GroupCandidate(messages=[Message(role="assistant", blocks=[TextBlock(text="Paris")])])
        assert [score.reward for score in session.score_group([candidate])] == [1.0]
        assert session.terminal_tool().name == "submit"
        assert session.call_terminal_tool("Paris").reward == 1.0


def test_exception_in_the_block_deletes_the_session_and_passes(blocking, server):
    session = blocking.environment("echoenvironment").session(TASK)
    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError
    assert session.session_id not in server.live()


def test_many_threads_share_a_client(blocking):
    environment = blocking.environment("echoenvironment")
    rewards = []

    def episode(index, word):
        with environment.session(TaskRef("train", index)) as session:
            rewards.append(session.call_tool("echo", {"text": word}).reward)

    words = ("hello", "world", "trl", "openreward")
    threads = [threading.Thread(target=episode, args=(i % 4, words[i % 4])) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert rewards == [1.0] * 16


@pytest.mark.parametrize("dialect", ["spec", "openreward-0.1.50"])
def test_server_without_optional_routes_is_enough(dialect):
    with serve("ours", "--env", "echo", "--dialect", dialect) as server:
        with Client(server.url) as client:
            environment = client.environment()
            assert len(environment.list_tasks("train", 1, 3)) == 2
            with environment.session(TASK) as session:
                assert session.get_messages()[0].text == session.get_prompt()[0].text
                assert [tool.name for tool in session.list_tools()] == ["echo"]
                assert session.call_tool("echo", {"text": "hello"}).reward == 1.0
        assert server.live() == []
