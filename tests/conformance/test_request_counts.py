"""Ours needs few requests, and fewer than the openreward SDK needs for the same work on the same server."""

import pytest
from benchmarks.request_counts import SERVER, measure, redirects, table
from servers import serve

from fixtures.proxy import FaultProxy
from ors_client import Client, Layout, TaskRef


@pytest.fixture(scope="module")
def rows():
    with serve(*SERVER) as server:
        rows = measure(server)
    print(table(rows))  # noqa: T201 - what docs/migrating.md quotes
    return rows


@pytest.mark.slow
def test_tasks_of_a_dataset_cost_at_most_four_requests(rows):
    for row in rows[:2]:
        assert len(row.ours) <= 4
        assert len(row.sdk) > len(row.ours)
        assert redirects(row.ours) == 0


@pytest.mark.slow
def test_episode_costs_at_most_eight_requests(rows):
    *_, episode = rows
    assert len(episode.ours) <= 8
    assert len(episode.sdk) > len(episode.ours)
    assert redirects(episode.ours) == 0


@pytest.mark.slow
def test_table_has_a_line_for_each_piece_of_work(rows):
    lines = table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert all(f"| {len(row.ours)} | {len(row.sdk)}" in line for row, line in zip(rows, lines[2:], strict=True))


PINGS = "/ping"
EPISODE = [
    "POST /create_session",
    "POST /create",
    "GET /prompt",
    "GET /task_tools",
    *["POST /call"] * 2,
    "POST /delete",
]
GIVEN_BACK = "POST /delete_session"


def asked(proxy):
    """Return what was asked for, pings aside, the environment left out."""
    requests = [request for request in proxy.requests if request.path != PINGS]
    return [f"{request.method} /{request.path.rpartition('/')[2]}" for request in requests]


def play(environment, secrets):
    with environment.session(TaskRef("train", 0), secrets=secrets) as session:
        session.get_prompt()
        session.list_tools()
        session.call_tool("echo", {"text": "no"})
        session.call_tool("echo", {"text": "hello"})


@pytest.mark.parametrize(("secrets", "also"), [(None, []), ({"K": "v"}, ["GET /version"])])
def test_first_episode_learns_what_later_ones_know(proxy, secrets, also):
    with Client(proxy.url) as client:
        play(client.environment("echoenvironment"), secrets)
        assert asked(proxy) == ["GET /list_environments", *also, *EPISODE]
        play(client.environment("echoenvironment"), secrets)
        assert asked(proxy)[len(EPISODE) + 1 + len(also) :] == EPISODE


def test_version_that_is_elsewhere_is_not_asked_for_there(ors_sdk):
    with FaultProxy(ors_sdk.url) as proxy, Client(proxy.url) as client:
        assert client.server_version() is None
        assert [(request.path, request.upstream_status) for request in proxy.requests] == [("/version", 308)]


@pytest.fixture(scope="module")
def platform():
    with serve("ours", "--env", "echo", "--num-tasks", "64", "--split", "--api-key", "k") as server:
        yield server


DEPLOYED = {"X-Deployment": "owner/name"}


def of_catalogue(platform, proxy):
    return Client(Layout(api=platform.urls[0], sessions=proxy.url), api_key="k")


def test_tasks_of_the_catalogue_cost_at_most_four_requests(platform):
    with FaultProxy(platform.urls[1]) as proxy:
        with of_catalogue(platform, proxy) as client:
            assert len(client.environment("owner/name").list_tasks("train", 0, 64)) == 64
        assert asked(proxy) == ["POST /create_session", "GET /list_environments", "POST /task_range", GIVEN_BACK]


@pytest.mark.parametrize("secrets", [None, {"K": ("v", ["example.com"])}])
def test_episode_of_the_catalogue_finds_its_environment_with_its_own_id(platform, secrets):
    opening, *episode = EPISODE
    with FaultProxy(platform.urls[1]) as proxy, of_catalogue(platform, proxy) as client:
        play(client.environment("owner/name"), secrets)
        assert asked(proxy) == [opening, "GET /list_environments", *episode, GIVEN_BACK]
        play(client.environment("owner/name"), secrets)
        assert asked(proxy)[9:] == [*EPISODE, GIVEN_BACK]
        assert redirects(proxy.requests) == 0


@pytest.mark.parametrize("secrets", [None, {"K": "v"}])
def test_two_names_of_one_server_cost_no_more_than_one_but_for_giving_the_id_back(proxy, secrets):
    also = ["GET /version"] if secrets else []
    layout = Layout(api=proxy.url.replace("127.0.0.1", "localhost"), sessions=proxy.url)
    with Client(layout) as client:
        environment = client.environment("echoenvironment")
        environment.num_tasks("train")
        play(environment, secrets)
    assert asked(proxy) == ["GET /list_environments", "POST /num_tasks", *also, *EPISODE, GIVEN_BACK]


def test_plain_name_behind_two_hosts_learns_that_looking_around_takes_an_id(platform):
    with FaultProxy(platform.urls[1]) as proxy:
        with Client(Layout(api=platform.urls[0], sessions=proxy.url), api_key="k", headers=DEPLOYED) as client:
            assert client.environment("echoenvironment").num_tasks("train") == 64
            assert client.environment("echoenvironment").num_tasks("train") == 64
        listing = "GET /list_environments"
        assert asked(proxy) == [listing, "POST /create_session", listing, *["POST /num_tasks"] * 2, GIVEN_BACK]
