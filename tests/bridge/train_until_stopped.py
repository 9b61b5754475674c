"""Trains until it is stopped, alone or run by `accelerate launch`: `train_until_stopped.py URL FOLDER`.

It ends as the documentation tells a program to end that gets SIGTERM, and closes nothing by itself.
"""

import os
import signal
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bridge")]
warnings.simplefilter("ignore")

from test_async_grpo import say_the_word  # noqa: E402 - the path comes first
from training import make_trainer  # noqa: E402

from trl_bridge import OpenRewardSpec  # noqa: E402

signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    spec = OpenRewardSpec(url, look_ahead=2, record=folder / "record")
    trainer = make_trainer(
        folder / os.environ.get("RANK", "alone"), spec, policy=say_the_word, arguments={"max_steps": 10_000}
    )
    spec.attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
