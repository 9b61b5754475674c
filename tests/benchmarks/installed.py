"""What a package weighs: the CPU of importing it, and the bytes of it and all that it needs."""

import os
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .worker import QUIET, ROOT

_OURS = {"ors-client": ("ors_client", "trl_bridge")}
_MEASURE = (
    "import resource\nimport {module}\nused = resource.getrusage(resource.RUSAGE_SELF)\n"
    "print(used.ru_utime + used.ru_stime)"
)


def import_cpu(module: str) -> float:
    """Return the seconds of CPU that importing a module costs a new interpreter, besides starting that."""
    return _cpu(module) - _cpu("sys")


def _cpu(module: str) -> float:
    command = [sys.executable, "-c", _MEASURE.format(module=module)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | QUIET, capture_output=True, text=True, timeout=60, check=True
    )
    return float(done.stdout)


def size(name: str) -> int:
    """Return the bytes of a distribution and of all that it requires, without compiled files and extras."""
    return sum(_bytes(one) for one in _needed(name, {}).values())


def _needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    key = canonicalize_name(name)
    if key in found:
        return found
    try:
        found[key] = distribution(name)
    except PackageNotFoundError:  # a marker that does not hold here
        return found
    for line in found[key].requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            _needed(requirement.name, found)
    return found


def _bytes(one: Distribution) -> int:
    folders = _OURS.get(canonicalize_name(one.metadata["Name"]))
    if folders:  # installed as links to the sources, maybe
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    else:
        paths = [Path(str(one.locate_file(file))) for file in one.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")
