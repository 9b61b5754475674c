"""Run every feature of the client against every server of the matrix: `python -m tests.matrix [SERVER ...]`.

Each release of an SDK gets a virtual environment of its own below `.venv-matrix`, made with pip when it is missing. A
run of all servers writes `RESULTS.md`; one of some prints its table alone. With `--conformance` the conformance tests
then run against each release (`conformance.py`). The exit status is 1 where something fails.
"""

# ruff: noqa: T201 - it talks to a terminal

import argparse
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from . import tables  # noqa: E402 - these find `servers` through the path above
from .features import FEATURES  # noqa: E402
from .subjects import SUBJECTS, Subject  # noqa: E402
from .trial import Outcome, attempt_all  # noqa: E402

RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> int:
    """Try what was asked for; return 1 when something fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.partition("\n")[0])
    names = {subject.name: subject for subject in SUBJECTS}
    parser.add_argument("servers", nargs="*", choices=[*names, []], metavar="SERVER", help=f"of: {', '.join(names)}")
    parser.add_argument(
        "--conformance", action="store_true", help="run the conformance tests against the releases, too"
    )
    arguments = parser.parse_args()
    chosen = [names[name] for name in arguments.servers] or SUBJECTS
    outcomes = {subject.title: _try_all(subject) for subject in chosen}
    print(tables.whole(outcomes))
    if chosen is SUBJECTS:
        RESULTS.write_text(tables.page(outcomes, made=f"{datetime.now(UTC):%Y-%m-%d}"))
        print(f"\n{tables.short(outcomes)}\n\nwritten to {RESULTS.relative_to(ROOT)}")
    failed = any(outcome.kind == "fails" for found in outcomes.values() for outcome in found.values())
    if arguments.conformance:
        for subject in chosen:
            failed = (subject.requirement is not None and not _conforms(subject)) or failed
    return int(failed)


def _conforms(subject: Subject) -> bool:
    """Run the conformance tests against a release; pytest says which failed, and why others were skipped."""
    print(f"{subject.title}: the conformance tests", file=sys.stderr, flush=True)
    plugin = ("-p", "tests.matrix.conformance", "--server-release", subject.name)
    command = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *plugin, "tests/conformance")
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _try_all(subject: Subject) -> dict[str, Outcome]:
    began = time.monotonic()
    print(f"{subject.title}: installing, where it is missing", file=sys.stderr, flush=True)
    subject.install()
    with subject.running() as server:
        found = anyio.run(attempt_all, FEATURES, subject, server)
    fails = sum(outcome.kind == "fails" for outcome in found.values())
    seconds = time.monotonic() - began
    print(f"{subject.title}: {len(found)} features, {fails} fail, {seconds:.0f} s", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
