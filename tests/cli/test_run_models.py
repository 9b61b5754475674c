"""`ors run` against the ways in which real servers of models answer, cut off and refuse."""

import json
import re

import pytest
from models import model_server

from fixtures.model_answers import OVERFLOWS, REASONING
from ors_client.record import read

KEY = "sk-quite-secret"


@pytest.fixture(scope="module")
def model():
    with model_server() as server:
        yield server


@pytest.fixture
def run(ors, echo_server, model, tmp_path):
    """Run an evaluation of the echo server; return the command's result, and the episodes."""

    def evaluation(name, *options, url=echo_server.url):
        base = ("--base-url", model.url, "--record", tmp_path / "a.jsonl", "-n", 1, "--max-turns", 4)
        environment = {"OPENAI_API_KEY": KEY, "COLUMNS": "80"}
        result = ors("run", url, "--model", name, *base, *options, env=environment)
        assert KEY not in result.output
        return result, list(read(tmp_path / "a.jsonl")) if (tmp_path / "a.jsonl").exists() else []

    return evaluation


def asked(model, name):
    return [request["body"] for request in model.requests() if request["body"]["model"] == name]


def replies_in(body):
    return [message for message in body["messages"] if message["role"] == "assistant"]


# --- Reasoning and ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(REASONING))
def test_reasoning_goes_back_in_its_field(run, model, name):
    result, (episode,) = run(name)
    assert (result.exit_code, episode.status, episode.rewards) == (0, "scored", [0.0, 1.0])
    (reply,) = replies_in(asked(model, name)[-1])
    assert {field: reply[field] for field in REASONING[name]} == REASONING[name]
    assert reply["content"] == "I say 'no'."


def test_reasoning_is_left_out_where_that_is_asked_for(run, model):
    run("sglang", "--reasoning-history", "none")
    assert "reasoning" not in json.dumps(replies_in(asked(model, "sglang")[-1]))


@pytest.mark.parametrize("name", ["same-ids", "turn-ids", "no-ids", "vllm-old"])
def test_ids_that_a_model_gives_badly_are_put_right(run, model, name):
    result, (episode,) = run(name)
    assert (result.exit_code, episode.status, episode.reward) == (0, "scored", 1.0)
    messages = asked(model, name)[-1]["messages"]
    made = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == made


# --- Replies that are not whole --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("truncated", "cut: length", "Let me think about"),
        ("truncated-call", "cut: length", "I say 'hello'."),
        ("filtered", "cut: filter", "I"),
    ],
)
def test_reply_that_was_cut_off_ends_the_episode_and_nothing_of_it_is_called(run, model, name, status, said):
    result, (episode,) = run(name)
    assert (result.exit_code, episode.status, episode.reward, episode.said) == (0, status, None, said)
    assert (episode.calls, len(asked(model, name))) == ([], 1)
    assert episode.finish_reasons == ["content_filter" if name == "filtered" else "length"]


@pytest.mark.parametrize("name", ["truncated", "truncated-call", "filtered"])
def test_reply_that_is_cut_off_later_leaves_the_score_so_far(run, name):
    _, (episode,) = run(f"late-{name}")
    assert (episode.status[:4], episode.rewards, episode.reward) == ("cut:", [0.0], 0.0)
    assert episode.finish_reasons[0] == "tool_calls"


def test_truncated_words_are_not_handed_in(run, ours):
    _, (episode,) = run("truncated", "--env", "chatenvironment", url=ours.url)
    assert (episode.status, episode.calls) == ("cut: length", [])


def test_truncated_reply_counts_as_whole_where_that_is_asked_for(run, ours, tmp_path):
    _, (episode,) = run("truncated-call", "--accept-truncated")
    assert (episode.status, episode.reward) == ("scored", 1.0)
    options = ("--env", "chatenvironment", "--accept-truncated", "--record", tmp_path / "b.jsonl")
    run("truncated", *options, url=ours.url)
    (episode,) = read(tmp_path / "b.jsonl")
    assert episode.calls[-1].arguments == {"text": "Let me think about"}


def test_reply_that_its_server_broke_off_is_asked_for_again(run, model):
    result, (episode,) = run("broken", "--model-attempts", 2)
    assert (result.exit_code, episode.status, len(asked(model, "broken"))) == (1, "failed: ModelError", 2)
    assert "after 2 attempts: the reply ended with finish_reason 'error'" in episode.failure


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize("provider", list(OVERFLOWS))
def test_conversation_that_outgrows_the_model_cuts_the_episode(run, model, provider):
    result, (episode,) = run(f"overflow-{provider}")
    assert (result.exit_code, episode.status, episode.reward) == (0, "cut: context", 0.0)
    asked_once = len(asked(model, f"overflow-{provider}"))
    run(f"overflow-{provider}", "--retry-failed")
    assert len(asked(model, f"overflow-{provider}")) == asked_once == 2


@pytest.mark.sample(2)
@pytest.mark.parametrize("provider", ["openai", "google"])
def test_run_goes_on_after_a_first_conversation_that_is_too_long(run, provider):
    result, (first, second) = run(f"overfull-{provider}", "-n", 2, "-c", 1)
    assert (result.exit_code, first.status, second.status, first.reward) == (0, *["cut: context"] * 2, None)


def test_prompt_that_a_filter_refuses_cuts_the_episode(run):
    result, (episode,) = run("prompt-filter")
    assert (result.exit_code, episode.status) == (0, "cut: filter")


@pytest.mark.parametrize(("name", "said"), [("strict", "Unsupported value"), ("unparsed", "--tool-call-parser")])
def test_request_that_is_refused_from_the_start_ends_the_run(run, model, name, said):
    result, played = run(name, "-n", 3, "-c", 3)
    assert (result.exit_code, played, len(asked(model, name))) == (1, [], 1)
    assert said in " ".join(result.stderr.split())
    assert "--set" in result.stderr


def test_request_that_is_refused_after_a_reply_breaks_its_episode_alone(run):
    result, (first, second) = run("deepseek", "--reasoning-history", "none", "-n", 2, "-c", 1)
    assert (result.exit_code, first.status, second.status) == (1, *["failed: ModelError"] * 2)
    assert "must be passed back" in first.failure


# --- A model whose calls do nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "what", "cure"),
    [
        ("prose", "unscored", "answered in words and called no tool", "--set tool_choice=required"),
        ("tagged", "unscored", "wrote its calls as text", "--tool-call-parser"),
        ("silent", "unscored", "reply was empty", "--set max_tokens=N"),
        ("truncated", "cut: length", None, "--set max_tokens=N"),
        ("unknown", "cut: turns", "called tools that are not there", "ors tools URL"),
        ("misfit", "cut: turns", "calls had wrong arguments", "ors tools URL"),
        ("wrong", "cut: turns", None, "--max-turns N"),
    ],
)
def test_model_that_gets_nothing_done_is_told_apart_with_its_cure(  # noqa: PLR0917 - pytest hands them in
    run, tmp_path, name, status, what, cure
):
    result, _ = run(name)
    said = " ".join(result.stdout.split())
    assert f"1 {status}{':' if what else ' try:'} " in said
    assert what is None or what in said
    assert cure in said
    page = (tmp_path / "a.html").read_text()
    assert cure in page
    assert re.search(r'<p>Transcripts: <a href="(#line-\d+)">', page)[1].replace("#", 'id="') in page
    shown = json.loads(run(name, "--json")[0].stdout)
    (row,) = shown["ends"]
    assert (row["status"], row["episodes"], what is None) == (status, 1, row["symptom"] is None)
    assert cure in row["try"][0]


def test_call_as_text_that_was_handed_in_as_an_answer_is_told(run, ours):
    result, (episode,) = run("tagged", "--env", "chatenvironment", url=ours.url)
    assert episode.status == "scored"
    assert "scored: the model wrote its calls as text" in " ".join(result.stdout.split())


def test_reasons_for_which_replies_ended_are_shared_out_by_model(run, tmp_path):
    result, _ = run("late-truncated")
    assert "replies      tool_calls 50.0%, length 50.0%\n" in result.stdout
    shown = json.loads(run("right", "--json")[0].stdout)
    assert shown["compared"][0]["finish_reasons"] == {"tool_calls": 1}
    page = (tmp_path / "a.html").read_text()
    assert "<h2>Why replies ended</h2>" in page
    assert '<td>length<span class="small">late-truncated</span></td><td class="n">1</td><td class="n">50 %</td>' in page
