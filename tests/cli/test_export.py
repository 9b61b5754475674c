"""Datasets and tasks from a record, by the command: what is written, where, and what is misuse."""

import json

import pytest

from ors_client import ToolSpec
from ors_client.record import EpisodeRecord, RecordWriter, RunRecord, ToolsRecord

TOOLS = ToolsRecord(tools=[ToolSpec(name="echo")])


def episode(index, reward, attempt=0, **fields):
    messages = [
        {"role": "user", "blocks": [{"type": "text", "text": f"Task {index}."}]},
        {"role": "assistant", "blocks": [{"type": "text", "text": f"{index} {reward}"}]},
    ]
    about = {"environment": "e", "target": "http://host:1", "split": "train", "model": "m", "status": "scored"}
    told = {"messages": messages, "opening": 1, "run": RunRecord(model="m"), "tools": TOOLS}
    return EpisodeRecord(**about | told | {"index": index, "attempt": attempt, "reward": reward} | fields)


@pytest.fixture
def record(tmp_path):
    writer = RecordWriter(tmp_path / "episodes.jsonl")
    for index, rewards in enumerate(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))):
        for attempt, reward in enumerate(rewards):
            writer.append(episode(index, reward, attempt))
    writer.append(episode(0, None, 2, status="failed: SessionLost"))
    return tmp_path / "episodes.jsonl"


def rows(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    import datasets

    # With the features that the file tells: messages come back as they were.
    return list(datasets.Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache")))


EXPORTED = {
    "sft": ({"messages", "tools"}, 3),
    "dpo": ({"prompt", "chosen", "rejected", "tools"}, 1),
    "kto": ({"prompt", "completion", "label", "tools"}, 6),
}


@pytest.mark.parametrize("kind", EXPORTED)
@pytest.mark.parametrize("suffix", [None, ".jsonl"])
def test_export_writes_the_rows_of_a_trainer_by_the_names_end(ors, record, kind, suffix):
    columns, count = EXPORTED[kind]
    where = record.with_name(f"rows{suffix}") if suffix else record.with_name(f"episodes.{kind}.parquet")
    result = ors("export", record, "--to", kind, *(["-o", where] if suffix else []))
    assert result.exit_code == 0
    assert "left out: 1 failed" in result.stderr
    written = rows(where)
    assert (set(written[0]), len(written)) == (columns, count)
    messages = written[-1]["messages" if kind == "sft" else "prompt"]
    assert messages[0] == {"role": "user", "content": "Task 1." if kind == "dpo" else "Task 2."}
    assert written[0]["tools"][0]["function"]["name"] == "echo"


def test_export_of_the_record_is_a_table_of_all_episodes(ors, record):
    assert ors("export", record, "--to", "parquet").exit_code == 0
    table = rows(record.with_suffix(".parquet"))
    assert [row["status"] for row in table] == ["scored"] * 6 + ["failed: SessionLost"]
    assert json.loads(table[0]["messages"])[1]["blocks"][0]["text"] == "0 0.0"
    assert json.loads(table[0]["tools"])["tools"][0]["name"] == "echo"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_export_tells_programs_how_many_rows_it_wrote(ors, record, suffix):
    where = record.with_name(f"kto{suffix}")
    answer = json.loads(ors("export", record, "--to", "kto", "-o", where, "--json").stdout)
    assert answer == {"rows": 6, "path": str(where)}


def test_export_takes_the_bounds_that_it_is_given(ors, record):
    where = record.with_name("rows.jsonl")
    ors("export", record, "--to", "sft", "--min-reward", 0, "--per-task", 1, "-o", where)
    assert [row["messages"][-1]["content"] for row in rows(where)] == ["0 0.0", "1 1.0", "2 1.0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "sft", "-o", "rows.csv"), ".parquet or .jsonl"),
        (("--to", "parquet", "-o", "rows.jsonl"), ".parquet"),
        (("--to", "sft", "--min-reward", 2), "no episode for this. Left out:"),
        (("--to", "dpo", "--min-gap", 0), "positive number"),
    ],
)
def test_export_of_what_is_not_there_is_misuse(ors, record, options, said):
    result = ors("export", record, *options)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_profile_shows_pass_rates_and_writes_the_tasks_between(ors, record):
    where = record.with_name("tasks.json")
    result = ors("profile", record, "--between", 0.2, 0.8, "--min-attempts", 2, "-o", where)
    assert result.exit_code == 0
    assert "1 task of 3 between 0.2 and 0.8" in result.stdout
    assert json.loads(where.read_text()) == {
        "environment": "e",
        "target": "http://host:1",
        "split": "train",
        "model": "m",
        "pass_at": 1.0,
        "tasks": [{"index": 1, "attempts": 2, "passed": 1, "rate": 0.5}],
    }


def test_profile_of_several_splits_or_models_needs_one(ors, record):
    RecordWriter(record).append(episode(0, 1.0, model="other"))
    result = ors("profile", record)
    assert result.exit_code == 2
    assert "several models; name one with model= or --model: 'm', 'other'." in " ".join(result.stderr.split())
    RecordWriter(record).append(episode(0, 1.0, model=None))
    assert "'m', 'other', none, as in a training." in " ".join(ors("profile", record).stderr.split())
    assert json.loads(ors("profile", record, "--model", "other", "--json").stdout)["tasks"][0]["rate"] == 1.0


def test_profile_without_a_task_between_writes_no_file(ors, record):
    result = ors("profile", record, "--between", 0.6, 0.9, "-o", record.with_name("tasks.json"))
    assert result.exit_code == 2
    assert not record.with_name("tasks.json").exists()
