"""Looking around: the least requests, and hand-written servers that lack or demand something."""

import json

import anyio
import anyio.lowlevel
import httpx
import pytest
from scripted import Peer

from ors_client import (
    AsyncClient,
    EnvironmentNotFound,
    Layout,
    LimitExceeded,
    Limits,
    RetryPolicy,
    StatusError,
    TaskRef,
    Timeouts,
)

pytestmark = pytest.mark.anyio

MISSING = httpx.Response(404, json={"detail": "Not Found"})


def connected(peer, **more):
    return AsyncClient("http://peer.test", transport=peer.transport, **more)


def numbered(count):
    return httpx.Response(200, json={"tasks": [{"n": n} for n in range(count)]})


async def test_nothing_is_asked_before_a_question():
    peer = Peer()
    async with connected(peer) as client:
        environment = client.environment("other", variant="v")
        assert repr(environment) == "AsyncEnvironment('other', variant='v')"
        environment.session(TaskRef("train", 0))
    assert peer.requests == []


async def test_server_without_a_list_of_environments_is_taken_at_its_word():
    peer = Peer({"GET /list_environments": MISSING})
    async with connected(peer) as client:
        assert [tool.name for tool in await client.environment("mine").list_tools()] == ["go"]
        with pytest.raises(StatusError):
            await client.environment().list_tools()
    assert {request.url.path for request in peer.requests} == {"/list_environments", "/mine/tools"}


async def test_list_may_hold_objects_with_names():
    peer = Peer({"GET /list_environments": httpx.Response(200, json={"environments": [{"name": "a"}, {"name": "b"}]})})
    async with connected(peer) as client:
        assert await client.list_environments() == ["a", "b"]
        assert await client.environment("B").name() == "b"


@pytest.mark.parametrize(("asked", "found"), [("echo", "echo"), ("Echo", "Echo"), ("ECHO", "Echo")])
async def test_name_as_it_is_listed_comes_before_one_in_another_case(asked, found):
    async with connected(Peer({"GET /list_environments": httpx.Response(200, json=["Echo", "echo"])})) as client:
        assert await client.environment(asked).name() == found


@pytest.mark.parametrize("asked", ["me/hard", "math/easy"])
async def test_name_with_a_slash_that_one_url_does_not_list_is_not_found(asked):
    listed = ["easy", "hard", "math/hard"]
    peer = Peer({"GET /list_environments": httpx.Response(200, json=listed)})
    async with connected(peer) as client:
        with pytest.raises(EnvironmentNotFound) as caught:
            await client.environment(asked).name()
        with pytest.raises(EnvironmentNotFound):
            await client.environment(asked).session(TaskRef("train", 0)).__aenter__()
    assert caught.value.available == listed
    assert not any("x-deployment" in request.headers for request in peer.requests)


async def test_name_with_a_slash_that_one_url_lists_is_the_environment():
    async with connected(Peer({"GET /list_environments": httpx.Response(200, json=["easy", "math/hard"])})) as client:
        assert await client.environment("math/hard").name() == "math/hard"
        with pytest.raises(ValueError, match="two hosts"):
            await client.environment("math/hard").required_secrets()


async def test_name_with_a_slash_reaches_the_only_environment_of_one_url():
    async with connected(Peer({"GET /list_environments": httpx.Response(200, json=["easy"])})) as client:
        assert await client.environment("me/hard").name() == "easy"


async def test_name_with_a_slash_is_a_deployment_where_there_are_two_hosts():
    peer = Peer({"GET /list_environments": httpx.Response(200, json=["easy", "hard"])})
    layout = Layout(api="http://api.test", sessions="http://peer.test")
    async with AsyncClient(layout, transport=peer.transport) as client:
        assert await client.environment("me/hard").name() == "easy"  # its default
    listing = next(request for request in peer.requests if request.url.path == "/list_environments")
    assert listing.headers["x-deployment"] == "me/hard"


async def test_server_without_environments_says_so():
    peer = Peer({"GET /list_environments": httpx.Response(200, json=[])})
    async with connected(peer) as client:
        with pytest.raises(EnvironmentNotFound, match="none"):
            await client.environment("mine").num_tasks("train")


@pytest.mark.parametrize("bound", ["0", 1.0, True, [1]])
async def test_bound_that_is_no_integer_is_refused_without_a_request(bound):
    peer = Peer()
    async with connected(peer) as client:
        for bounds in ((bound, None), (None, bound)):
            with pytest.raises(TypeError, match="integer"):
                await client.environment().list_tasks("train", *bounds)
    assert peer.requests == []


async def test_negative_bounds_are_resolved_so_that_tasks_know_their_index():
    answers = {"POST /num_tasks": httpx.Response(200, json={"num_tasks": 10}), "POST /task_range": numbered(2)}
    peer = Peer(answers)
    async with connected(peer) as client:
        tasks = await client.environment().list_tasks("train", -2)
    assert [task.index for task in tasks] == [8, 9]
    assert peer.bodies("POST /task_range") == [{"split": "train", "start": 8, "stop": 10}]


async def test_range_is_cut_from_the_list_where_there_is_no_range_route():
    peer = Peer({"POST /tasks": numbered(10)})
    async with connected(peer) as client:
        tasks = await client.environment().list_tasks("train", 2, 4)
        assert [(task.index, task.spec["n"]) for task in tasks] == [(2, 2), (3, 3)]
        await client.environment().list_tasks("train", 0, 1)
    assert peer.paths() == ["GET /list_environments", "POST /task_range", "POST /tasks", "POST /tasks"]


async def test_tasks_are_asked_for_one_by_one_where_nothing_else_is_there():
    async def task(request):
        index = int(request.content.split(b'"index":')[1].rstrip(b"}"))
        return httpx.Response(200, json={"task": {"n": index}})

    unsupported = httpx.Response(400, json={"detail": "list_tasks is not supported; use the index-based API"})
    answers = {"POST /tasks": unsupported, "POST /num_tasks": httpx.Response(200, json={"num_tasks": 40})}
    peer = Peer({**answers, "POST /task": task})
    async with connected(peer) as client:
        tasks = await client.environment().list_tasks("train", 5, 35)
    assert [(task.index, task.spec["n"]) for task in tasks] == [(n, n) for n in range(5, 35)]
    assert peer.paths().count("POST /task") == 30


async def test_first_error_of_tasks_asked_for_one_by_one_is_raised_itself():
    unsupported = httpx.Response(400, json={"detail": "list_tasks is not supported; use the index-based API"})
    answers = {"POST /tasks": unsupported, "POST /num_tasks": httpx.Response(200, json={"num_tasks": 40})}
    peer = Peer({**answers, "POST /task": httpx.Response(500, json={"detail": "no such file"})})
    async with connected(peer) as client:
        with pytest.raises(StatusError, match="no such file"):
            await client.environment().list_tasks("train")


@pytest.mark.parametrize("code", [400, 404, 422, 500])
async def test_refusal_that_is_no_missing_route_is_raised_and_not_worked_around(code):
    refused = httpx.Response(code, json={"detail": "Invalid split"})
    peer = Peer({"POST /tasks": refused, "POST /task_range": refused, "POST /num_tasks": refused})
    async with connected(peer) as client:
        for bounds in ((), (0, 3)):
            with pytest.raises(StatusError, match="Invalid split") as caught:
                await client.environment().list_tasks("train", *bounds)
            assert caught.value.status == code
    for_the_message = {"GET /splits", "POST /num_tasks"}
    asked = [path for path in peer.paths() if path not in for_the_message]
    assert asked == ["GET /list_environments", "POST /tasks", "POST /task_range"]


async def test_server_that_demands_a_session_for_looking_around_gets_one_for_all():
    refused = httpx.Response(400, json={"detail": "X-Session-ID header is required"})

    def only_with_an_id(answer):
        async def ask(request):
            return answer if "x-session-id" in request.headers else refused

        return ask

    listed = httpx.Response(200, json=["env"])
    counted = httpx.Response(200, json={"num_tasks": 3})
    peer = Peer(
        {"GET /list_environments": only_with_an_id(listed), "POST /num_tasks": only_with_an_id(counted)},
    )
    async with connected(peer) as client:
        assert await client.environment().num_tasks("train") == 3
        assert client.open_sessions == 1
    assert peer.paths() == [
        "GET /list_environments",
        "POST /create_session",
        "GET /list_environments",
        "POST /num_tasks",
        "POST /delete",
        "POST /delete_session",
    ]


async def test_questions_at_one_time_share_the_session_that_the_server_demands():
    async def count(request):
        await anyio.lowlevel.checkpoint()
        if "x-session-id" in request.headers:
            return httpx.Response(200, json={"num_tasks": 3})
        return httpx.Response(400, json={"detail": "X-Session-ID header is required"})

    async def slowly(_):
        await anyio.sleep(0.01)
        return httpx.Response(200, json={"sid": "s1"})

    peer = Peer({"POST /num_tasks": count, "POST /create_session": slowly})
    async with connected(peer) as client, anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(client.environment("env").num_tasks, "train")
    assert peer.paths().count("POST /create_session") == 1


class Contested(dict):
    """A table of which another thread strikes an entry as soon as it was looked up."""

    def get(self, key, default=None):
        return self.pop(key, default)


async def test_id_that_two_threads_give_back_at_one_moment_is_deleted():
    async def count(request):
        demanded = httpx.Response(400, json={"detail": "X-Session-ID header is required"})
        return httpx.Response(200, json={"num_tasks": 3}) if "x-session-id" in request.headers else demanded

    async with connected(Peer({"POST /num_tasks": count})) as client:
        await client.environment("env").num_tasks("train")
        server = client._server
        [session] = server.discovery._sessions.values()
        server.discovery._sessions = Contested(server.discovery._sessions)
        session.idle_after = 0.0
        server.discovery._delete_if_idle(session, None)
        with anyio.fail_after(30):
            while client.open_sessions:  # noqa: ASYNC110 - of another thread
                await anyio.sleep(0.01)


async def test_tools_are_described_once_and_bounded():
    peer = Peer({"GET /tools": httpx.Response(200, json=[{"name": str(n)} for n in range(3)])})
    async with connected(peer) as client:
        environment = client.environment()
        assert [tool.name for tool in await environment.list_tools()] == ["0", "1", "2"]
        await environment.describe_tools()
    assert peer.paths().count("GET /tools") == 1
    async with connected(peer, limits=Limits(tools=2)) as client:
        with pytest.raises(LimitExceeded, match="tools=2"):
            await client.environment().list_tools()


async def test_account_with_one_place_looks_around_in_one_environment_after_the_other():
    taken: list[str] = []

    async def lend(request):
        if taken:
            return httpx.Response(429, json={"detail": "Too many sessions"})
        taken.append(request.headers["x-deployment"])
        return httpx.Response(200, json={"sid": f"s-{taken[0]}"})

    async def give_back(_):
        taken.clear()
        return httpx.Response(200, json={})

    peer = Peer(
        {
            "POST /create_session": lend,
            "POST /delete_session": give_back,
            "GET /splits": httpx.Response(200, json=["train"]),
        }
    )
    layout = Layout(api="http://api.peer.test", sessions="http://peer.test")
    # Less than an id for looking around is kept for where there is room.
    settings = {"retry": RetryPolicy(first_delay=0.01, max_delay=0.1), "timeout": Timeouts(start_up=20)}
    async with AsyncClient(layout, transport=peer.transport, **settings) as client:
        for name in ("owner/one", "owner/two", "owner/one"):
            assert [split.name for split in await client.environment(name).list_splits()] == ["train"]
            assert taken == [name]


async def test_id_for_looking_around_that_a_cancelled_question_asked_for_serves_the_next():
    with anyio.CancelScope() as scope:

        async def lend(_):
            scope.cancel()
            return httpx.Response(200, json={"sid": "s-1"})

        splits = httpx.Response(200, json=["train"])
        peer = Peer({"POST /create_session": lend, "GET /splits": splits})
        layout = Layout(api="http://api.peer.test", sessions="http://peer.test")
        client = AsyncClient(layout, transport=peer.transport)
        await client.__aenter__()
        await client.environment("owner/one").list_splits()
    assert scope.cancelled_caught
    assert [split.name for split in await client.environment("owner/one").list_splits()] == ["train"]
    await client.aclose()
    assert peer.paths().count("POST /create_session") == 1
    assert peer.paths().count("POST /delete_session") == 1
    assert client.leaked_sessions == 0


@pytest.mark.parametrize("claimed", [1_000_001, 10**9, 10**12, 10**30])
async def test_number_of_tasks_that_a_server_claims_is_bounded_before_any_is_asked_for(claimed):
    async def task(_):
        raise AssertionError("asked for a task")

    answers = {"POST /num_tasks": httpx.Response(200, json={"num_tasks": claimed}), "POST /task": task}
    async with connected(Peer(answers)) as client:
        with pytest.raises(LimitExceeded, match="tasks=1000000"):
            await client.environment().list_tasks("train")


async def test_range_of_a_split_of_any_size_is_listed():
    async def task(request):
        return httpx.Response(200, json={"task": {"n": json.loads(request.content)["index"]}})

    answers = {"POST /num_tasks": httpx.Response(200, json={"num_tasks": 10**12}), "POST /task": task}
    async with connected(Peer(answers), limits=Limits(tasks=40)) as client:
        tasks = await client.environment().list_tasks("train", 10, 50)
        assert [task.spec["n"] for task in tasks] == list(range(10, 50))
        with pytest.raises(LimitExceeded, match="tasks=40"):
            await client.environment().list_tasks("train", 10, 51)


def spec_only(name="task"):
    """A server as the standard's page shows it: an episode is started by its task's specification."""

    async def create(request):
        if "task_spec" in json.loads(request.content):
            return httpx.Response(200, json={"sid": "s1"})
        missing = [{"type": "missing", "loc": ["body", "task_spec"], "msg": "field required"}]
        return httpx.Response(422, json={"detail": missing})

    tasks = {"POST /tasks": numbered(3)} if name == "tasks" else {}
    single = {"POST /task": httpx.Response(200, json={"task": {"n": 2}})} if name == "task" else {}
    return Peer({"POST /create": create, **tasks, **single})


@pytest.mark.parametrize("route", ["task", "tasks"])
async def test_server_that_takes_specifications_only_is_used_by_index(route):
    peer = spec_only(route)
    async with connected(peer) as client:
        for _ in range(2):
            async with client.environment().session(TaskRef("train", 2)) as session:
                assert (await session.call_tool("go")).text == "gone"
    specs = [body.get("task_spec") for body in peer.bodies("POST /create")]
    assert specs == [None, {"n": 2}, {"n": 2}]  # learnt once
    assert all({"split", "index"}.isdisjoint(body) for body in peer.bodies("POST /create")[1:])


async def test_server_that_takes_specifications_only_has_no_task_of_a_wrong_index():
    async with connected(spec_only("tasks")) as client:
        with pytest.raises(StatusError, match=r"no task 3 in split 'train', which has 3"):
            await client.environment().session(TaskRef("train", 3)).__aenter__()
        assert client.open_sessions == 0


def refusing(code=400):
    """A server that has 64 tasks in "train", and refuses all that is asked of others."""

    async def count(request):
        there = json.loads(request.content)["split"] == "train"
        return httpx.Response(200, json={"num_tasks": 64}) if there else httpx.Response(code, json={"detail": "No."})

    refusal = httpx.Response(code, json={"detail": "No."})
    refused = dict.fromkeys(("POST /task", "POST /tasks", "POST /task_range", "POST /create"), refusal)
    splits = httpx.Response(200, json=["train", "test"])
    return Peer({**refused, "POST /num_tasks": count, "GET /splits": splits})


@pytest.mark.parametrize("code", [400, 404, 422, 500])
async def test_task_that_does_not_exist_is_told_with_the_size_of_its_split(code):
    said = r"no task 64 in split 'train', which has 64"
    async with connected(refusing(code)) as client:
        environment = client.environment()
        for wrong in (environment.get_task("train", 64), environment.list_tasks("train", 60, 65)):
            with pytest.raises(StatusError, match=said) as caught:
                await wrong
            assert (caught.value.status, caught.value.detail) == (code, "No.")
        if code != 500:  # an exception of its author's, to whom alone it says something
            with pytest.raises(StatusError, match=said):
                await environment.session(TaskRef("train", 64)).__aenter__()


async def test_split_that_does_not_exist_is_told_with_those_that_do():
    said = r"no split 'tran'; there are: 'train', 'test'"
    async with connected(refusing()) as client:
        environment = client.environment()
        for wrong in (
            environment.num_tasks("tran"),
            environment.get_task("tran", 0),
            environment.list_tasks("tran"),
            environment.list_tasks("tran", 0, 5),
            environment.session(TaskRef("tran", 0)).__aenter__(),
        ):
            with pytest.raises(StatusError, match=said):
                await wrong


async def test_split_that_echoes_the_key_does_not_show_it():
    peer = refusing()
    peer._answers["GET /splits"] = httpx.Response(200, json=["sk-secret-123"])
    async with connected(peer, api_key="sk-secret-123") as client:
        with pytest.raises(StatusError, match="no split 'tran'") as caught:
            await client.environment().num_tasks("tran")
    assert "sk-secret-123" not in str(caught.value)


async def test_refusal_of_a_task_that_is_there_stays_as_it_is():
    async with connected(refusing()) as client:
        for wrong in (client.environment().get_task("train", 63), client.environment().list_tasks("train")):
            with pytest.raises(StatusError, match="HTTP 400: No"):
                await wrong
