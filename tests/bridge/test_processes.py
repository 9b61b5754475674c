"""Specs and factories in other processes and other trainers than the one that they were made for first."""

import fcntl
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from episodes import say
from ranks import LAUNCH, run_two_machines, run_two_ranks
from servers import serve
from training import IGNORED, make_trainer

from ors_client.record import merge, read
from trl_bridge import OpenRewardSpec

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

ROOT = Path(__file__).parent.parent.parent


# --- accelerate


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_ranks_train_and_evaluate_each_its_own_rollouts(tmp_path, eventually):
    with serve("openreward", "--env", "echo") as server:
        run_two_ranks("two_ranks.py", server.url, tmp_path, "record")
        eventually(lambda: server.live() == [])
    assert {(tmp_path / f"world-{rank}").read_text() for rank in (0, 1)} == {"2 cpu:0"}
    steps = [entry for entry in json.loads((tmp_path / "log-0").read_text()) if "reward" in entry]
    assert [step["reward"] for step in steps] == [1.0, 1.0]
    assert [step["environment/scored"] for step in steps] == [1.0, 1.0]
    (evaluation,) = [entry for entry in json.loads((tmp_path / "log-0").read_text()) if "eval_reward" in entry]
    assert evaluation["eval_reward"] == 1.0
    # Both wrote whole lines to one record: four rollouts in each of two steps and in the evaluation.
    episodes = list(read(tmp_path / "record"))
    assert len(episodes) == 2 * (4 + 4 + 4)
    assert {episode.status for episode in episodes} == {"scored"}
    assert len({episode.session_id for episode in episodes}) == len(episodes)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_machines_train_and_their_records_are_merged(tmp_path, eventually):
    with serve("ours", "--env", "echo", "--num-tasks", "4") as server:
        run_two_machines("two_ranks.py", server.url, tmp_path, "{host}/episodes-{rank}.jsonl")
        eventually(lambda: server.live() == [])
    assert {(tmp_path / f"world-{rank}").read_text() for rank in (0, 1)} == {"2 cpu:0"}
    records = sorted((tmp_path / socket.gethostname()).iterdir())
    assert [record.name for record in records] == ["episodes-0.jsonl", "episodes-1.jsonl"]
    assert {len(list(read(record))) for record in records} == {4 + 4 + 4}
    merged = merge(records, tmp_path / "all.jsonl")
    assert (merged.episodes, merged.overlaps, merged.missing) == (2 * (4 + 4 + 4), {}, [])
    episodes = list(read(tmp_path / "all.jsonl"))
    assert {episode.status for episode in episodes} == {"scored"}
    assert len({episode.session_id for episode in episodes}) == len(episodes)
    assert {len(episode.messages) > episode.opening for episode in episodes} == {True}  # the model's words, too


# --- A signal


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_training_that_gets_sigterm_leaves_no_session(tmp_path, eventually):
    script = Path(__file__).with_name("train_until_stopped.py")
    with serve("ours", "--env", "echo", "--num-tasks", "32", "--tool-seconds", "0.2") as server:
        with subprocess.Popen(
            [*LAUNCH, script, server.url, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            # In the second batch of each rank, with sessions that are used and some that were opened ahead.
            eventually(lambda: process.poll() is not None or server.executions("echo") > 20, 120)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[0].decode()
        assert process.returncode != 0, said
        assert server.executions("echo") > 20, said
        assert server.live() == [], said


# --- A crash


def test_crash_loses_no_episode_that_had_ended(echo_server, tmp_path):
    """Sixteen have ended and one runs when the process is killed."""
    script = (
        "import os, signal, sys\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from trl_bridge import OpenRewardSpec\n"
        "spec = OpenRewardSpec(sys.argv[1], record=sys.argv[2])\n"
        "environments = [spec.environment_factory() for _ in range(17)]\n"
        "for environment in environments:\n"
        "    environment.reset(task_index=0)\n"
        "with ThreadPoolExecutor(16) as pool:\n"
        "    list(pool.map(lambda environment: environment.echo(text='hello'), environments[1:]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    record = tmp_path / "record"
    done = subprocess.run(
        [sys.executable, "-c", script, echo_server.url, record], cwd=ROOT, capture_output=True, timeout=100, check=False
    )
    echo_server.set_aside(seconds=0)  # what ran is the reaper's
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [episode.status for episode in read(record)] == ["scored"] * 16


def test_record_that_another_process_holds_holds_up_no_exit(echo_server, tmp_path):
    script = (
        "import sys\n"
        "from ors_client import Timeouts\n"
        "from trl_bridge import OpenRewardSpec\n"
        "with OpenRewardSpec(sys.argv[1], record=sys.argv[2], timeout=Timeouts(close=1)) as spec:\n"
        "    spec.environment_factory().reset(task_index=0)\n"
    )
    record = tmp_path / "record"
    with record.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # The lock is held until the process has ended, however long that takes.
        done = subprocess.run(
            [sys.executable, "-c", script, echo_server.url, record],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, record.read_text()) == (0, "")
    assert f"An episode was not written to '{record}'" in done.stderr


# --- GRPO's subclass that takes environments


def test_trainer_derived_from_grpo_takes_the_slots_as_they_are(echo_server, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from test_async_grpo import say_the_word
    from trl.experimental.gmpo import GMPOTrainer

    with OpenRewardSpec(echo_server.url) as spec:
        trainer = make_trainer(tmp_path, spec, policy=say_the_word, trainer=GMPOTrainer)
        spec.attach(trainer)
        trainer.train()
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [step["reward"] for step in steps] == [1.0, 1.0]
    assert [step["environment/calls"] for step in steps] == [2.0, 2.0]


# --- Pools of processes and actors


def test_factory_runs_in_a_pool_of_spawned_processes(echo_server, eventually):
    with OpenRewardSpec(echo_server.url) as spec:
        factory = spec.environment_factory
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(say, [factory] * 4, ["hello", "x", "hello", "x"]))
        assert [(answer, reward) for answer, reward, _ in results] == [
            ("match", 1.0),
            ("no match (got 'x')", 0.0),
        ] * 2
        assert os.getpid() not in {process for *_, process in results}
        eventually(lambda: echo_server.live() == [])


def test_spec_and_factory_travel_by_cloudpickle_with_what_they_know(echo_server):
    cloudpickle = pytest.importorskip("cloudpickle")
    with OpenRewardSpec(echo_server.url, api_key="sk-key", num_tasks=2) as spec:
        _ = spec.environment_factory
        script = (
            "import pickle, sys\n"
            "spec, say = pickle.load(sys.stdin.buffer)\n"
            "with spec:\n"
            "    print(say(spec.environment_factory), len(spec.train_dataset))\n"
        )
        work = cloudpickle.dumps((spec, lambda factory: say(factory, "hello")[:2]))
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            input=work,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == "('match', 1.0) 2"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_actors_hold_a_spec_and_run_its_environments(eventually, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    class Worker:
        def __init__(self, spec):
            self.spec = spec
            self.environment = spec.environment_factory()

        def run(self, index, text):
            prompt = self.environment.reset(**self.spec.train_dataset[index])
            answer = self.environment.echo(text=text)
            return prompt, answer, self.spec.reward_funcs(environments=[self.environment])

        def close(self):
            self.spec.close()

    with (
        tempfile.TemporaryDirectory() as folder,  # pytest's own path is too long for a socket
        serve("ours", "--env", "echo") as server,
        OpenRewardSpec(server.url) as spec,
    ):
        _ = spec.environment_factory
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "bridge")))
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
            _temp_dir=folder,
        )
        try:
            workers = [ray.remote(Worker).remote(spec) for _ in range(2)]
            results = ray.get(
                [worker.run.remote(0, text) for worker, text in zip(workers, "ab", strict=True)], timeout=90
            )
            assert results == [
                ("Call the `echo` tool with text='hello' to win.", f"no match (got '{text}')", [0.0]) for text in "ab"
            ]
            ray.get([worker.close.remote() for worker in workers], timeout=30)
            eventually(lambda: server.live() == [])
        finally:
            ray.shutdown()
