"""A spec checks what it was asked for, asks the server little, travels, and leaves nothing open."""

# ruff: noqa: S301 - the pickles are our own

import gc
import inspect
import logging
import multiprocessing
import pickle
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import ClientStateError, EnvironmentNotFound, Layout, RetryPolicy, Task
from trl_bridge import OpenRewardSpec
from trl_bridge._runtime.runtime import RuntimeHandle, connect
from trl_bridge._settings import Settings

ROOT = Path(__file__).parent.parent.parent
NOWHERE = "http://127.0.0.1:1"


def run_script(body, *arguments):
    """Run a script in a fresh interpreter, with every warning an error, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(body), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


# --- What it is asked for


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"target": "localhost"}, ValueError, "'localhost'.*http://"),
        ({"target": "localhost:8000"}, ValueError, "'localhost:8000'.*http://"),
        ({"target": "me:pass@localhost:8000"}, ValueError, r"^'\*\*\*@localhost:8000'"),
        ({"target": [NOWHERE, "me:pass@localhost"]}, ValueError, r"unlike '\*\*\*@localhost'"),
        ({"target": "ftp://localhost"}, ValueError, "ftp"),
        ({"target": []}, ValueError, "empty"),
        ({"target": [NOWHERE, "owner/name"]}, ValueError, "'owner/name'"),
        ({"num_tasks": 3, "indices": [1]}, ValueError, r"num_tasks=3.*indices=\[1\]"),
        ({"num_tasks": 0}, ValueError, "not 0"),
        ({"num_tasks": True}, TypeError, "num_tasks takes an integer, not True"),
        ({"indices": []}, ValueError, "empty"),
        ({"indices": [0, "1"]}, TypeError, "'1'"),
        ({"max_calls": 0}, ValueError, "max_calls.*0"),
        ({"max_output_chars": -1}, ValueError, "max_output_chars.*-1"),
        ({"max_episode_chars": 1.5}, TypeError, r"max_episode_chars.*1\.5"),
        ({"max_concurrency": 0}, ValueError, "max_concurrency.*0"),
        ({"call_timeout": 0}, ValueError, "call_timeout.*0"),
        ({"episode_timeout": -1.0}, ValueError, r"episode_timeout.*-1\.0"),
        ({"max_failure_rate": 2}, ValueError, "max_failure_rate.*2"),
        ({"prompts": "row"}, ValueError, "'row'"),
        ({"reward": "first"}, ValueError, "'first'"),
        ({"on_failure": "zero"}, ValueError, "'zero'"),
        ({"target": None}, ValueError, "may be unset"),
        ({"target": 8000}, TypeError, "target .*not int"),
        ({"indices": 3}, TypeError, r"indices=\[3\]"),
        ({"retry": 3}, TypeError, r"retry .*RetryPolicy\(attempts="),
        ({"retry": 0}, TypeError, "retry .*not 0"),
        ({"timeout": 5}, TypeError, r"timeout .*Timeouts\(response=5\).*Timeouts\(call=5\)"),
        ({"keepalive": 5}, TypeError, "keepalive .*KeepalivePolicy"),
        ({"limits": {}}, TypeError, "limits .*Limits"),
        ({"secrets": "x"}, TypeError, "secrets .*not str"),
        ({"secrets": {"token": 3}}, TypeError, "'token'"),
        ({"headers": "x"}, TypeError, "headers .*not str"),
        ({"call_timeout": "30"}, TypeError, "call_timeout .*'30'"),
        ({"episode_timeout": True}, TypeError, "episode_timeout .*True"),
        ({"api_key": 3}, TypeError, "api_key .*not int"),
        ({"toolset": ["a"]}, TypeError, "toolset .*not list"),
    ],
)
def test_spec_refuses_what_makes_no_sense_and_names_it(arguments, error, named):
    with pytest.raises(error, match=named):
        OpenRewardSpec(**{"target": NOWHERE, **arguments})


def test_check_of_something_else_than_a_configuration_is_refused_before_a_server_is_asked():
    with OpenRewardSpec(NOWHERE) as spec, pytest.raises(TypeError, match="GRPOConfig, not 'x'"):
        spec.check("x")


@pytest.mark.parametrize("target", ["Owner/Name", NOWHERE, Layout.single(NOWHERE), [NOWHERE, Layout.single(NOWHERE)]])
def test_spec_takes_every_kind_of_target_and_contacts_none(target):
    OpenRewardSpec(target).close()


def test_spec_shows_neither_key_nor_secrets():
    spec = OpenRewardSpec(NOWHERE, api_key="sk-key", secrets={"token": "t-secret"}, num_tasks=4, env_name="echo")
    assert repr(spec) == "OpenRewardSpec('http://127.0.0.1:1', env_name='echo', split='train', num_tasks=4)"
    shown = repr(vars(spec)) + repr(spec._handle.settings)
    assert "sk-key" not in shown
    assert "t-secret" not in shown


# --- The dataset


def test_dataset_points_at_every_task_of_the_split(make_spec, server):
    dataset = make_spec(server.url, env_name="alpha", split="test").train_dataset
    assert dataset.column_names == ["prompt", "task_index", "split", "id", "number"]
    assert dataset["task_index"][:] == [0, 1, 2, 3, 4]
    assert set(dataset["split"]) == {"test"}
    assert dataset["id"][:] == [f"alpha-test-{index}" for index in range(5)]
    assert dataset[0]["prompt"] == [{"role": "user", "content": ""}]


def test_dataset_without_metadata_only_points(make_spec, ours):
    spec = make_spec(ours.url, env_name="alpha", num_tasks=2, include_metadata=False)
    assert spec.train_dataset.column_names == ["prompt", "task_index", "split"]


def test_dataset_has_the_first_tasks_of_the_number_asked_for(make_spec, server):
    dataset = make_spec(server.url, env_name="alpha", num_tasks=3).train_dataset
    assert list(zip(dataset["task_index"], dataset["id"], strict=True)) == [(i, f"alpha-train-{i}") for i in range(3)]


def test_dataset_of_fewer_tasks_than_asked_for_has_what_there_is(make_spec, ours, caplog):
    with caplog.at_level(logging.WARNING, "trl_bridge"):
        assert len(make_spec(ours.url, env_name="beta", num_tasks=99).train_dataset) == 10
    assert "10 tasks" in caplog.text
    assert "99" in caplog.text


@pytest.mark.parametrize("indices", [[3], [4, 2, 3], [0, 69], [5, 5, 0], [-1, 0]])
@pytest.mark.parametrize("environment", ["alpha", "indexed"])
def test_dataset_has_exactly_the_indices_asked_for(make_spec, ours, environment, indices):
    if environment == "indexed":
        indices = [min(index, 11) for index in indices]
    total = {"alpha": 70, "indexed": 12}[environment]
    dataset = make_spec(ours.url, env_name=environment, indices=indices).train_dataset
    expected = [index % total for index in indices]
    assert dataset["task_index"][:] == expected
    assert dataset["id"][:] == [f"{environment}-train-{index}" for index in expected]


@pytest.mark.parametrize("indices", [[70], [69, 70], [0, 70], [0, 1000], [-71]])
def test_index_out_of_range_is_an_error_that_names_it_and_the_range(make_spec, ours, indices):
    spec = make_spec(ours.url, env_name="alpha", indices=indices)
    with pytest.raises(ValueError, match=f"indices holds {indices[-1]}, .* 70 tasks, at 0 to 69"):
        _ = spec.train_dataset


def test_unknown_split_is_an_error_that_names_those_there_are(make_spec, server):
    spec = make_spec(server.url, env_name="gamma", split="train")
    with pytest.raises(ValueError, match=r"'train'.*'validation', 'hard', 'holdout'"):
        _ = spec.train_dataset


def test_unknown_environment_is_an_error_that_names_those_there_are(make_spec, ours):
    with pytest.raises(EnvironmentNotFound, match=r"'nothing'.*'alpha'"):
        _ = make_spec(ours.url, env_name="nothing").train_dataset


def test_dataset_of_another_split_is_served_by_the_same_environments(make_spec, ours):
    spec = make_spec(ours.url, env_name="alpha", num_tasks=2)
    assert spec.dataset("test")["id"][:] == ["alpha-test-0", "alpha-test-1"]
    assert spec.dataset("test", num_tasks=4)["task_index"][:] == [0, 1, 2, 3]
    rows = spec.dataset("test", indices=[4])
    assert rows["task_index"][:] == [4]
    environment = spec.environment_factory()
    assert environment.reset(**rows[0]) == "alpha: alpha-test-4"


def test_dataset_of_another_split_takes_one_choice_of_tasks():
    with pytest.raises(ValueError, match=r"num_tasks=3.*indices=\[1\]"):
        OpenRewardSpec(NOWHERE).dataset("test", num_tasks=3, indices=[1])


def test_dataset_is_fetched_once(make_spec, ours):
    with FaultProxy(ours.url) as proxy:
        spec = make_spec(proxy.url, env_name="alpha", num_tasks=2)
        assert spec.train_dataset is spec.train_dataset
        assert proxy.count("POST", "/task_range") == 1
        spec.close()


@pytest.mark.parametrize("how", [{"num_tasks": 64}, {"indices": range(64)}, {}])
def test_64_tasks_as_a_dataset_cost_at_most_4_requests(ours, how):
    with FaultProxy(ours.url) as proxy:
        with OpenRewardSpec(proxy.url, env_name="alpha", **how) as spec:
            assert len(spec.train_dataset) >= 64
        assert len(proxy.requests) <= 4


def test_dataset_can_show_how_far_it_has_come(make_spec, ours, capsys):
    spec = make_spec(ours.url, env_name="alpha", indices=[0, 69], progress=True)
    _ = spec.train_dataset
    assert "2/2" in capsys.readouterr().err
    _ = make_spec(ours.url, env_name="alpha", indices=[0, 69]).train_dataset
    assert capsys.readouterr().err == ""


def test_manifest_tells_one_set_of_tasks_from_another(make_spec, ours):
    first, same, other = (
        make_spec(ours.url, env_name=name, split="train", indices=[1, 0], api_key="sk-key")
        for name in ("alpha", "alpha", "beta")
    )
    assert first.manifest == same.manifest
    assert first.manifest["fingerprint"] != other.manifest["fingerprint"]
    assert {name: first.manifest[name] for name in ("target", "environment", "split", "tasks")} == {
        "target": ours.url,
        "environment": "alpha",
        "split": "train",
        "tasks": [1, 0],
    }
    assert "sk-key" not in str(first.manifest)


# --- The tools


def tools(spec):
    environment = spec.environment_factory()
    return sorted(name for name, _ in inspect.getmembers(type(environment), inspect.isfunction) if name[0] != "_")


def test_tools_of_every_index_are_found(make_spec, server):
    spec = make_spec(server.url, env_name="tasktoolsenvironment", indices=[2, 1, 2])
    assert tools(spec) == ["look", "open_1", "open_2", "reset"]


def test_tools_of_a_few_tasks_are_found_without_indices(make_spec, ours):
    spec = make_spec(ours.url, env_name="tasktoolsenvironment")
    assert tools(spec) == ["look", "open_0", "open_1", "open_2", "open_3", "reset", "shortcut"]


def test_tools_of_the_first_tasks_are_found_for_a_number_of_tasks(make_spec, ours):
    assert tools(make_spec(ours.url, env_name="tasktoolsenvironment", num_tasks=1)) == ["look", "open_0", "reset"]


def test_tools_of_the_one_task_to_look_at_are_found(make_spec, ours):
    spec = make_spec(ours.url, env_name="tasktoolsenvironment", indices=[0, 1], task_tools_discovery_index=3)
    assert tools(spec) == ["look", "open_3", "reset", "shortcut"]


def test_tools_of_tasks_are_left_out_when_asked_to(make_spec, ours):
    spec = make_spec(ours.url, env_name="tasktoolsenvironment", discover_task_tools=False)
    before = ours.stats()["requests"].get("POST /create_session", 0)
    assert tools(spec) == ["look", "reset"]
    assert ours.stats()["requests"].get("POST /create_session", 0) == before


def test_tools_of_the_environment_stand_in_when_no_task_can_be_looked_at(make_spec, ours, caplog):
    spec = make_spec(ours.url, env_name="tasktoolsenvironment", task_tools_discovery_index=99)
    assert tools(spec) == ["look", "reset"]
    assert "task 99" in caplog.text


def test_tasks_that_are_looked_at_are_looked_at_together(make_spec, ours):
    with FaultProxy(ours.url) as proxy:
        spec = make_spec(proxy.url, env_name="alpha", indices=[0, 10, 20, 30])
        assert tools(spec) == ["alpha_only", "reset", "who"]
        paths = [request.path for request in proxy.requests]
        assert paths.count("/create") == 4
        last_create = max(position for position, path in enumerate(paths) if path == "/create")
        assert last_create < paths.index("/delete")
        spec.close()


def test_looking_for_tools_leaves_no_session(make_spec, ours):
    tools(make_spec(ours.url, env_name="tasktoolsenvironment"))
    assert ours.live() == []


def test_tool_that_shows_up_only_at_a_reset_is_named_once(make_spec, ours, caplog, eventually):
    spec = make_spec(ours.url, env_name="tasktoolsenvironment", task_tools_discovery_index=0)
    environments = [spec.environment_factory() for _ in range(3)]
    for environment in environments:
        environment.reset(task_index=1)
    eventually(lambda: "open_1" in caplog.text)
    for environment in environments:
        environment._close()
    assert caplog.text.count("open_1") == 1


def test_environments_of_a_spec_have_one_class(make_spec, ours):
    spec = make_spec(ours.url, env_name="echoenvironment")
    first, second = spec.environment_factory(), spec.environment_factory()
    assert type(first) is type(second)
    assert type(make_spec(ours.url, env_name="alpha").environment_factory()) is not type(first)


def test_making_an_environment_opens_no_session(make_spec, ours):
    factory = make_spec(ours.url, env_name="echoenvironment").environment_factory
    before = ours.stats()["requests"]["POST /create_session"]
    for _ in range(5):
        factory()
    assert ours.stats()["requests"]["POST /create_session"] == before


def test_connection_that_is_closed_while_it_opens_stays_closed():
    class Closing(tuple):
        """Servers; whoever opens clients for them finds the handle closed by another thread meanwhile."""

        __slots__ = ()

        def __iter__(self):
            closer = threading.Thread(target=handle.close)
            closer.start()
            closer.join(30)
            return super().__iter__()

    before = threading.enumerate()
    handle = RuntimeHandle(Settings(servers=Closing((NOWHERE,))))
    with pytest.raises(ClientStateError, match="closed"):
        _ = handle.runtime
    assert handle.current() is None
    assert not [thread for thread in threading.enumerate() if thread.name == "trl-bridge" and thread not in before]


def test_prompt_of_a_task_without_an_index_is_never_that_of_another(make_spec):
    spec = make_spec(NOWHERE, env_name="echoenvironment", prompts="dataset")
    with pytest.raises(ValueError, match=r"'n': 1.*no index"):
        spec._build([Task(environment="echoenvironment", spec={"n": 1})])


# --- Processes


def test_factory_pickles_without_a_connection_and_equals_itself_here(make_spec, ours):
    factory = make_spec(ours.url, env_name="echoenvironment", api_key="k", secrets={"a": "bcde"}).environment_factory
    copy = pickle.loads(pickle.dumps(factory))
    assert type(copy()) is type(factory())
    assert copy()._slot.handle is factory()._slot.handle


def test_spec_pickles_with_what_it_was_asked_for(make_spec, ours):
    spec = make_spec(ours.url, env_name="echoenvironment", num_tasks=2, api_key="k")
    _ = spec.train_dataset, spec.environment_factory
    copy = pickle.loads(pickle.dumps(spec))
    assert repr(copy) == repr(spec)
    assert copy._handle.settings == spec._handle.settings
    assert len(copy.train_dataset) == 2


def test_copies_of_a_spec_share_one_connection_in_a_process(make_spec, ours):
    spec = make_spec(ours.url, env_name="echoenvironment")
    text = pickle.dumps(spec)
    assert pickle.loads(text)._handle is pickle.loads(text)._handle is connect(spec._handle.settings)


def _play(factory, results):
    environment = factory()
    environment.reset(task_index=1)
    environment.echo(text="world")
    results.put((environment.reward, environment._slot.log.session_id))
    environment._close()


def test_factory_works_in_a_fork_while_its_parent_plays(make_spec, ours):
    factory = make_spec(ours.url, env_name="echoenvironment").environment_factory
    here = factory()
    here.reset(task_index=0)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    worker = context.Process(target=_play, args=(factory, results))
    worker.start()
    assert results.get(timeout=60)[0] == 1.0
    worker.join(30)
    assert here.echo(text="hello") == "match"  # what runs here is not disturbed


def _misuse(environment, results):
    try:
        environment.echo(text="hello")
    except ClientStateError as error:
        results.put(str(error))
    results.put(environment.reset(task_index=1))
    environment._close()


def test_episode_of_a_parent_is_refused_in_its_fork_and_a_reset_works(make_spec, ours):
    environment = make_spec(ours.url, env_name="echoenvironment").environment_factory()
    environment.reset(task_index=0)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    worker = context.Process(target=_misuse, args=(environment, results))
    worker.start()
    assert "parent" in results.get(timeout=30)
    assert "world" in results.get(timeout=30)
    worker.join(30)
    assert worker.exitcode == 0
    assert environment.echo(text="hello") == "match"


# --- Rewards


def test_reward_funcs_is_one_function_that_pickles(make_spec):
    spec = make_spec(NOWHERE)
    assert pickle.loads(pickle.dumps(spec.reward_funcs)) is spec.reward_funcs


def test_asking_for_both_kinds_of_reward_is_an_error(make_spec):
    spec = make_spec(NOWHERE, owns_reward=True)
    with pytest.raises(ValueError, match="reward_funcs=None"):
        _ = spec.reward_funcs


# --- The end


def test_closed_spec_deletes_its_sessions_and_refuses(make_spec, ours):
    spec = make_spec(ours.url, env_name="echoenvironment")
    environments = [spec.environment_factory() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda environment: environment.reset(task_index=0), environments))
    assert len(ours.live()) == 8
    spec.close()
    assert ours.live() == []
    spec.close()
    with pytest.raises(ClientStateError, match="closed"):
        environments[0].reset(task_index=0)
    with pytest.raises(ClientStateError, match="closed"):
        environments[0].echo(text="hello")
    with pytest.raises(ClientStateError, match="closed"):
        _ = spec.train_dataset


def test_spec_is_a_context_manager(ours):
    with OpenRewardSpec(ours.url, env_name="echoenvironment") as spec:
        spec.environment_factory().reset(task_index=0)
        assert len(ours.live()) <= 1
    assert ours.live() == []


def test_spec_that_nobody_holds_closes(ours):
    def use():
        spec = OpenRewardSpec(ours.url, env_name="echoenvironment")
        environment = spec.environment_factory()
        environment.reset(task_index=0)
        del spec
        gc.collect()
        assert len(ours.live()) == 1  # the environment holds what it needs
        assert environment.echo(text="wrong").startswith("no match")

    use()
    gc.collect()
    assert ours.live() == []


def test_interpreter_that_exits_deletes_its_sessions(ours):
    run_script(
        """
        import sys
        from trl_bridge import OpenRewardSpec
        spec = OpenRewardSpec(sys.argv[1], env_name="echoenvironment")
        environments = [spec.environment_factory() for _ in range(4)]
        for environment in environments:
            environment.reset(task_index=0)
        """,
        ours.url.replace("127.0.0.1", "localhost"),  # whose name is looked up on another thread, also at the exit
    )
    assert ours.live() == []


def test_interpreter_that_exits_on_an_error_deletes_its_sessions(ours):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_script(
            """
            import sys
            from trl_bridge import OpenRewardSpec
            environment = OpenRewardSpec(sys.argv[1], env_name="echoenvironment").environment_factory()
            environment.reset(task_index=0)
            1 / 0
            """,
            ours.url,
        )
    assert ours.live() == []


def test_interrupted_reset_leaves_no_session(ours, eventually):
    run_script(
        """
        import os, signal, sys, threading, time
        from trl_bridge import OpenRewardSpec
        spec = OpenRewardSpec(sys.argv[1], env_name="slowenvironment", discover_task_tools=False)
        environment = spec.environment_factory()
        def interrupt():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            environment.reset(task_index=1)  # its setup takes a second
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit("nothing interrupted it")
        """,
        ours.url,
    )
    eventually(lambda: ours.live() == [])


def test_server_that_is_gone_does_not_hold_up_the_exit():
    run_script(
        """
        from ors_client import RetryPolicy, Timeouts
        from trl_bridge import OpenRewardSpec
        spec = OpenRewardSpec("http://127.0.0.1:1", retry=RetryPolicy(attempts=1), timeout=Timeouts(start_up=0.1))
        try:
            spec.train_dataset
        except Exception as error:
            assert "127.0.0.1:1" in str(error), error
        else:
            raise SystemExit("somebody answered")
        """
    )


def test_importing_the_bridge_contacts_nobody_and_loads_no_trainer():
    run_script(
        """
        import sys
        import trl_bridge
        trl_bridge.OpenRewardSpec("http://127.0.0.1:1")
        assert not {"torch", "trl", "transformers", "datasets", "aiohttp"} & sys.modules.keys()
        """
    )


def test_attempts_are_as_many_as_the_policy_says(ours):
    with FaultProxy(ours.url) as proxy, OpenRewardSpec(proxy.url, retry=RetryPolicy(attempts=1)) as spec:
        from fixtures.proxy import Rule, Status

        proxy.add(Rule("GET", "/list_environments", Status(502), times=None))
        with pytest.raises(Exception, match="502"):
            _ = spec.train_dataset
        assert proxy.count("GET", "/list_environments") == 1


def test_toolset_that_the_server_refuses_is_an_error_before_training(proxy, make_spec):
    proxy.add(Rule("POST", "/create", Status(400), times=None))
    with pytest.raises(ValueError, match="toolset='none'"):
        _ = make_spec(proxy.url, env_name="beta", toolset="none").environment_factory
