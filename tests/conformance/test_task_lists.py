"""Tasks, splits and versions: the same list by the cheapest way that each server has."""

import pytest

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import AsyncClient, StatusError

pytestmark = pytest.mark.anyio

BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
VERSIONS = {"ours": "0.1.167", "openreward": "0.1.167", "ors-sdk": None}


def numbers(tasks):
    return [task.spec["number"] for task in tasks]


async def test_version_is_told_where_there_is_one(client, server):
    assert await client.server_version() == VERSIONS[server.kind]


async def test_splits_keep_their_order_names_and_types(client):
    splits = await client.environment("gamma").list_splits()
    assert [(split.name, split.type) for split in splits] == [
        ("validation", "validation"),
        ("hard", "validation"),  # both servers call a bare name of no standard kind so
        ("holdout", "test"),
    ]


@BACKENDS
@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (None, None),
        (0, 64),
        (5, 3),
        (68, None),
        (68, 500),
        (None, 2),
        (-2, None),
        (-500, 2),
        (-3, -1),
        (2, -66),
        (70, 80),
        (3, 3),
    ],
)
async def test_range_is_that_of_a_python_slice(client, start, stop):
    tasks = await client.environment("alpha").list_tasks("train", start, stop)
    expected = list(range(70))[start:stop]
    assert numbers(tasks) == expected
    assert [task.index for task in tasks] == expected
    assert {(task.split, task.environment) for task in tasks} <= {("train", "alpha")}


@pytest.mark.parametrize("index", [0, 69, -1, -70])
async def test_single_task_is_found_from_either_end(client, index):
    task = await client.environment("alpha").get_task("train", index)
    assert task.spec == {"id": f"alpha-train-{index % 70}", "number": index % 70}
    assert (task.split, task.environment) == ("train", "alpha")


@pytest.mark.parametrize("index", [70, -71])
async def test_task_past_the_end_is_the_servers_refusal(client, index):
    with pytest.raises(
        StatusError, match=rf"no task {index} in split 'train', which has 70\. .*Invalid index"
    ) as caught:
        await client.environment("alpha").get_task("train", index)
    assert caught.value.status == 400


@pytest.mark.parametrize("ask", ["num_tasks", "list_tasks"])
async def test_unknown_split_is_refused_once(watched, proxy, ask):
    with pytest.raises(StatusError, match=r"no split 'nosuch'; there are: .*'train'.*Invalid split") as caught:
        await getattr(watched.environment("alpha"), ask)("nosuch")
    assert caught.value.status == 400
    first, asked, named = [request.path for request in proxy.requests]
    assert (first, asked.rsplit("/", 1)[-1], named) == (
        "/list_environments",
        ask.removeprefix("list_"),
        "/alpha/splits",
    )


async def test_tasks_without_a_list_are_had_by_range(watched, proxy):
    tasks = await watched.environment("indexed").list_tasks("train")
    assert numbers(tasks) == list(range(12))
    assert [task.index for task in tasks] == list(range(12))
    assert [request.path for request in proxy.requests] == [
        "/list_environments",
        "/indexed/tasks",
        "/indexed/task_range",
    ]


async def test_range_costs_one_request_and_the_list_of_environments(watched, proxy):
    await watched.environment("alpha").list_tasks("train", 0, 64)
    assert [request.path for request in proxy.requests] == ["/list_environments", "/alpha/task_range"]


async def test_second_question_does_not_list_the_environments_again(watched, proxy):
    environment = watched.environment("alpha")
    await environment.num_tasks("train")
    await watched.environment("beta").num_tasks("train")
    await environment.list_tools()
    await environment.list_tools()
    assert [request.path for request in proxy.requests] == [
        "/list_environments",
        "/alpha/num_tasks",
        "/beta/num_tasks",
        "/alpha/tools",
    ]


@BACKENDS
@pytest.mark.parametrize(("start", "stop"), [(None, None), (2, 5), (-2, None), (5, 3)])
@pytest.mark.parametrize("name", ["alpha", "indexed"])
async def test_server_without_ranges_gives_the_same_tasks(sparse_server, name, start, stop):
    async with AsyncClient(sparse_server.url) as client:
        tasks = await client.environment(name).list_tasks("train", start, stop)
    expected = list(range(70 if name == "alpha" else 12))[start:stop]
    assert numbers(tasks) == expected
    assert [task.index for task in tasks] == expected


async def test_missing_range_route_is_asked_for_once(old_server):
    with FaultProxy(old_server.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            for start in range(3):
                await client.environment("alpha").list_tasks("train", start, start + 2)
    assert proxy.count("POST", "/task_range") == 1
    assert proxy.count("POST", "/tasks") == 3
    assert proxy.count("POST", "/task") == 0


async def test_server_without_a_version_is_none_and_no_error(sparse_server):
    async with AsyncClient(sparse_server.url) as client:
        assert await client.server_version() is None


@pytest.mark.parametrize("code", [405, 500])
async def test_version_that_is_refused_is_none_and_no_error(watched, proxy, code):
    proxy.add(Rule("GET", "/version", Status(code)))
    assert await watched.server_version() is None


async def test_bare_splits_are_names_without_a_type(spec_server):
    async with AsyncClient(spec_server.url) as client:
        splits = await client.environment("gamma").list_splits()
    assert [(split.name, split.type) for split in splits] == [("validation", ""), ("hard", ""), ("holdout", "")]
