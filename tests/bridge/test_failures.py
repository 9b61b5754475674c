"""A run goes on while resets fail now and then, and stops when they fail too often."""

# ruff: noqa: S301 - the pickles are our own

import pickle

import pytest

from trl_bridge import FailureRateExceeded
from trl_bridge._runtime.failure_rate import WINDOW, ResetRate


def test_rate_of_zero_stops_the_run_at_the_first_failure():
    rate = ResetRate(0.0)
    rate.succeeded()
    rate.check()
    rate.failed("SetupFailed", "no")
    with pytest.raises(FailureRateExceeded, match="1 of the last 2 resets failed"):
        rate.check()


@pytest.mark.parametrize("before", [0, 5])
def test_rate_waits_for_no_full_window_once_it_would_be_above_the_allowed_share(before):
    rate = ResetRate(0.5)
    for _ in range(before):
        rate.succeeded()
    for _ in range(WINDOW // 2):
        rate.failed("SetupFailed", "no")
        rate.check()
    rate.failed("SetupFailed", "no")
    with pytest.raises(FailureRateExceeded, match=f"17 of the last {17 + before}"):
        rate.check()


def test_rate_of_one_lets_every_reset_fail():
    rate = ResetRate(1.0)
    for _ in range(2 * WINDOW):
        rate.failed("SetupFailed", "no")
        rate.check()


def test_rate_above_the_allowed_share_stops_the_run_and_says_why():
    rate = ResetRate(0.5)
    for _ in range(WINDOW // 2):
        rate.succeeded()
    for kind in ["SetupFailed"] * (WINDOW // 2 - 1) + ["SessionLost"] * 2:
        rate.check()
        rate.failed(kind, f"the last words of {kind}")
    with pytest.raises(
        FailureRateExceeded, match=r"17 of the last 32 .*SessionLost 2, SetupFailed 15.*=0\.5.*last words"
    ):
        rate.check()


def test_rate_at_the_allowed_share_lets_the_run_go_on():
    rate = ResetRate(0.5)
    for _ in range(WINDOW):
        rate.failed("SetupFailed", "no")
        rate.succeeded()
    rate.check()


def test_rate_lets_the_run_go_on_again_after_a_success():
    rate = ResetRate(0.0)
    for _ in range(WINDOW):
        rate.failed("SetupFailed", "no")
    rate.succeeded()
    rate.check()


def test_rate_error_travels_between_processes():
    error = FailureRateExceeded(kinds={"SetupFailed": 32}, resets=32, rate=0.5, last="no")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.kinds) == (FailureRateExceeded, str(error), {"SetupFailed": 32})
