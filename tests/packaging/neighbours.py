"""Resolve this package beside what it is used with, and install nothing; `make neighbours` runs it, over the network.

pip reads the metadata of the newest releases and says whether one set of versions suits all. The last result, with the
date, stands in docs/compatibility.md.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Each is tried by itself: the SDKs need not get on with vLLM, nor with each other.
NEIGHBOURS = (("openreward",), ("ors-sdk",), ("vllm",))
SHOWN = {"openreward", "ors-sdk", "vllm", "trl", "transformers", "torch", "datasets", "aiohttp", "httpx", "pydantic"}


def resolve(requirements: Sequence[str]) -> dict[str, str] | str:
    """Return the versions that suit all requirements, or what pip says stands in the way."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--disable-pip-version-check", "--report", str(report)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *requirements],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return "\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in chosen}


def main() -> int:
    """Print what came of each neighbour, and return how many do not get on with this package."""
    failures = 0
    for neighbours in NEIGHBOURS:
        found = resolve([f"{ROOT}[cli,trl]", *neighbours])
        failures += isinstance(found, str)
        told = (
            found
            if isinstance(found, str)
            else ", ".join(f"{name} {found[name]}" for name in sorted(SHOWN & set(found)))
        )
        sys.stdout.write(f"{', '.join(neighbours)}: {told}\n")
        sys.stdout.flush()
    return failures


if __name__ == "__main__":
    sys.exit(main())
