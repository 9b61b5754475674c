"""How episodes become tokens: words whole, and the prompt just as TRL's trainer renders it."""

import pytest
from echo_shapes import WORDS, echo_environment

from fixtures.demo._echo import read_environment
from ors_client import Client
from trl_bridge import OpenRewardSpec


def transcripts_of(environment):
    from fixtures.demo._transcripts import Transcripts

    return Transcripts(environment)


@pytest.fixture(scope="module")
def transcripts():
    return transcripts_of(echo_environment(*WORDS))


def test_quoted_words_are_single_tokens(transcripts):
    known = transcripts.tokenizer.get_vocab()
    assert [word for word in WORDS if word not in known] == []


def test_all_calls_are_equally_long_and_differ_in_the_word_alone(transcripts):
    position = transcripts.position_of_word()
    calls = [transcripts.call(word) for word in WORDS]
    assert len({(tuple(call[:position]), tuple(call[position + 1 :])) for call in calls}) == 1
    assert [transcripts.tokenizer.decode([call[position]]) for call in calls] == list(WORDS)


@pytest.mark.parametrize("words", [("red", "blue"), ("well-known", "naïve", "x1")])
def test_words_of_any_environment_are_single_tokens(words):
    transcripts = transcripts_of(echo_environment(*words))
    assert len({len(transcripts.call(word)) for word in words}) == 1


def test_episode_trains_the_models_own_turns_only(transcripts):
    tokens, own = transcripts.episode(transcripts.environment.tasks[0], "world")
    spoken = transcripts.tokenizer.decode([token for token, mine in zip(tokens, own, strict=True) if mine])
    assert spoken == f"{transcripts.call_text('world')}Done.<|im_end|>"


def test_episode_shows_what_the_server_answers(transcripts):
    tokens, _ = transcripts.episode(transcripts.environment.tasks[0], "trl")
    assert "<tool_response>\nno match (got 'trl')\n</tool_response>" in transcripts.tokenizer.decode(tokens)


def test_prompt_is_rendered_with_the_tools_that_the_trainer_shows(ours):
    with Client(ours.url) as client:
        environment = read_environment(client, "echoenvironment")
    transcripts = transcripts_of(environment)
    with OpenRewardSpec(ours.url, env_name="echoenvironment", num_tasks=1) as spec:
        adapter = spec.environment_factory()
        [row] = spec.train_dataset
        message = {**row["prompt"][-1], "content": row["prompt"][-1]["content"] + adapter.reset(**row)}
        shown = transcripts.tokenizer.apply_chat_template(
            [*row["prompt"][:-1], message],
            tools=[adapter.echo],
            add_generation_prompt=True,
            enable_thinking=False,
            tokenize=True,
            return_dict=False,
        )
    assert transcripts.prompt(environment.tasks[0]) == shown
