"""Run by `accelerate launch`: a batch over two processes, whose rollouts end at different times.

accelerate launch --multi_gpu --num_processes 2 two_ranks_stop.py URL FOLDER
"""

import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bridge")]
warnings.simplefilter("ignore")

from training import END, call, make_trainer  # noqa: E402 - the path comes first

from trl_bridge import OpenRewardSpec  # noqa: E402
from trl_bridge._rollout.environment import slot_of  # noqa: E402

FINISH, STEP = call("finish", reward=1.0), call("step", reward=0.5)
SCRIPTS = (*[(FINISH,)] * 6, (STEP, STEP, "said 2"), (STEP, STEP, STEP, "said 3"))


def follow(text: str) -> str:
    number = int(re.search(r"#(\d+) ", text)[1])
    script = SCRIPTS[number]
    return script[min(text.count("<|im_start|>assistant") - 1, len(script) - 1)] + END


def share_engine(trainer: Any) -> None:
    """Have TRL's own code ask a server, with a client that says what the policy says."""
    import trl
    from trl.generation.vllm_generation import VLLMGeneration

    said = trainer._generate_single_turn

    class Client:
        def generate(self, prompts: list[list[int]], n: int, **_: Any) -> dict[str, Any]:
            turns = said([ids for ids in prompts for _ in range(n)], None, {}, 1)[0]
            logprobs = [[[-1.0] for _ in turn] for turn in turns]
            return {"prompt_ids": prompts, "completion_ids": turns, "logprobs": logprobs}

    engine: Any = object.__new__(VLLMGeneration)
    engine.mode, engine.accelerator, engine.vllm_client = "server", trainer.accelerator, Client()
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length"):
        setattr(engine, name, 1)
    engine.logprobs, engine.structured_outputs_regex, engine.generation_kwargs = 0, None, {}
    trainer.use_vllm, trainer.vllm_mode, trainer.vllm_generation = True, "server", engine
    trainer.vllm_importance_sampling_correction = False
    trainer._last_loaded_step = trainer.state.global_step
    trainer._generate_single_turn = lambda *args, **kwargs: trl.GRPOTrainer._generate_single_turn(
        trainer, *args, **kwargs
    )


def main(engine: str) -> None:
    url, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
    with OpenRewardSpec(
        url, env_name="failingenvironment", task_tools_discovery_index=0, indices=[0] * 8, stop_at_finish=True
    ) as spec:
        trainer = make_trainer(
            folder / f"trainer-{engine}-{rank}",
            spec,
            policy=follow,
            generations=1 if engine == "shared" else 4,
            arguments={"num_generations": 8, "max_completion_length": 600},
        )
        trainer.num_generations = 1 if engine == "shared" else trainer.num_generations  # each row has its own script
        if engine == "shared":
            share_engine(trainer)
        spec.attach(trainer)
        generate, asked = trainer._generate_single_turn, list[int]()

        def watched(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append(len(prompt_ids))
            return generate(prompt_ids, *args, **kwargs)

        trainer._generate_single_turn = watched
        rows = [
            {"prompt": [{"role": "user", "content": f"#{4 * rank + row} "}], "task_index": 0, "split": "train"}
            for row in range(4)
        ]
        trainer.model.train()
        scored = trainer._generate_and_score_completions(rows)
        lasts = [int(mask.sum()) - 1 for mask in scored["completion_mask"]]
        messages = list(trainer._logs["completion"])[4 * rank : 4 * rank + 4]
        said = [
            [each["role"] + (f": {each['content']}" if each["role"] == "assistant" else "") for each in rollout]
            for rollout in messages
        ]
        seen = {
            "asked": asked,
            "calls": [len(slot_of(each).log.calls) for each in trainer.environments],
            "said": said,
            "ends": [
                [int(scored["completion_ids"][row][last]), int(scored["tool_mask"][row][last])]
                for row, last in enumerate(lasts)
            ],
            "end": trainer._tokenizer.eos_token_id,
            "metrics": {name: values[-1] for name, values in trainer._metrics["train"].items()},
        }
        (folder / f"seen-{engine}-{rank}").write_text(json.dumps(seen))


if __name__ == "__main__":
    for each in ("each", "shared"):
        main(each)
