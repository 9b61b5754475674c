"""An evaluation: what is played, recorded and shown, and what an interruption leaves."""

import json
import os
import signal
import socket
import sys
import types

import anyio
import pytest
from models import model_server
from servers import eventually, serve
from terminal import Terminal

from fixtures.proxy import FaultProxy, HtmlPage, Rule
from ors_client import AsyncClient, TaskRef
from ors_client.evaluation import Budget, ChatModel, ModelError, evaluate, make_plan, requests
from ors_client.record import RecordWriter, read, runs

ECHO = "echoenvironment"
KEY = "sk-quite-secret"


@pytest.fixture(scope="module")
def model():
    with model_server() as server:
        yield server


@pytest.fixture
def run(ors, echo_server, model, tmp_path):
    """Run an evaluation of the echo server in a folder of its own; the model's name says how it plays."""

    def evaluation(name, *options, url=echo_server.url, record=tmp_path / "a.jsonl"):
        base = ("--base-url", model.url, "--record", record)
        return ors("run", url, "--model", name, *base, *options, env={"OPENAI_API_KEY": KEY, "COLUMNS": "80"})

    return evaluation


def episodes(tmp_path, name="a.jsonl"):
    return list(read(tmp_path / name))


# --- Figures and records ---------------------------------------------------------------------------------------------


def test_run_plays_every_attempt_and_tells_what_it_came_to(run, tmp_path):
    result = run("right", "-n", 3, "-k", 2)
    assert result.exit_code == 0
    shown = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[:2] if line)
    assert shown["episodes"] == "6, of 3 tasks"
    assert "mean reward  1.000\n" in result.stdout
    assert "coverage     100% (6 of 6)\n" in result.stdout
    assert "@1 100.0%, @2 100.0%" in result.stdout
    played = {(episode.index, episode.attempt) for episode in episodes(tmp_path)}
    assert played == {(index, attempt) for index in range(3) for attempt in range(2)}


def test_specifications_that_can_not_be_read_keep_no_task_from_being_played(run, proxy, tmp_path):
    proxy.add(Rule("POST", "/task_range", HtmlPage(200, "<html></html>"), times=None))
    assert run("right", "-n", 2, url=proxy.url).exit_code == 0
    assert len(episodes(tmp_path)) == 2


def test_record_of_a_run_holds_the_calls_the_words_and_the_costs(run, tmp_path):
    run("right", "-n", 1)
    (episode,) = episodes(tmp_path)
    (call,) = episode.calls
    assert (call.tool, call.arguments, call.output, call.reward) == ("echo", {"text": "hello"}, "match", 1.0)
    assert call.said == "I say 'hello'."
    assert (episode.model, episode.environment, episode.status) == ("right", ECHO, "scored")
    assert episode.usage["completion_tokens"] == 12
    assert set(episode.timing) == {"opening", "model", "tools"}


def test_record_of_a_run_tells_where_a_calls_seconds_went_and_its_page_shows_it(run, tmp_path):
    run("garbled", "-n", 1)
    (episode,) = episodes(tmp_path)
    unsent, sent = episode.calls
    assert unsent.timing is None
    assert set(sent.timing) == {"queued", "setup", "connecting", "server"}
    assert 0 < sent.timing["server"] <= sum(sent.timing.values()) <= sent.seconds
    page = (tmp_path / "a.html").read_text()
    assert "queued, each call" in page
    assert "server, each call" in page


def test_run_as_json_is_one_object_for_programs(run, tmp_path):
    result = run("wrong", "-n", 2, "--max-turns", 2, "--json")
    shown = json.loads(result.stdout)
    assert (shown["episodes"], shown["mean_reward"], shown["coverage"]) == (2, 0.0, 1.0)
    assert shown["failures"] == {"cut: turns": 2}
    assert shown["pass_at"] == {"1": {"share": 0.0, "tasks": 2}}
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("unscored", "mean"), [("0", 0.0), ("leave-out", None)])
def test_attempts_that_were_not_scored_count_in_the_mean_as_asked(run, ours, unscored, mean):
    result = run("right", "--env", "imagesenvironment", "-n", 1, "--unscored", unscored, "--json", url=ours.url)
    shown = json.loads(result.stdout)
    assert (shown["without_score"], shown["mean_reward"], shown["pass_at"]["1"]["share"]) == (1, mean, 0.0)


def test_conversation_with_images_is_recorded_whole(run, ours, tmp_path):
    result = run("right", "--env", "imagesenvironment", "-n", 1, url=ours.url)
    (episode,) = episodes(tmp_path)
    assert [block["type"] for block in episode.messages[0]["blocks"]] == ["text", "image"]
    assert (episode.status, episode.said) == ("unscored", "hello")
    assert "unscored: the environment gave no reward; the model answered in words and called no tool" in " ".join(
        result.stdout.split()
    )


def test_final_message_is_handed_to_the_terminal_tool(run, ours, tmp_path):
    run("right", "--env", "chatenvironment", "-n", 2, url=ours.url)
    played = sorted(episodes(tmp_path), key=lambda episode: episode.index)
    assert [episode.calls[-1].arguments for episode in played] == [{"text": "Paris"}, {"text": "4"}]
    assert [episode.reward for episode in played] == [1.0, 1.0]


def test_model_is_told_that_its_arguments_are_no_json(run, model, tmp_path):
    run("garbled", "-n", 1)
    (episode,) = episodes(tmp_path)
    assert [call.kind for call in episode.calls] == ["ValueError", None]
    assert episode.reward == 1.0
    assert "no JSON" in json.dumps(model.requests()[-1]["body"]["messages"])


# --- Going on --------------------------------------------------------------------------------------------------------


def test_run_again_plays_only_what_the_record_lacks(run, model, tmp_path):
    run("right", "-n", 2)
    before = len(model.requests())
    result = run("right", "-n", 3, "-k", 2)
    assert "2 of 6 episodes are in" in " ".join(result.stderr.split())
    assert len(model.requests()) - before == 4
    assert len(episodes(tmp_path)) == 6


def test_run_again_after_a_torn_line_plays_that_episode(run, tmp_path):
    run("right", "-n", 2)
    whole = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(whole[:-40])
    result = run("right", "-n", 2)
    assert result.exit_code == 0
    assert {episode.index for episode in episodes(tmp_path)} == {0, 1}
    assert result.stderr.count("is no episode and is passed over") == 1


def test_run_that_plays_nothing_says_why_and_what_to_do_in_both_forms(run, tmp_path):
    run("right", "-n", 2)
    with serve("ours", "--env", "echo") as other:
        result = run("right", "-n", 2, url=other.url)
        shown = json.loads(run("right", "-n", 2, "--json", url=other.url).stdout)
    assert len(episodes(tmp_path)) == 2
    said = " ".join(result.stderr.split())
    assert "2 of 2 episodes are in" in said
    assert "to play them anew, name another --record" in said
    assert f", and is {other.url}" in said
    assert (shown["asked"], shown["already_there"]) == (2, 2)
    assert shown["notes"][0].startswith("the server was http")
    assert "name another --record" in shown["notes"][1]


DIFFERING = {
    "another parameter": (["--set", "temperature=0"], "--set temperature was left out, and is 0"),
    "another budget": (["--max-turns", 3], "--max-turns was 50, and is 3"),
}


@pytest.mark.parametrize("options", DIFFERING)
def test_run_with_other_settings_stops_and_says_how_they_differ(run, model, tmp_path, options):
    given, difference = DIFFERING[options]
    run("right", "-n", 1)
    before = len(model.requests())
    result = run("right", "-n", 2, *given)
    assert result.exit_code == 2
    assert difference in " ".join(result.stderr.replace("│", " ").split())
    assert len(model.requests()) == before
    forced = run("right", "-n", 2, *given, "--force")
    assert forced.exit_code == 0
    assert difference in " ".join(forced.stderr.split())
    first, second = [episode.run for episode in episodes(tmp_path)]
    assert first != second


def test_run_of_another_model_or_with_other_numbers_needs_no_force(run, tmp_path):
    assert run("right", "-n", 1).exit_code == 0
    assert run("wrong", "-n", 1, "--set", "temperature=0").exit_code == 0
    result = run("right", "-n", 2, "-k", 2, "-c", 1)
    assert result.exit_code == 0
    assert "--concurrency was 8, and is 1" in " ".join(result.stderr.split())
    assert [setting.model for setting in runs(tmp_path / "a.jsonl")] == ["right", "wrong", "right"]


def test_same_command_again_adds_no_settings(run, tmp_path):
    for _ in range(2):
        run("right", "-n", 1)
    (settings,) = runs(tmp_path / "a.jsonl")
    assert (settings.model, settings.environment, settings.budget["turns"]) == ("right", ECHO, 50)
    assert settings.versions["ors-client"]
    assert KEY not in (tmp_path / "a.jsonl").read_text()


@pytest.fixture
def recorded(model):
    """A proxy before the model that keeps the bodies of all requests."""
    with FaultProxy(model.url.removesuffix("/v1")) as proxy:
        yield proxy


def bodies(proxy):
    return [request.body for request in proxy.find("POST", "/chat/completions")]


def rebuilt(tmp_path):
    return [json.dumps(body).encode() for episode in episodes(tmp_path) for body in requests(episode)]


@pytest.mark.parametrize(("name", "options"), [("right", []), ("garbled", []), ("wrong", ["--max-turns", 3])])
def test_every_request_of_a_run_can_be_made_again_from_its_record(run, recorded, tmp_path, name, options):
    sampling = ("--set", "temperature=0.5", "--set", 'stop=["\u2028"]')
    base_url = ("--base-url", f"{recorded.url}/v1")
    run(name, "-n", 2, "-c", 1, *sampling, *options, *base_url)
    assert rebuilt(tmp_path) == bodies(recorded)
    assert len(bodies(recorded)) >= 2


def test_requests_about_images_and_conversations_can_be_made_again(run, recorded, ours, tmp_path):
    for name in ("images", "chat"):
        base_url = ("--base-url", f"{recorded.url}/v1")
        run("right", "-n", 2, "-c", 1, "--env", f"{name}environment", *base_url, url=ours.url)
    assert rebuilt(tmp_path) == bodies(recorded)


def test_run_of_another_model_is_a_run_of_its_own(run, tmp_path):
    run("right", "-n", 2)
    shown = json.loads(run("wrong", "-n", 2, "--max-turns", 1, "--json").stdout)
    assert (shown["episodes"], shown["mean_reward"]) == (2, 0.0)
    assert len(episodes(tmp_path)) == 4


def test_broken_episodes_are_played_again_when_that_is_asked_for(tmp_path, run):
    run("right", "-n", 2)
    first, second = episodes(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    writer = RecordWriter(tmp_path / "a.jsonl")
    writer.append(first.model_copy(update={"status": "failed: OutcomeUnknown", "reward": None}))
    writer.append(second)
    assert run("right", "-n", 2).exit_code == 1
    result = run("right", "-n", 2, "--retry-failed")
    assert (result.exit_code, len(episodes(tmp_path))) == (0, 3)
    assert "episodes     2, of 2 tasks\n" in result.stdout


# --- What goes wrong -------------------------------------------------------------------------------------------------


def test_busy_endpoint_is_asked_again(run, model, tmp_path):
    before = len(model.requests())
    assert run("flaky", "-n", 1).exit_code == 0
    assert len(model.requests()) - before == 3
    assert episodes(tmp_path)[0].reward == 1.0


def test_ranges_that_need_no_proxy_are_honoured(run, ors, echo_server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://no-proxy.invalid:1")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.0/8,::1/128")
    assert run("right", "-n", 1).exit_code == 0
    assert ors("check", echo_server.url).exit_code == 0


def test_unusable_proxy_is_one_line_that_names_the_variable(run, ors, echo_server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://me:sesame/word@host.test:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    for result in (run("right", "-n", 1), ors("check", echo_server.url), ors("envs", echo_server.url)):
        assert result.exit_code == 1
        assert "HTTP_PROXY is no URL of a proxy" in result.output
        assert "sesame" not in result.output


def test_broken_endpoint_is_no_reward(echo_server, model, tmp_path):
    async def work():
        async with (
            AsyncClient(echo_server.url) as client,
            ChatModel("failing", model.url, attempts=2, first_delay=0) as m,
        ):
            await evaluate(client.environment(), [TaskRef("train", 0)], m, record=tmp_path / "a.jsonl")

    anyio.run(work)
    (episode,) = episodes(tmp_path)
    assert (episode.status, episode.reward) == ("failed: ModelError", None)
    assert "after 2 attempts: The model's endpoint answered with HTTP 500" in episode.failure


def test_episode_that_breaks_after_a_reward_counts_for_nothing(echo_server, model, tmp_path):
    async def work():
        async with AsyncClient(echo_server.url) as client, ChatModel("fading", model.url, attempts=1) as m:
            await evaluate(client.environment(), [TaskRef("train", 0)], m, record=tmp_path / "a.jsonl")

    anyio.run(work)
    (episode,) = episodes(tmp_path)
    assert (episode.status, episode.rewards, episode.reward) == ("failed: ModelError", [0.0], None)


def test_refused_key_ends_the_run_and_is_not_shown(run, echo_server, tmp_path):
    result = run("refusing", "-n", 3)
    assert result.exit_code == 1
    assert "HTTP 401" in result.stderr
    assert "--model-key" in result.stderr
    assert KEY not in result.output
    assert not (tmp_path / "a.jsonl").exists()
    assert echo_server.live() == []


@pytest.fixture
def closed_port():
    """A port that nothing listens on: bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "path", "said", "hint"),
    [
        ("right", None, "after 3 attempts: All connection attempts failed", "Nothing listens there"),
        ("page", "/v1", "it begins '<html>", "A web page answers there; --base-url"),
        ("right", "/v2", "HTTP 404", "usually ending in /v1"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_base_url_ends_the_run_with_the_first_replies(  # noqa: PLR0917 - pytest hands them in
    ors, echo_server, model, closed_port, tmp_path, name, path, said, hint, as_json
):
    address = model.url.removesuffix("/v1") + path if path else f"http://127.0.0.1:{closed_port}/v1"
    before = len(echo_server.journal.entries("construct"))
    options = ("--model", name, "--base-url", address, "--record", tmp_path / "a.jsonl", "-n", 4, "-c", 2)
    result = ors("run", echo_server.url, *options, *["--json"] * as_json)
    assert result.exit_code == 1
    shown = json.loads(result.stdout)["error"] if as_json else {"message": result.stderr, "try": [result.stderr]}
    assert said in shown["message"]
    assert hint in shown["try"][0]
    assert len(echo_server.journal.entries("construct")) - before <= 2  # those that ran together
    assert not (tmp_path / "a.jsonl").exists()
    assert echo_server.live() == []


def test_endpoint_that_replied_before_is_borne_when_it_breaks(model):
    async def work():
        async with ChatModel("right", model.url) as m:
            await m.ask({"messages": []})
            m.name = "page"
            await m.ask({"messages": []})

    with pytest.raises(ModelError) as raised:
        anyio.run(work)
    assert type(raised.value) is ModelError


def test_broken_episodes_are_told_with_the_first_reason_and_what_to_try(run, tmp_path):
    run("right", "-n", 2)
    first, second = episodes(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    writer = RecordWriter(tmp_path / "a.jsonl")
    for episode, failure in ((first, "the first reason"), (second, "another reason")):
        broken = {"status": "failed: ModelError", "reward": None, "failure": failure}
        writer.append(episode.model_copy(update=broken))
    said = run("right", "-n", 2).stdout
    assert "2  failed: ModelError\n" in said
    assert "the first: the first reason\n" in said
    assert "try: See the log of the model's server" in said
    (reason,) = json.loads(run("right", "-n", 2, "--json").stdout)["reasons"].items()
    assert reason[0] == "failed: ModelError"
    assert reason[1]["message"] == "the first reason"
    assert reason[1]["try"][0].startswith("See the log of the model's server")


def test_refused_key_is_told_with_its_hint_as_json_too(run):
    error = json.loads(run("refusing", "-n", 1, "--json").stdout)["error"]
    assert error["kind"] == "ModelRefused"
    assert error["try"] == ["The key in OPENAI_API_KEY was refused, or there is none; give another: --model-key KEY"]


def test_key_is_sent_to_the_model_and_to_nobody_else(run, model, tmp_path):
    run("right", "-n", 1)
    assert model.requests()[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert all(KEY not in text for text in written)


def test_key_does_not_follow_a_redirect(run, model):
    before = len(model.requests())
    result = run("moved", "-n", 1)
    assert (result.exit_code, "HTTP 307" in result.stderr) == (1, True)
    assert len(model.requests()) - before == 1


def test_key_that_turns_up_in_an_episode_is_blanked_in_the_record(echo_server, model, tmp_path):
    async def work():
        async with AsyncClient(echo_server.url) as client, ChatModel("right", model.url, api_key="hello") as m:
            await evaluate(client.environment(), [TaskRef("train", 0)], m, record=tmp_path / "a.jsonl")

    anyio.run(work)
    (episode,) = episodes(tmp_path)
    assert (episode.calls[0].arguments, episode.reward) == ({"text": "***"}, 1.0)


def test_web_page_in_place_of_a_reply_is_told(model):
    async def work():
        async with ChatModel("page", model.url) as page:
            await page.ask({"messages": []})

    with pytest.raises(ModelError, match="no chat completion; it begins '<html>"):
        anyio.run(work)


def test_episode_is_cut_when_its_seconds_are_over(run, echo_server, tmp_path):
    result = run("slow", "-n", 1, "--max-seconds", 0.3)
    (episode,) = episodes(tmp_path)
    assert (result.exit_code, episode.status, episode.reward) == (0, "cut: seconds", None)
    assert echo_server.live() == []


def test_episode_is_cut_when_its_tokens_are_spent(run, tmp_path):
    run("wrong", "-n", 1, "--max-tokens", 24)
    (episode,) = episodes(tmp_path)
    assert (episode.status, len(episode.calls), episode.reward) == ("cut: tokens", 2, 0.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "temperature"], "NAME=VALUE"),
        (["--set", "stream=true"], "none that the command sets"),
        (["--start", 10_000], "none from 10000 on"),
        (["--base-url", "localhost:8000"], "http://"),
        (["--base-url", "http://user:pass@localhost/v1"], "no place for a password"),
    ],
)
def test_misuse_is_told_before_anything_is_played(run, options, said, tmp_path):
    result = run("right", *options)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "user:pass" not in result.output
    assert not (tmp_path / "a.jsonl").exists()


def test_parameters_are_part_of_every_request(run, model):
    run("right", "-n", 1, "--set", "temperature=0", "--set", "stop=END", "--set", f"user={'[' * 100_000}")
    body = model.requests()[-1]["body"]
    assert (body["temperature"], body["stop"], body["user"]) == (0, "END", "[" * 100_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_session_and_a_record_to_go_on_with(echo_server, model, tmp_path, run, number):
    record = tmp_path / "a.jsonl"
    run("right", "-n", 1)
    options = ("--model", "slow", "--base-url", model.url, "--record", str(record), "-n", "3")
    with Terminal("run", echo_server.url, *options, columns=80) as terminal:
        terminal.expect("0/3")
        eventually(lambda: len(echo_server.live()) >= 3)
        os.kill(terminal.pid, number)
        terminal.expect("no session is left")
        assert terminal.status() == 130
    assert echo_server.live() == []
    assert len(episodes(tmp_path)) == 1


# --- From Python -----------------------------------------------------------------------------------------------------


def test_plan_asks_for_every_task_once_before_any_twice(echo_server, model, tmp_path):
    tasks = [TaskRef("train", 0), TaskRef("train", 1)]

    async def plan():
        async with AsyncClient(echo_server.url) as client:
            record = tmp_path / "none.jsonl"
            return await make_plan(client.environment(), tasks, ChatModel("m", model.url), record=record, attempts=2)

    assert anyio.run(plan).attempts == [(tasks[0], 0), (tasks[1], 0), (tasks[0], 1), (tasks[1], 1)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_evaluation_tells_of_each_episode_as_it_ends(echo_server, model, tmp_path, backend):
    shown = []

    async def work():
        tasks = [TaskRef("train", 0), TaskRef("train", 1)]
        async with AsyncClient(echo_server.url) as client, ChatModel("right", model.url) as m:
            record = tmp_path / "a.jsonl"
            await evaluate(client.environment(), tasks, m, record=record, concurrency=1, on_episode=shown.append)

    anyio.run(work, backend=backend)
    assert [episode.index for episode in shown] == [0, 1]
    assert shown == episodes(tmp_path)


@pytest.mark.parametrize("budget", [{"turns": 0}, {"seconds": -1.0}])
def test_budget_that_leaves_room_for_nothing_is_refused(budget):
    with pytest.raises(ValueError, match="positive"):
        Budget(**budget)


def test_evaluation_returns_the_figures_of_all_that_the_record_holds(echo_server, model, tmp_path):
    async def work():
        tasks = [TaskRef("train", index) for index in range(2)]
        async with AsyncClient(echo_server.url) as client, ChatModel("right", model.url) as m:
            for _ in range(2):  # the second time, there is nothing left to play
                figures = await evaluate(client.environment(), tasks, m, record=tmp_path / "a.jsonl", passing=2.0)
                yield_.append((figures.episodes, figures.mean_reward, figures.pass_at(1)))
            yield_.append(await evaluate(client.environment(), [], m, record=tmp_path / "none.jsonl"))

    yield_ = []
    anyio.run(work)
    *both, nothing = yield_
    assert both == [(2, 1.0, (0.0, 2))] * 2
    assert (nothing.episodes, nothing.mean_reward) == (0, None)


@pytest.mark.parametrize(
    ("shell", "wanted", "shown"),
    [
        ("ZMQInteractiveShell", None, True),
        ("ZMQInteractiveShell", False, False),
        ("TerminalInteractiveShell", None, False),
        (None, None, False),
        (None, True, True),
    ],
)
def test_bar_is_shown_in_a_notebook_or_where_it_is_asked_for(  # noqa: PLR0917 - pytest hands them in
    echo_server, model, tmp_path, monkeypatch, capsys, shell, wanted, shown
):
    if shell is not None:
        notebook = types.ModuleType("IPython")
        notebook.get_ipython = type(shell, (), {})
        monkeypatch.setitem(sys.modules, "IPython", notebook)

    async def work():
        async with AsyncClient(echo_server.url) as client, ChatModel("right", model.url) as m:
            record = tmp_path / "a.jsonl"
            await evaluate(client.environment(), [TaskRef("train", 0)], m, record=record, progress=wanted)

    anyio.run(work)
    assert ("reward 1.00" in capsys.readouterr().err) is shown


# --- Which tasks -----------------------------------------------------------------------------------------------------


def test_file_names_the_tasks(run, tmp_path):
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps({"environment": ECHO, "split": "train", "tasks": [{"index": 3}, {"index": 1}]}))
    assert run("right", "--tasks", tasks, "-c", 1).exit_code == 0
    assert [episode.index for episode in episodes(tmp_path)] == [3, 1]
    assert all(episode.spec["target"] for episode in episodes(tmp_path))
    tasks.write_text("[0]")
    run("right", "--tasks", tasks)
    assert [episode.index for episode in episodes(tmp_path)] == [3, 1, 0]


@pytest.mark.parametrize(
    ("held", "options", "said"),
    [
        ([0], ["-n", 1], "have no place beside it"),
        ([0], ["--start", 1], "have no place beside it"),
        ([10_000], [], "names 10000"),
        ("x", [], "names no task"),
        ({"environment": "other", "tasks": [0]}, [], "of the environment 'other'"),
        ({"split": "train", "tasks": [0]}, ["--split", "test"], "of the split 'train'"),
        (None, [], "can't be read"),
    ],
)
def test_file_that_does_not_fit_is_misuse(run, tmp_path, held, options, said):
    tasks = tmp_path / "tasks.json"
    if held is not None:
        tasks.write_text(json.dumps(held if not isinstance(held, str) else [held]))
    result = run("right", "--tasks", tasks, *options)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "a.jsonl").exists()


def test_tasks_are_shuffled_before_some_are_taken(run, tmp_path):
    run("right", "--shuffle", 7, "-n", 2, "-c", 1)
    first = [episode.index for episode in episodes(tmp_path)]
    run("right", "--shuffle", 7, "-n", 4, "-c", 1)
    played = [episode.index for episode in episodes(tmp_path)]
    assert played[:2] == first
    assert len(set(played)) == 4
    assert played != sorted(played)


def test_more_tasks_than_there_are_is_noted(run, tmp_path):
    result = run("right", "-n", 10_000, "--json")
    (note,) = json.loads(result.stdout)["notes"]
    there = len(episodes(tmp_path))
    assert note == f"split 'train' has {there} tasks, not 10000; all of them are played"


def test_toolset_that_is_not_there_ends_in_the_servers_words(run):
    result = run("right", "-n", 1, "--toolset", "gloves")
    assert result.exit_code == 1
    assert "gloves" in " ".join(result.stdout.split())


def test_run_on_ray_without_ray_says_how_to_install_it(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run("right", "--ray", "--workers", 2)
    assert result.exit_code == 2
    assert "pip install 'ors-client[ray]'" in " ".join(result.stderr.split())
    assert not (tmp_path / "a.jsonl").exists()
