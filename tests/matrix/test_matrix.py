"""The committed results are whole and free of failures, and a feature fails where the behaviour is taken away."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from matrix.conformance import GAPS, gap_of
from matrix.features import FEATURES
from matrix.subjects import SUBJECTS, Subject
from matrix.tables import page, short
from matrix.trial import Absent, Feature, Outcome, attempt, attempt_all
from servers import PYTHONS, Server, serve

from fixtures.proxy import Fault, FaultProxy, ReplaceBody, Rule, Status, StatusAfterForward

pytestmark = pytest.mark.slow  # what is tried by `make conformance-matrix`, and not the client

ROOT = Path(__file__).parents[2]
RESULTS = (Path(__file__).parent / "RESULTS.md").read_text()
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
TITLES = {subject.title for subject in SUBJECTS} - {"imitation of 0.1.50"}  # the page leaves that one out
NAMED = {feature.name: feature for feature in FEATURES}

# Everything that the newest release has, and a server that tells soon that it is starting.
NEWEST = Subject("newest", "newest", "ours", level=167, setup_seconds=3.0)

NO_ROUTE = Status(404, "Not Found")
NOTHING = ReplaceBody(
    b'event: task_id\r\ndata: abc\r\n\r\nevent: end\r\ndata: {"ok": true, "output": {"blocks": []}}\r\n\r\n'
)
NO_REASON = ReplaceBody(b'event: task_id\r\ndata: abc\r\n\r\nevent: end\r\ndata: {"ok": false, "error": "no"}\r\n\r\n')
FORGOTTEN = ReplaceBody(b"event: error\r\ndata: unknown task_id\r\n\r\n")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def newest() -> Iterator[Server]:
    with serve("ours", "--env", "all", "--ready-wait", "1") as server:
        yield server


# --- The results that are committed ----------------------------------------------------------------------------------


def test_results_have_every_feature_of_every_server():
    rows = {tuple(line.split(" | ")[:2]) for line in RESULTS.partition("## In full")[2].splitlines()}
    assert {(f"| {subject.title}", feature.name) for subject in SUBJECTS for feature in FEATURES} <= rows


def test_nothing_fails():
    assert "fails" not in RESULTS


def exceptions(outcomes):
    """Return what does not work as it is, by feature: how it works, and with which servers."""
    found = {}
    for line in outcomes.splitlines():
        title, feature, cell = line.strip("| ").split(" | ")
        if title in TITLES and cell != "yes":
            found.setdefault(feature, set()).add(title)
    return found


def titles(words):
    """Return the servers that a cell of the page names: "all before openreward 0.1.157; ors-sdk; hand-written"."""
    named = set()
    for name in words.split("; "):
        before = re.fullmatch(r"all before openreward 0\.1\.(\d+)", name)
        to = re.fullmatch(r"openreward to 0\.1\.(\d+)", name)
        for subject in SUBJECTS:
            older = subject.kind == "openreward" and (
                (before and subject.level < int(before[1])) or (to and subject.level <= int(to[1]))
            )
            if older or name in {subject.title, subject.title.rpartition(" ")[0]}:
                named.add(subject.title)
    return named


def test_page_tells_the_exceptions_that_were_found():
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    end = next(number for number, row in enumerate(rows) if row[1].startswith("the server's own guard"))
    told = {feature.partition(" (")[0]: titles(servers) for servers, feature, _ in rows[3 : end + 1]}
    assert told == exceptions(RESULTS.partition("## In full")[2].partition("| --- | --- | --- |\n")[2])


# --- The conformance tests against a release -------------------------------------------------------------------------


def test_every_test_of_the_table_of_gaps_is_there():
    written = "".join(path.read_text() for path in (ROOT / "tests" / "conformance").glob("test_*.py"))
    missing = [test for gap in GAPS for test in gap.tests if f"def {test.partition('[')[0]}(" not in written]
    assert missing == []


@pytest.mark.parametrize(("level", "skipped"), [(105, True), (141, False)])
def test_gap_is_that_of_releases_before_it_was_closed(level, skipped):
    gap = gap_of("test_terminal_tool_is_told_apart_and_takes_the_message[openreward]", level)
    assert (gap is not None) is skipped


@pytest.mark.parametrize(("kind", "started"), [("ours", True), ("openreward", False)])
def test_release_takes_the_place_of_the_installed_server_and_of_no_other(tmp_path, monkeypatch, kind, started):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/started\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv(PYTHONS, json.dumps({kind: str(python)}))
    with serve("ours", "--env", "echo"):
        assert (tmp_path / "started").exists() is started


# --- The features ----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_every_feature_works_with_a_server_that_has_everything(newest):
    outcomes = await attempt_all(FEATURES, NEWEST, newest)
    assert {name: outcome for name, outcome in outcomes.items() if outcome.kind != "works"} == {}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "method", "path", "fault"),
    [
        ("list of environments", "GET", "/list_environments", ReplaceBody(b'["alpha", "beta"]')),
        ("splits", "GET", "/splits", ReplaceBody(b'["validation", "hard", "holdout"]')),
        ("number of tasks", "POST", "/num_tasks", ReplaceBody(b'{"num_tasks": 3}')),
        ("all tasks", "POST", "/tasks", ReplaceBody(b'{"tasks": []}')),
        ("a range of tasks", "POST", "/task_range", NO_ROUTE),
        ("tasks of an index-based environment", "POST", "/task_range", NO_ROUTE),
        ("tools and their schemas", "GET", "/tools", ReplaceBody(b'{"tools": []}')),
        ("tools of a task", "GET", "/task_tools", NO_ROUTE),
        ("terminal tool", "GET", "/task_tools", ReplaceBody(b'{"tools": [{"name": "note"}]}')),
        ("group scoring", "GET", "/task_tools", ReplaceBody(b'{"tools": [{"name": "note"}]}')),
        ("session by split and index", "POST", "/call", NOTHING),
        ("call: text, reward, finished", "POST", "/call", NOTHING),
        ("awkward results to the letter", "POST", "/call", NOTHING),
        ("images", "POST", "/call", NOTHING),
        ("null and NaN rewards", "POST", "/call", NOTHING),
        ("messages", "GET", "/messages", NO_ROUTE),
        ("secrets", "POST", "/call", NOTHING),
        ("toolset", "POST", "/create", Status(422, "toolset_name: extra inputs are not permitted")),
        ("a cut stream is resumed, one run", "POST", "/call", FORGOTTEN),
        ("a lost answer is not sent again", "POST", "/call", Status(429)),
        ("a failed setup is told", "GET", "/prompt", StatusAfterForward(200, body="[]")),
        ("a failed constructor is told", "POST", "/create", Status(400, "no")),
        ("reason of a refused call", "POST", "/call", NO_REASON),
        ("a tool's exception, word for word", "POST", "/call", NO_REASON),
        ("no call after the end", "POST", "/call", NOTHING),
        ("a lost session is told", "POST", "/call", NOTHING),
        ("leaving deletes the session", "POST", "/delete", Status(200, body="{}")),
    ],
)
async def test_feature_fails_without_what_it_is_about(newest: Server, name: str, method: str, path: str, fault: Fault):
    with FaultProxy(newest.url) as broken:
        injection = broken.add(Rule(method, path, fault, times=2))
        outcome = await attempt(NAMED[name], NEWEST, replace(newest, urls=(broken.url,)))
    assert injection.acted
    assert outcome.kind == "fails", outcome


async def _make_do(_):
    return "with another"


async def _none(_):
    raise Absent


@pytest.mark.anyio
@pytest.mark.parametrize(("use", "kind"), [(_make_do, "by fallback"), (_none, "not there")])
async def test_only_an_older_server_may_lack_a_thing(newest, use, kind):
    feature = Feature("a thing", use, since=141)
    assert (await attempt(feature, replace(NEWEST, level=105), newest)).kind == kind
    assert (await attempt(feature, NEWEST, newest)).kind == "fails"


# --- The tables ------------------------------------------------------------------------------------------------------


def test_short_table_names_exceptions_alone():
    works, none, prompt = Outcome("works"), Outcome("not there"), Outcome("by fallback", "the prompt")
    outcomes = {
        "sdk 0.1": {"calls": works, "images": works, "messages": prompt, "terminal tool": none, "scores": none},
        "sdk 0.2": {"calls": works, "images": works, "messages": works, "terminal tool": none, "scores": none},
        "old": {"calls": works, "images": works, "messages": prompt, "terminal tool": works, "scores": works},
    }
    assert short(outcomes).splitlines()[2:] == [
        "| all 3 | calls; images | yes |",
        "| sdk 0.1; old | messages | yes, by fallback: the prompt |",
        "| sdk 0.1, 0.2 | terminal tool; scores | the server has none |",
    ]


def test_failure_shows_in_the_page():
    failed = {"old": {"calls": Outcome("fails", "it hangs")}}
    assert page(failed, made="today").count("**fails**: it hangs") == 2
