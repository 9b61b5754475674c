"""An evaluation on Ray: what is played once, what is left when a worker or the whole command ends, and who knows a key.

Each test has a cluster on this machine, started for it or for the module.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from models import model_server
from servers import ROOT, eventually, serve
from terminal import Terminal

from ors_client import AsyncClient, TaskRef
from ors_client.evaluation import Budget, ChatModel, ModelRefused, evaluate_on_ray
from ors_client.record import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ECHO = "echoenvironment"
TASKS = [TaskRef("train", index) for index in range(4)]
KEYS = {"model": "sk-of-the-model", "server": "sk-of-the-server", "secret": "only-for-the-environment"}


@pytest.fixture(scope="module")
def model():
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def folder():
    """Where Ray keeps its session; pytest's own path is too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="ray-") as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", name)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield Path(name)


@pytest.fixture(scope="module")
def reaping():
    """A server that soon deletes the sessions that nobody pings, as those of a worker that died."""
    with serve("ours", "--env", "echo", "--session-timeout", "5", "--reap-every", "0.5") as server:
        yield server


@pytest.fixture(scope="module")
def ray(folder):  # noqa: ARG001 - where it is started
    """Ray, initialised in this process."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def run(ray, echo_server, model, tmp_path):  # noqa: ARG001 - it is used as it is
    """Run an evaluation on Ray; the model's name says how it plays."""

    def evaluation(name, tasks=TASKS, *, url=echo_server.url, **settings):
        play = partial(ChatModel, name, model.url, api_key=KEYS["model"], first_delay=0.01)
        settings = {"record": tmp_path / "a.jsonl", "workers": 2, "model": play, **settings}
        return asyncio.run(evaluate_on_ray(partial(AsyncClient, url), tasks, **settings))

    return evaluation


def episodes(tmp_path):
    return list(read(tmp_path / "a.jsonl"))


def workers(parent=None):
    """Return the processes of workers that descend from a process."""
    found = psutil.Process(parent).children(recursive=True)
    return [process for process in found if "".join(process.cmdline()[:1]).startswith("ray::Worker")]


# --- Once each -------------------------------------------------------------------------------------------------------


def test_attempts_of_a_worker_that_is_killed_are_played_again_and_each_is_recorded_once(run, reaping, tmp_path):
    leaked = []
    killed = []

    def kill_one(_):
        if not killed and len(list(read(tmp_path / "a.jsonl"))) >= 50:
            killed.extend(workers()[:1])
            killed[0].kill()

    figures = run("right", attempts=50, workers=3, url=reaping.url, on_episode=kill_one, on_leaked=leaked.append)
    assert killed
    assert len(reaping.live()) <= sum(leaked) <= 8
    eventually(lambda: reaping.live() == [])  # nobody pings what the dead worker had
    played = Counter((episode.index, episode.attempt) for episode in episodes(tmp_path))
    assert played == {(task.index, attempt): 1 for task in TASKS for attempt in range(50)}
    assert (figures.episodes, figures.broken, figures.mean_reward) == (200, 0, 1.0)


def test_attempt_that_kills_every_worker_is_recorded_as_broken(run, reaping, model, tmp_path):
    url = model.url

    class Deadly(ChatModel):
        async def ask(self, _):
            os._exit(1)

    run("right", TASKS[:1], workers=1, url=reaping.url, model=lambda: Deadly("deadly", url))
    (episode,) = episodes(tmp_path)
    assert (episode.status, episode.model, episode.environment) == ("failed: WorkerDied", "deadly", ECHO)
    assert "3 workers died" in episode.failure


def test_evaluation_on_ray_goes_on_where_its_record_ends_and_uses_the_ray_that_is_there(run, ray, model, tmp_path):
    run("right", TASKS[:2])
    before = len(model.requests())
    shown = []
    run("right", TASKS[:3], attempts=2, on_episode=shown.append)
    assert (len(shown), len(model.requests()) - before) == (4, 4)
    assert {(episode.index, episode.attempt) for episode in shown} == {(2, 0), (0, 1), (1, 1), (2, 1)}
    assert shown == episodes(tmp_path)[2:]
    assert {episode.run.noted["workers"] for episode in shown} == {2}
    assert ray.is_initialized()


def test_evaluation_on_ray_plays_its_shard_alone(run, tmp_path):
    played = []
    for shard in ((1, 2), (2, 2)):
        record = tmp_path / "{}-of-{}.jsonl".format(*shard)
        figures = run("right", attempts=2, shard=shard, record=record)
        played.append([(episode.index, episode.attempt) for episode in read(record)])
        assert figures.episodes == len(played[-1]) == 4
    assert sorted(played[0] + played[1]) == [(task.index, attempt) for task in TASKS for attempt in range(2)]


# --- As in one process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status"), [("wrong", "cut: turns"), ("failing", "failed: ModelError"), ("right", "scored")]
)
def test_episodes_end_on_ray_as_they_do_in_one_process(run, echo_server, tmp_path, name, status):
    run(name, budget=Budget(turns=2))
    assert [episode.status for episode in episodes(tmp_path)] == [status] * 4
    assert echo_server.live() == []


def test_endpoint_that_refuses_ends_the_evaluation_on_all_workers(run, echo_server, tmp_path):
    with pytest.raises(ModelRefused) as caught:
        run("refusing", concurrency=2)
    assert caught.value.status == 401
    assert KEYS["model"] not in str(caught.value)
    assert not (tmp_path / "a.jsonl").exists()
    assert echo_server.live() == []


def test_what_a_worker_can_not_make_is_raised_in_its_own_words(run, model):
    here, url = os.getpid(), model.url

    def make():
        if os.getpid() != here:
            raise ValueError("There are no weights on this node.")
        return ChatModel("right", url)

    with pytest.raises(ValueError, match="no weights on this node"):
        run("right", model=make)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": ChatModel("right", "http://localhost/v1")}, r"write model=lambda: ChatModel\("),
        ({"model": partial(lambda _: ChatModel("right", "http://localhost/v1"), threading.Lock())}, r"model= can't be"),
        ({"secrets": {"key": "k" * 200_000}}, r"bytes when they are pickled"),
    ],
)
def test_what_can_not_travel_to_the_workers_is_told_before_anything_is_played(run, settings, said):
    with pytest.raises(TypeError, match=said) as caught:
        run("right", **settings)
    assert "kkkk" not in str(caught.value)


def test_evaluation_on_ray_is_refused_on_trio():
    async def work():
        await evaluate_on_ray(AsyncClient, TASKS, ChatModel, record="none.jsonl")

    with pytest.raises(RuntimeError, match="not on trio"):
        anyio.run(work, backend="trio")


@pytest.mark.parametrize("settings", [{"workers": 0}, {"address": "localhost:6379"}])
def test_settings_that_make_no_sense_are_refused(run, settings):
    with pytest.raises(ValueError, match=r"not 0|initialised already"):
        run("right", **settings)


# --- The command -----------------------------------------------------------------------------------------------------


def command(server, model, record, *options, address="local"):
    keys = ("--model-key", KEYS["model"], "--api-key", KEYS["server"], "--secret", f"S={KEYS['secret']}")
    return ("run", server.url, "--base-url", model.url, "--record", str(record), f"--ray={address}", *keys, *options)


@pytest.mark.usefixtures("folder")
def test_ctrl_c_deletes_the_sessions_of_all_workers(echo_server, model, tmp_path):
    options = ("--model", "slow", "--workers", "2", "-c", "2", "-k", "2", "-n", "3")
    with Terminal(*command(echo_server, model, tmp_path / "a.jsonl", *options)) as terminal:
        terminal.expect("0/6")
        eventually(lambda: len(echo_server.live()) >= 4)
        assert len(workers(terminal.pid)) == 2
        assert len(echo_server.live()) == 4  # no worker plays more than it was told
        terminal.type("\x03")  # which every process of the terminal hears
        terminal.expect("no session is left")
        assert terminal.status() == 130
    assert echo_server.live() == []
    assert not (tmp_path / "a.jsonl").exists()


def test_keys_and_secrets_are_in_no_command_line_no_variable_and_no_file_of_the_cluster(
    folder, echo_server, model, tmp_path
):
    with Terminal(*command(echo_server, model, tmp_path / "a.jsonl", "--model", "slow", "-n", "1")) as terminal:
        terminal.expect("0/1")
        eventually(lambda: len(echo_server.live()) >= 1)
        driver = psutil.Process(terminal.pid)
        shown = [driver.cmdline()]
        started = driver.children(recursive=True)
        for process in started:
            shown += [process.cmdline(), process.environ()]
        terminal.type("\x03")
        assert terminal.status() == 130
        shown.append(terminal.said)
    eventually(lambda: not any(process.is_running() for process in started))  # it was ours, and went with the command
    assert "ray::Worker" in str(shown)
    assert "ors_client.cli" in str(shown[0])
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any("worker" in path.name for path in files)
    texts = [str(shown), *(path.read_text(errors="replace") for path in files)]
    assert [key for key in KEYS.values() if any(key in text for text in texts)] == []


@pytest.mark.usefixtures("folder")
def test_run_on_ray_as_json_is_one_object_also_where_ray_tells_of_a_worker_that_died(reaping, model, tmp_path):
    record = tmp_path / "a.jsonl"
    options = command(reaping, model, record, "--model", "right", "-n", "3", "-k", "200", "--workers", "1", "--json")
    run = (sys.executable, "-m", "ors_client.cli", *options)
    with subprocess.Popen(run, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        eventually(record.exists)
        workers(process.pid)[0].kill()
        shown, told = process.communicate(timeout=90)
    assert (process.returncode, json.loads(shown)["episodes"]) == (0, 600)
    assert "Worker 1 of 1 died" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "2"], "give --ray, too"),
        (["--ray=ray://localhost:10001"], "Ray Client"),
        (["--ray=127.0.0.1:1"], "There is no Ray cluster at '127.0.0.1:1'"),
        (["--ray=nonsense"], "Ray can't be used at 'nonsense'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_cluster_that_can_not_be_used_is_told(echo_server, model, tmp_path, options, said):
    given = ("--model", "right", "--base-url", model.url, "--record", str(tmp_path / "a.jsonl"), *options)
    run = (sys.executable, "-m", "ors_client.cli", "run", echo_server.url, *given)
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {1, 2}
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_run_plays_on_the_cluster_at_an_address_and_leaves_it_running(ray, echo_server, model, tmp_path):
    address = ray.get_runtime_context().gcs_address
    options = command(echo_server, model, tmp_path / "a.jsonl", "--model", "right", "-n", "2", address=address)
    run = (sys.executable, "-m", "ors_client.cli", *options)
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(episodes(tmp_path)) == 2
    assert [node["Alive"] for node in ray.nodes()] == [True]
    jobs = str(ray._private.state.state.job_table())
    assert str(tmp_path) in jobs  # the command line is told, and no key on it
    assert [key for key in KEYS.values() if key in jobs] == []


@pytest.mark.usefixtures("folder")
def test_run_has_a_worker_on_each_node_and_outlives_the_loss_of_one(reaping, model, tmp_path):
    from ray.cluster_utils import Cluster

    record = tmp_path / "a.jsonl"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        options = ("--model", "right", "-n", "3", "-k", "200", "-c", "4", "--json")
        options = command(reaping, model, record, *options, address=cluster.address)
        run = (sys.executable, "-m", "ors_client.cli", *options)
        with subprocess.Popen(run, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            eventually(lambda: len(reaping.live()) > 4)  # more than one worker plays: both do
            (raylet,) = lost.all_processes["raylet"]
            on_node = psutil.Process(raylet.process.pid).children(recursive=True)
            players = [one for one in on_node if "ray::Worker" in "".join(one.cmdline()[:1])]
            cluster.remove_node(lost, allow_graceful=False)
            for orphan in on_node:  # for some seconds it plays on, and with a machine it would be gone
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.kill()
            shown, told = process.communicate(timeout=90)
    finally:
        cluster.shutdown()
    assert (process.returncode, json.loads(shown)["episodes"]) == (0, 600)
    assert len(players) == 1  # the other was on the other node
    assert re.search(r"Worker \d of 2 died", told)
    assert {(episode.index, episode.attempt) for episode in episodes(tmp_path)} == {
        (index, attempt) for index in range(3) for attempt in range(200)
    }
