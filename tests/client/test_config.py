"""The defaults that are promised, and that limits which no wait can keep are refused by name."""

import dataclasses
import math
import pickle

import pytest

from ors_client._config import KeepalivePolicy, Limits, RetryPolicy, Timeouts


def test_timeouts_have_the_documented_defaults():
    assert dataclasses.asdict(Timeouts()) == {
        "connect": 10,
        "response": 60,
        "silence": 45,
        "start_up": 600,
        "call": None,
        "close": 10,
    }


def test_policies_have_the_documented_defaults():
    retry = RetryPolicy()
    assert (retry.attempts, retry.first_delay, retry.max_delay) == (5, 0.5, 10)
    assert dataclasses.asdict(KeepalivePolicy()) == {"interval": 10, "tolerance": 60}
    assert Limits().result_bytes == 64 * 2**20


@pytest.mark.parametrize("settings", [Timeouts(), RetryPolicy(), KeepalivePolicy(), Limits()])
def test_settings_are_frozen_and_travel_in_pickles(settings):
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes
    field = dataclasses.fields(settings)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings, field, 1)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Timeouts)])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_timeout_that_is_not_positive_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"Timeouts\.{name}"):
        Timeouts(**{name: value})


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Timeouts) if field.name != "call"])
def test_only_a_call_may_be_without_a_limit(name):
    with pytest.raises(ValueError, match=rf"Timeouts\.{name}"):
        Timeouts(**{name: None})


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"attempts": 0}, "attempts"),
        ({"first_delay": -0.1}, "_delay"),
        ({"max_delay": -1}, "_delay"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
    ],
)
def test_retry_policy_that_cannot_be_followed_is_refused(setting, named):
    with pytest.raises(ValueError, match=named):
        RetryPolicy(**setting)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"interval": 0}, "interval"),
        ({"interval": math.inf, "tolerance": math.inf}, "interval"),
        ({"interval": math.nan}, "interval"),
        ({"interval": 10, "tolerance": 9}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
    ],
)
def test_keepalive_rhythm_that_cannot_keep_a_session_is_refused(setting, named):
    with pytest.raises(ValueError, match=named):
        KeepalivePolicy(**setting)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_limit_below_which_nothing_works_is_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"Limits\.{name}"):
        Limits(**{name: -1})


def test_redirects_may_be_forbidden():
    assert Limits(redirects=0).redirects == 0
