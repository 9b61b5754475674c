"""Episodes of the next batch open while the trainer trains on this one; no rollout is any different for it."""

import logging
import re

import httpx
import pytest
from servers import expect_no_sessions, serve
from training import END, IGNORED, call, from_trl, make_trainer

from ors_client import KeepalivePolicy
from ors_client.record import read
from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec
from trl_bridge._trainer.attachment import attach
from trl_bridge._trainer.row_order import upcoming_rows

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

ROLLOUTS = 4
TASKS = [0, 1, 2, 3] * 3
"""Enough for an epoch that does not end with the training: the loader shows no batch of the next one."""


@pytest.fixture
def echo(echo_server):
    """The echo server, without the sessions of an earlier test: here they are counted."""
    expect_no_sessions([echo_server])
    return echo_server


def win(text):
    if "<tool_response>" in text:
        return "Done." + END
    word = re.search(r"text='(\w+)' to win", text)[1]
    return call("echo", text=word) + END


def watched(server, eventually, *, expected):
    """A trainer class that waits in each step for the sessions that the server should hold then, given its number."""

    class Watching(from_trl("GRPOTrainer")):
        def compute_loss(self, *args, **kwargs):
            eventually(lambda: len(server.live()) == expected(self._step))
            return super().compute_loss(*args, **kwargs)

    return Watching


def train(folder, spec, trainer, *, policy=win, **arguments):
    made = make_trainer(
        folder, spec, policy=policy, trainer=trainer, rollouts=ROLLOUTS, arguments={"max_steps": 3, **arguments}
    )
    spec.attach(made)
    made.train()
    return [entry for entry in made.state.log_history if "reward" in entry]


def opened(server):
    return [entry["sid"] for entry in server.journal.entries("construct")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("prompts", ["reset", "dataset"])
def test_sessions_of_the_next_batch_open_while_this_one_trains(echo, tmp_path, eventually, prompts):
    with OpenRewardSpec(
        echo.url, indices=TASKS, look_ahead=ROLLOUTS, prompts=prompts, record=tmp_path / "record"
    ) as spec:
        _ = spec.train_dataset, spec.environment_factory
        before = len(opened(echo))
        steps = train(tmp_path, spec, watched(echo, eventually, expected=lambda _: ROLLOUTS))
        eventually(lambda: echo.live() == [])  # those that no batch came for, too
    assert [step["reward"] for step in steps] == [1.0] * 3
    # Each batch took what was opened for it, and one more batch was foreseen when training ended.
    assert len(opened(echo)) - before == 4 * ROLLOUTS
    episodes = list(read(tmp_path / "record"))
    assert len({episode.session_id for episode in episodes}) == 3 * ROLLOUTS
    assert {episode.status for episode in episodes} == {"scored"}


def test_first_batch_of_every_pass_over_the_dataset_is_foreseen(echo, tmp_path, eventually):
    """Two passes of two batches each: every session is used, the first ones are open before training begins."""

    class Beginning(watched(echo, eventually, expected=lambda step: ROLLOUTS if step < 3 else 0)):
        def train(self, *args, **kwargs):
            self.callback_handler.on_train_begin = self._expect(self.callback_handler.on_train_begin)
            return super().train(*args, **kwargs)

        def _expect(self, begin):
            def expected(*args):
                eventually(lambda: len(echo.live()) == ROLLOUTS)
                return begin(*args)

            return expected

    with OpenRewardSpec(echo.url, indices=[0, 1, 2, 3], look_ahead=ROLLOUTS) as spec:
        _ = spec.train_dataset, spec.environment_factory
        before = len(opened(echo))
        steps = train(tmp_path, spec, Beginning, max_steps=4)
    assert [step["epoch"] for step in steps] == [0.5, 1.0, 1.5, 2.0]
    assert [step["reward"] for step in steps] == [1.0] * 4
    assert len(opened(echo)) - before == 4 * ROLLOUTS


def test_reading_the_order_ahead_changes_nothing_of_it(echo, tmp_path):
    orders = []
    for look_ahead in (None, ROLLOUTS):
        with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=look_ahead) as spec:
            order = []

            class Noting(from_trl("GRPOTrainer")):
                def _generate_and_score_completions(self, inputs, order=order):
                    order.append([row["at"] for row in inputs])
                    return super()._generate_and_score_completions(inputs)

            made = make_trainer(
                tmp_path,
                spec,
                policy=win,
                trainer=Noting,
                rollouts=ROLLOUTS,
                arguments={"max_steps": 6},
                train_dataset=spec.train_dataset.add_column("at", list(range(len(TASKS)))).select(range(6)),
            )
            spec.attach(made)
            made.train()
        orders.append(order)
    assert orders[0] == orders[1]
    assert orders[0][:3] != orders[0][3:6]  # it is shuffled anew for each pass


def test_order_that_is_not_certain_is_not_foreseen(echo, tmp_path):
    from torch.utils.data import SequentialSampler

    with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=ROLLOUTS) as spec:
        made = make_trainer(tmp_path, spec, policy=win, rollouts=ROLLOUTS)
        rows = made.train_dataset
        assert upcoming_rows(made.get_train_dataloader(), 0) is not None
        assert upcoming_rows(made.get_train_dataloader(), 99) is None
        made.train_dataset = rows.with_transform(lambda batch: batch)
        assert upcoming_rows(made.get_train_dataloader(), 0) is None
        made.train_dataset = rows
        made._get_train_sampler = lambda *_: SequentialSampler(rows)
        assert upcoming_rows(made.get_train_dataloader(), 0) is None


def test_exception_in_training_leaves_no_session_though_the_spec_stays_open(echo, tmp_path, eventually):
    class Breaking(watched(echo, eventually, expected=lambda _: ROLLOUTS)):
        def compute_loss(self, *args, **kwargs):
            super().compute_loss(*args, **kwargs)
            raise RuntimeError("out of memory")

    with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=ROLLOUTS) as spec:
        with pytest.raises(RuntimeError, match="out of memory"):
            train(tmp_path, spec, Breaking)
        eventually(lambda: echo.live() == [])


def test_exception_among_calls_leaves_no_session_though_the_spec_stays_open(echo, tmp_path, eventually):
    def break_off(text):
        if "<tool_response>" in text:
            raise RuntimeError("the engine is gone")
        return call("echo", text="wrong") + END

    with OpenRewardSpec(echo.url, indices=TASKS) as spec:
        with pytest.raises(RuntimeError, match="engine is gone"):
            train(tmp_path, spec, None, policy=break_off)
        eventually(lambda: echo.live() == [])


@pytest.mark.slow
def test_limit_bounds_what_is_opened_ahead(echo, tmp_path, eventually):
    with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=3) as spec:
        steps = train(tmp_path, spec, watched(echo, eventually, expected=lambda _: 3))
    assert [step["reward"] for step in steps] == [1.0] * 3


@pytest.mark.slow
def test_batch_that_serves_several_steps_is_the_only_one_until_its_last_loading(echo, tmp_path, eventually):
    live = set()

    def count_and_win(text):
        live.add(len(echo.live()))
        return win(text)

    with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=ROLLOUTS) as spec:
        # A batch is two micro-batches, used twice: the loader shows the next one before the last of four.
        steps = train(
            tmp_path,
            spec,
            watched(echo, eventually, expected=lambda step: ROLLOUTS if step % 4 == 3 else 0),
            policy=count_and_win,
            max_steps=8,
            per_device_train_batch_size=ROLLOUTS // 2,
            steps_per_generation=2,
            num_iterations=2,
        )
    assert {step["reward"] for step in steps} == {1.0}
    assert max(live) == ROLLOUTS


def test_evaluation_in_between_leaves_what_was_opened_for_training(echo, tmp_path, eventually):
    with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=ROLLOUTS) as spec:
        _ = spec.train_dataset, spec.environment_factory
        before = len(opened(echo))
        made = make_trainer(
            tmp_path,
            spec,
            policy=win,
            rollouts=ROLLOUTS,
            arguments={"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2},
            eval_dataset=spec.dataset("train", indices=[0]),
        )
        spec.attach(made)
        made.train()
        eventually(lambda: echo.live() == [])
    evaluated = [entry for entry in made.state.log_history if "eval_reward" in entry]
    assert [entry["eval_reward"] for entry in evaluated] == [1.0] * 3
    assert len(opened(echo)) - before == 4 * ROLLOUTS + 3 * 2


@pytest.mark.slow
def test_session_that_was_lost_while_it_stood_ready_is_opened_anew(echo, tmp_path, eventually):
    with OpenRewardSpec(echo.url, indices=TASKS, look_ahead=ROLLOUTS, keepalive=KeepalivePolicy(interval=0.1)) as spec:

        class Restarting(from_trl("GRPOTrainer")):
            def compute_loss(self, *args, **kwargs):
                eventually(lambda: len(echo.live()) == ROLLOUTS)
                for session_id in echo.live():
                    httpx.post(f"{echo.url}/delete", headers={"X-Session-ID": session_id}, trust_env=False)
                ready = [opening for each in self._trl_bridge_look_ahead._ready.values() for opening in each]
                eventually(lambda: all(opening.episode._session.lost for opening in ready))
                return super().compute_loss(*args, **kwargs)

        steps = train(tmp_path, spec, Restarting)
    assert [step["reward"] for step in steps] == [1.0] * 3
    assert [step["environment/failed"] for step in steps] == [0.0] * 3


@pytest.mark.slow
def test_each_of_several_environments_has_its_own_limit(tmp_path, eventually):
    def play(text):
        return win(text) if "to win" in text or "<tool_response>" in text else call("finish", reward=1.0) + END

    with (
        serve("ours", "--env", "echo") as echo,
        serve("ours", "--env", "failing") as failing,
        MultiEnvironmentSpec(
            {
                "echo": OpenRewardSpec(echo.url, indices=TASKS, look_ahead=1),
                "failing": OpenRewardSpec(failing.url, indices=[0] * len(TASKS), discover_task_tools=False),
            }
        ) as spec,
    ):
        expected = iter([(1, 0)] * 3)

        class Watching(from_trl("GRPOTrainer")):
            def compute_loss(self, *args, **kwargs):
                sessions = next(expected)
                eventually(lambda: (len(echo.live()), len(failing.live())) == sessions)
                return super().compute_loss(*args, **kwargs)

        made = make_trainer(tmp_path, spec, policy=play, trainer=Watching, rollouts=8, arguments={"max_steps": 3})
        spec.attach(made)
        made.train()
    assert [entry["reward"] for entry in made.state.log_history if "reward" in entry] == [1.0] * 3


def test_loader_that_reads_rows_elsewhere_means_one_warning(echo, tmp_path, caplog):
    with OpenRewardSpec(echo.url, look_ahead=1) as spec:
        made = make_trainer(tmp_path, spec, policy=win, arguments={"dataloader_num_workers": 1})
        with caplog.at_level(logging.WARNING, "trl_bridge"):
            spec.attach(made)
            attach(made, look_ahead=True)
    assert [record.getMessage() for record in caplog.records] == [
        "look_ahead has no effect with dataloader_num_workers=1, which reads rows elsewhere."
    ]


def test_trainer_that_was_attached_without_looking_ahead_says_so(echo, tmp_path, caplog):
    with OpenRewardSpec(echo.url) as spec:
        made = make_trainer(tmp_path, spec, policy=win)
        spec.attach(made)
        with caplog.at_level(logging.WARNING, "trl_bridge"):
            attach(made, look_ahead=True)
    assert "attach it before it trains" in caplog.text


def test_time_of_an_episode_that_was_opened_ahead_begins_when_it_is_claimed():
    with (
        serve("ours", "--env", "echo", "--reset-seconds", "3") as slow,
        OpenRewardSpec(slow.url, look_ahead=1, episode_timeout=1.0, discover_task_tools=False) as spec,
    ):
        ahead, late = spec.environment_factory(), spec.environment_factory()
        row = {"task_index": 0}
        ready = ahead._slot.open_ahead(row)
        ready.prompt.result(30)  # it stood ready for longer than an episode may take
        assert ready.claim()
        ahead._slot.prefetch(row, ready=ready)
        assert "to win" in ahead.reset(**row)
        begun = late._slot.open_ahead(row)
        assert begun.claim()
        late._slot.prefetch(row, ready=begun)
        late.reset(**row)
        assert late.status == "failed: DeadlineExceeded"


@pytest.mark.parametrize(
    ("look_ahead", "error", "message"),
    [
        *((number, ValueError, f"look_ahead is a positive integer or None, not {number}") for number in (0, -1)),
        *((value, TypeError, f"look_ahead takes an integer, not {value!r}") for value in (1.5, True)),
    ],
)
def test_limit_is_a_positive_integer(look_ahead, error, message):
    with pytest.raises(error, match=message):
        OpenRewardSpec("http://localhost:8000", look_ahead=look_ahead)
