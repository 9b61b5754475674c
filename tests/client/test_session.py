"""One episode: its states, its waits, and what a hand-written server may answer."""

import logging

import anyio
import anyio.lowlevel
import httpx
import pytest
from scripted import Peer, result, said, stream

from ors_client import (
    AsyncClient,
    ClientStateError,
    DeadlineExceeded,
    EnvironmentNotFound,
    ImageBlock,
    KeepalivePolicy,
    Layout,
    ProtocolError,
    RetryPolicy,
    SessionLost,
    SetupFailed,
    StatusError,
    TaskRef,
    TextBlock,
    Timeouts,
    ToolRejected,
    TransportError,
    UnknownBlock,
)

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

TASK = TaskRef("train", 0)
MISSING = httpx.Response(404, json={"detail": "Not Found"})


def connected(peer, **more):
    return AsyncClient("http://peer.test", transport=peer.transport, **more)


async def forever(_):
    await anyio.sleep_forever()


# --- States ----------------------------------------------------------------------------------------------------------


async def test_session_goes_through_its_states():
    async with connected(Peer({"POST /call": said("done", finished=True)})) as client:
        session = client.environment().session(TASK)
        assert repr(session) == "<AsyncSession  new>"
        async with session:
            assert repr(session) == "<AsyncSession s1 open>"
            await session.call_tool("go")
            assert repr(session) == "<AsyncSession s1 finished>"
    assert session.session_id == "s1"


async def test_requests_of_an_episode_come_in_order():
    peer = Peer()
    async with connected(peer) as client, client.environment().session(TASK) as session:
        await session.call_tool("go")
        await session.call_tool("go", {"a": 1})
    assert peer.paths() == [
        "GET /list_environments",
        "POST /create_session",
        "POST /create",
        "GET /prompt",  # a slow setup must not become a lost call
        "POST /call",
        "POST /call",
        "POST /delete",
    ]
    assert peer.bodies("POST /call") == [{"name": "go", "input": {}}, {"name": "go", "input": {"a": 1}}]


async def test_prompt_that_was_read_is_not_asked_for_again_by_a_call():
    peer = Peer()
    async with connected(peer) as client, client.environment().session(TASK) as session:
        await session.get_prompt()
        await session.call_tool("go")
    assert peer.paths().count("GET /prompt") == 1


@pytest.mark.parametrize("ask", ["get_prompt", "get_messages", "list_tools", "terminal_tool", "supports_score_group"])
async def test_question_outside_of_the_block_is_an_error_without_a_request(ask):
    peer = Peer()
    async with connected(peer) as client:
        session = client.environment().session(TASK)
        with pytest.raises(ClientStateError):
            await getattr(session, ask)()
        async with session:
            pass
        before = peer.paths()
        with pytest.raises(ClientStateError):
            await getattr(session, ask)()
    assert peer.paths() == before


async def test_id_before_entering_is_an_error():
    async with connected(Peer()) as client:
        with pytest.raises(ClientStateError, match="async with"):
            _ = client.environment().session(TASK).session_id


async def test_session_is_one_episode_and_not_entered_twice():
    async with connected(Peer()) as client:
        session = client.environment().session(TASK)
        async with session:
            with pytest.raises(ClientStateError, match="entered before"):
                await session.__aenter__()
        with pytest.raises(ClientStateError, match="entered before"):
            await session.__aenter__()


@pytest.mark.parametrize("task", [None, 0, "train", ("train", 0), {"id": 1}])
async def test_session_of_no_task_is_a_type_error(task):
    async with connected(Peer()) as client:
        with pytest.raises(TypeError, match="TaskRef"):
            client.environment().session(task)


@pytest.mark.parametrize(("split", "index"), [("", 0), (None, 0), ("train", "0"), ("train", True), ("train", 0.0)])
def test_reference_to_no_task_is_a_type_error(split, index):
    with pytest.raises(TypeError):
        TaskRef(split, index)


async def test_session_left_after_its_client_was_closed_asks_nothing():
    peer = Peer()
    async with connected(peer) as client:
        session = client.environment().session(TASK)
        await session.__aenter__()
    made = len(peer.transports)
    before = peer.paths()
    assert before[-1] == "POST /delete"
    await session.aclose()
    assert peer.paths() == before
    assert len(peer.transports) == made


# --- Results and refusals --------------------------------------------------------------------------------------------


async def test_result_of_a_newer_server_is_kept_whole():
    novel = {"type": "hologram", "planes": [1, 2]}
    image = {"type": "image", "data": "AA==", "mimeType": "image/png", "alt": "new"}
    output = {"blocks": [novel, {"type": "text", "text": "a"}, image, "bare"], "reward": 1, "new": True}
    peer = Peer({"POST /call": result({"ok": True, "output": output, "new": 1})})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        got = await session.call_tool("go")
    assert got.blocks == [
        UnknownBlock(type="hologram", raw=novel),
        TextBlock(text="a"),
        ImageBlock(data="AA==", mimeType="image/png"),
        UnknownBlock(type="unknown", raw="bare"),
    ]
    assert (got.reward, got.finished, got.metadata) == (1.0, False, None)


async def test_terminal_tool_after_the_end_is_refused_without_a_request():
    peer = Peer({"POST /call": said("done", finished=True)})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        await session.call_tool("go")
        before = peer.paths()
        with pytest.raises(ToolRejected, match="episode is over") as caught:
            await session.call_terminal_tool("done")
        assert peer.paths() == before
    assert caught.value.reason == "episode_finished"
    assert caught.value.session_id == "s1"


async def test_terminal_tool_that_takes_nothing_is_sent_nothing():
    tools = {"tools": [{"name": "submit"}, {"name": "go"}], "terminal_tool": {"name": "submit", "arg": None}}
    peer = Peer({"GET /task_tools": httpx.Response(200, json=tools)})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        assert [tool.name for tool in await session.list_tools()] == ["go"]
        await session.call_terminal_tool("done")
    assert peer.bodies("POST /call") == [{"name": "submit", "input": {}}]


@pytest.mark.parametrize(("said_first", "calls"), [(True, 1), (False, 2)])
async def test_finished_is_believed_from_a_result_only(said_first, calls):
    peer = Peer({"POST /call": said("done", finished=said_first)})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        await session.call_tool("go")
        assert session.finished is said_first
        if said_first:
            with pytest.raises(ToolRejected):
                await session.call_tool("go")
        else:
            await session.call_tool("go")
    assert peer.paths().count("POST /call") == calls


@pytest.mark.parametrize("value", [7, "text", [], {}, {"ok": True}])
async def test_result_that_is_none_is_a_protocol_error_and_not_sent_again(value):
    peer = Peer({"POST /call": result(value)})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        with pytest.raises(ProtocolError):
            await session.call_tool("go")
    assert peer.paths().count("POST /call") == 1


@pytest.mark.parametrize(
    ("answer", "session_id"),
    [
        (httpx.Response(200, json={"sid": "j1", "new": 1}), "j1"),
        (stream(("task_id", "t1"), ("end", "")), "t1"),
        (stream(("task_id", "t1"), ("end", '{"sid": "e1"}')), "e1"),
        (stream(("task_id", "t1"), ("end", '{"status": "ok"}')), "t1"),
    ],
)
async def test_session_id_is_found_in_each_shape_of_answer(answer, session_id):
    peer = Peer({"POST /create_session": answer})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        assert session.session_id == session_id
    deleted = next(request for request in peer.requests if request.url.path == "/delete")
    assert deleted.headers["x-session-id"] == session_id


@pytest.mark.parametrize("answer", [httpx.Response(200, json={}), httpx.Response(200, json=[]), stream(("end", "{}"))])
async def test_answer_without_an_id_is_a_protocol_error_that_ends(answer):
    peer = Peer({"POST /create_session": answer})
    async with connected(peer) as client:
        with pytest.raises(ProtocolError):
            await client.environment().session(TASK).__aenter__()
    assert "POST /create" not in peer.paths()


async def test_opening_that_fails_is_repeated_at_the_pace_of_the_policy():
    began = []

    async def lost(_):
        began.append(anyio.current_time())
        return httpx.Response(502)

    retry = RetryPolicy(attempts=3, first_delay=0.1, jitter=0.0)
    async with connected(Peer({"POST /create": lost}), retry=retry) as client:
        with pytest.raises(TransportError, match="after 3 attempts"):
            await client.environment().session(TASK).__aenter__()
    first, second, third = began
    assert second - first >= 0.1
    assert third - second >= 0.2


async def test_stream_of_comments_instead_of_an_id_ends_with_the_limit_on_starting_up():
    async def comments():
        while True:
            yield b": keepalive\n\n"
            await anyio.sleep(0.01)

    async def endless(_):
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=comments())

    with anyio.fail_after(30):
        async with connected(Peer({"POST /create_session": endless}), timeout=Timeouts(start_up=0.2)) as client:
            with pytest.raises(DeadlineExceeded, match=r"start_up=0\.2"):
                await client.environment().session(TASK).__aenter__()


@pytest.mark.parametrize("code", [400, 403, 404])
async def test_refused_tools_are_an_error_and_not_the_environments(code):
    peer = Peer({"GET /task_tools": httpx.Response(code, json={"detail": "Not for you"})})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        with pytest.raises(StatusError, match="Not for you"):
            await session.list_tools()
    assert "GET /tools" not in peer.paths()


async def test_failed_setup_is_remembered():
    broken = httpx.Response(500, json={"detail": "ValueError: no disk"})
    peer = Peer({"GET /prompt": broken, "GET /task_tools": broken})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        for _ in range(2):
            with pytest.raises(SetupFailed) as caught:
                await session.call_tool("go")
            assert caught.value.detail == "ValueError: no disk"
    assert peer.paths().count("GET /prompt") == 1
    assert "POST /call" not in peer.paths()


# --- Waits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_call_past_its_own_limit_names_it_and_the_session_goes_on():
    peer = Peer({"POST /call": forever})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        with pytest.raises(DeadlineExceeded) as caught:
            await session.call_tool("go", timeout=0.05)
        assert (caught.value.limit, caught.value.seconds) == ("timeout", 0.05)
        assert isinstance(caught.value, TimeoutError)
        assert await session.get_prompt()
    assert peer.paths()[-1] == "POST /delete"
    assert peer.paths().count("POST /call") == 1


@pytest.mark.parametrize("arguments", [[], "", 0, False])
async def test_arguments_that_are_no_object_are_refused_even_where_they_are_empty(arguments):
    peer = Peer()
    async with connected(peer) as client, client.environment().session(TASK) as session:
        with pytest.raises(TypeError, match="mapping"):
            await session.call_tool("go", arguments)
    assert "POST /call" not in peer.paths()


async def test_call_without_any_time_says_so():
    peer = Peer({"POST /call": forever})
    async with connected(peer) as client, client.environment().session(TASK) as session:
        with pytest.raises(DeadlineExceeded, match="timeout=0 seconds"):
            await session.call_tool("go", timeout=0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
async def test_limit_that_is_no_time_is_refused_without_a_request(seconds):
    peer = Peer()
    async with connected(peer) as client, client.environment().session(TASK) as session:
        with pytest.raises(ValueError, match=repr(seconds)):
            await session.call_tool("go", timeout=seconds)
    assert "POST /call" not in peer.paths()


@pytest.mark.parametrize("seconds", ["30", True, [1]])
async def test_timeout_that_is_no_number_is_a_type_error_that_names_it(seconds):
    async with connected(Peer()) as client, client.environment().session(TASK) as session:
        with pytest.raises(TypeError, match="timeout takes a number, not"):
            await session.call_tool("go", timeout=seconds)


async def test_call_that_waits_for_another_is_bounded_too():
    peer = Peer({"POST /call": forever})
    async with (
        connected(peer) as client,
        client.environment().session(TASK) as session,
        anyio.create_task_group() as group,
    ):
        await session.get_prompt()
        group.start_soon(session.call_tool, "first")
        while "POST /call" not in peer.paths():
            await anyio.lowlevel.checkpoint()
        with pytest.raises(DeadlineExceeded):
            await session.call_tool("second", timeout=0.05)
        assert [body["name"] for body in peer.bodies("POST /call")] == ["first"]
        group.cancel_scope.cancel()


async def test_closing_a_session_ends_its_running_call():
    peer = Peer({"POST /call": forever})
    async with connected(peer) as client, anyio.create_task_group() as group:
        session = client.environment().session(TASK)
        await session.__aenter__()

        async def call():
            with pytest.raises(ClientStateError):
                await session.call_tool("go")

        group.start_soon(call)
        while "POST /call" not in peer.paths():
            await anyio.lowlevel.checkpoint()
        await session.aclose()
    assert peer.paths()[-1] == "POST /delete"


async def test_server_without_a_ping_route_costs_one_warning(caplog):
    peer = Peer({"POST /ping": MISSING})
    with caplog.at_level(logging.WARNING, "ors_client"):
        async with connected(peer, keepalive=KeepalivePolicy(interval=0.01, tolerance=1)) as client:
            async with client.environment().session(TASK), client.environment().session(TASK):
                with anyio.fail_after(30):
                    while not caplog.records:  # noqa: ASYNC110 - said on another thread
                        await anyio.sleep(0.01)
            async with client.environment().session(TASK) as session:
                assert (await session.call_tool("go")).text == "gone"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ping" in caplog.text


@pytest.mark.parametrize("answer", [httpx.Response(200, text="OK"), httpx.Response(204)])
async def test_plain_answer_to_a_ping_and_a_deletion_is_a_success(answer, caplog):
    peer = Peer({"POST /ping": answer, "POST /delete": answer})
    with caplog.at_level(logging.DEBUG, "ors_client"):
        async with connected(peer, keepalive=KeepalivePolicy(interval=0.01, tolerance=0.01)) as client:
            async with client.environment().session(TASK) as session:
                with anyio.fail_after(30):
                    while len(peer.requests) - len(peer.paths()) < 8:  # noqa: ASYNC110 - said on another thread
                        await anyio.sleep(0.01)
                assert session.lost is None
            assert client.open_sessions == 0
    assert not [record for record in caplog.records if record.name == "ors_client"]


async def test_page_for_people_in_answer_to_pings_keeps_no_session():
    page = httpx.Response(200, html="<html>Sign in</html>")
    policy = KeepalivePolicy(interval=0.01, tolerance=0.01)
    client = connected(Peer({"POST /ping": page}), keepalive=policy)
    async with client, client.environment().session(TASK) as session:
        with anyio.fail_after(30):
            while session.lost is None:  # noqa: ASYNC110 - said on another thread
                await anyio.sleep(0.01)


async def test_secret_that_the_background_meets_shows_nowhere(caplog):
    lost = httpx.Response(410, json={"detail": "gone with token=hunter2-hunter2"})
    refused = httpx.Response(403, json={"detail": "no delete for token=hunter2-hunter2"})
    peer = Peer({"POST /ping": lost, "POST /delete": refused})
    with caplog.at_level(logging.DEBUG, "ors_client"):
        async with connected(peer, keepalive=KeepalivePolicy(interval=0.01, tolerance=1)) as client:
            session = client.environment().session(TASK, secrets={"TOKEN": "hunter2-hunter2"})
            async with session:
                with anyio.fail_after(30):
                    while session.lost is None:  # noqa: ASYNC110 - said on another thread
                        await anyio.sleep(0.01)
                with pytest.raises(SessionLost) as caught:
                    await session.call_tool("go")
    assert session.lost == "HTTP 410 gone with token=***"
    assert "hunter2" not in f"{caught.value!r} {caplog.text}"


async def test_server_of_two_names_needs_no_route_to_give_ids_back(caplog):
    peer = Peer({"POST /delete_session": MISSING})
    two_names = Layout(api="http://peer.test", sessions="http://also.peer.test")
    with caplog.at_level(logging.DEBUG, "ors_client"):
        async with AsyncClient(two_names, transport=peer.transport) as client:
            async with client.environment().session(TASK):
                pass
            assert client.open_sessions == 0
    assert not [record for record in caplog.records if record.name == "ors_client"]
    assert peer.paths()[-2:] == ["POST /delete", "POST /delete_session"]


async def test_environment_that_is_gone_since_it_was_listed_is_told_with_those_that_are_there():
    lists = [["env"], ["other", "third"], ["other", "third"]]

    async def listed(_):
        return httpx.Response(200, json=lists.pop(0))

    unknown = httpx.Response(404, json={"detail": "unknown environment 'env'"})
    peer = Peer({"GET /list_environments": listed, "POST /create": unknown})
    async with connected(peer) as client:
        with pytest.raises(EnvironmentNotFound, match="this server has: 'other', 'third'") as caught:
            await client.environment("env").session(TASK).__aenter__()
        assert (client.open_sessions, client.leaked_sessions) == (0, 0)
        with pytest.raises(EnvironmentNotFound):  # without a session: what was found by the old list is forgotten
            await client.environment("env").session(TASK).__aenter__()
    assert (caught.value.available, caught.value.session_id) == (["other", "third"], "s1")
    assert peer.paths() == [
        "GET /list_environments",
        "POST /create_session",
        "POST /create",
        "POST /delete",
        "POST /delete_session",
        "GET /list_environments",
    ]


async def test_environment_that_a_server_without_a_list_does_not_know_is_told_as_such():
    unknown = httpx.Response(404, json={"detail": "unknown environment 'env'"})
    async with connected(Peer({"GET /list_environments": MISSING, "POST /create": unknown})) as client:
        with pytest.raises(EnvironmentNotFound, match="none that it lists"):
            await client.environment("env").session(TASK).__aenter__()


async def test_session_that_waits_for_the_one_around_it_is_told_which_limits_it_met():
    async with connected(Peer(), max_sessions=1, timeout=Timeouts(start_up=0.2)) as client:
        async with client.environment().session(TASK):
            with pytest.raises(DeadlineExceeded, match=r"max_sessions=1 .* start_up=0\.2 .* max_sessions,") as caught:
                await client.environment().session(TASK).__aenter__()
        assert caught.value.limit == "start_up"
        async with client.environment().session(TASK) as session:  # the queue is as it was before
            assert (await session.call_tool("go")).text == "gone"


async def test_queue_that_moves_may_take_longer_than_the_limit_on_one_that_stands_still():
    done = []

    async def take_a_while(_):
        await anyio.sleep(0.5)
        return said("gone")

    async with connected(Peer({"POST /call": take_a_while}), max_sessions=1, timeout=Timeouts(start_up=2)) as client:

        async def play():
            async with client.environment().session(TASK) as session:
                done.append((await session.call_tool("go")).text)

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(play)
        assert anyio.current_time() - began > 2
    assert done == ["gone"] * 6
