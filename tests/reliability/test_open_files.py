"""Where a process may open few files, its sessions wait for each other, or an error names that limit."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from servers import ROOT, Server

SCRIPT = Path(__file__).parent / "open_files.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")


def ended(backend: str, url: str, *, sessions: int, files: int, start_up: float) -> dict[str, int]:
    """Run it, and return how the sessions ended."""
    arguments = [backend, url, str(sessions), str(files), str(start_up)]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return ast.literal_eval(run.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_many_sessions_at_once_wait_for_files_to_be_free(ours: Server, backend: str) -> None:
    assert ended(backend, ours.url, sessions=100, files=40, start_up=120.0) == {"1": 100}


def test_error_names_the_limit_on_open_files(ours: Server, backend: str) -> None:
    found = ended(backend, ours.url, sessions=3, files=8, start_up=0.5)
    assert sum(found.values()) == 3
    assert all("may have 8 files open" in text and "ulimit -n" in text for text in found), found
