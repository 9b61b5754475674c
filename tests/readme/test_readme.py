"""Executes every Python snippet of the README, in order, against a running server.

A snippet may define `main`, which is then run. Addresses and the models' names are replaced, as there is no hub here
and a port is free only by chance; nothing else is.
"""

import asyncio
import re
import signal

import pytest
from models import model_server
from servers import ROOT, serve

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def _title(snippet: str) -> str:
    before = README[: README.index(snippet)]
    return re.findall(r"^#+ (.+)$", before, flags=re.MULTILINE)[-1]


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


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a tiny model and tokenizer, in the place of the hub's."""
    from fixtures.demo._model import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["Call the `echo` tool with text='hello' to win."], ["hello"])
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=0).save_pretrained(folder)
    return folder


# Other packages' warnings in what a user's training script does; our own stay errors.
TRL = [
    pytest.mark.filterwarnings("ignore:You are using 'environment_factory'"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]


@pytest.mark.parametrize(
    "snippet",
    [pytest.param(text, id=_title(text), marks=TRL if "from trl import" in text else []) for text in SNIPPETS],
)
def test_snippet_runs_as_it_stands(snippet, echo_server, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    source = snippet.replace("http://localhost:8000", echo_server.url)
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
    if "Qwen/" in source:
        source = re.sub(r"Qwen/[\w.-]+", str(request.getfixturevalue("model")), source)
        source = source.replace("max_steps=100", "max_steps=1, use_cpu=True, bf16=False, report_to='none'")
        source = source.replace("max_completion_length=1024", "max_completion_length=16")
    names = {"__name__": "readme"}
    try:
        exec(compile(source, "README.md", "exec"), names)  # noqa: S102 - the README is ours
        if "main" in names:
            asyncio.run(names["main"]())
    finally:
        signal.signal(signal.SIGTERM, before)
