"""The servers of the matrix, each release in a virtual environment of its own, and how they are started.

It knows pip and the command lines of the servers; what is asked of them is not known here.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers import ROOT, Kind, Server, serve

FOLDER = ROOT / ".venv-matrix"

# Past the 25 s for which openreward makes a request wait for setup before it answers 503.
_SETUP_SECONDS = 27.0


@dataclass(frozen=True)
class Subject:
    """A server of one version.

    Attributes:
        name: On the command line, and of the virtual environment.
        title: In the tables.
        kind: How it is started.
        requirement: What pip installs; `None` for our own server, which needs nothing.
        arguments: Of its command line.
        level: It has what openreward 0.1.N has: to lack such a thing is a failure, not its age.
        setup_seconds: A setup that shows what the server does with a request that has to wait for long.
    """

    name: str
    title: str
    kind: Kind
    requirement: str | None = None
    arguments: tuple[str, ...] = ()
    level: int = 0
    setup_seconds: float = _SETUP_SECONDS

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Run it, with every environment, for the length of a block."""
        with serve(self.kind, "--env", "all", *self.arguments, python=self.python) as server:
            yield server

    @property
    def python(self) -> str:
        """The interpreter that runs it."""
        return sys.executable if self.requirement is None else str(_python(FOLDER / self.name))

    def install(self) -> None:
        """Make its virtual environment, if it needs one that is not there.

        Raises:
            SystemExit: pip could not.
        """
        folder = FOLDER / self.name
        done = folder / ".installed"  # made last: a folder without it is of an installation that was broken off
        if self.requirement is None or done.exists():
            return
        commands = (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(_python(folder)), "-m", "pip", "install", "--disable-pip-version-check", "-q", self.requirement],
        )
        for command in commands:
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            if found.returncode:
                raise SystemExit(f"Cannot install {self.requirement!r}:\n{found.stderr}")
        done.touch()


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _openreward(patch: int) -> Subject:
    version = f"0.1.{patch}"
    return Subject(
        f"openreward-{version}",
        f"openreward {version}",
        "openreward",
        requirement=f"openreward=={version}",
        level=patch,
    )


def _ours(dialect: str, title: str, level: int) -> Subject:
    arguments = ("--dialect", dialect, "--ready-wait", "1")
    return Subject(f"ours-{dialect}", title, "ours", arguments=arguments, level=level, setup_seconds=3.0)


SUBJECTS = (
    *map(_openreward, (50, 70, 105, 141, 156, 167)),
    # It has the routes of openreward 0.1.70.
    Subject("ors-sdk-0.1.0", "ors-sdk 0.1.0", "ors-sdk", requirement="ors-sdk==0.1.0", level=70),
    _ours("spec", "hand-written", level=0),
    _ours("openreward-0.1.50", "imitation of 0.1.50", level=50),
)
