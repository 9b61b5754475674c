"""What a policy learns when a fifth of its episodes are broken by the infrastructure after their first reward.

An environment has two ways. The shortcut is credited at once, with 1.0, and the credit is taken back when the episode
ends; the road gets nothing at once and 0.1 in the end. The last reward counts, so the road is better. A proxy loses the
session of 20 % of the episodes between the two rewards. A bridge that then takes the first reward for the score makes
the shortcut worth 0.2 * 1.0 = 0.2 and the road 0.8 * 0.1 = 0.08, and teaches the wrong way.

`GRPOTrainer` trains a tiny Qwen3 with either bridge, and with ours told to keep what was seen before a failure, with
and without the failures; the model decides which way, and its turns are otherwise written for it, so that no warm-up is
needed. Advantages are not divided by the group's standard deviation (`scale_rewards="none"`), whose effect here depends
on how many of a group failed. Run it as a script for the table; it needs no network.
"""

# ruff: noqa: T201 - a script that prints a table

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "tests" / "bridge", ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from fixtures.environments import Environment, Ledger, tool  # noqa: E402 - found through the path above
from fixtures.environments.values import Block, JSONObject, TextBlock, ToolOutput, text_output  # noqa: E402
from fixtures.listening import bind, serve  # noqa: E402
from fixtures.proxy import FaultProxy, RecordedRequest, Rule, Status  # noqa: E402
from fixtures.server.app import make_app  # noqa: E402
from fixtures.server.dialects import DIALECTS  # noqa: E402
from fixtures.server.host import Host, Settings  # noqa: E402

SHARE = 0.2
GROUP = 16
REWARDS = {"shortcut": (1.0, 0.0), "road": (0.0, 0.1)}
BRIDGES = {
    "ours": ("trl_bridge", {}),
    "keep": ("trl_bridge", {"on_failure": "keep"}),
    "incumbent": ("trl.experimental.openreward", {}),
}
PROMPT = "Choose a way, then arrive."


class Choose(BaseModel):
    """Which way."""

    way: str


class Ways(Environment):
    """Two ways, of which the one that looks better at once is worse in the end."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """Return the only task."""
        del split
        return [{"id": "go"}]

    async def get_prompt(self) -> list[Block]:
        """Ask for a way."""
        return [TextBlock(text=PROMPT)]

    @tool()
    async def choose(self, arguments: Choose) -> ToolOutput:
        """Choose a way: road or shortcut."""
        self._way = arguments.way
        return text_output("on the way", reward=REWARDS[self._way][0])

    @tool()
    async def arrive(self) -> ToolOutput:
        """Go on to the end."""
        return text_output("arrived", reward=REWARDS[self._way][1], finished=True)


class Walker:
    """Writes the model's turns; which way to choose the model says, by the odds that it gives the two words."""

    def __init__(self, tokenizer, model, *, seed):
        import torch

        self._tokenizer, self._model = tokenizer, model
        self._generator = torch.Generator().manual_seed(seed)
        self._ids = [tokenizer.convert_tokens_to_ids(way) for way in REWARDS]
        self.chosen = []
        self.start = ""

    def __call__(self, text):
        import torch
        from training import END, call

        turn = text.count("\n<tool_response>")
        if turn:
            return (call("arrive") if turn == 1 else "Done.") + END
        self.start = text
        index = torch.multinomial(self.odds(), 1, generator=self._generator).item()
        self.chosen.append(list(REWARDS)[index])
        return call("choose", way=self.chosen[-1]) + END

    def odds(self):
        """Return the probability of each way, given that it is one of them."""
        import torch
        from training import call

        before = call("choose", way="?").partition("?")[0]
        with torch.no_grad():
            ids = torch.tensor([self._tokenizer.encode(self.start + before, add_special_tokens=False)])
            return self._model(input_ids=ids).logits[0, -1, self._ids].softmax(-1)


def train(bridge: str, url: str, *, steps: int, seed: int) -> dict[str, float]:
    """Train with one of the bridges; return what became of the model, and of the trainer's view of it."""
    import importlib

    import torch
    from training import call, make_trainer

    from fixtures.demo._model import build_model, build_tokenizer

    texts = [call("choose", way=way) for way in REWARDS] + [call("arrive"), PROMPT]
    tokenizer = build_tokenizer(texts, list(REWARDS))
    model = build_model(tokenizer, seed=seed)
    walker = Walker(tokenizer, model, seed=seed)
    torch.set_num_threads(1)
    module, options = BRIDGES[bridge]
    spec = importlib.import_module(module).OpenRewardSpec(url, **options)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            Path(folder),
            spec,
            policy=walker,
            model=model,
            processor=tokenizer,
            rollouts=GROUP,
            generations=GROUP,
            arguments={
                "max_steps": steps,
                "learning_rate": 5e-4,
                "lr_scheduler_type": "constant",
                "scale_rewards": "none",
                "seed": seed,
            },
        )
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    last = walker.chosen[-5 * GROUP :]
    return {
        "before": walker.chosen[: 2 * GROUP].count("road") / (2 * GROUP),
        "after": last.count("road") / len(last),
        "reward": sum(entry["reward"] for entry in logged[-5:]) / 5,
    }


class Losses:
    """Decides for every session, once, whether it is lost before the second call."""

    def __init__(self, share: float, *, seed: int) -> None:
        self._share = share
        self._random = random.Random(seed)
        self._lost: dict[str, bool] = {}

    def __call__(self, request: RecordedRequest) -> bool:
        """Tell whether a request finds its session gone."""
        if b'"arrive"' not in request.body:
            return False
        (session,) = {value for name, value in request.headers if name.lower() == "x-session-id"}
        if session not in self._lost:  # a redirected request comes twice
            self._lost[session] = self._random.random() < self._share
        return self._lost[session]

    @property
    def share(self) -> float:
        """How many of the sessions that came to the second call were lost there."""
        return sum(self._lost.values()) / max(1, len(self._lost))


def measure(bridge: str, share: float, *, steps: int, seed: int) -> dict[str, float]:
    """Train in a process of its own, before a server and a proxy of its own."""
    command = [sys.executable, __file__]
    with subprocess.Popen([*command, "serve"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().split()[-1]
            with FaultProxy(url, seed=seed) as proxy:
                loses = Losses(share, seed=seed)
                proxy.add(Rule("POST", "/call", Status(404, "Active environment not found"), times=None, when=loses))
                # Where the incumbent looks for servers.
                hosts = {"OPENREWARD_API_URL": proxy.url, "OPENREWARD_SESSION_URL": proxy.url}
                key = {"OPENREWARD_API_KEY": "not looked at", "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
                done = subprocess.run(
                    [*command, "train", bridge, proxy.url, str(steps), str(seed)],
                    cwd=ROOT,
                    env={**os.environ, **hosts, **key, "TRL_EXPERIMENTAL_SILENCE": "1"},
                    capture_output=True,
                    text=True,
                    timeout=900,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(done.stderr)
        finally:
            server.terminate()
    return json.loads(done.stdout.rpartition("RESULT")[2]) | {"lost": loses.share}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--bridges", choices=BRIDGES, nargs="+", default=list(BRIDGES))
    arguments = parser.parse_args()
    print(f"{arguments.steps} steps of {GROUP} rollouts; the road is the better way\n")
    print("| bridge | seed | episodes lost | road in the first two steps | in the last five | reward logged in those |")
    print("|---|---|---|---|---|---|")
    for bridge in arguments.bridges:
        module, options = BRIDGES[bridge]
        name = ", ".join([module, *(f"{option}={value!r}" for option, value in options.items())])
        for share in (0.0, SHARE):
            for seed in arguments.seeds:
                seen = measure(bridge, share, steps=arguments.steps, seed=seed)
                print(
                    f"| {name} | {seed} | {seen['lost']:.0%} | {seen['before']:.0%} | {seen['after']:.0%} "
                    f"| {seen['reward']:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        host = Host([Ways], dialect=DIALECTS["openreward"], settings=Settings(), ledger=Ledger(None))
        serve(make_app(host), [bind("127.0.0.1", 0)], idle_seconds=60, stop=host.stop)
    elif sys.argv[1:2] == ["train"]:
        warnings.simplefilter("ignore")
        _, _, bridge, url, steps, seed = sys.argv
        print("RESULT" + json.dumps(train(bridge, url, steps=int(steps), seed=int(seed))))
    else:
        main()
