"""Put faults into the product, one at a time, and see which test notices: `python -m tests.mutants`.

It works on copies of the tree in a temporary folder. A test counts that fails with the fault, fails again when it runs
alone, and passes without the fault. A run of all mutants takes about an hour; with `--output` it goes on where an
earlier one stopped. The table that it prints is kept in `TABLE.md`.
"""

# ruff: noqa: T201 - it talks to a terminal

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from .all_mutants import MUTANTS
from .catalogue import Mutant, command_of, files_of, problems

ROOT = Path(__file__).parents[2]
NOT_COPIED = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", ".coverage*", "htmlcov", "build", "dist")
# Where a mutant is looked for with `--wide`, after its own selections.
WIDE = {"ors_client": ("client", "conformance", "platform", "reliability"), "trl_bridge": ("bridge", "platform")}
FAST = ("-m", "not slow", "--hypothesis-profile", "fast")
HUNG = 120  # seconds after which a test that has no limit of its own is taken for one that hangs
CHANCES = 3  # failures that are no evidence, of one selection, before it is left


@dataclass(frozen=True)
class Result:
    """What became of a mutant.

    Args:
        name: The mutant's.
        found: The test that noticed, or `None`.
        seconds: How long the runs took.
        note: What else there is to say.
    """

    name: str
    found: str | None
    seconds: float
    note: str = ""


class OutOfTimeError(Exception):
    """Raised when the time for a mutant is over."""


class Copies:
    """Two copies of a tree, one with a fault and one without.

    Args:
        tree: What is copied.
        folder: Where to.
        options: Further arguments for each run of pytest.
    """

    def __init__(self, tree: Path, folder: Path, options: Sequence[str]) -> None:
        self._options = options
        self._mutated, self._control = folder / "mutated", folder / "control"
        self._sound: dict[str, bool] = {}  # tests by whether they pass without a fault
        for copy in (self._mutated, self._control):
            shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the fault in one of the copies."""
        path = self._mutated / mutant.file
        _write(path, mutant.source(self._control))
        try:
            yield
        finally:
            _write(path, (self._control / mutant.file).read_text(encoding="utf-8"))

    def noticing(self, selection: str, *, until: float) -> str | None:
        """Return a test of a selection that notices the fault, if one does."""
        chance: list[str] = []
        while len(chance) < CHANCES:
            failed = self._first_failure(self._mutated, [*command_of(selection), *chance], until)
            if failed is None or self._is_evidence(failed, until):
                return failed
            chance.append(f"--deselect={failed}")
        return None

    def _is_evidence(self, failed: str, until: float) -> bool:
        # What can't even be imported is named by its file.
        alone = [failed] if "::" in failed else [failed, "--collect-only"]
        if failed not in self._sound:
            self._sound[failed] = self._first_failure(self._control, alone, until) is None
        return self._sound[failed] and self._first_failure(self._mutated, alone, until) is not None

    def _first_failure(self, copy: Path, arguments: Sequence[str], until: float) -> str | None:
        pytest = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--timeout={HUNG}")
        environment = {**os.environ, "PYTHONPATH": str(copy), "CI": "true", "COLUMNS": "1000"}
        process = subprocess.Popen(
            [*pytest, *self._options, *arguments],
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # with all that the tests start, it can be ended
        )
        try:
            said, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        for line in said.splitlines():
            kind, _, rest = line.partition(" ")
            if kind in {"FAILED", "ERROR"} and rest.startswith("tests/"):
                return rest.partition(" - ")[0]
        if process.returncode not in {0, 5}:  # 5: nothing was selected
            raise RuntimeError(f"pytest ended with {process.returncode} in {copy}:\n{said[-2000:]}")
        return None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    # A file of the same size, written in the same second, would be taken for the one that was compiled.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def main() -> int:
    """Run the mutants that are asked for; return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only see whether every mutant can be made")
    parser.add_argument("--only", metavar="TEXT", default="", help="mutants whose name or file holds this")
    parser.add_argument("--fast", action="store_true", help="run the fast tier alone")
    parser.add_argument("--wide", action="store_true", help="after a mutant's own tests, run those of whole folders")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants at a time (default: 1)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for one mutant (default: 600)")
    parser.add_argument("--output", type=Path, help="keep the results in this file, and go on from what it holds")
    parser.add_argument("--before", type=Path, help="results of another run, as a further column of the table")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout that is tried")
    options = parser.parse_args()
    if found := problems(options.tree, MUTANTS):
        print("\n".join(found), file=sys.stderr)
        return 1
    if options.check:
        return 0
    known = _read(options.output)
    left = [each for each in MUTANTS if options.only in f"{each.file} {each.name}" and each.name not in known]
    for result in _run(left, options):
        known[result.name] = result
        print(f"{result.name}: {result.found or 'NOT NOTICED'} {result.note}({result.seconds:.0f} s)", flush=True)
        if options.output is not None:
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    print(f"\n{_table(known, _read(options.before), options.tree)}")
    return int(any(result.found is None for result in known.values()))


def _run(mutants: Sequence[Mutant], options: argparse.Namespace) -> Iterator[Result]:
    with ExitStack() as stack:
        free: SimpleQueue[Copies] = SimpleQueue()
        for _ in range(min(options.jobs, len(mutants))):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ors-mutants-"))
            free.put(Copies(options.tree, Path(folder), FAST if options.fast else ()))

        def attempt(mutant: Mutant) -> Result:
            copies = free.get()
            try:
                return _attempt(mutant, copies, wide=options.wide, seconds=options.seconds)
            finally:
                free.put(copies)

        yield from stack.enter_context(ThreadPoolExecutor(options.jobs)).map(attempt, mutants)


def _attempt(mutant: Mutant, copies: Copies, *, wide: bool, seconds: float) -> Result:
    began = time.monotonic()
    found, note = None, ""
    selections = (*mutant.tests, *(WIDE[mutant.file.partition("/")[0]] if wide else ()))
    with copies.mutated(mutant):
        try:
            for selection in selections:
                found = copies.noticing(selection, until=began + seconds)
                if found is not None:
                    break
        except OutOfTimeError:
            note = f"the time was over in {files_of(selection)} "
    return Result(mutant.name, found, round(time.monotonic() - began, 1), note)


def _read(path: Path | None) -> dict[str, Result]:
    if path is None or not path.exists():
        return {}
    results = [Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {result.name: result for result in results}


def _table(now: Mapping[str, Result], before: Mapping[str, Result], tree: Path) -> str:
    """Return the results in markdown: a row for each area, then one for each mutant."""
    runs = {"before": before, "noticed by": now} if before else {"noticed by": now}
    lines = [_row("area", "mutants", *(f"{name}: noticed" for name in runs)), _row(*["---"] * (2 + len(runs)))]
    for area in dict.fromkeys(mutant.area for mutant in MUTANTS):
        names = [mutant.name for mutant in MUTANTS if mutant.area == area]
        lines.append(_row(f"`{area}`", str(len(names)), *(_share(names, run) for run in runs.values())))
    lines += ["", _row("mutant", "where", "what a user meets", *runs), _row(*["---"] * (3 + len(runs)))]
    for mutant in MUTANTS:
        cells = (_cell(run.get(mutant.name)) for run in runs.values())
        lines.append(_row(mutant.name, f"`{mutant.place(tree)}`", mutant.breaks, *cells))
    return "\n".join(lines)


def _share(names: Sequence[str], run: Mapping[str, Result]) -> str:
    tried = [run[name] for name in names if name in run]
    return f"{sum(result.found is not None for result in tried)} of {len(tried)}"


def _cell(result: Result | None) -> str:
    if result is None:
        return "not tried"
    if result.found is None:
        return f"**nothing** {result.note}({result.seconds:.0f} s)"
    return f"`{result.found.removeprefix('tests/')}` ({result.seconds:.0f} s)".replace("|", "\\|")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
