"""An episode in the terminal: from a script, and by somebody who types."""

import json
import os
import signal
import time

import pytest
from terminal import Terminal

_LOST = '{"tool": "echo", "arguments": {"text": "no"}}\n'
_WON = '{"tool": "echo", "arguments": {"text": "hello"}}\n'


def _await_no_session(server, before):
    deadline = time.monotonic() + 10
    while set(server.live()) - before:
        assert time.monotonic() < deadline, "a session was left behind"


# --- From a script ---------------------------------------------------------------------------------------------------


def test_script_plays_its_calls_and_shows_the_reward(ors, server, tmp_path):
    script = tmp_path / "calls.jsonl"
    script.write_text(_LOST + "\n" + _WON)
    result = ors("play", server.url, "--env", "echoenvironment", "--script", script)
    assert result.exit_code == 0
    assert "no match (got 'no')\n← reward 0\n" in result.stdout
    assert "← reward 1, the episode is over\n" in result.stdout
    assert result.stdout.endswith("The episode is over after 2 calls: reward 1, 1 in all.\n")


def test_script_from_stdin_ends_with_the_episode(ors, server):
    result = ors("play", server.url, "--env", "echoenvironment", "--script", "-", input=_WON + _LOST)
    assert result.exit_code == 0
    assert result.stdout.count("→ echo") == 1


def test_script_as_json_is_a_line_per_event(ors, server):
    result = ors("play", server.url, "--env", "echoenvironment", "--script", "-", "--json", input=_LOST)
    prompt, call, end = map(json.loads, result.stdout.splitlines())
    assert prompt["prompt"][0]["type"] == "text"
    assert (call["arguments"], call["output"]["reward"]) == ({"text": "no"}, 0.0)
    assert end == {"finished": False, "reward": 0.0, "rewards": [0.0], "calls": 1}


def test_script_goes_on_after_a_refused_and_a_failed_call(ors, server):
    calls = '{"tool": "nope"}\n{"tool": "boom", "arguments": {"message": "bang"}}\n{"tool": "int_reward"}\n'
    result = ors("play", server.url, "--env", "failingenvironment", "--script", "-", input=calls)
    assert result.exit_code == 0
    assert "← ToolRejected: " in result.stdout
    assert "← ToolFailed: bang\n" in result.stdout
    assert "← reward 1\n" in result.stdout


def test_script_hands_a_message_to_the_terminal_tool(ors, ours):
    result = ors("play", ours.url, "--env", "chatenvironment", "--script", "-", input='{"message": "Paris"}')
    assert "right\n← reward 1, the episode is over\n" in result.stdout


@pytest.mark.parametrize("line", ["echo", "[]", '{"arguments": {}}', '{"tool": "echo", "arguments": ["x"]}'])
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
        terminal.expect("? for the menu): ")
        terminal.type("1\n")
        terminal.expect("text (string): ")
        terminal.type("hello\n")
        terminal.expect("match")
        terminal.expect("reward 1")
        terminal.expect("The episode is over after 1 call: reward 1.")
        assert terminal.status() == 0


def test_play_asks_from_the_schema_until_an_answer_fits(ours):
    with Terminal("play", ours.url, "--env", "schemasenvironment") as terminal:
        terminal.expect("? for the menu): ")
        terminal.type("edit\n")
        terminal.expect("The file, from the root.")
        terminal.expect("path (string): ")
        terminal.type("/a\n")
        terminal.expect("lines (list of {line, text}, as JSON): ")
        terminal.type("one\n")
        terminal.expect("That is not JSON")
        terminal.expect("lines (list of {line, text}, as JSON): ")
        terminal.type('[{"line": 1, "text": "x"}]\n')
        terminal.expect('mode ("fast" | "exact", optional; default "fast"): ')
        terminal.type("slow\n")
        terminal.expect("'slow' is none of")
        terminal.type("2\n")
        terminal.expect("note (string | null, optional; default null): ")
        terminal.type("\n")
        terminal.expect('{"path": "/a", "mode": "exact", "lines": [{"line": 1, "text": "x"}]}')  # and no note
        terminal.expect("? for the menu): ")
        terminal.type("q\n")
        terminal.expect("Left before the end after 1 call: nothing was scored.")
        assert terminal.status() == 0


def test_play_hands_the_final_message_to_the_terminal_tool(ours):
    with Terminal("play", ours.url, "--env", "chatenvironment") as terminal:
        terminal.expect("text: the final message")
        terminal.expect("? for the menu): ")
        terminal.type("m\n")
        terminal.expect("text: ")
        terminal.type("Paris\n")
        terminal.expect("reward 1")
        assert terminal.status() == 0


def test_interrupt_at_a_question_leaves_no_session(server):
    before = set(server.live())
    with Terminal("play", server.url, "--env", "echoenvironment") as terminal:
        terminal.expect("? for the menu): ")
        assert set(server.live()) - before
        terminal.type("\x03")
        terminal.expect("interrupted; the session was deleted")
        assert terminal.status() == 130
    assert set(server.live()) <= before


def test_interrupt_during_a_call_leaves_no_session(ours):
    before = set(ours.live())
    calls = ours.executions("wait")
    with Terminal("play", ours.url, "--env", "slowenvironment") as terminal:
        terminal.expect("? for the menu): ")
        terminal.type("wait\n")
        terminal.expect("seconds (number): ")
        terminal.type("60\n")
        deadline = time.monotonic() + 10
        while ours.executions("wait") == calls:
            assert time.monotonic() < deadline
        terminal.type("\x03")
        terminal.expect("interrupted; the session was deleted")
        assert terminal.status() == 130
    assert set(ours.live()) <= before


def test_end_of_input_leaves_the_episode(echo_server):
    before = set(echo_server.live())
    with Terminal("play", echo_server.url) as terminal:
        terminal.expect("? for the menu): ")
        terminal.type("\x04")
        terminal.expect("Left before the end after 0 calls: nothing was scored.")
        assert terminal.status() == 0
    assert set(echo_server.live()) <= before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_stop_leaves_no_session(echo_server, number):
    before = set(echo_server.live())
    with Terminal("play", echo_server.url) as terminal:
        terminal.expect("? for the menu): ")
        os.kill(terminal.pid, number)
        assert terminal.status() == 128 + number
    _await_no_session(echo_server, before)


def test_terminal_that_draws_images_is_sent_them_and_the_path(ours, tmp_path):
    arguments = ("prompt", ours.url, "--env", "imagesenvironment", "--images", str(tmp_path))
    with Terminal(*arguments, environ={"KITTY_WINDOW_ID": "1"}) as terminal:
        terminal.expect("\033_Ga=T,f=100,m=0;")
        terminal.expect("image-001.png]")
        assert terminal.status() == 0
