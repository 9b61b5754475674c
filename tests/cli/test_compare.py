"""Two records, or two models of one: what differs, by how much, and how sure that is."""

import json
import random

import pytest

from ors_client.record import EpisodeRecord
from ors_client.report import Figures, compare

A = [1, 0.5, 0, 1, 0.25, 0.75, 0, 1]
B = [0.5, 0.5, 0, 0.75, 0.5, 0.25, 0, 0.5]


def episode(index, reward, *, model="m", status=None):
    status = status or ("unscored" if reward is None else "scored")
    return EpisodeRecord(environment="echo", split="train", index=index, reward=reward, status=status, model=model)


def of(rewards, **fields):
    return [episode(index, float(reward), **fields) for index, reward in enumerate(rewards)]


def test_difference_and_p_equal_the_paired_t_test_of_scipy(ors, record):
    a, b = record("a.jsonl", *of(A)), record("b.jsonl", *of(B))
    found = json.loads(ors("compare", a, b, "--json").stdout)
    assert (found["tasks"], found["mean_a"], found["mean_b"], found["difference"]) == (8, 0.5625, 0.375, -0.1875)
    # As scipy.stats.ttest_rel gives them.
    assert found["p"] == pytest.approx(0.11141646787533994, rel=1e-9)
    assert found["interval"] == pytest.approx([-0.4309837249497354, 0.055983724949735414], rel=1e-9)
    assert found["verdict"] == "no difference"


def test_attempts_at_a_task_are_averaged_before_they_are_paired(ors, record):
    a = record("a.jsonl", *of(A), *of(A))
    b = record("b.jsonl", *of([reward + 0.1 for reward in B]), *of([reward - 0.1 for reward in B]))
    found = json.loads(ors("compare", a, b, "--json").stdout)
    assert found["difference"] == pytest.approx(-0.1875)
    assert found["p"] == pytest.approx(0.11141646787533994)


def test_two_models_of_one_record_are_compared(ors, record):
    both = record("a.jsonl", *of([0, 0, 1, 0], model="old"), *of([1, 1, 1, 1], model="new"))
    found = json.loads(ors("compare", both, "--json").stdout)
    assert (found["a"]["model"], found["b"]["model"], found["difference"]) == ("old", "new", 0.75)
    found = json.loads(ors("compare", both, "--model", "new", "--model", "old", "--json").stdout)
    assert (found["a"]["model"], found["b"]["model"], found["difference"]) == ("new", "old", -0.75)


def test_table_tells_means_interval_and_the_tasks_that_flipped(ors, record):
    a = record("a.jsonl", *of([1, 1, 1, 1, 0, 1, 1]), episode(8, 1.0))
    b = record("b.jsonl", *of([0, 0, 0, 0, 1, 0, 0]), episode(9, 1.0))
    said = ors("compare", a, b).stdout
    assert "mean reward                  0.857  0.143  -0.714  -1.413 to -0.015  0.047\n" in said
    assert "B is worse, by 7 tasks that both played\n" in said
    assert "solved by B only (1): train/4\n" in said
    assert "solved by A only (6): train/0, train/1, train/2, train/3, train/5, train/6\n" in said
    assert "played by A only (1): train/8\n" in said
    assert "played by B only (1): train/9\n" in said


@pytest.mark.parametrize(
    ("before", "after", "exit_code"),
    [([1, 1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 1, 0, 0], 1), ([0, 0, 0, 0], [1, 1, 1, 1], 0), (A, B, 0), ([1], [0], 0)],
)
def test_fail_if_worse_fails_for_a_clear_loss_only(ors, record, before, after, exit_code):
    a, b = record("a.jsonl", *of(before)), record("b.jsonl", *of(after))
    assert ors("compare", a, b, "--fail-if-worse").exit_code == exit_code
    assert ors("compare", a, b).exit_code == 0


def test_records_without_a_task_in_common_are_misuse(ors, record):
    a = record("a.jsonl", episode(0, 1.0), episode(1, 1.0))
    b = record("b.jsonl", episode(2, 1.0), episode(1, None, status="failed: SessionLost"))
    result = ors("compare", a, b, "--fail-if-worse")
    assert result.exit_code == 2
    assert "Nothing pairs" in result.stderr


def test_attempts_without_a_score_count_as_asked_and_broken_ones_never(ors, record):
    a = record("a.jsonl", episode(0, 1.0), episode(1, 1.0), episode(2, 1.0))
    b = record("b.jsonl", episode(0, 1.0), episode(1, None), episode(2, None, status="failed: SessionLost"))
    zero = json.loads(ors("compare", a, b, "--json").stdout)
    left = json.loads(ors("compare", a, b, "--unscored", "leave-out", "--json").stdout)
    assert [(one["tasks"], one["difference"]) for one in (zero, left)] == [(2, -0.5), (1, 0.0)]
    assert [one["pass_rate"]["difference"] for one in (zero, left)] == [-0.5, -0.5]
    assert zero["only_a"] == [{"environment": "echo", "split": "train", "index": 2}]


def test_one_common_task_has_no_interval_and_no_p(ors, record):
    a, b = record("a.jsonl", episode(0, 1.0)), record("b.jsonl", episode(0, 0.0))
    found = json.loads(ors("compare", a, b, "--json").stdout)
    assert (found["difference"], found["interval"], found["p"], found["verdict"]) == (-1.0, None, None, "no difference")
    assert "one task is too few to tell" in ors("compare", a, b).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "has several models"),
        (["--model", "x"], "has no model 'x'"),
        (["--model", "a"], "Both sides are the same"),
        (["--model", "a", "--model", "b", "--model", "c"], "once or twice"),
    ],
)
def test_sides_that_are_not_clear_are_misuse(ors, record, options, message):
    three = record("a.jsonl", *(episode(0, 1.0, model=model) for model in "abc"))
    result = ors("compare", three, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_rewards_near_the_largest_number_are_compared(ors, record):
    a, b = record("a.jsonl", *of([1e308, -1e308])), record("b.jsonl", *of([-1e308, 1e308]))
    assert json.loads(ors("compare", a, b, "--json").stdout)["difference"] == 0.0
    assert ors("compare", a, b).exit_code == 0


def test_missing_record_is_misuse(ors, tmp_path):
    result = ors("compare", tmp_path / "none.jsonl", tmp_path / "none.jsonl")
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_two_runs_of_one_model_do_not_differ_in_about_95_percent_of_pairs():
    draw, alike = random.Random(12), 0
    for _ in range(300):
        chances = [draw.random() for _ in range(25)]  # of each task; the model is the same in both runs
        runs = Figures(), Figures()
        for run in runs:
            for index, chance in enumerate(chances):
                for _ in range(2):
                    run.add(episode(index, float(draw.random() < chance)))
        alike += compare(*runs).verdict == "no difference"
    assert 274 <= alike <= 296  # within three standard deviations


def test_model_that_got_better_is_told_from_the_one_before():
    draw, better = random.Random(12), 0
    for _ in range(100):
        runs = Figures(), Figures()
        for index in range(60):
            chance = 0.6 * draw.random()
            for run, gain in zip(runs, (0.0, 0.3), strict=True):
                run.add(episode(index, float(draw.random() < chance + gain)))
        better += compare(*runs).verdict == "better"
    assert better >= 80
