"""Where a spec's sessions go: the catalogue, several servers at once, and never more at a time than allowed."""

import asyncio
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from episodes import say
from servers import serve

from fixtures.proxy import FaultProxy, Rule, Silence, Status
from ors_client import AsyncClient, DeadlineExceeded, Layout, Limits, RetryPolicy, Timeouts, TransportError
from trl_bridge._rollout.environment import slot_of
from trl_bridge._runtime.servers import Server, Servers

ROOT = Path(__file__).parent.parent.parent
FAST = RetryPolicy(attempts=1, first_delay=0.01, max_delay=0.05)


# --- The catalogue


@pytest.fixture(scope="module")
def platform():
    """Two hosts, as the catalogue has, which demand the key and the deployment."""
    with serve("ours", "--env", "secrets", "--split", "--api-key", "key-of-tests") as server:
        yield server


@pytest.fixture
def revealed(platform, make_spec, monkeypatch, caplog):
    """Return a function that plays in the catalogue and tells the secrets that the environment got."""

    def reveal(*, key=None, **arguments):
        for name in [name for name in os.environ if name.startswith("OPENREWARD_")]:
            monkeypatch.delenv(name)
        api, sessions = platform.urls
        monkeypatch.setenv("OPENREWARD_API_URL", api)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", sessions)
        if key is not None:
            monkeypatch.setenv("OPENREWARD_API_KEY", key)
        spec = make_spec("owner/name", env_name="secretsenvironment", **arguments)
        environment = spec.environment_factory()
        environment.reset(**spec.train_dataset[0])
        assert "key-of-tests" not in caplog.text
        return json.loads(environment.reveal())

    return reveal


def test_catalogue_environment_gets_the_key_of_the_environment_variable_as_a_secret(revealed):
    assert revealed(key="key-of-tests") == {"api_key": "key-of-tests"}


def test_catalogue_environment_gets_an_explicit_key_as_a_secret(revealed):
    assert revealed(api_key="key-of-tests", key="another") == {"api_key": "key-of-tests"}


def test_catalogue_environment_gets_the_callers_secrets_instead(revealed):
    assert revealed(api_key="key-of-tests", secrets={"K": ("value", ["example.com"])}) == {"K": "value"}


def test_catalogue_environment_gets_no_key_when_told_so(revealed):
    assert revealed(api_key="key-of-tests", forward_api_key=False) == {}


def test_server_at_a_url_never_gets_the_key_as_a_secret(make_spec, ours):
    environment = make_spec(ours.url, env_name="secretsenvironment", api_key="key-of-tests").environment_factory()
    environment.reset(task_index=0)
    assert json.loads(environment.reveal()) == {}


def test_server_gets_the_secrets_it_is_given(make_spec, server, tmp_path):
    path = tmp_path / "episodes.jsonl"
    spec = make_spec(server.url, env_name="secretsenvironment", secrets={"my_password": "very secret"}, record=path)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    assert json.loads(environment.reveal()) == {"my_password": "very secret"}
    environment._close()
    assert "very secret" not in path.read_text()


# --- Headers and limits


def test_header_reaches_the_server_from_every_copy_and_shows_nowhere(make_spec, ours, tmp_path):
    path = tmp_path / "episodes.jsonl"
    headers = {"X-Auth-Token": "hello from a proxy", "X-Tenant": "match"}
    with FaultProxy(ours.url) as proxy:
        spec = make_spec(proxy.url, env_name="echoenvironment", headers=headers, record=path)
        factory = spec.environment_factory
        assert say(factory, "hello from a proxy")[0] == "no match (got 'hello from a proxy')"
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            pool.submit(say, factory, "hello from a proxy").result(60)
        shown = repr(spec) + repr(factory) + repr(spec._handle.settings)
        assert "hello from a proxy" not in shown
        spec.close()
        assert proxy.count("POST", "/create") >= 2
        assert {request.header("X-Auth-Token") for request in proxy.requests} == {"hello from a proxy"}
        assert {request.header("X-Tenant") for request in proxy.requests} == {"match"}
    written = path.read_text()
    assert "hello from a proxy" not in written
    assert "no match" in written  # what does not authenticate is no secret


def test_limit_that_an_answer_breaks_is_the_episodes_failure(make_spec, ours):
    spec = make_spec(ours.url, env_name="awkwardenvironment", limits=Limits(result_bytes=100_000))
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    environment.exact(json_length=50_000)
    assert environment.status == "unscored"
    environment.exact(json_length=200_000)
    assert environment.status == "failed: LimitExceeded"


# --- Several servers


def test_sessions_are_spread_over_servers_and_stay_where_they_were_opened(make_spec, ours):
    with serve("ours", "--env", "echo") as other:
        spec = make_spec([ours.url, Layout.single(other.url)], env_name="echoenvironment")
        environments = [spec.environment_factory() for _ in range(8)]
        for environment in environments:
            environment.reset(task_index=0)
        assert (len(ours.live()), len(other.live())) == (4, 4)
        assert {environment.echo(text="hello") for environment in environments} == {"match"}
        spec.close()
        assert (ours.live(), other.live()) == ([], [])


@pytest.fixture(scope="module")
def behind():
    """A server that no other test minds having sessions left on: those of a proxy that died can't be deleted."""
    with serve("ours", "--env", "echo") as server:
        yield server


def test_server_that_dies_costs_its_episodes_and_no_reset(make_spec, ours, behind):
    with FaultProxy(behind.url) as dying:
        spec = make_spec(
            [dying.url, ours.url], env_name="echoenvironment", retry=FAST, timeout=Timeouts(start_up=1, close=1)
        )
        environments = [spec.environment_factory() for _ in range(4)]
        for environment in environments:
            environment.reset(task_index=0)
        dying.add(Rule(None, None, Status(502), times=None))
        for environment in environments:
            environment.echo(text="hello")
        assert sorted(environment.status for environment in environments) == [
            "failed: OutcomeUnknown",
            "failed: OutcomeUnknown",
            "scored",
            "scored",
        ]
        refused = len(dying.requests)
        for environment in environments:
            environment.reset(task_index=0)
        assert {environment.echo(text="hello") for environment in environments} == {"match"}
        assert [request.path for request in dying.requests[refused:] if request.path.startswith("/create")] == []
        spec.close()


def test_server_that_comes_back_gets_sessions_again(make_spec, ours, behind, eventually):
    with FaultProxy(behind.url) as dying:
        spec = make_spec([dying.url, ours.url], env_name="echoenvironment", retry=FAST)
        servers = spec._handle.runtime.servers
        servers.probe_every = 0.05
        environment = spec.environment_factory()
        environment.reset(task_index=0)
        fault = dying.add(Rule(None, None, Status(502), times=None))
        environment.echo(text="hello")
        assert environment.status == "failed: OutcomeUnknown"
        dying.remove(fault)
        eventually(lambda: not servers.first.is_down)
        assert servers.pick() is servers.first
        spec.close()


def test_server_that_accepts_and_never_answers_is_passed_over(make_spec, ours, behind):
    with FaultProxy(behind.url) as stuck:
        spec = make_spec(
            [stuck.url, ours.url],
            env_name="echoenvironment",
            retry=FAST,
            timeout=Timeouts(response=0.5, start_up=0.5, close=0.5),
        )
        environments = [spec.environment_factory() for _ in range(2)]
        stuck.add(Rule(None, None, Silence(None), times=None))
        for environment in environments:
            environment.reset(task_index=0)
        assert {environment.echo(text="hello") for environment in environments} == {"match"}
        assert spec._handle.runtime.servers.first.is_down
        spec.close()
    behind.set_aside(seconds=5)  # what was opened there can't be deleted by a client that never heard of it


def test_limit_of_a_call_is_no_fault_of_its_server():
    async def main():
        first, second = (Server(AsyncClient(f"http://peer{n}.test"), None) for n in range(2))
        servers = Servers([first, second])
        servers.report(first, DeadlineExceeded("a call", limit="timeout", seconds=1))
        assert not first.is_down

    asyncio.run(main())


def test_server_is_looked_at_again_after_an_error_that_nobody_foresaw(caplog):
    class Environment:
        looks = 0

        async def list_splits(self):
            self.looks += 1
            if self.looks == 1:
                raise KeyError("surprise")
            return []

    async def main():
        first, second = (Server(AsyncClient(f"http://peer{n}.test"), Environment()) for n in range(2))
        servers = Servers([first, second], probe_every=0.001)
        servers.report(first, TransportError("a look", reason="gone"))
        async with asyncio.timeout(10):
            while first.is_down:  # noqa: ASYNC110 - looked at in the background
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert "surprise" in caplog.text


# --- Never more than allowed


def test_openings_and_calls_at_one_time_are_as_many_as_allowed(make_spec):
    with serve("ours", "--env", "echo", "--tool-seconds", "0.2", "--reset-seconds", "0.2") as slow:
        spec = make_spec(slow.url, max_concurrency=2, discover_task_tools=False)
        environments = [spec.environment_factory() for _ in range(6)]
        for environment in environments:
            slot_of(environment).prefetch({"task_index": 0})
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda environment: environment.reset(task_index=0), environments))
            assert set(pool.map(lambda environment: environment.echo(text="wrong"), environments)) == {
                "no match (got 'wrong')"
            }
        assert len(slow.live()) == 6  # it bounds what happens at once, not what is open
        calls = slow.journal.entries("call", "call_done")
        running = peak = 0
        for entry in calls:
            running += 1 if entry["event"] == "call" else -1
            peak = max(peak, running)
        assert peak == 2
        spec.close()


def test_opening_that_waits_for_its_turn_uses_up_no_time_of_its_episode(make_spec):
    with serve("ours", "--env", "echo", "--reset-seconds", "2") as slow:
        spec = make_spec(slow.url, max_concurrency=1, episode_timeout=5.0, discover_task_tools=False)
        environments = [spec.environment_factory() for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda environment: environment.reset(task_index=0), environments))
        assert [environment.status for environment in environments] == ["unscored"] * 3  # and open, the last after six
        spec.close()


# --- Prompts in the dataset


def test_prompts_in_the_dataset_let_resets_return_before_the_session_is_open(make_spec):
    with serve("ours", "--env", "echo", "--reset-seconds", "1") as slow:
        spec = make_spec(slow.url, prompts="dataset", indices=[1, 0, 1], discover_task_tools=False)
        rows = spec.train_dataset
        assert [row["prompt"] for row in rows] == [
            [{"role": "user", "content": f"Call the `echo` tool with text='{word}' to win."}]
            for word in ("world", "hello", "world")
        ]
        environments = [spec.environment_factory() for _ in range(3)]
        setups = len(slow.journal.entries("setup"))
        assert setups == 2  # one session for each distinct task
        for environment, row in zip(environments, rows, strict=True):
            assert environment.reset(**row) is None
            assert slot_of(environment).log.session_id is None
        answers = [
            environment.echo(text=word)
            for environment, word in zip(environments, ("world", "no", "world"), strict=True)
        ]
        assert answers == ["match", "no match (got 'no')", "match"]
        spec.close()
        assert slow.live() == []


def test_prompt_with_an_image_can_not_stand_in_the_dataset(make_spec, ours):
    spec = make_spec(ours.url, env_name="imagesenvironment", images=True, prompts="dataset")
    with pytest.raises(ValueError, match="image"):
        _ = spec.train_dataset


def test_episode_that_never_opened_fails_at_its_first_call(make_spec, ours):
    with FaultProxy(ours.url) as proxy:
        spec = make_spec(proxy.url, env_name="echoenvironment", prompts="dataset", retry=FAST)
        rows = spec.train_dataset
        environment = spec.environment_factory()
        proxy.add(Rule("POST", "/create_session", Status(401), times=None))
        assert environment.reset(**rows[0]) is None
        environment.echo(text="hello")
        assert environment.status == "failed: AuthenticationError"
        assert environment.reward is None
        spec.close()
