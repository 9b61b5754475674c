"""What is counted, and what is made of it."""

import io
import threading

import pytest
from echo_shapes import WORDS, echo_environment

from fixtures.demo._batch import Batch, TooFewTasks
from fixtures.demo._progress import Progress, bar

CALL = '<tool_call>\n{"name": "echo"}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(CALL.replace("echo", "ecko"), id="another-tool"),
        pytest.param(f"Well, {CALL}", id="words-before"),
        pytest.param(CALL.replace("<|im_end|>", " and so on<|im_end|>"), id="words-after"),
        pytest.param(CALL.removesuffix("<|im_end|>"), id="no-end"),
        pytest.param("", id="nothing"),
    ],
)
def test_turn_that_is_more_or_less_than_the_call_is_not_exact(turn):
    from fixtures.demo._measure import count_exact

    assert count_exact([CALL, turn, CALL], CALL) == 2


def test_turn_ends_with_its_end_token_and_unfinished_ones_count_whole():
    from fixtures.demo._measure import first_turn

    assert first_turn([5, 6, 2, 7, 2], end=2) == [5, 6, 2]
    assert first_turn([5, 6, 7], end=2) == [5, 6, 7]


def test_at_least_the_asked_number_of_calls_is_sampled():
    from fixtures.demo._measure import sample_calls
    from fixtures.demo._model import build_model
    from fixtures.demo._transcripts import Transcripts

    transcripts = Transcripts(echo_environment(*WORDS[:3]))
    sample = sample_calls(build_model(transcripts.tokenizer, seed=0), transcripts, samples=4, seed=0)
    assert sample.samples == 6  # three tasks, twice each
    assert sample.exact == 0  # nobody has taught it anything
    assert 1 <= sample.length <= 64


def test_sampling_leaves_the_random_numbers_of_the_training_alone():
    import torch

    from fixtures.demo._measure import sample_calls
    from fixtures.demo._model import build_model
    from fixtures.demo._transcripts import Transcripts

    transcripts = Transcripts(echo_environment(*WORDS[:2]))
    model = build_model(transcripts.tokenizer, seed=0)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    sample_calls(model, transcripts, samples=2, seed=5)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("prompts", "generations"), [(2, 16), (3, 10), (4, 8), (8, 4), (16, 4)])
def test_batch_divides_a_steps_rollouts_among_the_prompts(prompts, generations):
    assert Batch.of(prompts=prompts, tasks=16) == Batch(prompts, generations)


def test_batch_of_more_prompts_than_tasks_is_refused_with_both_numbers():
    with pytest.raises(TooFewTasks, match=r"has 3 tasks, but a batch needs 4 prompts"):
        Batch.of(prompts=4, tasks=3)


def outcome(rewards, *, exact, scores=(0.0, 1.0)):
    from fixtures.demo._measure import CallSample
    from fixtures.demo._report import Outcome
    from fixtures.demo._training import Step

    steps = [Step(number, reward, 20.0, 1.0) for number, reward in enumerate(rewards, start=1)]
    before, after = (CallSample(100, count, 16.0) for count in exact)
    return Outcome(steps, before, after, scores)


def test_reward_is_compared_between_the_first_and_the_last_five_steps():
    figures = outcome([0.2] * 5 + [0.5] * 20 + [0.9] * 5, exact=(30, 90))
    assert (figures.reward_before, figures.reward_after) == pytest.approx((0.2, 0.9))


@pytest.mark.parametrize(
    ("rewards", "exact", "scores", "learned"),
    [
        pytest.param((0.3, 0.9), (30, 90), (0.0, 1.0), True, id="both-rose"),
        pytest.param((0.3, 0.35), (30, 90), (0.0, 1.0), False, id="reward-stayed"),
        pytest.param((0.3, 0.9), (30, 0), (0.0, 1.0), False, id="calls-degenerated"),
        pytest.param((-4.0, 4.0), (30, 90), (-5.0, 5.0), True, id="another-scale"),
        pytest.param((-4.0, -3.0), (30, 90), (-5.0, 5.0), False, id="little-on-another-scale"),
    ],
)
def test_learned_means_that_reward_and_exact_calls_rose(rewards, exact, scores, learned):
    first, last = rewards
    figures = outcome([first] * 5 + [last] * 5, exact=exact, scores=scores)
    assert figures.learned is learned
    assert ("NOT" in figures.verdict()) is not learned


def test_bar_stays_within_its_ends():
    assert [bar(share, width=4) for share in (-1.0, 0.0, 0.5, 1.0, 7.0)] == ["····", "····", "██··", "████", "████"]


class _Lines(io.StringIO):
    """A stream that tells when it holds the third line."""

    def __init__(self):
        super().__init__()
        self.third = threading.Event()

    def write(self, text):
        written = super().write(text)
        if self.getvalue().count("\n") >= 3:
            self.third.set()
        return written


def test_silent_work_shows_signs_of_life():
    stream = _Lines()
    with Progress(stream, patience=0.05).during("thinking"):
        assert stream.third.wait(30)
    first, second, *_ = stream.getvalue().splitlines()
    assert first.endswith("s] thinking")
    assert second.endswith("s]   ... thinking")
