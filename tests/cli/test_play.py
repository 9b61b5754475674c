"""An episode in the terminal: from a script, and by somebody who types."""

import json
import os
import signal
import subprocess
import sys

import pytest
from servers import eventually
from terminal import Terminal

_LOST = '{"tool": "echo", "arguments": {"text": "no"}}\n'
_WON = '{"tool": "echo", "arguments": {"text": "hello"}}\n'


# --- From a script ---------------------------------------------------------------------------------------------------


def test_script_plays_its_calls_and_shows_the_reward(ors, server, tmp_path):
    script = tmp_path / "calls.jsonl"
    script.write_text(_LOST + "\n" + _WON)
    result = ors("play", server.url, "--env", "echoenvironment", "--script", script)
    assert result.exit_code == 0
    assert "no match (got 'no')\n← reward 0\n" in result.stdout
    assert "← reward 1, the episode is over\n" in result.stdout
    assert result.stdout.endswith("The episode is over after 2 calls: reward 1, 1 in all.\n")


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (_LOST, "line 2 of the script; 1 call was not made"),
        (_LOST + "\n" + _LOST, "lines 2, 4 of the script; 2 calls were not made"),
        (_LOST * 3, "lines 2 to 4 of the script; 3 calls were not made"),
        ("\n", ""),
    ],
)
def test_script_ends_with_the_episode_and_says_what_was_not_made(ors, server, tmp_path, after, said):
    script = tmp_path / "calls.jsonl"
    script.write_text(_WON + after)
    result = ors("play", server.url, "--env", "echoenvironment", "--script", script)
    assert result.exit_code == 0
    assert result.stdout.count("→ echo") == 1
    assert result.stderr == (f"note: the episode was over before {said}\n" if said else "")


def test_script_of_very_many_lines_does_not_say_how_many_were_not_made(ors, echo_server, tmp_path):
    script = tmp_path / "calls.jsonl"
    script.write_text(_WON + _LOST * 1001)
    note = ors("play", echo_server.url, "--script", script).stderr
    assert note == "note: the episode was over before line 2 of the script; more than 1000 calls were not made\n"
    end = json.loads(ors("play", echo_server.url, "--script", script, "--json").stdout.splitlines()[-1])
    assert end["lines_not_played"] == list(range(2, 1002))
    script.write_text(_WON + _LOST * 1000)
    assert "lines 2 to 1001 of the script; 1000 calls" in ors("play", echo_server.url, "--script", script).stderr


def test_rest_of_a_script_is_told_where_reads_cannot_but_wait(ors, echo_server, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "get_blocking")  # as on Windows before Python 3.12
    script = tmp_path / "calls.jsonl"
    script.write_text(_WON + _LOST)
    result = ors("play", echo_server.url, "--script", script)
    assert (result.exit_code, "line 2 of the script" in result.stderr) == (0, True)


def test_script_that_stays_open_after_the_end_is_not_waited_for(echo_server):
    command = [sys.executable, "-m", "ors_client.cli", "play", echo_server.url, "--script", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write((_WON + _LOST).encode())
        process.stdin.flush()
        assert b"Call the" in process.stdout.readline()
        assert process.wait(timeout=60) == 0  # with its stdin open
        assert b"line 2 of the script; 1 call was not made" in process.stderr.read()


def test_script_as_json_is_a_line_per_event(ors, server):
    result = ors("play", server.url, "--env", "echoenvironment", "--script", "-", "--json", input=_LOST)
    prompt, call, end = map(json.loads, result.stdout.splitlines())
    assert prompt["prompt"][0]["type"] == "text"
    assert (call["arguments"], call["output"]["reward"]) == ({"text": "no"}, 0.0)
    shown = {"finished": False, "reward": 0.0, "rewards": [0.0], "calls": 1}
    assert end == shown | {"lines_with_errors": [], "lines_not_played": []}


_MIXED = '{"tool": "nope"}\n{"tool": "boom", "arguments": {"message": "bang"}}\n{"tool": "int_reward"}\n'


def test_script_goes_on_after_a_refused_and_a_failed_call_and_ends_with_status_1(ors, server):
    result = ors("play", server.url, "--env", "failingenvironment", "--script", "-", input=_MIXED)
    assert result.exit_code == 1
    assert "← ToolRejected: " in result.stdout
    assert "← ToolFailed: bang\n" in result.stdout
    assert "← reward 1\n" in result.stdout
    assert result.stderr == (
        "error: The server answered 2 of 3 calls with an error: lines 1, 2 of the script.\n"
        f"  try: See the tools and what they take: ors tools {server.url} --env failingenvironment\n"
    )


def test_script_whose_calls_are_all_refused_ends_with_status_1(ors, echo_server):
    result = ors("play", echo_server.url, "--script", "-", input='{"tool": "echo", "arguments": {"word": 1}}\n')
    assert result.exit_code == 1
    assert "error: The server answered the only call with an error: line 1 of the script.\n" in result.stderr


def test_script_as_json_names_the_lines_with_errors_and_those_not_played(ors, server):
    calls = '{"tool": "nope"}\n{"tool": "finish", "arguments": {"reward": 1}}\n{"tool": "int_reward"}\n'
    result = ors("play", server.url, "--env", "failingenvironment", "--script", "-", "--json", input=calls)
    end = json.loads(result.stdout.splitlines()[-1])
    assert (result.exit_code, result.stderr) == (1, "")
    assert (end["lines_with_errors"], end["lines_not_played"]) == ([1], [3])


def test_script_hands_a_message_to_the_terminal_tool(ors, ours):
    result = ors("play", ours.url, "--env", "chatenvironment", "--script", "-", input='{"message": "Paris"}')
    assert "right\n← reward 1, the episode is over\n" in result.stdout


@pytest.mark.parametrize(
    "line",
    [
        "echo",
        "[]",
        '{"arguments": {}}',
        '{"tool": "echo", "arguments": ["x"]}',
        '{"tool": "echo", "arguments": {"text": NaN}}',
        '{"tool": "echo", "arguments": {"text": -1e999}}',
        pytest.param('{"tool": "echo", "arguments": {"text": %s}}' % ("[" * 600 + "]" * 600), id="deep"),
        pytest.param("[" * 100_000, id="deeper than Python reads"),
    ],
)
def test_script_with_a_bad_line_names_the_line_and_leaves_no_session(ors, ours, line):
    before = set(ours.live())
    result = ors("play", ours.url, "--env", "echoenvironment", "--script", "-", input=_LOST + line)
    assert result.exit_code == 2
    assert "error: Line 2 of the script is no" in result.stderr
    assert set(ours.live()) <= before


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_script_that_is_not_utf8_is_misuse_and_leaves_no_session(ors, ours, tmp_path, encoding):
    script = tmp_path / "calls.jsonl"
    script.write_bytes('{"tool": "echo", "arguments": {"text": "é"}}\n'.encode(encoding))
    result = ors("play", ours.url, "--env", "echoenvironment", "--script", script)
    assert (result.exit_code, result.stderr) == (2, "error: Line 1 of the script is not UTF-8; save it as that.\n")


def test_script_that_is_not_there_is_misuse(ors, ours, tmp_path):
    result = ors("play", ours.url, "--env", "echoenvironment", "--script", tmp_path / "none")
    assert (result.exit_code, "No such file" in result.stderr) == (2, True)


def test_secrets_reach_the_environment(ors, server):
    settings = {"input": '{"tool": "reveal"}', "env": {"FROM_OUTSIDE": "two"}}
    secrets = ("--secret", "K=one", "--secret", "FROM_OUTSIDE")
    result = ors("play", server.url, "--env", "secretsenvironment", "--script", "-", *secrets, **settings)
    assert '{"FROM_OUTSIDE": "two", "K": "one"}' in result.stdout


def test_images_are_kept_in_the_folder(ors, server, tmp_path):
    settings = {"input": '{"tool": "gallery"}'}
    ors("play", server.url, "--env", "imagesenvironment", "--script", "-", "--images", tmp_path, **settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"image-00{number}.png" for number in (1, 2, 3, 4)]


def test_folder_that_cannot_be_written_costs_the_images_only(ors, ours, tmp_path):
    (tmp_path / "file").write_text("in the way")
    settings = {"input": '{"tool": "look"}'}
    result = ors(
        "play", ours.url, "--env", "imagesenvironment", "--script", "-", "--images", tmp_path / "file", **settings
    )
    assert result.exit_code == 0
    assert "can't be kept" in result.stdout


def test_control_sequences_of_a_server_are_spelt_out(ors, ours):
    call = json.dumps({"tool": "boom", "arguments": {"message": "\033]52;c;x\a\u202egood"}})
    result = ors("play", ours.url, "--env", "failingenvironment", "--script", "-", input=call)
    assert "← ToolFailed: \\x1b]52;c;x\\x07\\u202egood\n" in result.stdout


def test_json_without_a_script_is_misuse(ors, ours):
    result = ors("play", ours.url, "--env", "echoenvironment", "--json")
    assert result.exit_code == 2
    assert "--script FILE" in json.loads(result.stdout)["error"]["message"]


# --- By somebody who types -------------------------------------------------------------------------------------------


def test_play_asks_for_a_tool_and_its_argument(echo_server):
    with Terminal("play", echo_server.url) as terminal:
        terminal.expect("text='hello' to win.")
        terminal.expect("echo")
        terminal.expect("text: string")
        terminal.expect("tool: ")
        terminal.type("1\n")
        terminal.expect("text (string): ")
        terminal.type("hello\n")
        terminal.expect("match")
        terminal.expect("reward 1")
        terminal.expect("The episode is over after 1 call: reward 1.")
        assert terminal.status() == 0


def test_play_asks_from_the_schema_until_an_answer_fits(ours):
    with Terminal("play", ours.url, "--env", "schemasenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("edit\n")
        terminal.expect("The file, from the root.")
        terminal.expect("path (string, matches ^/): ")
        terminal.type("/a\n")
        terminal.expect("lines (list of {line, text}, at least 1 items, at most 3 items, as JSON): ")
        terminal.type("one\n")
        terminal.expect("That is not JSON")
        terminal.expect("lines (list of {line, text}, at least 1 items, at most 3 items, as JSON): ")
        terminal.type('[{"line": 1, "text": "x"}]\n')
        terminal.expect('mode ("fast" | "exact"; or 1-2, optional; default "fast"): ')
        terminal.type("slow\n")
        terminal.expect("'slow' is none of")
        terminal.type("2\n")
        terminal.expect("note (string | null, optional; default null): ")
        terminal.type("\n")
        terminal.expect('{"path": "/a", "mode": "exact", "lines": [{"line": 1, "text": "x"}]}')  # and no note
        terminal.expect("tool: ")
        terminal.type("q\n")
        terminal.expect("Left before the end after 1 call: nothing was scored.")
        assert terminal.status() == 0


def test_play_hands_the_final_message_to_the_terminal_tool(ours):
    with Terminal("play", ours.url, "--env", "chatenvironment") as terminal:
        terminal.expect("text: the final message")
        terminal.expect("tool: ")
        terminal.type("m\n")
        terminal.expect("text (the final message): ")
        terminal.type("Paris\n")
        terminal.expect("reward 1")
        assert terminal.status() == 0


def test_interrupt_at_a_question_leaves_no_session(ours):
    before = set(ours.live())
    with Terminal("play", ours.url, "--env", "echoenvironment") as terminal:
        terminal.expect("tool: ")
        assert set(ours.live()) - before
        terminal.type("\x03")
        terminal.expect("interrupted; the session was deleted")
        assert terminal.status() == 130
    assert set(ours.live()) <= before


def test_interrupt_during_a_call_leaves_no_session(ours):
    before = set(ours.live())
    calls = ours.executions("wait")
    with Terminal("play", ours.url, "--env", "slowenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("wait\n")
        terminal.expect("seconds (number, at least 0): ")
        terminal.type("60\n")
        eventually(lambda: ours.executions("wait") > calls)
        terminal.type("\x03")
        terminal.expect("interrupted; the session was deleted")
        assert terminal.status() == 130
    assert set(ours.live()) <= before


def test_end_of_input_at_an_argument_goes_back_to_the_tools(ours):
    with Terminal("play", ours.url, "--env", "failingenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("step\n")
        terminal.expect("reward (number): ")
        terminal.type("\n")
        terminal.expect("Ctrl-D goes back to the tools.")
        terminal.expect("reward (number): ")
        terminal.type("\x04")
        terminal.expect("tool: ")
        terminal.type("q\n")
        terminal.expect("Left before the end after 0 calls")
        assert terminal.status() == 0


def test_end_of_input_at_the_final_message_goes_back_to_the_tools(ours):
    with Terminal("play", ours.url, "--env", "chatenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("m\n")
        terminal.expect("text (the final message): ")
        terminal.type("\x04")
        terminal.expect("tool: ")
        terminal.type("m\n")
        terminal.expect("text (the final message): ")
        terminal.type("Paris\n")
        terminal.expect("reward 1")
        assert terminal.status() == 0


def test_tools_stay_in_view_at_each_question(ours):
    with Terminal("play", ours.url, "--env", "failingenvironment") as terminal:
        for _ in range(2):
            terminal.expect("step")
            terminal.expect("what they take")
            terminal.expect("tool: ")
            terminal.type("nope\n")
            terminal.expect("There is no tool 'nope'.")
        terminal.type("q\n")
        assert terminal.status() == 0


def test_many_tools_do_not_scroll_the_prompt_away(ours):
    with Terminal("play", ours.url, "--env", "schemasenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("q\n")
        assert terminal.status() == 0
    before_the_question = terminal.said[: terminal.said.index("tool: ")]
    assert before_the_question.count("\n") <= 12
    assert "edit" in before_the_question


def test_required_text_that_is_empty_is_asked_for_again(ours):
    calls = ours.executions("echo")
    with Terminal("play", ours.url, "--env", "echoenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("1\n")
        terminal.expect("text (string): ")
        terminal.type("\n")
        terminal.expect('An empty text is written "".')
        terminal.expect("text (string): ")
        assert ours.executions("echo") == calls
        terminal.type('""\n')
        terminal.expect("no match (got '')")
        terminal.type("q\n")
        assert terminal.status() == 0


def test_final_message_that_is_empty_is_asked_for_again(ours):
    with Terminal("play", ours.url, "--env", "chatenvironment") as terminal:
        terminal.expect("tool: ")
        terminal.type("m\n")
        terminal.expect("text (the final message): ")
        terminal.type("\n")
        terminal.expect("It is required.")
        terminal.expect("text (the final message): ")
        terminal.type("Paris\n")
        terminal.expect("reward 1")
        assert terminal.status() == 0


def test_end_of_input_leaves_the_episode(echo_server):
    before = set(echo_server.live())
    with Terminal("play", echo_server.url) as terminal:
        terminal.expect("tool: ")
        terminal.type("\x04")
        terminal.expect("Left before the end after 0 calls: nothing was scored.")
        assert terminal.status() == 0
    assert set(echo_server.live()) <= before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_stop_leaves_no_session(echo_server, number):
    before = set(echo_server.live())
    with Terminal("play", echo_server.url) as terminal:
        terminal.expect("tool: ")
        os.kill(terminal.pid, number)
        assert terminal.status() == 128 + number
    eventually(lambda: set(echo_server.live()) <= before)


def test_terminal_that_draws_images_is_sent_them_and_the_path(ours, tmp_path):
    arguments = ("prompt", ours.url, "--env", "imagesenvironment", "--images", str(tmp_path))
    with Terminal(*arguments, environ={"KITTY_WINDOW_ID": "1"}) as terminal:
        terminal.expect("\033_Ga=T,f=100,m=0;")
        terminal.expect("image-001.png]")
        assert terminal.status() == 0
