"""Runs of the demo, as a person starts them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers import serve

ROOT = Path(__file__).parents[2]

# Before any test imports the libraries: they read these once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fixtures.demo", *map(str, arguments)]


@pytest.fixture(scope="session")
def demo():
    """Run the demo to its end."""

    def run(*arguments: object, seconds: float = 60) -> Ended:
        done = subprocess.run(
            command(*arguments), check=False, cwd=ROOT, capture_output=True, text=True, timeout=seconds
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def two_words():
    """A server of a person's own, with as few tasks as the demo can do with."""
    with serve("ours", "--env", "echo", "--words", "red,blue") as server:
        yield server
