"""Runs a script of this folder as several ranks: `accelerate launch` on one machine, or as on two."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

FOLDER = Path(__file__).parent
_ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
_ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"]
LAUNCH = [*_ACCELERATE, "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]


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


def run_two_machines(script: str, *arguments: str | Path) -> None:
    """Run a rank on each of two machines, both of which are this one, to an end that must be a good one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*_ACCELERATE, "--num_processes", "2", "--num_machines", "2"]
    command += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    with ExitStack() as stack:
        machines = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, "--machine_rank", str(rank), FOLDER / script, *arguments],
                    cwd=FOLDER.parent.parent,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        for machine in machines:
            stack.callback(machine.kill)  # where the other one failed
        said = [machine.communicate(timeout=200)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
