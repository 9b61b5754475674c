"""Shards of an evaluation: which attempts each plays, and what a wrong one says."""

import re
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model_server

from ors_client import AsyncClient, TaskRef
from ors_client.evaluation import ChatModel, evaluate, make_plan
from ors_client.record import read, runs

ARRAY = {"ID": "6", "MIN": "5", "MAX": "7", "COUNT": "3"}


@pytest.fixture(scope="module")
def model():
    with model_server() as server:
        yield server


@pytest.fixture
def run(ors, echo_server, model, tmp_path, monkeypatch):
    """Run an evaluation in a folder of its own, under a job array where `array` has its numbers."""
    monkeypatch.chdir(tmp_path)

    def evaluation(*options, name="right", array=None):
        variables = {f"SLURM_ARRAY_TASK_{key}": value for key, value in (array or {}).items()}
        base = ("run", echo_server.url, "--model", name, "--base-url", model.url)
        return ors(*base, *options, env={"OPENAI_API_KEY": "sk-quite-secret", "COLUMNS": "80", **variables})

    return evaluation


def played(record):
    return {(episode.model, episode.index, episode.attempt) for episode in read(record)}


def said(result):
    return " ".join(result.output.replace("│", " ").split())


# --- Parts -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attempts(echo_server, model):
    """Return the attempts that a shard plays."""

    def plan(tasks, number, shard):
        async def work():
            async with AsyncClient(echo_server.url) as client:
                environment, player = client.environment(), ChatModel("m", model.url)
                return await make_plan(environment, tasks, player, record="no.jsonl", attempts=number, shard=shard)

        return anyio.run(work).attempts

    return plan


@settings(max_examples=30)
@given(data=st.data())
def test_shards_are_disjoint_cover_all_attempts_and_differ_in_size_by_one_at_most(attempts, data):
    refs = st.builds(TaskRef, st.sampled_from(["train", "test"]), st.integers(0, 30))
    tasks = data.draw(st.lists(refs, unique=True, max_size=12))
    number, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    parts = [attempts(tasks, number, (shard, count)) for shard in range(1, count + 1)]
    together = [attempt for part in parts for attempt in part]
    assert sorted(together, key=repr) == sorted(attempts(tasks, number, None), key=repr)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=30)
@given(data=st.data())
def test_shard_is_the_same_in_any_order_and_keeps_its_attempts_when_there_are_more(attempts, data):
    tasks = [TaskRef("train", index) for index in range(7)]
    mixed = data.draw(st.permutations(tasks))
    before = attempts(tasks, 2, (2, 3))
    assert set(attempts(mixed, 2, (2, 3))) == set(before)
    assert [task for task, attempt in attempts(mixed, 2, (2, 3)) if attempt == 0] == [
        task for task in mixed if (task, 0) in before
    ]
    assert set(before) <= set(attempts(tasks, 5, (2, 3)))


@pytest.mark.parametrize("shard", [(0, 8), (9, 8), (1, 0), (2,)])
def test_shard_that_does_not_exist_is_refused(attempts, shard):
    with pytest.raises(ValueError, match=r"as \(2, 8\): not " + re.escape(repr(shard))):
        attempts([TaskRef("train", 0)], 1, shard)


@pytest.mark.parametrize("number", [0, -1])
def test_evaluation_without_an_attempt_is_refused(attempts, number):
    with pytest.raises(ValueError, match=f"one attempt at least, not {number}"):
        attempts([TaskRef("train", 0)], number, None)


def test_evaluation_plays_its_shard_alone(echo_server, model, tmp_path):
    async def work():
        tasks = [TaskRef("train", index) for index in range(3)]
        async with AsyncClient(echo_server.url) as client, ChatModel("right", model.url) as player:
            return await evaluate(client.environment(), tasks, player, record=tmp_path / "a.jsonl", shard=(2, 2))

    assert anyio.run(work).episodes == 1
    assert played(tmp_path / "a.jsonl") == {("right", 1, 0)}


# --- The command -----------------------------------------------------------------------------------------------------


def test_each_shard_has_a_record_of_its_own_and_together_they_hold_all(run):
    parts = []
    for shard in ("1/2", "2/2"):
        for name in ("right", "wrong"):
            order = ("--shuffle", "7") if name == "wrong" else ()
            assert run("-k", 3, "--max-turns", 1, "--shard", shard, *order, name=name).exit_code == 0
        parts.append(played(f"episodes-{shard[0]}-of-2.jsonl"))
    one, other = parts
    assert not one & other
    assert len(one | other) == 2 * len(one)
    assert {(index, attempt) for model, index, attempt in one if model == "right"} == {
        (index, attempt) for model, index, attempt in one if model == "wrong"
    }
    assert Path("episodes-1-of-2.html").exists()


def test_shard_goes_on_where_its_record_ends_and_another_one_in_its_record_is_told(run):
    run("-n", 3, "--shard", "1/2")
    again = run("-n", 3, "--shard", "1/2", "--retry-failed")
    assert "2 of 2 episodes are in 'episodes-1-of-2.jsonl' already" in said(again)
    assert "--shard was" not in said(again)
    other = run("-n", 3, "--shard", "2/2", "--record", "episodes-1-of-2.jsonl")
    assert "--shard was 1/2, and is 2/2" in said(other)
    assert [described.noted["shard"] for described in runs("episodes-1-of-2.jsonl")] == ["1/2", "2/2"]
    assert len(list(read("episodes-1-of-2.jsonl"))) == 3


def test_shard_of_a_job_array_is_its_place_in_the_array(run):
    assert run("-n", 3, "--shard", "slurm", array=ARRAY).exit_code == 0
    assert played("episodes-2-of-3.jsonl") == {("right", 1, 0)}


@pytest.mark.parametrize("shard", ["0/8", "9/8", "x", "1/0", "-1/2", "2/8/3", ""])
def test_wrong_shard_is_named_with_how_one_is_written(run, shard):
    result = run(f"--shard={shard}")
    assert result.exit_code == 2
    assert f"the second of eight parts, or slurm: not {shard!r}" in said(result)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        ({}, "no number in SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_MIN"),
        (ARRAY | {"ID": ""}, "no number in SLURM_ARRAY_TASK_ID."),
        (ARRAY | {"MAX": "9"}, "this one has 3 tasks from 5 to 9, and this is 6"),
    ],
)
def test_shard_of_no_job_array_or_of_one_with_gaps_says_how_to_start_one(run, array, what):
    result = run("--shard", "slurm", array=array)
    assert result.exit_code == 2
    assert what in said(result)
    assert "`sbatch --array=1-" in said(result)
    assert "as --shard 2/" in said(result)
