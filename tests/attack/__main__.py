"""Attack a client with generated answers for as long as is wanted: `python -m tests.attack --minutes 10`."""

# ruff: noqa: T201 - it talks to a terminal

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import serve  # noqa: E402 - found through the path above

from .grammar import ENDPOINTS, attacks  # noqa: E402
from .hostile import Attack  # noqa: E402
from .invariants import attack  # noqa: E402

_ROUND = 25  # attacks of one seed


def main() -> int:
    """Attack until the time is over; print each kind of finding once, and return 1 if there was any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: a random one)")
    parser.add_argument("--endpoint", choices=ENDPOINTS, help="the only one to attack (default: any)")
    parser.add_argument("--first", action="store_true", help="end at the first finding")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else random.randrange(2**31)
    began = time.monotonic()
    end = began + 60 * options.minutes
    tried = 0
    found: dict[str, str] = {}

    with serve("ours", "--env", "all") as server:

        def strike(what: Attack, backend: str) -> None:
            nonlocal tried
            if time.monotonic() >= end or (found and options.first):
                return
            tried += 1
            for problem in attack(server.url, what, backend=backend):
                kind = f"{what.endpoint} on {backend}: {problem.partition(chr(10))[0][:100]}"
                if kind not in found:
                    found[kind] = problem
                    seconds = time.monotonic() - began
                    print(f"\nFOUND after {seconds:.0f} s: {kind}\n{problem}\n  by {what!r:.1500}", flush=True)

        number = first
        while time.monotonic() < end and not (found and options.first):
            backend = ("asyncio", "trio")[number % 2]
            settings_of_round = settings(
                max_examples=_ROUND,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )

            def round_of_attacks(what: Attack) -> None:
                strike(what, backend)  # noqa: B023 - it runs before the next round begins

            seed(number)(settings_of_round(given(what=attacks(options.endpoint))(round_of_attacks)))()
            number += 1
            print(f"seeds {first} to {number - 1}: {tried} attacks, {len(found)} kinds of findings", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
