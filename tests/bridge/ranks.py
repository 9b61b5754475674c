"""Runs a script of this folder as two ranks, as `accelerate launch` does on a machine with two processors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]
LAUNCH += ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"]


def run_two_ranks(script: str, *arguments: str | Path) -> None:
    """Run both to their end, which must be a good one."""
    done = subprocess.run(
        [*LAUNCH, FOLDER / script, *arguments],
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
