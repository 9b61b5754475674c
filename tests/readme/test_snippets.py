"""Executes every Python snippet of the pages, against a running server.

A snippet may define `main`, which is then run, or be a server, which is then started and checked. Addresses, models'
names, steps and lengths are replaced, as there is no hub here and a port is free only by chance; nothing else is.
"""

import ast
import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from models import model_server
from pages import Snippet, snippets
from servers import ROOT, serve

# A training takes half a minute, and to import an SDK ten seconds: `make test` has those of the front page alone.
SLOW = r"\.train\(\)|^from (openreward|ors)\b"


@pytest.fixture(scope="module")
def chat_server():
    with serve("ours", "--env", "chat") as server:
        yield server


@pytest.fixture(scope="module")
def platform():
    """Our double of the catalogue's two hosts."""
    with serve("ours", "--platform", "--env", "echo", "--api-key", "KEY", "--deployment", "owner/name") as platform:
        yield platform


@pytest.fixture(scope="module")
def endpoint():
    """An OpenAI-compatible endpoint that plays the echo environment."""
    with model_server() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def logging_as_before():
    """Take back what a snippet sets up for its own process."""
    root, requests = logging.getLogger(), logging.getLogger("ors_client.http")
    handlers, levels = [*root.handlers], (root.level, requests.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    requests.setLevel(levels[1])


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a tiny model and tokenizer, in the place of the hub's."""
    from fixtures.demo._model import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["Call the `echo` tool with text='hello' to win."], ["hello"])
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def recorded(echo_server, endpoint, tmp_path_factory):
    """A folder with the record of a model that wins, and the file of its tasks."""
    folder = tmp_path_factory.mktemp("record")
    run = ["run", echo_server.url, "--base-url", endpoint.url, "--attempts", "4", "--model", "right"]
    for arguments in (run, ["profile", "episodes.jsonl", "-o", "tasks.json"]):
        command = [sys.executable, "-m", "ors_client.cli", *arguments]
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=100)
    return folder


# Other packages' warnings in what a user's training script does; our own stay errors.
TRL = [
    pytest.mark.filterwarnings("ignore:You are using 'environment_factory'"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]


def _parameters(*, programs: bool):
    for snippet in snippets("python"):
        if ("__main__" in snippet.text) is programs:
            marks = TRL if "from trl import" in snippet.text else []
            if re.search(SLOW, snippet.text, re.MULTILINE) and snippet.page != "README.md":
                marks = [*marks, pytest.mark.slow]
            yield pytest.param(snippet, id=snippet.title, marks=marks)


@pytest.mark.parametrize("snippet", list(_parameters(programs=False)))
def test_snippet_runs_as_it_stands(snippet: Snippet, echo_server, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    source = snippet.text.replace("http://localhost:8000", echo_server.url)
    if "localhost:9000" in source:
        source = source.replace("http://localhost:9000/v1", request.getfixturevalue("endpoint").url)
        source = source.replace("my-model", "right")  # the one of its models that wins
    if "localhost:8010" in source:
        source = source.replace("http://localhost:8010", request.getfixturevalue("chat_server").url)
    if "Client()" in source:
        api, sessions = request.getfixturevalue("platform").urls
        monkeypatch.setenv("OPENREWARD_API_URL", api)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", sessions)
        monkeypatch.setenv("OPENREWARD_API_KEY", "KEY")
    if "sft_dataset" in source:
        shutil.copytree(request.getfixturevalue("recorded"), tmp_path, dirs_exist_ok=True)
    if "Qwen/" in source:
        source = re.sub(r"Qwen/[\w.-]+", str(request.getfixturevalue("model")), source)
    source = source.replace("GRPOConfig(", "GRPOConfig(use_cpu=True, bf16=False, report_to='none', ")
    source = re.sub(r"max_steps=\d+", "max_steps=1", source)
    source = re.sub(r"max_completion_length=\d+", "max_completion_length=16", source)
    names = {"__name__": "page"}
    try:
        code = compile(source, snippet.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # as a notebook's cell
        awaited = eval(code, names)  # noqa: S307 - the pages are ours
        if "main" in names:
            awaited = names["main"]()
        if awaited is not None:
            asyncio.run(awaited)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("snippet", list(_parameters(programs=True)))
def test_server_of_a_page_passes_the_check(snippet: Snippet, free_port: int, tmp_path: Path):
    program = tmp_path / "server.py"
    program.write_text(snippet.text.replace("8000", str(free_port)))
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            command = ["check", f"http://127.0.0.1:{free_port}", "--wait", "60"]
            checked = subprocess.run(
                [sys.executable, "-m", "ors_client.cli", *command],
                check=False,
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
        finally:
            server.terminate()
