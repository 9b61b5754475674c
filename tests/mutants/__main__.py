"""Put faults into the product, one at a time, and see what notices: `python -m tests.mutants`.

Works on a copy of the tree. `--fast` runs the fast tier only; `--output` keeps the results as JSON lines and goes on
where an earlier run stopped; `--tree` names another tree of the same layout, to compare two states of the tests.
"""

# ruff: noqa: T201 - it talks to a terminal

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from .catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_COPIED = ("ors_client", "trl_bridge", "tests", "fixtures", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
_SECONDS = 420  # for what should notice one mutant; a fault may make tests wait for their limits


@dataclass(frozen=True)
class Result:
    """What became of one mutant.

    Args:
        name: The mutant's.
        found: The first test that failed, or `None`.
        seconds: How long that took.
    """

    name: str
    found: str | None
    seconds: float


def main() -> int:
    """Run the mutants; return 1 if one was not found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="TEXT", default="", help="mutants whose name holds this")
    parser.add_argument("--fast", action="store_true", help="with the fast tier alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--output", type=Path, help="a file of JSON lines")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree that is mutated and tested")
    parser.add_argument("--check", action="store_true", help="only see that every mutant can be made")
    options = parser.parse_args()
    stale = [mutant.name for mutant in MUTANTS if not mutant.fits(options.tree)]
    if stale:
        print(f"{len(stale)} mutants can't be made any more: {', '.join(stale)}", file=sys.stderr)
    if options.check:
        return 1 if stale else 0
    known = _read(options.output)
    chosen = [each for each in MUTANTS if options.only in each.name and each.name not in {*known, *stale}]

    def run(mutant: Mutant) -> None:
        result = _run(mutant, options.tree, fast=options.fast)
        known[mutant.name] = result
        print(f"{mutant.name}: {result.found or 'NOT FOUND'} ({result.seconds:.0f} s)", flush=True)
        if options.output is not None:
            with options.output.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, chosen))
    print_table(known)
    return 1 if any(result.found is None for result in known.values()) else 0


def print_table(known: dict[str, Result]) -> None:
    """Print a row for each mutant: what it breaks, and what noticed."""
    print("\n| mutant | what breaks | found by |\n| --- | --- | --- |")
    for mutant in MUTANTS:
        result = known.get(mutant.name)
        found = "not run" if result is None else f"`{result.found}`" if result.found else "**nothing**"
        print(f"| `{mutant.name}` | {mutant.breaks} | {found} |")
    print(f"\n{sum(1 for result in known.values() if result.found)} of {len(known)} were found.")


def _read(path: Path | None) -> dict[str, Result]:
    if path is None or not path.exists():
        return {}
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {result.name: result for result in results}


def _run(mutant: Mutant, tree: Path, *, fast: bool) -> Result:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ors-mutant-") as name:
        copy = Path(name)
        for part in _COPIED:
            source = tree / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, copy / part)
        mutant.apply(copy)
        found = None
        for selection in mutant.tests:
            if not (copy / selection.partition("::")[0]).exists():
                continue
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", selection]
            if fast:
                command += ["-m", "not slow", "--hypothesis-profile", "fast"]
            found = _first_failure(command, copy, selection)
            if found is not None:
                break
    return Result(mutant.name, found, round(time.monotonic() - began, 1))


def _first_failure(command: list[str], folder: Path, selection: str) -> str | None:
    environment = {**os.environ, "PYTHONPATH": str(folder), "CI": "true", "COLUMNS": "300"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{selection} (it did not end)"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+(?: \S+\])?)", done.stdout, re.MULTILINE)
    if failed:
        return failed[1]
    return None if done.returncode in {0, 5} else f"{selection} (status {done.returncode})"


if __name__ == "__main__":
    sys.exit(main())
