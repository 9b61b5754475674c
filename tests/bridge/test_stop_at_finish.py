"""With `stop_at_finish`, the model is asked for no turn after the end of an episode, and nothing else changes."""

import json
import re
from pathlib import Path

import pytest
from ranks import run_two_ranks
from training import END, IGNORED, call, from_trl, make_trainer

from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec
from trl_bridge._rollout.environment import slot_of
from trl_bridge._trainer.attachment import attach
from trl_bridge._trainer.turns import _fields

pytestmark = [pytest.mark.timeout(240), *map(pytest.mark.filterwarnings, IGNORED)]

ROOT = Path(__file__).parents[2]
FINISH, STEP = call("finish", reward=1.0), call("step", reward=0.5)
SCRIPTS = (
    ("no call",),
    (FINISH, "Done."),
    (STEP, "Done."),
    (STEP, FINISH, "Done."),
    (FINISH, STEP, "Done."),  # it calls on: nothing hears it
    (call("finish", reward=0.25) + "\n" + STEP, "Done."),
    (STEP,),  # for ever
    (call("reject", message="long " * 120), "Done."),  # its answer does not fit
)
"""What each rollout says, turn by turn; the last goes on for ever."""
OVER = (1, 3, 4, 5)
"""Those whose episode ends."""
ALL_OVER = ((FINISH, "Done."),) * 8


def follow(scripts):
    def policy(text):
        number = int(re.search(r"#(\d+) ", text)[1])
        script = scripts[number % len(scripts)]
        return script[min(text.count("<|im_start|>assistant") - 1, len(script) - 1)] + END

    return policy


def rows(count=8):
    return [{"prompt": [{"role": "user", "content": f"#{number} "}], "task_index": 0} for number in range(count)]


def watch_turns(trainer):
    """Note how many rows each turn of the model is asked for."""
    generate, asked = trainer._generate_single_turn, []

    def watched(prompt_ids, *args, **kwargs):
        asked.append(len(prompt_ids))
        return generate(prompt_ids, *args, **kwargs)

    trainer._generate_single_turn = watched
    return asked


def make(folder, spec, scripts=SCRIPTS, *, trainer=None, **arguments):
    return make_trainer(
        folder,
        spec,
        policy=follow(scripts),
        trainer=trainer,
        rollouts=8,
        generations=4,
        arguments={"max_completion_length": 500, **arguments},
        train_dataset=spec.dataset("train", indices=[0] * 8),
    )


def failing(url, **options):
    return OpenRewardSpec(url, env_name="failingenvironment", task_tools_discovery_index=0, **options)


def run(folder, url, scripts=SCRIPTS, *, stop, vllm=False, **arguments):
    """Run one batch; return what can be told apart afterwards."""
    with failing(url, stop_at_finish=stop) as spec:
        trainer = make(folder, spec, scripts, **arguments)
        requests = use_vllm(trainer) if vllm else []
        spec.attach(trainer)
        asked = watch_turns(trainer)
        trainer.model.train()
        scored = trainer._generate_and_score_completions(rows())
        used = [int(mask.sum()) for mask in scored["completion_mask"]]
        return {
            "asked": asked,
            "requests": requests,
            "calls": [[c.arguments for c in slot_of(each).log.calls] for each in trainer.environments],
            "rewards": [each.reward for each in trainer.environments],
            "advantages": scored["advantages"].tolist(),
            "ids": [row[:length].tolist() for row, length in zip(scored["completion_ids"], used, strict=True)],
            "mask": [row[:length].tolist() for row, length in zip(scored["tool_mask"], used, strict=True)],
            "logprobs": scored.get("sampling_per_token_logps"),
            "messages": list(trainer._logs["completion"]),
            "metrics": {name: values[-1] for name, values in trainer._metrics["train"].items()},
            "end": trainer._tokenizer.eos_token_id,
        }


def use_vllm(trainer):
    """Have a trainer ask an engine that says what its policy says, and note the rows of each request."""
    said, requests = trainer._generate_single_turn, []
    generate = from_trl("GRPOTrainer")._generate_single_turn

    class Engine:
        def generate(self, prompts, images, num_generations, **_):
            requests.append(len(prompts))
            turns, _ = said(prompts, images, {}, num_generations)
            return prompts, turns, [[[-1.0] for _ in turn] for turn in turns], None

    trainer.use_vllm, trainer.vllm_mode, trainer.vllm_generation = True, "server", Engine()
    trainer._last_loaded_step = trainer.state.global_step
    trainer.vllm_importance_sampling_correction = False
    trainer._generate_single_turn = lambda *args, **kwargs: generate(trainer, *args, **kwargs)
    return requests


@pytest.mark.parametrize("vllm", [False, True])
def test_only_the_turns_after_the_end_are_missing(ours, tmp_path, vllm):
    plain = run(tmp_path / "plain", ours.url, stop=False, vllm=vllm)
    stopped = run(tmp_path / "stopped", ours.url, stop=True, vllm=vllm)
    assert plain["asked"] == [8, 6, 3, 1, 1]
    assert stopped["asked"] == [8, 3, 1, 1, 1]
    assert stopped["requests"] == (stopped["asked"] if vllm else [])
    for same in ("calls", "rewards", "advantages"):
        assert stopped[same] == plain[same], same
    for rollout in range(len(SCRIPTS)):
        ids, mask, messages = (stopped[what][rollout] for what in ("ids", "mask", "messages"))
        if rollout not in OVER:
            assert (ids, mask, messages) == tuple(plain[what][rollout] for what in ("ids", "mask", "messages"))
            continue
        until = len(ids) - 1
        assert ids == [*plain["ids"][rollout][:until], stopped["end"]]
        assert mask == [*plain["mask"][rollout][:until], 0]
        assert plain["mask"][rollout][until] == 1  # there the turn began that nobody reads
        assert messages == plain["messages"][rollout][: len(messages)]
        assert messages[-1]["role"] == "tool"
        if vllm:
            weights = stopped["logprobs"][rollout].tolist()[: len(ids)]
            assert weights == [-1.0 if counts else 0.0 for counts in mask]
    metrics = stopped["metrics"]
    assert metrics["completions/clipped_ratio"] == 0.0
    assert metrics["completions/mean_length"] == sum(map(sum, stopped["mask"])) / len(SCRIPTS)
    assert metrics["completions/mean_length"] < plain["metrics"]["completions/mean_length"]


def test_batch_that_is_all_over_asks_for_nothing_more(ours, tmp_path):
    stopped = run(tmp_path, ours.url, ALL_OVER, stop=True, vllm=True, mask_truncated_completions=True)
    assert stopped["requests"] == [8]
    assert stopped["rewards"] == [1.0] * 8
    assert [ids[-1] for ids in stopped["ids"]] == [stopped["end"]] * 8
    assert all(sum(mask) > 0 for mask in stopped["mask"])  # they were not masked as truncated


def test_completion_that_is_full_ends_within_its_length(ours, tmp_path):
    plain = run(tmp_path / "plain", ours.url, ALL_OVER, stop=True)
    full = len(plain["ids"][0]) - 1  # the call and its result, which is no shorter than what was cut before
    stopped = run(tmp_path / "full", ours.url, ALL_OVER, stop=True, max_completion_length=full)
    assert {len(ids) for ids in stopped["ids"]} == {full}
    assert [ids[-1] for ids in stopped["ids"]] == [stopped["end"]] * 8
    assert {mask[-1] for mask in stopped["mask"]} == {0}
    assert stopped["metrics"]["completions/clipped_ratio"] == 0.0


def test_step_of_training_stops_the_rollouts_of_those_environments_that_want_it(ours, tmp_path):
    with (
        failing(ours.url, indices=[0] * 4, stop_at_finish=True) as stops,
        failing(ours.url, indices=[0] * 4) as goes_on,
    ):
        spec = MultiEnvironmentSpec({"stops": stops, "goes_on": goes_on})
        trainer = make_trainer(
            tmp_path,
            spec,
            policy=lambda text: ("Done." if "<tool_response>" in text else FINISH) + END,
            rollouts=8,
            arguments={"max_steps": 1},
        )
        spec.attach(trainer)
        trainer.train()
        ended = {
            (slot_of(environment).stops, completion[-1]["role"])
            for environment, completion in zip(trainer.environments, trainer._logs["completion"], strict=True)
        }
    assert ended == {(True, "tool"), (False, "assistant")}
    assert "loss" in trainer.state.log_history[0]


# --- Images


def vision_batch(folder, spec, policy):
    """Run a batch of two rollouts for red and two for green; return what the model was shown in each turn."""
    from vision import build_processor, build_vision_model

    processor = build_processor([call("look"), call("paint", red=255, green=0, blue=0), "Paint this colour."])
    trainer = make_trainer(
        folder,
        spec,
        policy=policy,
        model=build_vision_model(processor),
        processor=processor,
        arguments={"chat_template_kwargs": {}, "generation_kwargs": {"max_new_tokens": 2}},
    )
    spec.attach(trainer)
    said, generate, shown = trainer._generate_single_turn, from_trl("GRPOTrainer")._generate_single_turn, []

    def generate_too(prompt_ids, images, fields, num_generations, **named):
        # The model really generates, from the very pixels; what it says is thrown away.
        generate(trainer, prompt_ids, images, fields, num_generations, **named)
        shown.append(([len(each or ()) for each in images], len(fields["image_grid_thw"])))
        return said(prompt_ids, images, fields, num_generations)

    trainer._generate_single_turn = generate_too
    trainer.model.train()
    prompt = [{"role": "user", "content": ""}]
    scored = trainer._generate_and_score_completions([{"prompt": prompt, "task_index": i} for i in (0, 0, 1, 1)])
    assert scored["pixel_values"].shape[0] == sum(grid.prod() for grid in scored["image_grid_thw"])
    return shown, scored["num_images"]


@pytest.mark.slow
def test_vision_model_goes_on_with_the_images_of_those_that_go_on(ours, tmp_path):
    def paint_red_then_look(text):
        turns = text.count("<tool_response>")
        return (call("paint", red=255, green=0, blue=0), call("look"), "Done.")[min(turns, 2)] + END

    with OpenRewardSpec(ours.url, env_name="imagesenvironment", images=True, stop_at_finish=True) as spec:
        shown, images = vision_batch(tmp_path, spec, paint_red_then_look)
    # Red wins where red was asked for; the others look once more, and stop.
    assert shown == [([1] * 4, 4), ([2, 2], 4), ([3, 3], 6)]
    assert images == [2, 2, 3, 3]


def test_fields_of_prompts_images_are_those_of_the_rows_that_go_on():
    """TRL 1.16 with transformers 5.24 fails on these before it asks for a turn; with others it hands them on."""
    import torch

    images = [["a"], ["b", "c"], [], ["d"]]
    fields = {
        "pixel_values": torch.arange(4.0).repeat_interleave(torch.tensor([4, 2, 2, 8])).unsqueeze(1),
        "image_grid_thw": torch.tensor([[1, 2, 2], [1, 1, 2], [1, 1, 2], [1, 2, 4]]),
        "mm_token_type_ids": [[0, 1], [1, 1], [0, 0], [1, 0]],
    }
    chosen = _fields(None, fields, images, [1, 3], has_tool_images=False)
    assert chosen["pixel_values"].flatten().tolist() == [1.0, 1.0, 2.0, 2.0, *[3.0] * 8]
    assert chosen["image_grid_thw"].tolist() == [[1, 1, 2], [1, 1, 2], [1, 2, 4]]
    assert chosen["mm_token_type_ids"] == [[1, 1], [1, 0]]
    assert _fields(None, fields, images, [2], has_tool_images=False) == {"mm_token_type_ids": [[0, 0]]}


# --- Trainers that are not known, or not attached


def test_trainer_of_another_kind_goes_on_as_before_with_a_warning(ours, tmp_path, caplog):
    with failing(ours.url, stop_at_finish=True) as spec:
        trainer = make(tmp_path, spec, ALL_OVER)
        del trainer.eos_token_ids
        spec.attach(trainer)
        trainer.eos_token_ids = [trainer._tokenizer.eos_token_id]
        asked = watch_turns(trainer)
        trainer._generate_and_score_completions(rows())
    assert asked == [8, 8]
    assert [record.getMessage() for record in caplog.records if record.name.startswith("trl_bridge")] == [
        "Scripted has no eos_token_ids as trl 1.16 has it; stop_at_finish has no effect."
    ]


def test_trainer_that_asks_for_other_turns_is_left_alone_with_a_warning(ours, tmp_path, caplog):
    class Once(from_trl("GRPOTrainer")):
        def _tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, logprobs, *rest):
            self._generate_single_turn(prompt_ids, None, {}, 1, has_tool_images=False)  # of its own accord
            return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, logprobs, *rest)

    with failing(ours.url, stop_at_finish=True) as spec:
        trainer = make(tmp_path, spec, ALL_OVER, trainer=Once)
        spec.attach(trainer)
        asked = watch_turns(trainer)
        trainer._generate_and_score_completions(rows())
    assert asked == [8, 8, 8]
    assert "Scripted asks for other turns than trl 1.16; stop_at_finish has no effect." in caplog.messages


class Unknown:
    """A trainer of some other release."""

    environment_factories = None


def test_unknown_trainer_is_told_of_both_effects(caplog):
    attach(Unknown(), stop_at_finish=True)
    assert caplog.records[0].getMessage().endswith("stay one after the other, and stop_at_finish has no effect.")


def test_first_batch_of_a_trainer_that_nobody_attached_is_as_before_and_a_warning_says_so(ours, tmp_path, caplog):
    with failing(ours.url, stop_at_finish=True) as spec:
        trainer = make(tmp_path, spec, ALL_OVER)
        asked = watch_turns(trainer)
        for _ in range(2):
            trainer._generate_and_score_completions(rows())
    assert asked == [8, 8, 8]
    told = [record.getMessage() for record in caplog.records if "stop_at_finish" in record.getMessage()]
    assert len(told) == 1
    assert "spec.attach(trainer)" in told[0]


# --- Several ranks


@pytest.fixture(scope="module")
def two_ranks(ours, tmp_path_factory):
    """The folder in which both ranks wrote what they saw, with an engine of each rank's own and with a shared one."""
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks("two_ranks_stop.py", ours.url, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["each", "shared"])
def test_ranks_whose_rollouts_end_at_different_times_get_their_own_turns(two_ranks, engine):
    first, second = (json.loads((two_ranks / f"seen-{engine}-{rank}").read_text()) for rank in (0, 1))
    # All of the first rank's end at once; of the second rank's, one goes on for two turns and one for three.
    assert first["calls"] == [1, 1, 1, 1]
    assert second["calls"] == [1, 1, 2, 3]
    assert [said[-1] for said in second["said"]] == ["tool", "tool", "assistant: said 2", "assistant: said 3"]
    assert [said[-1] for said in first["said"]] == ["tool"] * 4
    if engine == "each":
        assert (first["asked"], second["asked"]) == ([4], [4, 2, 2, 1])
    else:  # equal parts of what is left, and then of nothing
        assert first["asked"] == second["asked"] == [4, 1, 1, 1]
    for seen in (first, second):
        assert seen["metrics"]["completions/clipped_ratio"] == 0.0
        assert seen["ends"] == [[seen["end"], mask] for mask in ([0, 0, 0, 0] if seen is first else [0, 0, 1, 1])]
