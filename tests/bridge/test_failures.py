"""A run goes on while resets fail now and then, and stops when they fail too often."""

# ruff: noqa: S301 - the pickles are our own

import pickle

import pytest

from trl_bridge import FailureRateExceeded
from trl_bridge._failures import WINDOW, ResetRate


def test_rate_says_nothing_before_enough_resets_were_seen():
    rate = ResetRate(0.0)
    for _ in range(WINDOW - 1):
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
