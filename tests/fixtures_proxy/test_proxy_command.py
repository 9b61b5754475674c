"""Rules in words, and the proxy as a command."""

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from raw_peers import client

from fixtures.proxy import (
    CutAfterEvent,
    EndlessStream,
    Redirect,
    ResetAfterForward,
    Rule,
    Silence,
    Status,
)
from fixtures.proxy._words import FAULTS, parse_rule

ROOT = Path(__file__).parents[2]
LIMIT = 30.0
"""Seconds; a loaded machine takes several to start an interpreter."""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("POST /call reset-after-forward times=1", Rule("POST", "/call", ResetAfterForward())),
        ("* * status code=503 times=None", Rule(None, None, Status(503), times=None)),
        ("POST /call cut-after-event event=task_id nth=2", Rule("POST", "/call", CutAfterEvent("task_id", 2))),
        ("GET /prompt silence seconds=1.5 skip=3", Rule("GET", "/prompt", Silence(1.5), skip=3)),
        (
            "POST /call endless-stream 'data=: x' probability=0.5",
            Rule("POST", "/call", EndlessStream(b": x"), probability=0.5),
        ),
        (
            """* /ping status code=429 headers='{"Retry-After": "2"}'""",
            Rule(None, "/ping", Status(429, headers={"Retry-After": "2"})),
        ),
        ("* /ping redirect location=/a?b=c", Rule(None, "/ping", Redirect("/a?b=c"))),
    ],
)
def test_rule_in_words_is_read(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("POST /call", "METHOD PATH FAULT"),
        ("POST /call explode", r"No fault named 'explode'; there are: bad-json, .*silence"),
        ("POST /call status code", "'code' is no setting of 'status'; there are: code, detail, body, headers, times"),
        ("POST /call status colour=1", "'colour=1' is no setting"),
        ("POST /call status", r"'status' needs code=\.\.\."),
    ],
)
def test_rule_in_wrong_words_says_what_would_be_right(text, message):
    with pytest.raises(ValueError, match=message):
        parse_rule(text)


def test_every_fault_but_custom_has_a_name():
    assert "custom" not in FAULTS
    assert {"reset-before-read", "clean-end-without", "refuse", "html-page", "one-byte-at-a-time"} <= set(FAULTS)


@contextmanager
def start(*arguments):
    command = [sys.executable, "-X", "dev", "-u", "-m", "fixtures.proxy", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_injects_logs_and_ends_in_silence(upstream, number):
    with start("--upstream", upstream.url, "--fault", "POST /ping status code=503") as process:
        url = process.stdout.readline().split()[0]
        with client(url, headers={"X-API-Key": "secret"}) as pool:
            statuses = [pool.post("/ping").status_code for _ in range(2)]
        process.send_signal(number)
        output, errors = process.communicate(timeout=LIMIT)
    assert statuses == [503, 200]
    # In development mode asyncio complains of turns of its loop that a busy machine made long.
    complaints = [line for line in errors.splitlines() if not re.match(r"Executing <.* took \d", line)]
    assert (process.returncode, complaints) == (0, [])
    first, second = output.splitlines()
    assert "POST /ping: not forwarded" in first
    assert first.endswith("complete  [Status]")
    assert "POST /ping: upstream 200" in second
    assert "secret" not in output


def test_command_with_a_wrong_rule_says_so_on_one_line():
    with start("--upstream", "http://127.0.0.1:1", "--fault", "POST /call explode") as process:
        _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert "No fault named 'explode'" in errors.splitlines()[-1]


def test_command_on_a_port_in_use_says_so_on_one_line(upstream):
    port = upstream.url.rpartition(":")[2]
    with start("--upstream", upstream.url, "--port", port) as process:
        _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert errors.startswith(f"Can't listen on port {port}:")
    assert len(errors.splitlines()) == 1
