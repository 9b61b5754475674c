"""What a rollout is worth follows from its rewards and its end, and never from a guess."""

import math

import pytest

from trl_bridge._scoring import Scoring


def score(scoring, rewards, *, failed=False, finished=True):
    return scoring.score(rewards, failed=failed, finished=finished)


@pytest.mark.parametrize(("reduction", "expected"), [("last", 0.25), ("sum", 1.0), ("mean", 1 / 3), ("max", 1.0)])
def test_reduction_ignores_steps_without_a_reward(reduction, expected):
    assert score(Scoring(reward=reduction), [1.0, None, -0.25, 0.25, None]) == pytest.approx(expected)


@pytest.mark.parametrize("reduction", ["last", "sum", "mean", "max"])
def test_rollout_without_any_reward_has_none(reduction):
    assert score(Scoring(reward=reduction), [None, None]) is None
    assert score(Scoring(reward=reduction), []) is None


def test_reward_of_zero_is_a_reward():
    assert score(Scoring(unscored=-1.0), [0.0, None]) == 0.0


def test_unscored_stands_for_rollouts_that_nothing_scored():
    assert score(Scoring(unscored=0.0), []) == 0.0


def test_failed_rollout_has_no_reward_despite_an_earlier_one():
    assert score(Scoring(unscored=0.0), [0.3], failed=True) is None


def test_failed_rollout_keeps_its_reward_when_asked_to():
    assert score(Scoring(on_failure="keep"), [0.3], failed=True) == 0.3


def test_failed_rollout_gets_the_number_that_was_asked_for():
    assert score(Scoring(on_failure=-1.0), [0.3], failed=True) == -1.0


@pytest.mark.parametrize(
    ("clamp", "expected"),
    [((0.0, 1.0), [0.0, 0.5, 1.0]), ((None, 1.0), [-3.0, 0.5, 1.0]), ((0.0, None), [0.0, 0.5, 7.0])],
)
def test_clamp_bounds_what_is_scored(clamp, expected):
    assert [score(Scoring(clamp=clamp), [reward]) for reward in (-3.0, 0.5, 7.0)] == expected


def test_unfinished_penalty_is_taken_from_rollouts_that_did_not_finish():
    scoring = Scoring(unfinished_penalty=0.5, clamp=(0.0, None))
    assert score(scoring, [-1.0], finished=False) == -0.5
    assert score(scoring, [0.25], finished=True) == 0.25


def test_unfinished_penalty_makes_no_reward_out_of_none():
    assert score(Scoring(unfinished_penalty=0.5), [], finished=False) is None
    assert score(Scoring(unfinished_penalty=0.5, unscored=0.0), [], finished=False) == -0.5


def test_unfinished_penalty_spares_rollouts_that_failed():
    assert score(Scoring(unfinished_penalty=0.5, on_failure="keep"), [1.0], failed=True, finished=False) == 1.0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"reward": "first"}, "'first'"),
        ({"on_failure": "zero"}, "'zero'"),
        ({"on_failure": True}, "True"),
        ({"on_failure": math.nan}, "nan"),
        ({"unscored": "0"}, "'0'"),
        ({"unfinished_penalty": -1.0}, "-1.0"),
        ({"clamp": (1.0, 0.0)}, r"\(1.0, 0.0\)"),
    ],
)
def test_scoring_refuses_what_makes_no_sense_and_names_it(arguments, named):
    with pytest.raises(ValueError, match=named):
        Scoring(**arguments)


@pytest.mark.parametrize("reduction", ["last", "sum", "mean", "max"])
def test_rewards_that_float32_cannot_hold_count_as_none(reduction):
    scoring = Scoring(reward=reduction)
    assert score(scoring, [1e308, 1e308]) is None
    assert score(scoring, [0.5, 1e39, -1e39, math.inf, math.nan]) == 0.5
    assert score(scoring, [3e38]) == 3e38


def test_sum_that_float32_cannot_hold_is_none():
    assert score(Scoring(reward="sum"), [3e38, 3e38]) is None
    assert score(Scoring(reward="sum", clamp=(None, 1.0)), [3e38, 3e38]) == 1.0


def test_options_that_float32_cannot_hold_are_errors():
    with pytest.raises(ValueError, match="on_failure"):
        Scoring(on_failure=1e39)
