"""Run by `accelerate launch`: two steps and an evaluation of a trainer, a part of each in every process.

`--multi_gpu` is what makes it start several processes on one machine; without a GPU they speak through gloo.

accelerate launch --multi_gpu --num_processes 2 two_ranks.py URL FOLDER RECORD
"""

import json
import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bridge")]
warnings.simplefilter("ignore")

from test_async_grpo import say_the_word  # noqa: E402 - the path comes first
from training import make_trainer  # noqa: E402

from trl_bridge import OpenRewardSpec  # noqa: E402


def main() -> None:
    url, folder, rank = sys.argv[1], Path(sys.argv[2]), os.environ["RANK"]
    with OpenRewardSpec(url, record=folder / sys.argv[3]) as spec:
        trainer = make_trainer(
            folder / f"trainer-{rank}",
            spec,
            policy=say_the_word,
            arguments={"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
            eval_dataset=spec.dataset("train"),
        )
        spec.attach(trainer)
        trainer.train()
        (folder / f"log-{rank}").write_text(json.dumps(trainer.state.log_history))
        (folder / f"world-{rank}").write_text(f"{trainer.accelerator.num_processes} {trainer.accelerator.device}")


if __name__ == "__main__":
    main()
