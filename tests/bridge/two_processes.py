"""Run by torchrun: one batch in plain TRL and one in attached TRL, compared by each process, in every configuration.

torchrun --nproc_per_node 2 two_processes.py URL FOLDER
"""

import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bridge")]
warnings.simplefilter("ignore")

from test_concurrency import CONFIGURATIONS, run  # noqa: E402 - the path comes first


def main() -> None:
    url, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
    results: list[str] = []
    for number, configuration in enumerate(CONFIGURATIONS):
        share = {"rollouts": 8, "first": 8 * rank, **configuration}
        plain = run(folder / f"plain-{number}-{rank}", url, attached=False, **share)
        attached = run(folder / f"attached-{number}-{rank}", url, attached=True, **share)
        differing = [what for what in plain if plain[what] != attached[what]]
        results.append(f"{sum(map(len, plain['calls']))} calls, differing: {differing}")
    (folder / f"result-{rank}").write_text("\n".join(results))


main()
