"""A rollout that the infrastructure broke reaches no advantage, whichever reward functions gave it a value."""

import itertools
import json
import math
import statistics
from pathlib import Path

import pytest
from bridge.failed_rollouts import LOST, REWARDS, ROWS, STYLE, by_hand, lose, make_recording, step_policy, style
from bridge.ranks import run_two_ranks
from bridge.training import IGNORED

from ors_client import RetryPolicy

FAST = RetryPolicy(attempts=2, first_delay=0.01, max_delay=0.05)
ALIVE = [row for row in range(len(REWARDS)) if row not in LOST]
LOSSES = ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.timeout(240), *map(pytest.mark.filterwarnings, IGNORED)]


@pytest.fixture
def failing(proxy, make_spec):
    """Make a spec of the failing environment behind a proxy that loses two of the calls."""
    proxy.add(lose(*(REWARDS[row] for row in LOST)))
    return lambda **options: make_spec(
        proxy.url, env_name="failingenvironment", task_tools_discovery_index=0, retry=FAST, **options
    )


def check_batch(trainer, expected, columns):
    (scored,) = trainer.scored
    assert scored["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
    for (name, seen), column in zip(trainer._logs["rewards"].items(), columns, strict=True):
        wanted = [math.nan if row in LOST else value for row, value in enumerate(column)]
        assert list(seen) == pytest.approx(wanted, nan_ok=True), name


def check_metrics(entry, columns, weights):
    for name, column in columns.items():
        values = [column[row] for row in ALIVE]
        assert entry[f"rewards/{name}/mean"] == pytest.approx(statistics.mean(values))
        assert entry[f"rewards/{name}/std"] == pytest.approx(statistics.stdev(values))
    totals = [sum(w * c[row] for w, c in zip(weights, columns.values(), strict=True)) for row in ALIVE]
    assert entry["reward"] == pytest.approx(statistics.mean(totals))
    assert entry["reward_std"] == pytest.approx(statistics.stdev(totals))


def test_rows_of_failed_rollouts_are_left_out_of_every_reward_function(failing, tmp_path):
    spec, weights = failing(), [1.0, 0.5]
    trainer = make_recording(
        tmp_path, spec, reward_funcs=[spec.reward_funcs, style], reward_weights=weights, num_iterations=2
    )
    spec.attach(trainer)
    trainer.train()
    check_batch(trainer, by_hand([REWARDS, STYLE], LOST, weights=weights), [REWARDS, STYLE])
    entry = trainer.state.log_history[0]
    check_metrics(entry, {"environment_reward": REWARDS, "style": STYLE}, weights)
    assert entry["environment/failed"] == entry["environment/failed/OutcomeUnknown"] == len(LOST) / len(REWARDS)


def test_other_reward_functions_count_until_the_trainer_is_attached_and_a_warning_says_so(failing, tmp_path, caplog):
    spec = failing()
    trainer = make_recording(tmp_path, spec, reward_funcs=[spec.reward_funcs, style], max_steps=2)
    trainer.train()
    first, second = (batch["advantages"].tolist() for batch in trainer.scored)
    assert all(first[row] != 0.0 for row in LOST)
    assert second == pytest.approx(by_hand([REWARDS, STYLE], LOST), abs=1e-5)
    (told,) = [record.getMessage() for record in caplog.records if "not attached" in record.getMessage()]
    assert "spec.attach(trainer)" in told


@pytest.mark.slow
def test_single_reward_function_needs_no_warning(failing, tmp_path, caplog):
    spec = failing()
    trainer = make_recording(tmp_path, spec, reward_funcs=spec.reward_funcs)
    trainer.train()
    check_batch(trainer, by_hand([REWARDS], LOST), [REWARDS])
    assert "not attached" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("attached", [False, True])
def test_environments_that_own_their_reward_are_left_out_too(failing, tmp_path, caplog, attached):
    spec = failing(owns_reward=True)
    trainer = make_recording(tmp_path, spec, reward_funcs=[style])
    if attached:
        spec.attach(trainer)
    trainer.train()
    if attached:
        check_batch(trainer, by_hand([STYLE, REWARDS], LOST), [STYLE, REWARDS])
    assert ("not attached" in caplog.text) != attached


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["keep", 0.5])
def test_nothing_is_left_out_where_failures_count(failing, tmp_path, on_failure, caplog):
    spec = failing(on_failure=on_failure)
    trainer = make_recording(tmp_path, spec, reward_funcs=[spec.reward_funcs, style])
    spec.attach(trainer)
    trainer.train()
    kept = [reward if row not in LOST else 0.0 if on_failure == "keep" else 0.5 for row, reward in enumerate(REWARDS)]
    (scored,) = trainer.scored
    assert scored["advantages"].tolist() == pytest.approx(by_hand([kept, STYLE], ()), abs=1e-5)
    assert "not attached" not in caplog.text


@pytest.mark.slow
def test_advantages_are_those_of_the_others_alone_however_they_are_made(failing, tmp_path):
    for functions, weights in ((1, [1.0]), (1, [2.0]), (2, [1.0, 1.0]), (2, [0.25, 1.5])):
        spec = failing()
        reward_funcs, columns = [spec.reward_funcs, style][:functions], [REWARDS, STYLE][:functions]
        policy = step_policy()
        trainer = make_recording(tmp_path, spec, policy=policy, reward_funcs=reward_funcs, reward_weights=weights)
        spec.attach(trainer)
        rows = [row for row in ROWS for _ in range(4)]
        for scale, aggregation in itertools.product(
            ("group", "batch", "none"), ("sum_then_normalize", "normalize_then_sum")
        ):
            trainer.scale_rewards, trainer.multi_objective_aggregation = scale, aggregation
            seen = trainer._generate_and_score_completions(rows)["advantages"].tolist()
            expected = by_hand(columns, LOST, weights=weights, scale=scale, aggregation=aggregation)
            assert seen == pytest.approx(expected, abs=1e-4), (functions, weights, scale, aggregation)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns_from_the_others_alone(failing, tmp_path, loss):
    spec = failing()
    trainer = make_recording(
        tmp_path, spec, reward_funcs=[spec.reward_funcs, style], loss_type=loss, num_iterations=2, max_steps=2
    )
    spec.attach(trainer)
    trainer.train()
    check_batch(trainer, by_hand([REWARDS, STYLE], LOST), [REWARDS, STYLE])
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)


@pytest.mark.slow
def test_two_ranks_agree_on_who_failed_and_on_the_metrics(proxy, tmp_path):
    proxy.add(lose(REWARDS[1]))
    run_two_ranks("two_ranks_failed.py", proxy.url, tmp_path)
    ranks = [json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in (0, 1)]
    # One group of eight: four on each rank, and one of the first rank's was lost in each batch.
    columns = [REWARDS, [float(row) for row in range(8)]]
    expected = by_hand(columns, (1,), generations=8)
    for batch in (1, 2):  # in the batch before, nothing was attached
        assert ranks[0]["advantages"][batch] + ranks[1]["advantages"][batch] == pytest.approx(expected, abs=1e-4)
    for seen in ranks:
        (entry,) = [entry for entry in seen["log"] if "environment/failed" in entry]
        assert entry["environment/failed"] == pytest.approx(1 / 8)
        assert entry["environment/failed/OutcomeUnknown"] == pytest.approx(1 / 8)
        assert entry["environment/zero_variance"] == 0.0
        assert entry["environment/sessions_open"] > 4  # of both ranks
