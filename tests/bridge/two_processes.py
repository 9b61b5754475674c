"""Run by torchrun: one batch in plain TRL and one in attached TRL, compared by each process.

torchrun --nproc_per_node 2 two_processes.py URL FOLDER
"""

import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bridge")]
warnings.simplefilter("ignore")

from test_concurrency import run  # noqa: E402 - the path comes first


def main() -> None:
    url, folder, rank = sys.argv[1], Path(sys.argv[2]), os.environ["RANK"]
    plain = run(folder / f"plain-{rank}", url, attached=False, rollouts=8, first=8 * int(rank))
    attached = run(folder / f"attached-{rank}", url, attached=True, rollouts=8, first=8 * int(rank))
    differing = [what for what in plain if plain[what] != attached[what]]
    (folder / f"result-{rank}").write_text(f"{sum(map(len, plain['calls']))} calls, differing: {differing}")


main()
