"""Run by `accelerate launch`: three batches of one group over two processes, one of whose rollouts fails.

accelerate launch --multi_gpu --num_processes 2 two_ranks_failed.py URL FOLDER
"""

import json
import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
warnings.simplefilter("ignore")

from bridge.failed_rollouts import REWARDS, make_recording, step_policy  # noqa: E402 - the path comes first

from trl_bridge import OpenRewardSpec  # noqa: E402


def main() -> None:
    url, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])

    def position(completions: list[object], **_: object) -> list[float]:
        return [float(4 * rank + row) for row in range(len(completions))]

    with OpenRewardSpec(url, env_name="failingenvironment", task_tools_discovery_index=0) as spec:
        trainer = make_recording(
            folder / f"trainer-{rank}",
            spec,
            policy=step_policy(REWARDS[4 * rank : 4 * rank + 4]),
            reward_funcs=[spec.reward_funcs, position],  # nothing is attached before the first batch
            per_device_train_batch_size=4,
            num_generations=8,
            max_steps=3,
            logging_steps=3,
        )
        trainer.train()
        advantages = [batch["advantages"].tolist() for batch in trainer.scored]
        log = trainer.state.log_history
        (folder / f"seen-{rank}").write_text(json.dumps({"advantages": advantages, "log": log}))


if __name__ == "__main__":
    main()
