"""The reward function hands over what rollouts are worth, says what they met, and lets their sessions go."""

from collections import defaultdict

import pytest

from fixtures.proxy import ResetAfterForward, Rule, Status
from ors_client import RetryPolicy
from trl_bridge._rollout.environment import slot_of

FAST = RetryPolicy(attempts=2, first_delay=0.01, max_delay=0.05)


@pytest.fixture
def make(proxy, make_spec):
    """Make environments of one spec, each in an episode of the sound task of the failing environment."""

    def make(count, **options):
        spec = make_spec(proxy.url, env_name="failingenvironment", task_tools_discovery_index=0, retry=FAST, **options)
        environments = [spec.environment_factory() for _ in range(count)]
        for environment in environments:
            environment.reset(task_index=0)
        return spec, environments

    return make


class Log:
    """What a trainer hands a reward function, and what came of it."""

    def __init__(self):
        self.metrics = {}
        self.extra = defaultdict(list)

    def arguments(self):
        return {
            "log_metric": self.metrics.__setitem__,
            "log_extra": lambda name, values: self.extra[name].extend(values),
        }


def test_rewards_are_the_last_non_null_ones_and_none_where_nothing_scored(make):
    spec, (scored, unscored, erased) = make(3)
    scored.step(reward=0.25)
    scored.step(reward=0.5)
    unscored.null_reward()
    erased.step(reward=1.0)
    erased.null_reward()
    assert spec.reward_funcs(prompts=[], completions=[], environments=[scored, unscored, erased]) == [0.5, None, 1.0]


def test_rewards_follow_the_specs_options(make):
    spec, (scored, unscored, unfinished) = make(
        3, reward="sum", unscored=0.0, clamp=(None, 1.0), unfinished_penalty=0.5
    )
    scored.step(reward=0.75)
    scored.finish(reward=0.75)
    unfinished.step(reward=0.25)
    environments = [scored, unscored, unfinished]
    assert spec.reward_funcs(environments=environments) == [1.0, -0.5, -0.25]
    assert [environment.reward for environment in environments] == [1.0, -0.5, -0.25]


def test_rewards_release_the_sessions_that_are_still_open(make, ours, eventually):
    spec, environments = make(3)
    environments[0].finish(reward=1.0)
    spec.reward_funcs(environments=environments)
    eventually(lambda: ours.live() == [])
    assert spec.reward_funcs(environments=environments) == [1.0, None, None]


def test_rewards_of_environments_of_another_kind_are_none(make):
    spec, (ours,) = make(1)
    ours.finish(reward=1.0)
    log = Log()
    assert spec.reward_funcs(environments=[object(), ours, None], **log.arguments()) == [None, 1.0, None]
    assert log.extra["status"] == [None, "scored", None]
    assert log.metrics["environment/scored"] == 1.0
    assert spec.reward_funcs(environments=[object()], **Log().arguments()) == [None]


def test_rewards_without_environments_are_an_error_that_names_the_way_out(make_spec):
    spec = make_spec("http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"owns_reward=True.*reward_funcs=None"):
        spec.reward_funcs(prompts=[], completions=[])


def test_rewards_of_environments_that_own_theirs_are_an_error(make, make_spec):
    _, environments = make(1, owns_reward=True)
    with pytest.raises(ValueError, match="reward_funcs=None"):
        make_spec("http://127.0.0.1:1").reward_funcs(environments=environments)


def test_owned_reward_is_read_here_and_lets_the_session_go(make, proxy, ours, eventually):
    _, (environment,) = make(1, owns_reward=True)
    environment.step(reward=0.5)
    before = len([request for request in proxy.requests if request.path != "/delete"])
    assert {environment.get_reward() for _ in range(1000)} == {0.5}
    eventually(lambda: ours.live() == [])
    assert len([request for request in proxy.requests if request.path not in ("/delete", "/delete_session")]) == before


def test_batch_without_any_reward_is_told_of_once(make, caplog):
    spec, environments = make(2)
    for _ in range(2):
        assert spec.reward_funcs(environments=environments) == [None, None]
    (told,) = [record.getMessage() for record in caplog.records if "was scored" in record.getMessage()]
    assert told.startswith("None of the 2 rollouts of a batch was scored")
    assert "0 tool calls" in told


def test_batch_with_one_reward_is_nothing_to_tell_of(make, caplog):
    spec, (scored, silent) = make(2)
    scored.step(reward=0.5)
    assert spec.reward_funcs(environments=[scored, silent]) == [0.5, None]
    assert "was scored" not in caplog.text


def test_metrics_say_what_the_rollouts_met(make, proxy):
    spec, (finished, cut, broken, idle) = make(4, max_calls=1)
    proxy.add(Rule("POST", "/call", ResetAfterForward()))
    broken.step(reward=0.3)
    finished.finish(reward=1.0)
    finished.step(reward=0.1)
    cut.step(reward=0.5)
    cut.step(reward=0.6)
    log = Log()
    spec.reward_funcs(environments=[finished, cut, broken, idle], **log.arguments())
    seconds = log.metrics.pop("environment/seconds")
    assert 0 < seconds < 120
    assert log.metrics == {
        "environment/scored": 0.5,
        "environment/finished": 0.25,
        "environment/failed": 0.25,
        "environment/failed/OutcomeUnknown": 0.25,
        "environment/cut": 0.25,
        "environment/cut/calls": 0.25,
        "environment/calls": 0.75,
        "environment/late_calls": 0.5,
        "environment/zero_variance": 0.0,
        "environment/sessions_open": pytest.approx(1, abs=3),  # deletions are on their way
    }
    assert log.extra["status"] == ["scored", "cut: calls", "failed: OutcomeUnknown", "unscored"]
    assert log.extra["calls"] == [1, 1, 1, 0]
    assert log.extra["session_id"] == [slot_of(e).log.session_id for e in (finished, cut, broken, idle)]


def test_kind_of_failure_stays_in_the_metrics_once_it_was_met(make, proxy):
    spec, (environment,) = make(1)
    proxy.add(Rule("POST", "/call", Status(500)))
    environment.step(reward=0.3)
    spec.reward_funcs(environments=[environment], **Log().arguments())
    environment.reset(task_index=0)
    log = Log()
    spec.reward_funcs(environments=[environment], **log.arguments())
    assert log.metrics["environment/failed/StatusError"] == 0.0


def test_reward_that_float32_cannot_hold_counts_as_none_is_counted_and_told_of_once(make, caplog):
    spec, environments = make(4)
    for environment, reward in zip(environments, (1e39, -1e300, 3e38, 0.5), strict=True):
        environment.step(reward=reward)
    log = Log()
    assert spec.reward_funcs(environments=environments, **log.arguments()) == [None, None, 3e38, 0.5]
    assert log.extra["status"] == ["unscored", "unscored", "scored", "scored"]
    assert log.metrics["environment/unusable_rewards"] == 0.5
    (told,) = [record.getMessage() for record in caplog.records if "float32" in record.getMessage()]
    assert "1e+39" in told


def test_groups_whose_scored_rewards_are_all_equal_are_counted(make):
    spec, environments = make(4)
    for environment, task in zip(environments, (0, 0, 1, 1), strict=True):
        environment.reset(task_index=task)
    log = Log()
    spec.reward_funcs(environments=environments, environment=["a", "a", "b", "b"], **log.arguments())
    assert log.metrics["environment/zero_variance"] == 1.0
    for environment, reward in zip(environments, (0.5, 0.25), strict=False):
        environment.reset(task_index=0)
        environment.step(reward=reward)
    log = Log()
    spec.reward_funcs(environments=environments, environment=["a", "a", "b", "b"], **log.arguments())
    assert log.metrics["environment/zero_variance"] == 0.5
    assert [log.metrics[f"environments/{name}/zero_variance"] for name in "ab"] == [0.0, 1.0]
