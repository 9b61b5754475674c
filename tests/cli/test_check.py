"""The check: what it finds on each server, what it calls a problem, and what it leaves behind."""

import json

import pytest
from servers import Server, eventually, serve
from terminal import Terminal

from fixtures.proxy import FaultProxy, ReplaceBody, Rule, Status

_STREAM = {"Content-Type": "text/event-stream"}


def _report(result):
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("kind", "name", "features"),
    [
        ("ours", "openreward 0.1.167", {"messages": True, "secrets": "header"}),
        ("openreward", "openreward 0.1.167", {"messages": True, "secrets": "header"}),
        ("ors_sdk", "ors-sdk, or like it", {"messages": False, "secrets": "body"}),
    ],
)
def test_check_finds_a_sound_server_sound(ors, request, kind, name, features):
    server: Server = request.getfixturevalue(kind)
    result = ors("check", server.url, "--env", "echoenvironment", "--json")
    report = _report(result)
    assert (result.exit_code, report["ok"], report["problems"]) == (0, True, [])
    assert report["server"]["kind"] == name
    assert report["features"] == {
        "terminal_tool": None,
        "group_scoring": False,
        "ranges": True,
        "task_tools": True,
        "own_tools": [],
        "resume": True,
        **features,
    }
    assert report["keepalive"] == {"answered": True, "interval": 10.0, "tolerance": 60.0, "held": None, "kept": None}
    assert set(report["session"]["seconds"]) == {"create", "prompt", "ping", "delete"}


def test_check_leaves_no_session(ors, server):
    before = set(server.live())
    ors("check", server.url, "--env", "echoenvironment")
    assert set(server.live()) <= before


def test_check_calls_no_tool(ors, server):
    before = server.executions("echo")
    ors("check", server.url, "--env", "echoenvironment")
    assert server.executions("echo") == before


def test_check_lists_environments_with_their_splits_and_tools(ors, ours):
    report = _report(ors("check", ours.url, "--json"))
    alpha = next(one for one in report["environments"] if one["name"] == "alpha")
    assert [(split["name"], split["num_tasks"]) for split in alpha["splits"]] == [("train", 70), ("test", 5)]
    assert [tool["name"] for tool in alpha["tools"]] == ["alpha_only", "who"]


def test_check_tells_a_person_what_is_there(ors, ours):
    said = ors("check", ours.url).stdout
    for words in ("openreward 0.1.167", "train 70, test 5", "every 10 s", "X-Secrets", "8 sessions", "No problems."):
        assert words in said


def test_check_names_terminal_tool_and_group_scoring(ors, ours):
    features = _report(ors("check", ours.url, "--env", "chatenvironment", "--json"))["features"]
    assert (features["terminal_tool"], features["group_scoring"]) == ("submit", True)


def test_check_counts_the_sessions_of_a_run(ors, echo_server):
    run = ("--batch-size", 8, "--generations", 16, "--accumulation", 4, "--processes", 2)
    assert _report(ors("check", echo_server.url, "--json", *run))["grpo"]["sessions"] == 64


def test_check_of_groups_that_do_not_divide_is_a_problem(ors, echo_server):
    result = ors("check", echo_server.url, "--batch-size", 4, "--generations", 8)
    assert result.exit_code == 1
    assert "TRL refuses 4 rollouts at a time in groups of 8" in result.stdout


def test_check_of_groups_of_one_is_a_problem_as_trl_refuses_them(ors, echo_server):
    result = ors("check", echo_server.url, "--generations", 1)
    assert (result.exit_code, "TRL refuses groups of 1" in result.stdout) == (1, True)


def test_check_of_a_failing_setup_says_what_raised_and_deletes_the_session(ors, server):
    before = set(server.live())
    result = ors("check", server.url, "--env", "failingenvironment", "--task", 2)
    assert result.exit_code == 1
    assert "EnvironmentBrokenError: the setup is broken" in result.stdout
    assert "--secret" in result.stdout
    assert set(server.live()) <= before


def test_check_says_of_keepalive_what_was_seen(ors, ours):
    official = "pings are answered; they are sent every 10 s; by default such a server ends a session 900 s"
    assert official in ors("check", ours.url).stdout
    with serve("ours", "--env", "echo", "--dialect", "spec") as hand_written:
        said = ors("check", hand_written.url).stdout
    assert "pings are answered; they are sent every 10 s; --hold 60" in said


def test_check_that_holds_a_session_finds_it_kept_and_leaves_none(ors, ours):
    result = ors("check", ours.url, "--env", "echoenvironment", "--hold", 1, "--json")
    keepalive = _report(result)["keepalive"]
    assert (result.exit_code, keepalive["kept"], keepalive["held"] >= 1) == (0, True, True)


@pytest.mark.slow
def test_check_finds_that_a_session_is_not_kept_and_says_how_to_keep_it(ors):
    with serve("ours", "--env", "echo", "--session-timeout", "2", "--reap-every", "0.5") as server:
        result = ors("check", server.url, "--hold", 5)
    said = " ".join(result.stdout.split())
    assert result.exit_code == 1
    assert "pings are answered, and yet a session was not kept" in said
    assert "A session that was pinged every 10 s was lost within" in said
    assert "KeepalivePolicy(interval=" in said


@pytest.mark.slow
def test_check_that_holds_a_session_shows_how_long(echo_server):
    with Terminal("check", echo_server.url, "--hold", "2") as terminal:
        terminal.expect("holding a session: 1 of 2 s")
        terminal.expect("held for 2 s and kept")
        assert terminal.status() == 0


def test_check_of_a_split_that_is_not_there_is_one_problem_with_its_hint(ors, ours):
    report = _report(ors("check", ours.url, "--env", "alpha", "--split", "tain", "--json"))
    (problem,) = report["problems"]
    assert problem == {
        "what": "Environment 'alpha' has no split 'tain'; it has: 'train', 'test'.",
        "try": ["--split train"],
    }


def test_check_tells_tools_of_a_task_from_a_route_that_could(ors, ours):
    assert "task tools     can be asked for; this task has those of its environment" in ors("check", ours.url).stdout
    said = ors("check", ours.url, "--env", "tasktoolsenvironment", "--task", 1).stdout
    assert "task tools     this task has more than its environment: " in said


def test_check_without_a_ping_route_is_a_problem(ors, proxy: FaultProxy):
    proxy.add(Rule("POST", "/ping", Status(404, "Not Found"), times=None))
    report = _report(ors("check", proxy.url, "--json"))
    assert report["keepalive"]["answered"] is False
    assert any("no ping route" in problem["what"] for problem in report["problems"])


def test_check_of_a_server_that_forgets_calls_advises_one_worker(ors, proxy: FaultProxy):
    forgotten = ReplaceBody(b"event: error\ndata: unknown task_id\n\n", headers=_STREAM)
    proxy.add(Rule("POST", "/call", forgotten, skip=1, times=None))
    report = _report(ors("check", proxy.url, "--json"))
    assert report["features"]["resume"] is False
    assert any("one process" in hint for problem in report["problems"] for hint in problem["try"])


def test_check_of_a_server_without_call_ids_notes_that_calls_do_not_resume(ors, proxy: FaultProxy):
    refused = ReplaceBody(b'event: end\ndata: {"ok": false, "error": "no such tool"}\n\n', headers=_STREAM)
    proxy.add(Rule("POST", "/call", refused, times=None))
    result = ors("check", proxy.url, "--json")
    report = _report(result)
    assert (result.exit_code, report["features"]["resume"]) == (0, False)
    assert any("can't be resumed" in note for note in report["notes"])


def test_check_of_a_server_that_runs_a_resumed_call_anew_says_what_that_costs(ors, proxy: FaultProxy):
    for run in ("1", "2"):
        refused = f'event: task_id\ndata: {run}\n\nevent: end\ndata: {{"ok": false, "error": "no such tool"}}\n\n'
        proxy.add(Rule("POST", "/call", ReplaceBody(refused.encode(), headers=_STREAM), times=1))
    report = _report(ors("check", proxy.url, "--json"))
    assert report["features"]["resume"] is False
    assert any("taken twice" in note for note in report["notes"])
    assert not any("ORS server" in hint for problem in report["problems"] for hint in problem["try"])


def test_check_takes_a_name_with_a_slash_as_it_is_meant(ors, proxy: FaultProxy):
    proxy.add(Rule("GET", "/list_environments", ReplaceBody('["ü/x"]'.encode()), times=None))
    result = ors("check", proxy.url, "--env", "ü/x", "--json")
    assert _report(result)["environments"][0]["name"] == "ü/x"
    result = ors("check", proxy.url, "--env", "ü/x", "--sessions-url", f"{proxy.url}/elsewhere", "--json")
    (problem,) = _report(result)["problems"]
    assert "No environment named 'ü/x'" in problem["what"]
    assert problem["try"] == ["Is 'ü/x' spelt as in the catalogue, owner and name?"]


def test_check_sends_the_cut_call_once_and_then_its_id(ors, proxy: FaultProxy):
    ors("check", proxy.url)
    bodies = [json.loads(request.body) for request in proxy.find("POST", "/call")]
    assert ["task_id" in body for body in bodies] == [False, True]


def test_check_of_a_deployment_takes_key_and_name(ors, split_server):
    api, sessions = split_server.urls
    result = ors("check", api, "--sessions-url", sessions, "--env", "owner/name", "--api-key", "test-key", "--json")
    assert (result.exit_code, _report(result)["features"]["secrets"]) == (0, "header")
    assert "test-key" not in result.output


def test_interrupted_check_leaves_no_session_and_no_traceback():
    with serve("ours", "--env", "echo", "--reset-seconds", "60") as server:
        with Terminal("check", server.url, "--wait", "60") as terminal:
            terminal.expect("waiting for setup")
            eventually(server.live)
            terminal.type("\x03")
            assert terminal.status() == 130
        assert server.live() == []
    assert "Traceback" not in terminal.said
    assert "interrupted" in terminal.said
