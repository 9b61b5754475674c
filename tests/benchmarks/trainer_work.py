"""What a trainer waits for, through our bridge or `trl.experimental.openreward`; run in a process of its own.

`python -m tests.benchmarks.trainer_work dataset ours URL 64` prints a JSON object, and so do `step` and `turns`.
"""

# ruff: noqa: T201 - its caller reads the answer

import asyncio
import gc
import json
import os
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from .clients import CLIENTS, Client
from .light_server import ENVIRONMENT
from .worker import ROOT

ROLLOUTS = 16
ITERATIONS = 3


def spec_of(side: str, url: str, *, env_name: str = ENVIRONMENT, **options: Any) -> Any:
    """Return the spec of one side, with everything imported that it imports later."""
    warnings.simplefilter("ignore")
    if side == "ours":
        import aiohttp  # noqa: F401
        import anyio._backends._asyncio  # noqa: F401 - anyio imports it when an event loop first asks for it

        import trl_bridge

        return trl_bridge.OpenRewardSpec(url, env_name=env_name, **options)
    os.environ |= {"OPENREWARD_API_URL": url, "OPENREWARD_SESSION_URL": url}
    import openreward  # noqa: F401
    from trl.experimental.openreward import OpenRewardSpec

    return OpenRewardSpec(url, env_name=env_name, **options)


def dataset(side: str, url: str, tasks: int | None) -> dict[str, float]:
    """Measure the making of a dataset, imports aside."""
    import datasets  # noqa: F401

    spec = spec_of(side, url, num_tasks=tasks)
    gc.collect()  # else it is left to chance which side pays for what the imports left behind
    cpu, wall = time.process_time(), time.perf_counter()
    rows = len(spec.train_dataset)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "rows": rows}


class InstantEnvironment:
    """An environment in this process that answers at once: what a trainer takes by itself."""

    def reset(self, **row: Any) -> str:
        """Return a prompt as long as the server's."""
        del row
        return "Call the `echo` tool."

    def echo(self, text: str) -> str:
        """Say a word.

        Args:
            text: The word.
        """
        return text


def requests(url: str, rollouts: int) -> dict[str, float]:
    """Measure the requests of a batch, made by bare aiohttp in the order in which the trainer waits for them."""

    async def batch(client: Client) -> float:
        began = time.perf_counter()
        sessions = await asyncio.gather(*(client.open() for _ in range(rollouts)))
        for _ in range(ITERATIONS):
            await asyncio.gather(*map(client.call, sessions))
        await asyncio.gather(*map(client.close, sessions))
        return time.perf_counter() - began

    async def measure() -> float:
        async with CLIENTS["aiohttp"](url) as client:
            return [await batch(client) for _ in range(2)][1]  # in the first one connections are made

    return {"wall": asyncio.run(measure())}


def step(side: str, url: str, batches: int, rollouts: int) -> dict[str, float]:
    """Measure what a batch of a GRPO trainer takes besides generating; the model says what a script says."""
    sys.path.insert(0, str(ROOT / "tests" / "bridge"))
    from training import END, call, make_trainer

    def policy(text: str) -> str:
        turns = text.count("<|im_start|>assistant") - 1
        return (call("echo", text="hello") if turns < ITERATIONS else "done") + END

    if side == "instant":
        from datasets import Dataset

        spec = None
        rows = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]}] * rollouts)
        slots: tuple[Any, Any, Any] = rows, InstantEnvironment, lambda prompts, **_: [0.0] * len(prompts)
    else:
        spec = spec_of(side, url, num_tasks=rollouts)
        slots = spec.train_dataset, spec.environment_factory, spec.reward_funcs
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            Path(folder),
            policy=policy,
            rollouts=rollouts,
            generations=4,
            arguments={"max_completion_length": 2000},
            train_dataset=slots[0],
            environment_factory=slots[1],
            reward_funcs=slots[2],
        )
        if side == "ours":
            spec.attach(trainer)
        generating = 0.0
        generate = trainer._generate_single_turn

        def timed(*arguments: Any, **more: Any) -> Any:
            nonlocal generating
            began = time.perf_counter()
            try:
                return generate(*arguments, **more)
            finally:
                generating += time.perf_counter() - began

        trainer._generate_single_turn = timed
        trainer.model.train()
        walls: list[float] = []
        for _ in range(batches):
            rows = [dict(trainer.train_dataset[index // 4]) for index in range(rollouts)]
            generating, began = 0.0, time.perf_counter()
            trainer._generate_and_score_completions(rows)
            walls.append(time.perf_counter() - began - generating)
        if side == "ours":
            spec.close()
    return {"wall": sorted(walls)[len(walls) // 2], "best": min(walls)}


def turns(side: str, url: str, env_name: str) -> dict[str, float]:
    """Count what the model is asked for in one batch: turns and tokens; it says what a script says, without a slip."""
    sys.path.insert(0, str(ROOT / "tests" / "bridge"))
    from training import END, call, make_trainer

    def demo(text: str, answers: int) -> str:
        return "Done." if answers else call("echo", text=re.findall(r"text='(\w+)'", text)[-1])

    def three_calls(text: str, answers: int) -> str:
        del text
        calls = [call("step", reward=0.5), call("step", reward=0.5), call("finish", reward=1.0)]
        return [*calls, "Done."][min(answers, 3)]

    say = {"echoenvironment": demo, "failingenvironment": three_calls}[env_name]
    options = {"stop_at_finish": True} if side == "ours" else {}
    spec = spec_of(side, url, env_name=env_name, task_tools_discovery_index=0, **options)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            Path(folder),
            spec,
            policy=lambda text: say(text, text.count("<tool_response>")) + END,
            rollouts=ROLLOUTS,
            generations=4,
        )
        if side == "ours":
            spec.attach(trainer)
        generate, asked = trainer._generate_single_turn, {"turns": 0.0, "tokens": 0.0}

        def counted(*arguments: Any, **more: Any) -> Any:
            said = generate(*arguments, **more)
            asked["turns"] += len(said[0])
            asked["tokens"] += sum(map(len, said[0]))
            return said

        trainer._generate_single_turn = counted
        trainer.model.train()
        trainer._generate_and_score_completions([dict(trainer.train_dataset[0]) for _ in range(ROLLOUTS)])
        asked["reward"] = trainer._metrics["train"]["reward"][-1]
        if side == "ours":
            spec.close()
    return asked


def main() -> None:
    """Do the work that the arguments name."""
    work, side, url, number, *rollouts = sys.argv[1:]
    if work == "turns":
        print(json.dumps(turns(side, url, number)))
        return
    if work == "requests":
        print(json.dumps(requests(url, int(number))))
        return
    count = None if number == "all" else int(number)
    done = dataset(side, url, count) if work == "dataset" else step(side, url, count or 1, int(rollouts[0]))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
