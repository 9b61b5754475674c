"""Servers written by hand with Express or Flask have the routes that their authors need, and a page for all others."""

from collections.abc import Iterator

import anyio
import pytest
from servers import Server, serve
from waiting import finally_

from fixtures.proxy import FaultProxy, HtmlPage, Rule, Status
from ors_client import AsyncClient, Client, KeepalivePolicy, StatusError, TaskRef

pytestmark = pytest.mark.anyio

OFTEN = KeepalivePolicy(interval=0.1, tolerance=1.0)
NGINX = HtmlPage(404, "<html>\r\n<head><title>404 Not Found</title></head>\r\n<body>\r\n</body>\r\n</html>\r\n")
TRAEFIK = Status(404, body="404 page not found\n", headers={"Content-Type": "text/plain; charset=utf-8"})
BACKENDLESS = pytest.mark.parametrize("nothing", [NGINX, TRAEFIK, Status(404)], ids=["nginx", "traefik", "fastapi"])


@pytest.fixture(scope="module", params=["express", "flask"])
def framework_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve("ours", "--env", "all", "--dialect", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def express() -> Iterator[Server]:
    with serve("ours", "--env", "all", "--dialect", "express") as server:
        yield server


@pytest.fixture
def environment(framework_server: Server) -> Iterator:
    with Client(framework_server.url) as client:
        yield client.environment("alpha")


def numbers(tasks):
    return [task.spec["number"] for task in tasks]


@pytest.mark.parametrize(("start", "stop"), [(None, None), (0, 2), (-2, None), (68, 500), (5, 3)])
def test_tasks_are_cut_from_the_list(environment, start, stop):
    tasks = environment.list_tasks("train", start, stop)
    assert numbers(tasks) == [task.index for task in tasks] == list(range(70))[start:stop]


def test_tasks_are_counted_in_the_list(environment):
    assert environment.num_tasks("train") == 70


@pytest.mark.parametrize("index", [0, 69, -1, -70])
def test_task_is_picked_from_the_list(environment, index):
    task = environment.get_task("train", index)
    assert (task.spec["number"], task.index) == (index % 70, index % 70)
    assert (task.environment, task.split) == ("alpha", "train")


@pytest.mark.parametrize("index", [70, -71])
def test_task_past_the_end_of_the_list_is_refused(environment, index):
    with pytest.raises(StatusError, match=f"no task {index} in split 'train', which has 70") as caught:
        environment.get_task("train", index)
    assert caught.value.status == 404
    assert caught.value.url in str(caught.value)
    assert "HTTP" not in str(caught.value)  # as nothing was answered with a 404


@pytest.mark.parametrize("ask", ["num_tasks", "list_tasks"])
def test_unknown_split_is_the_servers_own_refusal(environment, ask):
    with pytest.raises(StatusError, match="Invalid split") as caught:
        getattr(environment, ask)("nosuch")
    assert caught.value.status == 400


async def test_list_is_asked_for_once_however_many_tasks_are_picked_from_it(express):
    with FaultProxy(express.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            environment = client.environment("alpha")
            async with anyio.create_task_group() as group:
                for index in range(8):
                    group.start_soon(environment.get_task, "train", index)
            assert await environment.num_tasks("train") == 70
    assert proxy.count("POST", "/tasks") == 1


def test_bridge_makes_its_dataset_and_plays(framework_server):
    from trl_bridge import OpenRewardSpec

    with OpenRewardSpec(framework_server.url, env_name="echoenvironment", num_tasks=3) as spec:
        assert spec.train_dataset["task_index"] == [0, 1, 2]
        environment = spec.environment_factory()
        assert environment.reset(**spec.train_dataset[1])
        assert environment.echo(text="world") == "match"
        assert environment.reward == 1.0


def test_session_has_the_environments_tools_and_a_turn_made_of_the_prompt(framework_server):
    with (
        Client(framework_server.url) as client,
        client.environment("echoenvironment").session(TaskRef("train", 1)) as session,
    ):
        [message] = session.get_messages()
        assert message.blocks == session.get_prompt()
        assert [tool.name for tool in session.list_tools()] == ["echo"]
        assert session.terminal_tool() is None


def test_session_outlives_the_tolerance_where_there_is_no_ping_route(express, caplog):
    with FaultProxy(express.url) as proxy:
        with (
            Client(proxy.url, keepalive=OFTEN) as client,
            client.environment("slowenvironment").session(TaskRef("train", 0)) as session,
        ):
            assert session.call_tool("wait", {"seconds": 2 * OFTEN.tolerance}).text == "1"
            assert session.lost is None
        assert proxy.count("POST", "/ping") == 2
    [record] = caplog.records
    assert "no ping route" in record.getMessage()


def test_server_that_lists_no_environments_either_is_asked_for_the_prompt(express, caplog):
    with FaultProxy(express.url) as proxy:
        proxy.add(Rule("GET", "/list_environments", NGINX, times=None))
        with (
            Client(proxy.url, keepalive=OFTEN) as client,
            client.environment("slowenvironment").session(TaskRef("train", 0)) as session,
        ):
            assert session.call_tool("wait", {"seconds": 2 * OFTEN.tolerance}).text == "1"
        assert proxy.count("POST", "/ping") == 2
    [record] = caplog.records
    assert "no ping route" in record.getMessage()


@BACKENDLESS
def test_proxy_that_has_lost_its_server_is_no_server_without_a_ping_route(ours, nothing, caplog):
    with FaultProxy(ours.url) as proxy:
        outage = [
            proxy.add(Rule("POST", "/ping", nothing, times=None)),
            proxy.add(Rule("GET", "/list_environments", nothing, times=None, skip=1)),  # it knew its server at first
        ]
        with Client(proxy.url, keepalive=OFTEN) as client:
            with client.environment("slowenvironment").session(TaskRef("train", 0)) as session:
                assert "no ping succeeded" in finally_(lambda: session.lost)
            for injection in outage:
                proxy.remove(injection)
    assert "no ping route" not in caplog.text


@BACKENDLESS
def test_session_is_kept_alive_after_a_proxy_lost_its_server_for_a_while(ours, nothing, caplog):
    patient = KeepalivePolicy(interval=0.1, tolerance=60.0)
    with (
        FaultProxy(ours.url) as proxy,
        Client(proxy.url, keepalive=patient) as client,
        client.environment("slowenvironment").session(TaskRef("train", 0)) as session,
    ):
        proxy.wait_for("POST", "/ping", 2)  # the first was answered
        proxy.add(Rule("POST", "/ping", nothing, times=3))  # of the pings alone: for the rest the server is back
        proxy.wait_for("POST", "/ping", 7)
        assert session.call_tool("count").text == "1"
    assert "no ping route" not in caplog.text


@BACKENDLESS
def test_route_that_a_proxy_without_its_server_hides_is_not_missing(ours, nothing):
    with FaultProxy(ours.url) as proxy, Client(proxy.url) as client:
        with client.environment("tasktoolsenvironment").session(TaskRef("train", 0)) as session:
            outage = proxy.add(Rule("GET", None, nothing, times=None))
            with pytest.raises(StatusError):
                session.list_tools()
            proxy.remove(outage)
            assert "open_0" in [tool.name for tool in session.list_tools()]
        with client.environment("tasktoolsenvironment").session(TaskRef("train", 1)) as session:
            proxy.add(Rule("GET", "/task_tools", nothing))  # it answered before
            with pytest.raises(StatusError):
                session.list_tools()
