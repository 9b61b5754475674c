"""Measure our client beside the official SDKs and bare aiohttp, and print a table: `python -m tests.benchmarks`."""

# ruff: noqa: T201 - a script that prints a table

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version

from .figures import COLUMNS, FIGURES, QUICK, Figure, Scale

TITLES = {
    "openreward": f"openreward {version('openreward')}",
    "openreward variant": "the same with `variant=`",
    "ors-sdk": f"ors-sdk {version('ors-sdk')}",
    "aiohttp": f"bare aiohttp {version('aiohttp')}",
    "ours": "ors_client",
}


def main() -> int:
    """Measure what was asked for; return 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", nargs="*", metavar="figure", help=f"which of {', '.join(FIGURES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a short run, whose figures are rough")
    options = parser.parse_args()
    unknown = [name for name in options.figures if name not in FIGURES]
    if unknown:
        parser.error(f"No figure named {unknown[0]!r}; there are {', '.join(FIGURES)}.")
    scale = QUICK if options.quick else Scale()
    print(_machine(), flush=True)
    print(_line(["figure", *(TITLES[client] for client in COLUMNS), "ours against it", "target", "reached"]))
    print(_line(["---"] * (len(COLUMNS) + 4)), flush=True)
    missed = 0
    for name in options.figures or FIGURES:
        began = time.monotonic()
        for figure in FIGURES[name](scale):
            print(_line(_cells(figure)), flush=True)
            missed += figure.reached is False
        print(f"{name}: {time.monotonic() - began:.0f} s, load {_load()}", file=sys.stderr, flush=True)
    print(f"\n{_machine()}")
    return min(missed, 1)


def _cells(figure: Figure) -> list[str]:
    reached = {True: "yes", False: "**no**", None: ""}[figure.reached]
    values = (figure.values.get(client, "") for client in COLUMNS)
    return [figure.name, *values, figure.ratio, figure.target, reached]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machine() -> str:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    now = datetime.now(UTC)
    return (
        f"{now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}, load average {_load()}"
    )


def _load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
