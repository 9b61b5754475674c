"""What is made of records: rows that TRL's offline trainers take, and that render to what the model saw."""

import pytest
from training import IGNORED, call, make_trainer

from ors_client import ToolSpec
from ors_client.record import CallRecord, EpisodeRecord, RecordWriter, RunRecord, ToolsRecord
from trl_bridge import OpenRewardSpec, kto_dataset, preference_dataset, sft_dataset, tasks_between

ECHO = ToolSpec(name="echo", description="Say.", input_schema={"type": "object", "properties": {"text": {}}})
STOP = ToolSpec(name="full.stop", input_schema=None)
TOOLS = ToolsRecord(tools=[ECHO, STOP], names={"full.stop": "full_stop"})
PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def text(value):
    return {"type": "text", "text": value}


def episode(index=0, reward=1.0, *, attempt=0, said="Done.", seen=None, **fields):
    arguments = {"text": "a", "more": {"n": None}} if index else {"other": [1]}
    messages = [
        {"role": "user", "blocks": [text(f"Task {index}.")]},
        {
            "role": "assistant",
            "blocks": [
                {"type": "reasoning", "text": "Hm."},
                {"type": "tool_call", "id": "c1", "name": "echo", "input": arguments},
                {"type": "tool_call", "id": "c2", "name": "full.stop", "input": {}},
            ],
        },
        {
            "role": "user",
            "blocks": [
                {"type": "tool_result", "tool_call_id": "c1", "blocks": [seen or text("yes")]},
                {"type": "tool_result", "tool_call_id": "c2", "blocks": [text("broke")], "is_error": True},
            ],
        },
        {"role": "assistant", "blocks": [text(said)]},
    ]
    about = {
        "environment": "e",
        "split": "train",
        "index": index,
        "attempt": attempt,
        "model": "m",
        "prompt": f"Task {index}.",
        "calls": [CallRecord(tool="echo", arguments=arguments, reward=reward)],
        "reward": reward,
        "status": "scored",
        "messages": messages,
        "opening": 1,
        "run": RunRecord(model="m"),
        "tools": TOOLS,
    }
    return EpisodeRecord(**about | fields)


@pytest.fixture
def record(tmp_path):
    def write(*episodes):
        writer = RecordWriter(tmp_path / "episodes.jsonl")
        for each in episodes:
            writer.append(each)
        return tmp_path / "episodes.jsonl"

    return write


# --- Rows


def test_row_for_sft_is_the_conversation_as_the_model_saw_it(record):
    (row,) = sft_dataset(record(episode(1)))
    user, asked, result, error, last = row["messages"]
    assert user == {"role": "user", "content": "Task 1."}
    assert asked["reasoning_content"] == "Hm."
    functions = [made["function"] for made in asked["tool_calls"]]
    assert functions == [
        {"name": "echo", "arguments": {"text": "a", "more": {"n": None}}},
        {"name": "full_stop", "arguments": {}},
    ]
    assert (result["role"], result["name"], result["content"]) == ("tool", "echo", "yes")
    assert (error["name"], error["content"]) == ("full_stop", "[error]\nbroke")
    assert last == {"role": "assistant", "content": "Done."}
    assert [tool["function"]["name"] for tool in row["tools"]] == ["echo", "full_stop"]
    assert row["tools"][0]["function"]["parameters"] == ECHO.input_schema


def test_differing_arguments_gain_no_none(record):
    arguments = [
        row["messages"][1]["tool_calls"][0]["function"]["arguments"]
        for row in sft_dataset(record(episode(0), episode(1)))
    ]
    assert arguments == [{"other": [1]}, {"text": "a", "more": {"n": None}}]


def said(rows):
    return [row["messages"][-1]["content"] for row in rows]


def test_sft_takes_the_solved_episodes_the_best_of_each_task_in_the_records_order(record):
    path = record(
        *(episode(0, reward, said=f"0 {reward}", attempt=number) for number, reward in enumerate((1.0, 3.0, 2.0))),
        episode(1, 1.0, said="1 1.0"),
        episode(1, 0.5, said="1 0.5", attempt=1),
    )
    assert said(sft_dataset(path)) == ["0 1.0", "0 3.0", "0 2.0", "1 1.0"]
    assert said(sft_dataset(path, per_task=2)) == ["0 3.0", "0 2.0", "1 1.0"]
    assert said(sft_dataset(path, min_reward=0.5, per_task=1)) == ["0 3.0", "1 1.0"]


def test_what_must_not_be_learnt_from_is_left_out_and_counted(record):
    v1 = EpisodeRecord(v=1, prompt="Task.", calls=[CallRecord(tool="echo")], reward=1.0, status="scored")
    path = record(
        episode(0, None, status="failed: SessionLost"),
        episode(0, 1.0, status="cut: turns", said="cut"),
        episode(0, None, status="unscored"),
        episode(0, 0.0),
        v1,
    )
    with pytest.raises(ValueError, match="Left out: ") as caught:
        sft_dataset(path)
    for reason in ("1 failed", "1 cut", "1 not scored", "1 with a reward below 1", "1 without the model's words"):
        assert reason in str(caught.value)
    dataset = sft_dataset(path, drop_cut=False)
    assert said(dataset) == ["cut"]
    assert "left out: 1 failed" in dataset.info.description.splitlines()


def test_preferences_pair_the_best_attempt_at_a_task_with_the_worst(record):
    path = record(
        *(episode(0, reward, said=str(reward), attempt=n) for n, reward in enumerate((0.2, 1.0, 0.0, 0.4, 0.9))),
        episode(1, 1.0),
        episode(2, 1.0),
        episode(2, 0.6, attempt=1),
        episode(3, 1.0, status="failed: OutcomeUnknown"),
        episode(3, 0.0, attempt=1),
    )
    rows = list(preference_dataset(path))
    assert [(row["chosen"][-1]["content"], row["rejected"][-1]["content"]) for row in rows] == [
        ("1.0", "0.0"),
        ("0.9", "0.2"),
    ]
    assert all(row["prompt"] == [{"role": "user", "content": "Task 0."}] for row in rows)
    assert rows[0]["tools"][0]["function"]["name"] == "echo"
    assert len(preference_dataset(path, per_task=1)) == 1
    assert len(preference_dataset(path, min_gap=0.4)) == 3


def test_attempts_with_other_prompts_are_no_pair(record):
    other = [{"role": "user", "blocks": [text("Another.")]}]
    pair = episode(0, 1.0), episode(0, 0.0, attempt=1, shown=other)
    with pytest.raises(ValueError, match="2 without a partner"):
        preference_dataset(record(*pair))


def test_labels_for_kto_are_rewards_of_at_least_the_bound(record):
    path = record(episode(0, 1.0), episode(0, 0.5, attempt=1), episode(1, 0.0))
    assert kto_dataset(path)["label"] == [True, False, False]
    assert kto_dataset(path, min_reward=0.5)["label"] == [True, True, False]
    assert kto_dataset(path)[0]["completion"][-1] == {"role": "assistant", "content": "Done."}


@pytest.mark.parametrize("make", [sft_dataset, preference_dataset, kto_dataset])
def test_images_are_refused_with_their_count_or_become_texts(record, make):
    path = record(episode(0, 1.0, seen=PICTURE), episode(0, 0.0, attempt=1))
    with pytest.raises(ValueError, match=r"1 episode has images, .*--images text"):
        make(path)
    assert "[1 image left out: image/png]" in str(list(make(path, images="text")))


# --- Tasks


def test_tasks_between_two_pass_rates_are_found_both_ends_included(record):
    rewards = {0: (0, 0, 0, 0), 1: (1, 0, 0, 0), 2: (1, 1, 0, 0), 3: (1, 1, 1, 1), 4: (1, None)}
    episodes = [
        episode(index, reward, attempt=attempt, status="scored" if reward is not None else "failed: SessionLost")
        for index, given in rewards.items()
        for attempt, reward in enumerate(given)
    ]
    path = record(*episodes)
    assert tasks_between(path, 0.25, 0.5) == [1, 2]
    assert tasks_between(path, 0.0, 1.0, min_attempts=4) == [0, 1, 2, 3]
    assert tasks_between(path, 1.0, 1.0) == [3, 4]


def test_spec_takes_the_tasks_of_a_file(make_spec, ours, tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text('{"environment": "echoenvironment", "split": "train", "tasks": [{"index": 2}, {"index": 0}]}')
    assert make_spec(ours.url, env_name="echoenvironment", indices=path).train_dataset["task_index"] == [2, 0]
    with pytest.raises(ValueError, match="of the split 'train', not of 'test'"):
        make_spec(ours.url, env_name="echoenvironment", indices=str(path), split="test")


# --- Trainers


@pytest.fixture(scope="module")
def played(ours, tmp_path_factory):
    """A record of a training in which half of the rollouts of each task are right, its trainer, and its tokens."""
    folder = tmp_path_factory.mktemp("played")
    turns = []

    def policy(prompt):
        if "\n<tool_response>" in prompt:
            return "Done.<|im_end|>"
        turns.append(prompt)
        return "I say it.\n" + call("echo", text="hello" if len(turns) % 2 else "no") + "<|im_end|>"

    tokens = []
    with OpenRewardSpec(ours.url, env_name="echoenvironment", indices=[0], record=folder / "record") as spec:

        def keep(completion_ids, prompts, **_):
            tokens.extend(completion_ids)
            return [0.0] * len(prompts)

        trainer = make_trainer(
            folder,
            policy=policy,
            generations=4,
            arguments={"max_steps": 1},
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=[spec.reward_funcs, keep],
        )
        spec.attach(trainer)
        trainer.train()
    return folder, trainer, tokens


OFFLINE = {
    "SFT": (sft_dataset, {"assistant_only_loss": True}),
    "DPO": (preference_dataset, {}),
    "KTO": (kto_dataset, {}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OFFLINE)
def test_trainer_runs_an_epoch_on_the_rows_of_a_record(played, kind, tmp_path):
    import trl

    folder, before, _ = played
    make, options = OFFLINE[kind]
    model, tokenizer = before.model, before.processing_class
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = getattr(trl, f"{kind}Config")(
        output_dir=str(tmp_path / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        max_length=1024,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        **options,
    )
    trainer = getattr(trl, f"{kind}Trainer")(
        str(tmp_path / "model"), args=config, train_dataset=make(folder / "record"), processing_class=tokenizer
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses
    assert all(float(loss) > 0 for loss in losses)


@pytest.mark.slow
@pytest.mark.filterwarnings(*IGNORED)
def test_rendered_rows_are_the_tokens_of_the_rollouts(played):
    folder, trainer, tokens = played
    tokenizer = trainer.processing_class
    rendered = []
    for row in kto_dataset(folder / "record"):
        options = {"tools": row["tools"], "chat_template": trainer.chat_template, "enable_thinking": False}
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False, **options)
        whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=False, **options)
        assert whole.startswith(prompt)
        rendered.append(tokenizer.encode(whole.removeprefix(prompt).removesuffix("\n"), add_special_tokens=False))
    assert sorted(rendered) == sorted(list(ids) for ids in tokens)
