"""Starts servers as processes for tests, and stops them.

`with serve("ours", "--env", "echo") as server:` gives a server that accepts requests. Kinds: "ours", "openreward" and
"ors-sdk"; the arguments are those of `python -m fixtures.server` and `python -m fixtures.peers`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from fixtures.journal import VARIABLE, Journal
from tests import forkserver

Kind = Literal["ours", "openreward", "ors-sdk"]
Process = subprocess.Popen[bytes] | forkserver.ForkedProcess
KINDS: tuple[Kind, ...] = ("ours", "openreward", "ors-sdk")

PYTHONS = "ORS_SERVER_PYTHONS"
"""Names an environment variable: the interpreters of other releases by kind, in JSON."""

ROOT = Path(__file__).parent.parent
_COMMANDS: dict[Kind, tuple[str, ...]] = {
    "ours": ("fixtures.server",),
    "openreward": ("fixtures.peers", "openreward"),
    "ors-sdk": ("fixtures.peers", "ors-sdk"),
}
_START_SECONDS = 60  # importing openreward alone takes six, on a machine that is doing nothing else
_STOP_SECONDS = 5
_CHECK_EVERY = 0.02


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: Where it listens; the session host in the split layout.
        urls: All the places where it listens, in the order of the `listening on` line.
        journal: What its environments did.
        left: Sessions that an earlier test left behind, which no later one is to blame for.
    """

    kind: Kind
    urls: tuple[str, ...]
    process: Process
    journal: Journal
    folder: Path
    left: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return self.urls[-1]

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def live(self) -> list[str]:
        """Return the sessions that were constructed and not torn down, but for those that earlier tests left."""
        with urllib.request.urlopen(f"{self.url}/_live", timeout=30) as answer:  # noqa: S310 - a server of ours
            return [session_id for session_id in json.load(answer)["ids"] if session_id not in self.left]

    def set_aside(self, seconds: float) -> list[str]:
        """Wait for all sessions to be gone; return those that are not, of which no later test will hear."""
        deadline = time.monotonic() + seconds
        while (live := self.live()) and time.monotonic() < deadline:
            time.sleep(_CHECK_EVERY)
        self.left.update(live)
        return live

    def stats(self) -> dict[str, Any]:
        """Return the server's counts; see `fixtures.introspection`."""
        return httpx.get(f"{self.url}/_stats", trust_env=False, timeout=30).json()

    def executions(self, tool: str) -> int:
        """Return how often a tool's function was entered since the server started."""
        return len(self.journal.executions(tool))


@contextmanager
def serve(
    kind: Kind,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    start_seconds: float = _START_SECONDS,
    python: str | None = None,
) -> Iterator[Server]:
    """Run a server for the length of a block; on a free port unless the arguments name one.

    `python` is the interpreter that runs it: by default the one that `PYTHONS` names for its kind, or this one. Where
    that is this one, the server is forked in a run of the tests.
    """
    if python is None:
        python = json.loads(os.environ.get(PYTHONS, "{}")).get(kind)
    if not {"--split", "--platform", "--port"} & {*arguments}:
        arguments = (*arguments, "--port", "0")
    forks = os.environ.get(forkserver.VARIABLE) if python is None else None
    with tempfile.TemporaryDirectory(prefix="ors-server-") as name:
        folder = Path(name)
        variables = {**os.environ, VARIABLE: str(folder / "journal"), **(env or {})}
        process: Process
        with (folder / "output").open("wb") as output:
            if forks:
                process = forkserver.ForkedProcess(forks, [kind, *arguments], env=variables, output=folder / "output")
            else:
                command = [python or sys.executable, "-m", *_COMMANDS[kind], *arguments]
                process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT)
        try:
            urls = _await_urls(process, folder / "output", start_seconds)
            yield Server(kind, urls, process, Journal(variables[VARIABLE]), folder)
        finally:
            stop(process)


def eventually(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until a condition holds that nothing else tells of."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(_CHECK_EVERY)


def expect_no_sessions(servers: Iterable[Server]) -> None:
    """Fail where sessions are left on a server that runs, and go on being left."""
    for server in servers:
        left = server.set_aside(seconds=30) if server.process.poll() is None else []
        assert not left, f"Sessions are left on the {server.kind} server: {', '.join(left)}"


def _await_urls(process: Process, output: Path, seconds: float) -> tuple[str, ...]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = re.search(r"^listening on (.+)\n", output.read_text(errors="replace"), re.MULTILINE)
        if found:
            return tuple(found[1].split())
        if process.poll() is not None:
            raise RuntimeError(f"The server ended with {process.returncode} before it listened:\n{output.read_text()}")
        time.sleep(_CHECK_EVERY)
    raise RuntimeError(f"The server does not listen after {seconds} s:\n{output.read_text(errors='replace')}")


def stop(process: Process) -> None:
    """End a process: asked first, then made to."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_SECONDS)
