"""TRL's asynchronous trainer: rollouts in a spawned process, which takes the reward from the environments.

The trainer, its rollout process and the environments' server run for real; a policy stands behind the generation
endpoints, and two things that need a GPU have a stand-in (`cpu_kernels`).
"""

import re

import cpu_kernels
import pytest
from generation import generating
from servers import serve
from training import END, IGNORED, call

from ors_client.record import read
from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec
from trl_bridge._trainer.rewards import environment_reward

pytestmark = [
    pytest.mark.slow,  # the spawned process imports torch, transformers and trl anew
    pytest.mark.timeout(240),
    *(pytest.mark.filterwarnings(warning) for warning in IGNORED),
]


class NoTransfer:
    """Sends no weights: the policy has none."""

    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def send_weights(self, iterator):
        for _ in iterator:  # every process has to take part in gathering them
            pass

    def resume(self):
        pass

    def destroy(self):
        pass


def train(folder, spec, policy, monkeypatch, *, generations=2):
    """Train for two steps of four rollouts; return what was logged for each."""
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_rollout_worker

    from fixtures.demo._model import build_model, build_tokenizer

    cpu_kernels.install(monkeypatch)
    # Asked for by the constructor alone; what vLLM would do the generation server does.
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # for the spawned process
    tokenizer = build_tokenizer([call("echo", text="hello"), "Call the `echo` tool with text='hello' to win."], [])
    build_model(tokenizer, seed=0).save_pretrained(folder / "model")
    with generating(tokenizer, policy) as generation:
        worker = async_rollout_worker.AsyncRolloutWorker(
            model_name="policy",
            dataset=spec.train_dataset,
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            environment_factory=spec.environment_factory,
            num_generations=generations,
            max_inflight_tasks=4,
            queue_maxsize=4,  # what nobody takes out keeps the process from ending
            vllm_server_url=generation.url,
            max_tokens=200,
            chat_template_kwargs={"enable_thinking": False},
            max_tool_calling_iterations=3,
        )
        trainer = AsyncGRPOTrainer(
            model=str(folder / "model"),
            args=AsyncGRPOConfig(
                str(folder),
                max_steps=2,
                per_device_train_batch_size=4,
                num_generations=generations,
                max_inflight_tasks=4,
                token_budget=0,
                report_to="none",
                save_strategy="no",
                use_cpu=True,
                bf16=False,
                activation_checkpointing=False,
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=spec.train_dataset,
            processing_class=tokenizer,
            environment_factory=spec.environment_factory,
            reward_funcs=None,
            rollout_worker=worker,
            weight_transfer=NoTransfer(),
        )
        trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def say_the_word(text):
    """Call `echo` with a wrong word, then with the right one."""
    turn = text.count("\n<tool_response>")
    if turn == 2:
        return "Done." + END
    word = re.findall(r"text='(\w+)' to win", text)[-1]
    return call("echo", text=word if turn else "wrong") + END


def test_asynchronous_trainer_takes_the_rewards_of_environments_in_another_process(tmp_path, monkeypatch, eventually):
    with (
        serve("openreward", "--env", "echo") as server,
        OpenRewardSpec(server.url, owns_reward=True, record=tmp_path / "record") as spec,
    ):
        steps = train(tmp_path, spec, say_the_word, monkeypatch)
        tasks = spec._tasks
        eventually(lambda: server.live() == [], seconds=30)
    episodes = list(read(tmp_path / "record"))  # whole once the spec is closed
    assert [step["reward"] for step in steps] == [1.0, 1.0]
    assert [step["rewards/OpenRewardEnvironment"] for step in steps] == [1.0, 1.0]
    assert [step["tools/failure_frequency"] for step in steps] == [0.0, 0.0]
    scored = [episode for episode in episodes if episode.status == "scored" and episode.reward == 1.0]
    assert len(scored) >= 8
    assert {tuple(call.reward for call in episode.calls) for episode in scored} == {(0.0, 1.0)}
    assert {episode.index for episode in scored} == {0, 1, 2, 3}
    # The process that plays them was handed no dataset.
    assert {episode.index: episode.spec for episode in scored} == {task.index: task.spec for task in tasks}


def win_or_finish(text):
    if "\n<tool_response>" in text:
        return "Done." + END
    if word := re.search(r"text='(\w+)' to win", text):
        return call("echo", text=word[1]) + END
    return call("finish", reward=0.25) + END


def test_asynchronous_trainer_runs_several_environments(tmp_path, monkeypatch, eventually):
    with (
        serve("ours", "--env", "echo,failing") as server,
        MultiEnvironmentSpec(
            {
                "echo": OpenRewardSpec(
                    server.url,
                    env_name="echoenvironment",
                    num_tasks=1,
                    owns_reward=True,
                    prompts="dataset",
                    record=tmp_path / "echo",
                ),
                "failing": OpenRewardSpec(
                    server.url,
                    env_name="failingenvironment",
                    num_tasks=1,
                    owns_reward=True,
                    unfinished_penalty=1.0,
                    record=tmp_path / "failing",
                ),
            }
        ) as spec,
    ):
        steps = train(tmp_path, spec, win_or_finish, monkeypatch)
        eventually(lambda: server.live() == [], seconds=30)
    # A step takes the samples that are there, whichever environment they are of; each is paid by its own.
    for name, reward in (("echo", 1.0), ("failing", 0.25)):
        logged = {step.get(f"rewards/OpenRewardEnvironment_{name}") for step in steps}
        assert logged <= {reward, None}  # the trainer logs None for a step without a sample of this environment
        scored = [episode for episode in read(tmp_path / name) if episode.status == "scored"]
        assert {episode.reward for episode in scored} == {reward}
    assert len(steps) == 2
    assert all(0.25 <= step["reward"] <= 1.0 for step in steps)


def test_reward_function_says_what_to_do_where_no_environments_are_handed_over():
    with pytest.raises(ValueError, match=r"owns_reward=True.*reward_funcs=None"):
        environment_reward(prompts=[], completions=[], completion_ids=[])
