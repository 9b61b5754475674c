"""What `import ors_client` costs and loads. Each import happens in a process of its own."""

import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"aiohttp", "datasets", "openreward", "torch", "transformers", "trl"}
RUNS = 5
ALLOWED = 0.3  # CPU seconds on top of the packages that the client is made of


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout


def cpu_seconds(imports: str) -> float:
    return float(run(f"import time; {imports}; print(time.process_time())"))


def test_importing_the_client_loads_nothing_heavy():
    loaded = run("import sys, ors_client; print(*sorted(name.partition('.')[0] for name in sys.modules))").split()
    assert HEAVY.isdisjoint(loaded)


def test_importing_the_bridge_loads_no_trainer():
    loaded = run("import sys, trl_bridge; print(*sorted(name.partition('.')[0] for name in sys.modules))").split()
    assert {"openreward", "torch", "transformers", "trl"}.isdisjoint(loaded)


def test_importing_the_client_costs_little_more_than_its_dependencies():
    # CPU time, and the two in turn: other processes on the machine then disturb neither more than the other.
    pairs = [(cpu_seconds("import httpx, pydantic, anyio"), cpu_seconds("import ors_client")) for _ in range(RUNS)]
    dependencies, client = (statistics.median(column) for column in zip(*pairs, strict=True))
    assert client - dependencies <= ALLOWED
