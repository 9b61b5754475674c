"""The demo as a process, as a person starts it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start the demo with pipes to read from."""
    command = [sys.executable, "-m", "fixtures.demo", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments: object, seconds: float = 60) -> Ended:
    """Run the demo to its end."""
    with start(*arguments) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Ended(process.returncode, output, errors)
