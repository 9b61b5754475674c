"""What counts as an echo-shaped environment, and what a person is told who has another one."""

import demo_process
import pytest
from echo_shapes import WORDS, echo_environment, echo_tool

from fixtures.demo._echo import NotEchoShaped, check_scores, find_tool, find_words, read_environment
from ors_client import Client, ToolSpec


def prompt(word):
    return f"Call the `echo` tool with text='{word}' to win."


def test_tool_is_the_one_that_requires_a_single_string():
    assert find_tool([echo_tool("hint"), echo_tool("say", word="string")]) == ("say", "word")


@pytest.mark.parametrize(
    ("tools", "found"),
    [
        pytest.param([], "no tools", id="none"),
        pytest.param([ToolSpec(name="look")], "'look' (requires nothing)", id="no-schema"),
        pytest.param([echo_tool("add", a="integer")], "'add' (requires 'a': integer)", id="integer"),
        pytest.param([echo_tool("a", x="string"), echo_tool("b", y="string")], "'a' (requires 'x': string)", id="two"),
    ],
)
def test_other_tools_are_named_in_the_error(tools, found):
    with pytest.raises(NotEchoShaped, match="one tool that requires one string") as caught:
        find_tool(tools)
    assert found in str(caught.value)


def test_words_are_what_the_prompts_quote():
    assert find_words([prompt(word) for word in WORDS], [{}] * len(WORDS)) == list(WORDS)


@pytest.mark.parametrize("quote", ["'", '"', "`"])
def test_word_is_found_in_any_quotes(quote):
    prompts = [f"Say {quote}{word}{quote}." for word in WORDS]
    assert find_words(prompts, [{}] * len(WORDS)) == list(WORDS)


def test_of_several_quoted_words_the_one_in_the_task_is_meant():
    prompts = ["Not 'red', 'blue'.", "Not 'green', 'grey'."]
    assert find_words(prompts, [{"target": "blue"}, {"target": "grey"}]) == ["blue", "grey"]


@pytest.mark.parametrize(
    ("prompts", "found"),
    [
        pytest.param(["Write a poem.", "Write 'prose'."], "'Write a poem.'", id="nothing-quoted"),
        pytest.param(["Say 'red' or 'blue'.", "Say 'grey'."], "it quotes 'red', 'blue'", id="several"),
        pytest.param(["Say 'red'.", "Say 'red'."], "it quotes 'red'", id="always-the-same"),
    ],
)
def test_other_prompts_are_shown_in_the_error(prompts, found):
    with pytest.raises(NotEchoShaped, match="prompts quote one word to say") as caught:
        find_words(prompts, [{}, {}])
    assert found in str(caught.value)


@pytest.mark.parametrize(("wrong", "right"), [(1.0, 1.0), (0.5, 0.0), (None, None), (0.0, None)])
def test_word_that_does_not_score_more_is_an_error_with_both_rewards(wrong, right):
    with pytest.raises(NotEchoShaped, match="'echo' rewards 'red' with") as caught:
        check_scores("echo", wrong=("blue", wrong), right=("red", right))
    assert f"'red' with {right!r} and 'blue' with {wrong!r}" in str(caught.value)


def test_scores_are_those_of_a_wrong_and_of_the_right_word():
    assert check_scores("echo", wrong=("blue", None), right=("red", 0.5)) == (0.0, 0.5)


def test_environment_is_read_from_any_server(server):
    with Client(server.url) as client:
        environment = read_environment(client, "echoenvironment")
    assert (environment.tool, environment.parameter, environment.scores) == ("echo", "text", (0.0, 1.0))
    assert [task.prompt for task in environment.tasks] == [prompt(word) for word in environment.words]
    assert environment.reply_to(environment.tasks[0], "nonsense") == "no match (got 'nonsense')"


def test_reading_the_environment_leaves_no_session(two_words):
    with Client(two_words.url) as client:
        read_environment(client, None)
    assert two_words.live() == []


def test_few_words_are_practised_among_made_up_ones():
    environment = echo_environment("red", "blue")
    practice = environment.practice()
    assert practice[:2] == environment.tasks
    assert len({task.word for task in practice}) == 4
    assert all(f"text='{task.word}'" in task.prompt for task in practice)


def test_demo_says_what_it_needs_of_a_server_with_other_tools(ours):
    ended = demo_process.run("--url", ours.url, "--env", "imagesenvironment")
    assert ended.status == 2
    assert "needs an echo-shaped environment with exactly one tool that requires one string" in ended.errors
    assert "Traceback" not in ended.errors


def test_demo_names_both_numbers_where_a_batch_needs_more_prompts_than_there_are_tasks(echo_server):
    ended = demo_process.run("--url", echo_server.url, "--tasks", 6)
    assert ended.status == 2
    assert "The dataset has 4 tasks, but a batch needs 6 prompts" in ended.errors


def test_demo_says_that_nothing_listens_at_the_url():
    ended = demo_process.run("--url", "http://127.0.0.1:9")
    assert ended.status == 2
    assert "http://127.0.0.1:9" in ended.errors
    assert "Traceback" not in ended.errors
