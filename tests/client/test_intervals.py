"""Intervals: equal to what scipy 1.x and inspect_ai compute, for any rewards."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ors_client.report._intervals import estimate, incomplete_beta, t_quantile, two_sided_p


@pytest.mark.parametrize(
    ("df", "confidence", "value"),
    [
        (1, 0.95, 12.706204736174694),
        (1, 0.99, 63.656741162871526),
        (2, 0.95, 4.302652729749462),
        (4, 0.95, 2.7764451051977934),
        (4, 0.99, 4.604094871349992),
        (9, 0.95, 2.262157162798205),
        (29, 0.95, 2.045229642132703),
        (99, 0.99, 2.626405457280827),
        (999, 0.95, 1.9623414611334493),
        (100_000, 0.95, 1.9599877075346095),
    ],
)
def test_t_quantile_equals_that_of_scipy(df, confidence, value):
    assert t_quantile(df, confidence) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [
        (0.1, 1, 0.936548965138893),
        (1.0, 1, 0.5),
        (-2.5, 3, 0.08770664700806556),
        (2.0, 10, 0.07338803477074037),
        (12.0, 4, 0.000276428548502973),
        (40.0, 30, 1.3726045194406417e-27),
        (0.001, 50, 0.9992060947755017),
        (0.0, 7, 1.0),
        (1e200, 3, 0.0),
    ],
)
def test_two_sided_p_equals_that_of_scipy(t, df, p):
    assert two_sided_p(t, df) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "x", "value"),
    [
        (0.5, 0.5, 0.3, 0.36901011956554536),
        (2, 3, 0.5, 0.6875),
        (10, 0.5, 0.99, 0.6579281751567845),
        (50, 0.5, 0.2, 9.994267861337003e-37),
        (3.5, 7, 0.9, 0.9999946169154459),
    ],
)
def test_incomplete_beta_equals_that_of_scipy(a, b, x, value):
    assert incomplete_beta(a, b, x, 1 - x) == pytest.approx(value, rel=1e-9)


def test_estimate_of_one_value_per_task_is_the_ordinary_interval():
    found = estimate([[0.0], [1.0], [1.0], [0.0]])
    assert (found.mean, found.tasks) == (0.5, 4)
    assert found.stderr == pytest.approx(math.sqrt(1 / 3) / 2)
    assert found.interval == pytest.approx(
        (0.5 - 3.182446305283708 * found.stderr, 0.5 + 3.182446305283708 * found.stderr)
    )


def test_attempts_at_one_task_are_not_taken_for_independent():
    alone, together = estimate([[1.0], [0.0], [1.0], [0.0]]), estimate([[1.0] * 9, [0.0] * 9, [1.0] * 9, [0.0] * 9])
    assert together.stderr == pytest.approx(alone.stderr)


def test_estimate_of_nothing_is_none_and_of_one_task_has_no_interval():
    assert estimate([[], []]) is None
    found = estimate([[1.0, 0.0], []])
    assert (found.mean, found.tasks, found.stderr, found.interval, found.p) == (0.5, 1, None, None, None)


@pytest.mark.parametrize(("values", "p"), [([[0.0], [0.0]], 1.0), ([[-1.0], [-1.0]], 0.0)])
def test_p_without_any_spread_is_certain(values, p):
    assert estimate(values).p == p


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4), max_size=6))
def test_estimate_of_any_finite_rewards_is_finite(clusters):
    found = estimate(clusters)
    values = [value for cluster in clusters for value in cluster]
    assert (found is None) == (not values)
    if found is not None:
        assert min(values) * (1 + 1e-9) - 1e-9 <= found.mean or found.mean == pytest.approx(min(values))
        assert all(map(math.isfinite, (found.mean, *(found.interval or ()), found.stderr or 0.0)))


def test_intervals_hold_the_true_mean_in_about_95_percent_of_runs():
    draw, held = random.Random(5), 0
    for _ in range(1000):
        chances = [draw.betavariate(1, 1) for _ in range(30)]  # tasks of unlike difficulty: the mean is 0.5
        found = estimate([[float(draw.random() < chance) for _ in range(4)] for chance in chances])
        low, high = found.interval
        held += low <= 0.5 <= high
    assert 930 <= held <= 970
