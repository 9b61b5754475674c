"""A training run as its author would write it: an environment of the catalogue by its name. Run as a program."""

import json
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bridge")]

from training import END, call, make_trainer  # noqa: E402 - found through the path above

from ors_client import KeepalivePolicy, RetryPolicy  # noqa: E402
from trl_bridge import OpenRewardSpec  # noqa: E402

THINKING = 2.5  # seconds: longer than the platform keeps a session that is not pinged


def policy(text):
    """Say the word, after a long thought; every second rollout gets it wrong."""
    turn = text.count("<tool_response>")
    if turn:
        return "Done." + END
    policy.count += 1
    if policy.count == 1:
        time.sleep(THINKING)
    word = re.findall(r"text='(\w+)'", text)[-1]
    return call("echo", text=word if policy.count % 2 else "wrong") + END


policy.count = 0


def main() -> None:
    """Train for two steps and tell what came of it."""
    seen = []
    spec = OpenRewardSpec(
        "owner/name",
        num_tasks=2,
        rollouts="run 7",
        keepalive=KeepalivePolicy(interval=0.3),
        retry=RetryPolicy(first_delay=0.05, max_delay=0.2),
    )
    with spec, tempfile.TemporaryDirectory() as folder:

        def rewards(**given):
            values = spec.reward_funcs(**given)
            seen.append(values)
            return values

        trainer = make_trainer(
            Path(folder),
            policy=policy,
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=rewards,
        )
        spec.attach(trainer)
        trainer.train()
        steps = trainer.state.global_step
    Path(sys.argv[1]).write_text(json.dumps({"steps": steps, "rewards": seen}))


if __name__ == "__main__":
    main()
