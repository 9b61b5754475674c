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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from .catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_COPIED = (
    "ors_client",
    "trl_bridge",
    "tests",
    "fixtures",
    "pyproject.toml",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)
_SECONDS = 900  # for what should notice one mutant; a fault may make tests wait for their limits


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
        copy = copies.get()
        try:
            result = _run(mutant, options.tree, copy, fast=options.fast)
        finally:
            copies.put(copy)
        known[mutant.name] = result
        print(f"{mutant.name}: {result.found or 'NOT FOUND'} ({result.seconds:.0f} s)", flush=True)
        if options.output is not None:
            with options.output.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    with _copies(options.tree, options.jobs) as copies, ThreadPoolExecutor(options.jobs) as pool:
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


@contextmanager
def _copies(tree: Path, count: int) -> Iterator[SimpleQueue[Path]]:
    """Give copies of the tree. They are used again and again, since a new one has everything to compile."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="ors-mutants-") as name:
        for number in range(count):
            copy = Path(name, str(number))
            copy.mkdir()
            for part in _COPIED:
                source = tree / part
                if source.is_dir():
                    shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
                elif source.exists():
                    shutil.copy2(source, copy / part)
            free.put(copy)
        yield free


def _run(mutant: Mutant, tree: Path, copy: Path, *, fast: bool) -> Result:
    began = time.monotonic()
    selections = [each for each in mutant.tests if (copy / each.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *selections]
    if fast:
        command += ["-m", "not slow", "--hypothesis-profile", "fast"]
    mutant.apply(copy)
    try:
        found = _first_failure(command, copy)
    finally:
        shutil.copy2(mutant.path(tree), mutant.path(copy))  # its time too, by which bytecode is known to be stale
    return Result(mutant.name, found, round(time.monotonic() - began, 1))


def _first_failure(command: list[str], folder: Path) -> str | None:
    environment = {**os.environ, "PYTHONPATH": str(folder), "CI": "true", "COLUMNS": "300"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+(?: \S+\])?)", done.stdout, re.MULTILINE)
    if failed:
        return failed[1]
    return None if done.returncode == 0 else f"status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
