"""Records of several machines as one: whose episodes it holds, and what is told of overlaps and holes."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import model_server

from ors_client import TaskRef
from ors_client.evaluation._shard import attempts_of
from ors_client.record import CallRecord, EpisodeRecord, RecordWriter, RunRecord, WordsRecord, merge, read
from ors_client.record._tasks import read_ranges, task_ranges

IMAGE = {"type": "image", "data": "aW1hZ2U=", "mimeType": "image/png"}
TASKS = [TaskRef("train", index) for index in range(5)]


def settings(shard=None, *, tasks="0-4", attempts=2):
    noted = {"num_tasks": len(TASKS), "attempts": attempts} | ({} if shard is None else {"shard": shard})
    named = None if tasks is None else {"train": tasks}
    return RunRecord(environment="echo", model="m", noted=noted, tasks=named)


def episode(task, attempt, *, run=None, **fields):
    call = CallRecord(tool="look", output="it", blocks=[IMAGE], reward=0.25, seconds=0.5)
    played = {"reward": (task.index + attempt) / 8, "status": "scored", "seconds": 1.5, "calls": [call], **fields}
    key = {"environment": "echo", "model": "m", "split": task.split, "index": task.index, "attempt": attempt}
    return EpisodeRecord(**key, run=run, **played)


@pytest.fixture
def shards(record):
    """Write the records of the shards of ten attempts, and return their paths."""

    def write(count, **kwargs):
        return [
            record(
                f"{number}-of-{count}.jsonl",
                *(
                    episode(*attempt, run=settings(f"{number}/{count}", **kwargs))
                    for attempt in attempts_of(TASKS, 2, (number, count))
                ),
            )
            for number in range(1, count + 1)
        ]

    return write


@pytest.fixture
def merged(tmp_path):
    """Merge records in a new file, and return what that was and the episodes."""

    def result(*records):
        found = merge(records, tmp_path / "all.jsonl")
        return found, list(read(tmp_path / "all.jsonl"))

    return result


def said(result):
    return " ".join(result.output.replace("│", " ").split())


@given(st.sets(st.integers(-20, 40), min_size=1))
def test_indices_are_read_as_they_were_written_those_that_count_from_the_end_too(indices):
    found = task_ranges(("train", index) for index in indices)
    assert {index for each in read_ranges(found["train"]) for index in each} == indices


# --- Whole -----------------------------------------------------------------------------------------------------------


def without_paths(text):
    found = json.loads(text)
    return {name: value for name, value in found.items() if name not in {"record", "report"}}


def test_merged_shards_have_the_figures_of_one_run(ors, record, shards, tmp_path):
    other = record("other.jsonl", *(episode(task, 0, reward=0.5) for task in TASKS))
    whole = record("whole.jsonl", *(episode(*attempt, run=settings()) for attempt in attempts_of(TASKS, 2)))
    result = ors("merge", *shards(3), "-o", tmp_path / "all.jsonl")
    assert (result.exit_code, result.stdout.split()[:2]) == (0, ["10", "episodes"])
    assert result.stderr == ""
    figures = [without_paths(ors("report", path, "--json").stdout) for path in (whole, tmp_path / "all.jsonl")]
    assert figures[0] == figures[1]
    assert figures[0]["episodes"] == 10
    compared = [
        json.loads(ors("compare", other, path, "--json").stdout)["difference"]
        for path in (whole, tmp_path / "all.jsonl")
    ]
    assert compared[0] == compared[1]


def test_shards_that_were_played_have_the_figures_of_one_run_when_they_are_merged(ors, echo_server, tmp_path):
    def figures(record):
        found = json.loads(ors("report", tmp_path / record, "--json").stdout)
        return {name: found[name] for name in ("episodes", "scored", "mean_reward", "pass_at", "mean_reward_interval")}

    with model_server() as model:

        def run(record, *options):
            base = ("--base-url", model.url, "-n", 3, "-k", 2, "--record", tmp_path / record)
            return ors("run", echo_server.url, "--model", "right", *base, *options)

        run("whole.jsonl")
        for number in (1, 2):
            run(f"{number}.jsonl", "--shard", f"{number}/2")
        first = ors("merge", tmp_path / "1.jsonl", "-o", tmp_path / "half.jsonl")
        both = ors("merge", tmp_path / "1.jsonl", tmp_path / "2.jsonl", "-o", tmp_path / "all.jsonl")
        again = run("all.jsonl")
    assert (first.exit_code, both.exit_code) == (1, 0)
    assert "missing: 3 episodes (attempt 0 of train/1 by 'right' in 'echoenvironment'; " in said(first)
    assert "no record of shard 2/2" in said(first)
    assert figures("all.jsonl") == figures("whole.jsonl")
    assert "--shard was 1/2 or 2/2, and is left out" in said(again)
    assert "6 of 6 episodes are in" in said(again)


def test_episodes_are_merged_with_all_that_belongs_to_them_and_images_stand_once(shards, merged, tmp_path):
    records = shards(2)
    _, episodes = merged(*records)
    assert episodes == [one for record in records for one in read(record)]
    assert (tmp_path / "all.jsonl").read_text().count('"type":"image","id"') == 1


def test_merged_record_can_be_merged_again(shards, merged, tmp_path):
    one, two, three = shards(3)
    merge([one, two], tmp_path / "two.jsonl")
    found, episodes = merged(tmp_path / "two.jsonl", three)
    assert (len(episodes), found.overlaps, found.missing, found.shards) == (10, {}, [], [])


def test_records_of_version_1_and_lines_that_a_crash_left_are_read(record, merged, tmp_path):
    old = tmp_path / "old.jsonl"
    old.write_text('{"v":1,"calls":[],"split":"train","index":7,"reward":0.5,"status":"scored"}\n{"v":1,"pro')
    new = record("new.jsonl", episode(TASKS[0], 0))
    half = next(line for line in new.read_bytes().splitlines() if b'"type":"image"' in line)[:-9] + b"\n"
    torn = record("torn.jsonl", episode(TASKS[1], 0))
    torn.write_bytes(half + torn.read_bytes() + half)
    found, episodes = merged(old, new, torn)
    assert [(one.v, one.index) for one in episodes] == [(1, 7), (2, 0), (2, 1)]
    assert (found.episodes, found.missing) == (3, [])
    assert half not in (tmp_path / "all.jsonl").read_bytes()


# --- Overlaps --------------------------------------------------------------------------------------------------------


def test_attempt_in_several_records_is_taken_where_it_did_not_fail_and_else_from_the_first(ors, record, tmp_path):
    broken = {"status": "failed: SessionLost", "reward": None}
    first = record("a.jsonl", episode(TASKS[0], 0, **broken), episode(TASKS[1], 0, reward=0.1))
    second = record("b.jsonl", episode(TASKS[0], 0, reward=0.75), episode(TASKS[1], 0, reward=0.2))
    result = ors("merge", first, second, "-o", tmp_path / "all.jsonl")
    assert result.exit_code == 0
    assert {one.index: one.reward for one in read(tmp_path / "all.jsonl")} == {0: 0.75, 1: 0.1}
    told = said(result)
    assert "in several records, and taken from one: 2 episodes" in told
    assert f"attempt 0 of train/0 by 'm' in 'echo', from '{second}', not '{first}'" in told
    assert f"attempt 0 of train/1 by 'm' in 'echo', from '{first}', not '{second}'" in told


def test_attempt_that_was_made_again_keeps_its_lines_and_counts_as_it_ended_last(record, merged):
    broken = episode(TASKS[0], 0, status="failed: SessionLost", reward=None)
    first = record("a.jsonl", broken, episode(TASKS[0], 0, reward=0.5))
    second = record("b.jsonl", episode(TASKS[0], 0, reward=0.75))
    found, episodes = merged(first, second)
    assert [one.reward for one in episodes] == [None, 0.5]
    assert found.episodes == 2
    assert list(found.overlaps.values()) == [[str(first), str(second)]]


# --- Holes -----------------------------------------------------------------------------------------------------------


def test_missing_shards_and_attempts_are_told(ors, shards, tmp_path):
    one, _, three, _ = shards(4)
    result = ors("merge", three, one, "-o", tmp_path / "all.jsonl", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["episodes"], found["missing"]) == (1, 5, 5)
    assert found["missing_shards"] == ["2/4", "4/4"]
    asked = {f"attempt {number} of train/{task.index} by 'm' in 'echo'" for task, number in attempts_of(TASKS, 2)}
    held = {
        f"attempt {number} of train/{task.index} by 'm' in 'echo'"
        for shard in (1, 3)
        for task, number in attempts_of(TASKS, 2, (shard, 4))
    }
    assert set(found["missing_attempts"]) == asked - held


def test_shards_beyond_the_attempts_are_not_missed(record, merged):
    records = [
        record(f"{number}.jsonl", *(episode(*attempt, run=settings(f"{number}/12")) for attempt in attempts))
        for number in range(1, 11)
        if (attempts := attempts_of(TASKS, 2, (number, 12)))
    ]
    found, _ = merged(*records)
    assert (len(records), found.missing, found.shards) == (10, [], [])
    assert merge(records[1:], records[0].with_name("rest.jsonl")).shards == ["1/12"]


def test_attempts_that_a_run_does_not_name_are_missed_by_their_number(shards, merged):
    found, _ = merged(*shards(2, tasks=None)[:1])
    assert (found.missing, found.unnamed, found.shards) == ([], 5, ["2/2"])


@pytest.mark.parametrize(
    "claimed",
    [{"tasks": "0-999999999999"}, {"tasks": "-5-999999999999999999,7"}, {"attempts": 10**15}],
    ids=["tasks", "indices", "attempts"],
)
def test_attempts_beyond_number_that_a_record_claims_are_counted_and_not_sought(record, merged, claimed):
    run = settings("1/999999999999", **claimed)
    run.noted["num_tasks"] = 10**12
    found, episodes = merged(record("claims.jsonl", episode(TASKS[0], 0, run=run)))
    assert (len(episodes), found.missing, len(found.shards)) == (1, [], 9_999)
    assert found.unnamed > 10**11


# --- Records of a training -------------------------------------------------------------------------------------------


def test_records_of_a_training_are_joined_with_their_words_and_miss_nothing(record, merged):
    run = RunRecord(kind="training", environment="echo", noted={"num_tasks": 9, "attempts": 9})

    def rollout(identity):
        return EpisodeRecord(id=identity, environment="echo", split="train", index=0, run=run, prompt="Say it.")

    wrote = {"role": "assistant", "blocks": [{"type": "text", "text": "it"}]}
    records = []
    for rank in range(2):
        records.append(record(f"{rank}.jsonl", rollout(f"e{rank}")))
        writer = RecordWriter(records[-1])
        writer.append_words(WordsRecord(id=f"e{rank}", step=rank, completion=[wrote], reward=0.5, status="scored"))
    shutil.copy(records[0], copied := records[0].with_name("copied.jsonl"))
    found, episodes = merged(*records, copied)
    assert episodes == [one for record in records for one in read(record)]
    assert [(one.step, one.reward, one.said) for one in episodes] == [(0, 0.5, "it"), (1, 0.5, "it")]
    assert (found.missing, found.unnamed, found.shards) == ([], 0, [])
    assert found.overlaps == {"e0": [str(records[0]), str(copied)]}


# --- What can't be merged --------------------------------------------------------------------------------------------


def test_merge_writes_over_nothing_and_takes_no_record_twice(ors, record, tmp_path):
    one = record("a.jsonl", episode(TASKS[0], 0))
    before = one.read_bytes()
    over = ors("merge", one, "-o", one)
    assert (over.exit_code, one.read_bytes()) == (2, before)
    assert "is there already; name another with -o FILE" in said(over)
    twice = ors("merge", one, tmp_path / "." / "a.jsonl", "-o", tmp_path / "all.jsonl")
    assert twice.exit_code == 2
    assert "is named twice" in said(twice)
    absent = ors("merge", tmp_path / "none.jsonl", "-o", tmp_path / "all.jsonl")
    assert absent.exit_code == 2
    assert "No such file" in said(absent)
    assert not (tmp_path / "all.jsonl").exists()


def test_records_of_another_writer_whose_ids_mean_different_things_are_refused(merged, tmp_path):
    for name in ("a", "b"):
        line = {"type": "run", "id": "1", "model": name}
        played = {"type": "episode", "v": 2, "calls": [], "run": "1"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(played) + "\n")
    with pytest.raises(ValueError, match="another run with the id '1'"):
        merged(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert not (tmp_path / "all.jsonl").exists()
