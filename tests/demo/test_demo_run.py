"""The demo as a person starts it: the embedded server, the real client, the real bridge and TRL's own trainer."""

import json
import signal
import threading

import demo_process
import pytest

from ors_client.record import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SECONDS = 500  # a bound for machines with other things to do; on two free cores a whole run takes about one minute


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One whole run, somewhat shortened: what it printed and the folder that it left."""
    folder = tmp_path_factory.mktemp("trained") / "output"
    return demo_process.run("--seed", 0, "--steps", 30, "--output", folder, seconds=SECONDS), folder


@pytest.fixture(scope="module")
def summary(trained):
    _, folder = trained
    return json.loads((folder / "summary.json").read_text())


def test_demo_ends_well(trained):
    ended, _ = trained
    assert ended.status == 0, ended.errors
    assert "The model has learned" in ended.output


def test_reward_rises(summary):
    assert summary["reward"]["before"] <= 0.55
    assert summary["reward"]["after"] >= 0.8
    assert len(summary["reward"]["steps"]) == 30


def test_model_makes_exact_calls(summary):
    assert summary["exact_calls"]["samples"] >= 256
    assert summary["exact_calls"]["before"] <= 0.55
    assert summary["exact_calls"]["after"] >= 0.8


def test_model_does_not_ramble(summary):
    assert summary["completion_length"]["after"] <= 1.5 * summary["completion_length"]["before"]


def test_curve_is_drawn(trained):
    _, folder = trained
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_every_episode_is_recorded(trained):
    _, folder = trained
    episodes = list(read(folder / "episodes.jsonl"))
    assert len(episodes) == 30 * 32
    assert {episode.index for episode in episodes} == {0, 1, 2, 3}


def test_output_names_the_folder_and_what_is_in_it(trained):
    ended, folder = trained
    last = ended.output.splitlines()[-1]
    assert str(folder) in last
    assert all(path.name in last for path in folder.iterdir())


def test_two_tasks_make_a_batch_and_too_few_steps_end_with_a_clear_sentence(two_words, tmp_path):
    ended = demo_process.run("--url", two_words.url, "--steps", 2, "--output", tmp_path, seconds=SECONDS)
    assert ended.status == 1
    assert "The model has NOT learned in 2 steps" in ended.output
    assert "take 10 or more" in ended.output
    assert "Traceback" not in ended.errors
    assert json.loads((tmp_path / "summary.json").read_text())["learned"] is False


def test_ctrl_c_during_the_training_ends_the_demo_and_its_sessions(two_words, tmp_path):
    with demo_process.start("--url", two_words.url, "--output", tmp_path) as process:
        patience = threading.Timer(SECONDS, process.kill)
        patience.start()
        try:
            for line in process.stdout:
                if "step   1  reward" in line:
                    process.send_signal(signal.SIGINT)
                    break
            _, errors = process.communicate()
        finally:
            patience.cancel()
    assert process.returncode == 130
    assert errors.strip() == "Stopped."
    assert two_words.live() == []
