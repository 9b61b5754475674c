"""The check before real balancers and proxies: what it says of each that does not do what a session needs."""

import json
import re

import pytest
from balancers import NGINX, balancer, free_port
from servers import serve
from terminal import Terminal

SITE = """
upstream environments {{ {servers} }}
server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://environments; {lines} }}
}}
"""
BUFFERED = "proxy_ignore_headers X-Accel-Buffering;"  # by which our servers ask not to be; others do not ask
CALL = ("--call", "echo", "--arguments", '{"text": "hello"}')


@pytest.fixture
def nginx(tmp_path, ors):
    """Check servers behind an nginx that has `lines`, and return the exit status and the report."""

    def check(servers, lines, *options, first=""):
        port = free_port()
        named = first + "".join(f"server {server.url.removeprefix('http://')} max_fails=0;" for server in servers)
        site = SITE.format(servers=named, port=port, lines=lines)
        with balancer("nginx", NGINX.format(snippet=site), port, tmp_path):
            result = ors("check", f"http://127.0.0.1:{port}", "--json", *options)
        return result.exit_code, json.loads(result.stdout)

    return check


@pytest.fixture(scope="module")
def slow_server():
    """A server whose tool takes three seconds."""
    with serve("ours", "--env", "echo", "--tool-seconds", "3") as server:
        yield server


def test_check_finds_a_balancer_that_scatters_sessions(nginx):
    with serve("ours", "--env", "echo") as one, serve("ours", "--env", "echo") as other:
        status, report = nginx([one, other], "")
    assert (status, report["affinity"], len(report["problems"])) == (1, False, 1)
    (problem,) = report["problems"]
    assert re.match(r"[123] of 3 sessions were not known to the process", problem["what"])
    assert any("hash $http_x_session_id consistent" in hint for hint in problem["try"])
    assert any("balance hdr(X-Session-ID)" in hint for hint in problem["try"])


def test_check_finds_a_balancer_that_pins_sessions_sound(nginx, echo_server):
    with serve("ours", "--env", "echo") as other:
        status, report = nginx([echo_server, other], "", first="hash $http_x_session_id consistent;")
    assert (status, report["affinity"], report["problems"]) == (0, True, [])


def test_check_of_a_call_through_a_sound_proxy_has_no_problem(nginx, slow_server):
    status, report = nginx([slow_server], "proxy_buffering off;", *CALL)
    assert (status, report["problems"]) == (0, [])
    call = report["call"]
    assert (call["tool"], call["cuts"], call["first"] < 2, call["seconds"] >= 3) == ("echo", 0, True, True)


def test_check_finds_a_stream_that_a_proxy_holds_back(nginx, slow_server):
    status, report = nginx([slow_server], BUFFERED, *CALL)
    assert status == 1
    (problem,) = report["problems"]
    assert "A call's stream is held back: of its events the first came after 3" in problem["what"]
    assert any("proxy_buffering off" in hint for hint in problem["try"])


def test_check_finds_a_time_out_that_cuts_a_call_which_is_taken_up_again(nginx, slow_server):
    status, report = nginx([slow_server], "proxy_buffering off; proxy_read_timeout 2s;", *CALL)
    assert status == 1
    (problem,) = report["problems"]
    assert re.search(r"was cut once, first after 2\.\d s, and taken up again", problem["what"])
    assert any("proxy_read_timeout 650s" in hint for hint in problem["try"])


def test_check_finds_a_call_that_a_time_out_loses_as_its_stream_is_held_back(nginx, slow_server):
    status, report = nginx([slow_server], f"{BUFFERED} proxy_read_timeout 2s;", *CALL)
    lost, held_back = report["problems"]
    assert (status, "A call was lost on its way after 2 s" in lost["what"]) == (1, True)
    assert "of its events none came" in held_back["what"]
    assert {"proxy_buffering", "proxy_read_timeout"} <= set(re.findall(r"proxy_\w+", " ".join(lost["try"])))


def test_check_finds_a_time_out_below_the_setup(nginx):
    with serve("ours", "--env", "echo", "--reset-seconds", "3") as server:
        status, report = nginx([server], "proxy_read_timeout 1s;")
    assert status == 1
    assert any("HTTP 504" in problem["what"] for problem in report["problems"])
    assert any("proxy_read_timeout 650s" in hint for problem in report["problems"] for hint in problem["try"])


def test_check_counts_the_call_among_what_ran(ors, echo_server):
    before = echo_server.executions("echo")
    ors("check", echo_server.url, *CALL)
    assert echo_server.executions("echo") == before + 1


@pytest.mark.parametrize("arguments", ["{", "[1]"])
def test_arguments_that_are_no_object_are_misuse(ors, echo_server, arguments):
    result = ors("check", echo_server.url, "--call", "echo", "--arguments", arguments)
    assert (result.exit_code, "--arguments is" in result.stderr) == (2, True)


@pytest.mark.slow
def test_check_in_a_pipe_says_now_and_then_what_it_waits_for(ors):
    with serve("ours", "--env", "echo", "--reset-seconds", "12") as server:
        said = ors("check", server.url).stderr
    assert said == "note: waiting for setup and prompt: 10 of at most 120 s\n"


def test_check_on_a_terminal_shows_what_it_waits_for(slow_server):
    with Terminal("check", slow_server.url, *CALL) as terminal:
        terminal.expect("calling echo: 2 of at most")
        assert terminal.status() == 0
