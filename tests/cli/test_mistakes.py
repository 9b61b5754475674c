"""What a person sees after a typical mistake: one line that says what happened, and what to try."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import typer.main

from fixtures.proxy import FaultProxy, HtmlPage, Redirect, Rule, Status
from ors_client.cli.app import app


def _said(result):
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture
def closed_port():
    """A port that nothing listens on: bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("command", ["envs", "check"])
def test_wrong_port_asks_for_the_port_once_and_offers_to_wait(ors, closed_port, command):
    result = ors(command, f"http://127.0.0.1:{closed_port}")
    assert result.exit_code == 1
    said = result.output
    assert said.count("port right?") == 1
    assert "--wait 60" in said


def test_wrong_port_is_told_in_full(ors, closed_port):
    said = _said(ors("envs", f"http://127.0.0.1:{closed_port}"))
    assert re.sub(r"\[Errno \d+\]", "[Errno]", said) == (
        "error: GET /list_environments failed after 2 attempts: ConnectionRefusedError: [Errno] Connect call failed "
        f"('127.0.0.1', {closed_port}). Is the server running, and are host and port right? "
        f"[http://127.0.0.1:{closed_port}/list_environments]\n"
        "  try: A server that is still starting opens its port late; wait for it: --wait 60\n"
    )


def test_url_without_a_scheme_is_misuse_and_is_spelt_out(ors):
    result = ors("envs", "127.0.0.1:8000")
    assert result.exit_code == 2
    assert "did you mean 'http://127.0.0.1:8000'?" in _said(result)


def test_unknown_host_is_a_matter_of_spelling(ors):
    result = ors("envs", "http://no-such-host.invalid")
    assert result.exit_code == 1
    assert "There is no host of that name" in _said(result)


def test_misspelt_environment_is_answered_with_the_nearest_name(ors, ours):
    names = ", ".join(map(repr, json.loads(ors("envs", ours.url, "--json").stdout)))
    result = ors("splits", ours.url, "--env", "ecoenvironment")
    assert result.exit_code == 1
    assert _said(result) == (
        f"error: No environment named 'ecoenvironment'; this server has: {names}. [{ours.url}]\n"
        "  try: --env echoenvironment\n"
    )


def test_missing_environment_name_is_answered_with_the_choice(ors, ours):
    result = ors("tasks", ours.url)
    assert "name one of: 'echoenvironment', " in _said(result)
    assert "--env echoenvironment" in _said(result)


def test_wrong_name_of_the_only_environment_is_a_note(ors, echo_server):
    result = ors("splits", echo_server.url, "--env", "elsewhere")  # a word that is no other test's key
    assert result.exit_code == 0
    assert "note: No environment named 'elsewhere'" in _said(result)


def test_wrong_name_of_the_only_environment_is_no_check_and_no_run(ors, echo_server):
    checked = ors("check", echo_server.url, "--env", "wrong")
    assert checked.exit_code == 1
    assert "No environment named 'wrong'" in checked.output
    ran = ors(
        "run", echo_server.url, "--env", "wrong", "--model", "m", "--base-url", "http://127.0.0.1:9", "--model-key", "k"
    )
    assert ran.exit_code == 1
    assert "No environment named 'wrong'; this server has: 'echoenvironment'." in _said(ran)


def test_missing_key_says_how_to_give_one(ors, split_server):
    result = ors("envs", split_server.url)
    assert result.exit_code == 1
    assert _said(result) == (
        "error: GET /list_environments was answered with HTTP 401: A valid X-API-Key header is required. Pass "
        "api_key=...; a key from the environment is sent to the catalogue's own hosts only. "
        f"[{split_server.url}/list_environments]\n"
        "  try: Give the server's key: --api-key KEY. OPENREWARD_API_KEY is sent to the catalogue's own hosts only.\n"
        "  try: If a proxy before the server asks for a login: --header 'Authorization: Bearer TOKEN'.\n"
    )


def test_refused_key_is_questioned_and_not_shown(ors, split_server):
    result = ors("envs", split_server.url, "--api-key", "not-the-key")
    assert "The key that was given was refused" in _said(result)
    assert "not-the-key" not in result.output


def test_key_of_the_environment_is_not_sent_to_a_url(ors, proxy: FaultProxy):
    ors("envs", proxy.url, env={"OPENREWARD_API_KEY": "catalogue-key"})
    assert proxy.requests
    assert all("catalogue-key" not in str(request.headers) for request in proxy.requests)


def test_api_host_taken_for_the_server_is_recognised(ors, split_server):
    api, _ = split_server.urls
    result = ors("envs", api, "--api-key", "test-key")
    assert result.exit_code == 1
    assert _said(result) == (
        "error: GET /list_environments was answered with HTTP 404: Not Found. There is no such route: an older server, "
        "or not the URL of an ORS server (its port, its path prefix; Layout(api=..., sessions=...) where sessions have "
        f"a host of their own). [{api}/list_environments]\n"
        "  try: The server at this address is not an ORS server: is the port right, and is a path prefix missing?\n"
        "  try: Where sessions are served by another host than this one: --sessions-url URL\n"
    )


def test_missing_deployment_is_recognised(ors, split_server):
    result = ors("envs", split_server.url, "--api-key", "test-key")
    assert "try: The catalogue's hosts need a deployment: --env owner/name" in _said(result)


def test_starting_server_is_said_to_be_starting(ors, proxy: FaultProxy):
    proxy.add(Rule(None, None, Status.starting(), times=None))
    result = ors("envs", proxy.url, "--wait", 1)
    assert result.exit_code == 1
    assert _said(result) == (
        "error: GET /list_environments (the environment's backend is still starting) did not finish within start_up=1 "
        f"seconds; raise that limit if the wait is expected. [{proxy.url}/list_environments]\n"
        "  try: The server is still starting; give it longer: --wait 600\n"
    )


def test_starting_server_is_waited_for(ors, proxy: FaultProxy):
    proxy.add(Rule("GET", "/list_environments", Status.starting(), times=1))
    assert ors("envs", proxy.url, "--json").exit_code == 0


def test_port_that_opens_late_is_waited_for(ors, proxy: FaultProxy):
    with contextlib.ExitStack() as closed:
        closed.enter_context(proxy.refusing())
        opening = threading.Timer(1.5, closed.close)  # after the first attempt, which waits for a second
        opening.start()
        assert ors("envs", proxy.url, "--wait", 30).exit_code == 0
        opening.join()


def test_login_page_is_recognised(ors, proxy: FaultProxy):
    proxy.add(Rule("GET", "/list_environments", HtmlPage()))
    result = ors("envs", proxy.url)
    assert result.exit_code == 1
    assert _said(result) == (
        "error: GET /list_environments was answered with something else than the standard says (Expecting value: line "
        "1 column 1 (char 0)); it begins '<!DOCTYPE html> <html><head><title>Sign in</title></head><body><h1>Sign in"
        "</h1></body></html>'. Is this a login page, or another program's? "
        f"[{proxy.url}/list_environments]\n"
        "  try: A web page answers there, perhaps a login: --api-key KEY or --header 'Authorization: Bearer TOKEN'.\n"
        "  try: Or this is another program's address: is the port right, and does the server live below "
        f"{proxy.url}?\n"
    )


def test_redirect_to_a_login_is_not_followed_but_named(ors, proxy: FaultProxy):
    proxy.add(Rule("GET", "/list_environments", Redirect("https://login.invalid/", code=302)))
    result = ors("envs", proxy.url)
    assert "https://login.invalid" in _said(result)
    assert "If it is a login page: --api-key KEY" in _said(result)


def test_another_program_is_recognised(ors, proxy: FaultProxy):
    proxy.add(Rule("GET", "/list_environments", Status(404, "Not Found")))
    assert "not an ORS server: is the port right, and is a path prefix missing?" in _said(ors("envs", proxy.url))


def test_tls_to_a_plain_port_names_the_plain_url(ors, echo_server):
    result = ors("envs", echo_server.url.replace("http://", "https://"))
    assert f"This port may speak plain HTTP: {echo_server.url}" in _said(result)


def test_unknown_split_points_to_the_splits(ors, ours):
    result = ors("prompt", ours.url, "--env", "alpha", "--split", "nope")
    assert f"See which splits there are: ors splits {ours.url}" in _said(result)


def test_task_beyond_the_last_points_to_the_splits(ors, ours):
    result = ors("prompt", ours.url, "--env", "alpha", "--task", 70)
    assert "See how many tasks each split has" in _said(result)


def test_secret_without_value_or_variable_is_misuse(ors, ours):
    result = ors("prompt", ours.url, "--env", "alpha", "--secret", "NO_SUCH_VARIABLE")
    assert result.exit_code == 2
    assert "write NO_SUCH_VARIABLE=VALUE" in _said(result)


def test_header_without_a_colon_is_misuse_and_not_shown(ors, ours):
    result = ors("envs", ours.url, "--header", "Bearer abc")
    assert result.exit_code == 2
    assert "Bearer abc" not in result.output


def test_error_as_json_is_on_stdout_with_what_to_try(ors, ours):
    result = ors("tools", ours.url, "--env", "alpa", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["kind"], error["try"]) == (1, "EnvironmentNotFound", ["--env alpha"])


def test_command_without_its_extra_says_how_to_install_it():
    program = "import sys; sys.modules['typer'] = None; from ors_client.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "error: The command `ors` needs typer.\n  try: pip install 'ors-client[cli]'\n"


def test_importing_the_client_imports_nothing_of_the_command():
    # httpx imports rich for a command of its own, where it is installed.
    program = (
        "import sys, httpx; before = set(sys.modules); import ors_client; "
        "print([name for name in sys.modules.keys() - before if name.startswith(('typer', 'rich', 'ors_client.cli'))])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"


def test_project_installs_the_command_under_its_name():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["ors"] == "ors_client.cli:main"
    assert {requirement.partition(">")[0] for requirement in project["optional-dependencies"]["cli"]} == {
        "rich",
        "typer",
    }


def test_every_command_has_the_option_json_but_the_one_that_the_page_excepts():
    commands = typer.main.get_command(app).commands
    without = [
        name for name, command in commands.items() if all("--json" not in option.opts for option in command.params)
    ]
    page = " ".join((Path(__file__).parents[2] / "docs" / "cli.md").read_text().split())
    assert without == ["replay"]
    assert "`--json` makes any command but `replay` answer in JSON" in page
