"""TRL's own trainer around a tiny model, whose completions a policy in Python may write instead.

torch, transformers and trl take as long to import as a hundred tests, and every worker imports every file of tests:
so they are imported where they are used.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixtures.environments import IDEAS

if TYPE_CHECKING:
    from trl import GRPOTrainer

    from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec

Policy = Callable[[str], str]
"""Given the whole conversation as text, what the model says next."""

END = "<|im_end|>"
IGNORED = (
    "ignore:You are using 'environment_factory'",
    "ignore:You are importing from 'trl.experimental'",
    "ignore:`is_gradient_checkpointing` is deprecated",
)


def call(tool: str, **arguments: Any) -> str:
    """What a model writes to call a tool."""
    return raw_call({"name": tool, "arguments": arguments})


def raw_call(content: Any) -> str:
    """The same with content that need not be a sound call."""
    return f"<tool_call>\n{json.dumps(content)}\n</tool_call>"


def from_trl(name: str) -> Any:
    """Return a class of TRL."""
    with warnings.catch_warnings():
        # Imported with their warnings let be: they concern releases of other packages, not what is tested.
        warnings.simplefilter("ignore")
        import trl

        return getattr(trl, name)


def _texts() -> list[str]:
    """Return what prompts are made of. In the tokens of a tokenizer that knew less they are five times as long."""
    from trl.chat_template_utils import qwen3_chat_template

    tools = [tool.spec for idea in ("echo", "failing") for each in IDEAS[idea] for tool in each.tools().values()]
    schemas = [json.dumps({"type": "function", "function": {"parameters": tool.input_schema}}) for tool in tools]
    named = [json.dumps({"name": tool.name, "description": tool.description}) for tool in tools]
    said = [call("echo", text="hello"), "Call the `echo` tool with text='hello' to win."]
    return [*said, qwen3_chat_template, *schemas, *named]


def make_trainer(
    folder: Path,
    spec: OpenRewardSpec | MultiEnvironmentSpec | None = None,
    *,
    policy: Policy | None = None,
    trainer: type[GRPOTrainer] | None = None,
    rollouts: int = 4,
    generations: int = 2,
    arguments: dict[str, Any] | None = None,
    model: Any = None,
    processor: Any = None,
    **slots: Any,
) -> GRPOTrainer:
    """Make a trainer of a random model; with a policy, it says what the policy says.

    Args:
        folder: Where the trainer may write.
        spec: Whose rows, environments and rewards it takes.
        trainer: Another class of trainers than TRL's own.
        rollouts: In a batch.
        generations: Rollouts of one task.
        arguments: Further ones of the configuration.
        model: Another than the random one, with its `processor`.
        slots: The trainer's `train_dataset`, `environment_factory`, `reward_funcs` and more, instead of the spec's.
    """
    grpo_trainer, grpo_config = from_trl("GRPOTrainer"), from_trl("GRPOConfig")
    import torch

    from fixtures.demo._model import build_model, build_tokenizer

    torch.set_num_threads(1)
    if processor is None:
        processor = build_tokenizer(_texts(), [])
    tokenizer = getattr(processor, "tokenizer", processor)
    configuration = {
        "max_steps": 2,
        "per_device_train_batch_size": rollouts,
        "num_generations": generations,
        "max_completion_length": 32 if policy is None else 400,
        "max_tool_calling_iterations": 4,
        "chat_template_kwargs": {"enable_thinking": False},
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **(arguments or {}),
    }

    class Scripted(trainer or grpo_trainer):
        def _generate_single_turn(self, prompt_ids, images, fields, num_generations, *rest, **more):
            if policy is None:
                return super()._generate_single_turn(prompt_ids, images, fields, num_generations, *rest, **more)
            texts = tokenizer.batch_decode(prompt_ids)
            return [tokenizer.encode(policy(text), add_special_tokens=False) for text in texts], None

    if spec is not None:
        of_spec = ("train_dataset", "environment_factory", "reward_funcs")
        slots = {name: getattr(spec, name) for name in of_spec if name not in slots} | slots
    return Scripted(
        model=model or build_model(tokenizer, seed=0),
        processing_class=processor,
        args=grpo_config(str(folder), **configuration),
        **slots,
    )
