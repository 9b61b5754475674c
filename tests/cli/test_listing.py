"""Looking around: the tables of people, the JSON of programs."""

import json
import re
from importlib.metadata import version

import pytest
from terminal import Terminal

from fixtures.proxy import FaultProxy, Rule, Status


def test_envs_names_the_default_which_is_the_first(ors, server):
    rows = [row.split() for row in ors("envs", server.url).stdout.splitlines()]
    assert rows[:3] == [["environment", "default"], ["echoenvironment", "yes"], ["tasktoolsenvironment"]]


def test_version_is_that_of_the_package(ors):
    assert ors("--version").stdout == f"ors-client {version('ors-client')}\n"


def test_envs_as_json_is_a_list_of_names(ors, server):
    names = json.loads(ors("envs", server.url, "--json").stdout)
    assert names[0] == "echoenvironment"
    assert "alpha" in names


def test_splits_tell_type_and_number_of_tasks(ors, server):
    splits = json.loads(ors("splits", server.url, "--env", "gamma", "--json").stdout)
    assert splits == [
        {"name": "validation", "type": "validation", "num_tasks": 3},
        {"name": "hard", "type": "validation", "num_tasks": 4},
        {"name": "holdout", "type": "test", "num_tasks": 2},
    ]


def test_tasks_show_a_page_and_how_to_see_more(ors, server):
    result = ors("tasks", server.url, "--env", "alpha")
    rows = result.stdout.splitlines()
    assert (len(rows), rows[0].split()) == (21, ["index", "id", "number"])
    assert result.stderr == "note: the first 20 of 70 tasks of split 'train'; for more: --stop N\n"


def test_tasks_are_shown_where_their_number_cannot_be_had(ors, ours):
    with FaultProxy(ours.url) as proxy:
        proxy.add(Rule("POST", "/num_tasks", Status(500, "no database"), times=None))
        result = ors("tasks", proxy.url, "--env", "alpha")
    assert len(result.stdout.splitlines()) == 21
    assert result.stderr == "note: the first 20 tasks of split 'train'; for more: --stop N\n"


def test_numbers_of_tasks_stand_below_each_other(ors, ours):
    rows = ors("tasks", ours.url, "--env", "alpha").stdout.splitlines()
    assert len({len(row) for row in rows}) == 1


def test_tasks_of_a_range_keep_their_index(ors, server):
    rows = ors("tasks", server.url, "--env", "alpha", "--start", 30, "--stop", 32).stdout.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["30", "alpha-train-30"], ["31", "alpha-train-31"]]


def test_tasks_as_json_are_all(ors, server):
    tasks = json.loads(ors("tasks", server.url, "--env", "alpha", "--json").stdout)
    assert (len(tasks), tasks[69]["index"]) == (70, 69)


def _block(said, tool):
    """Return the lines about a tool, each without the blanks that align it."""
    block = next(block for block in said.split("\n\n") if block.startswith(f"{tool} "))
    return [" ".join(line.split()) for line in block.splitlines()]


def test_tools_show_name_type_need_and_description_of_each_argument(ors, server):
    said = ors("tools", server.url, "--env", "schemasenvironment").stdout
    assert _block(said, "edit")[1:] == [
        "path string (matches ^/) required The file, from the root.",
        "lines list of {line, text} (at least 1 items, at most 3 items) required",
        'mode "fast" | "exact" = "fast" optional',
        "note string | null = null optional",
    ]
    # Behind a reference at the root.
    assert _block(said, "tree")[1:] == ["name string required", "children list of {name, children} = [] optional"]
    assert _block(said, "plain")[1:] == ["no arguments"]
    assert all(f"\n  {line} " in said for line in ("path", "lines", "mode", "note", "no"))


def test_tools_show_what_the_terminal_tool_takes(ors, ours):
    said = ors("tools", ours.url, "--env", "chatenvironment").stdout
    assert _block(said, "submit") == [
        "submit (terminal) Take the answer.",
        "text string required The final message.",
    ]


def test_tools_in_a_terminal_break_no_word(ours):
    with Terminal("tools", ours.url, "--env", "schemasenvironment") as terminal:
        assert terminal.status() == 0
    said = re.sub(r"\x1b\[[0-9;]*m", "", terminal.said)
    assert _block(said, "2fast")[1:] == ["text string required"]


def test_tools_with_a_name_too_long_for_the_terminal_are_described_below_it(ours):
    with Terminal("tools", ours.url, "--env", "schemasenvironment", columns=20) as terminal:
        assert terminal.status() == 0
    said = re.sub(r"\x1b\[[0-9;]*m", "", terminal.said)
    assert re.search(r"^handwritten *\n  Take what a", said, re.MULTILINE)
    assert re.search(r"^mapping  Take an", said, re.MULTILINE)


def test_tools_of_a_task_include_its_own(ors, server):
    shared = ors("tools", server.url, "--env", "tasktoolsenvironment", "--json")
    own = ors("tools", server.url, "--env", "tasktoolsenvironment", "--task", 3, "--json")
    names = [[tool["name"] for tool in json.loads(result.stdout)["tools"]] for result in (shared, own)]
    assert names == [["look"], ["look", "open_3", "shortcut"]]


def test_prompt_is_the_text_and_nothing_else(ors, server):
    result = ors("prompt", server.url, "--env", "echoenvironment")
    assert (result.stdout, result.stderr) == ("Call the `echo` tool with text='hello' to win.\n", "")


def test_prompt_leaves_no_session(ors, server):
    before = set(server.live())
    ors("prompt", server.url, "--env", "echoenvironment")
    assert set(server.live()) <= before


def test_prompt_keeps_images_and_says_where(ors, server, tmp_path):
    said = ors("prompt", server.url, "--env", "imagesenvironment", "--images", tmp_path / "here").stdout
    kept = tmp_path / "here" / "image-001.png"
    assert kept.read_bytes().startswith(b"\x89PNG")
    assert str(kept) in said


def test_prompt_as_messages_names_the_roles(ors, ours):
    said = ors("prompt", ours.url, "--env", "chatenvironment", "--messages").stdout
    assert [line for line in said.splitlines() if line.endswith(":")] == ["system:", "user:", "assistant:", "user:"]


@pytest.mark.parametrize("command", ["envs", "splits", "tasks", "tools", "prompt", "check"])
def test_output_in_a_pipe_has_no_colours_and_no_trailing_blanks(ors, ours, command):
    result = ors(command, ours.url, *(() if command == "envs" else ("--env", "alpha")))
    assert result.exit_code == 0
    assert "\033" not in result.output
    assert all(line == line.rstrip() for line in result.stdout.splitlines())


def test_rows_in_a_pipe_are_not_folded(ors, ours):
    said = ors("tools", ours.url, "--env", "schemasenvironment").stdout
    row = next(line for line in said.splitlines() if line.startswith("edit "))
    assert row.endswith("the last one wins.")


@pytest.mark.parametrize(("option", "shown"), [("--verbose", False), ("-vv", True)])
def test_verbose_command_shows_its_requests_on_standard_error(ors, ours, option, shown):
    result = ors(option, "prompt", ours.url, "--env", "echoenvironment")
    assert result.exit_code == 0, result.output
    assert re.search(r"POST http\S+/create 200 in \d", result.stderr)
    assert bool(re.search(r"/delete 200 in .*\(session ", result.stderr)) is shown
    assert "200 in" not in result.stdout
    assert "200 in" not in ors("prompt", ours.url, "--env", "echoenvironment").stderr
