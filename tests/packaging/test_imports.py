"""What importing the packages loads, each in a process of its own. What it costs is in the benchmarks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"aiohttp", "datasets", "openreward", "torch", "transformers", "trl"}


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout


def test_importing_the_client_loads_nothing_heavy():
    loaded = run("import sys, ors_client; print(*sorted(name.partition('.')[0] for name in sys.modules))").split()
    assert HEAVY.isdisjoint(loaded)


def test_importing_the_bridge_loads_no_trainer():
    loaded = run("import sys, trl_bridge; print(*sorted(name.partition('.')[0] for name in sys.modules))").split()
    assert {"openreward", "torch", "transformers", "trl"}.isdisjoint(loaded)
