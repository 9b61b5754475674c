"""Files that name tasks: what `ors profile` writes, a plain list, and what is neither."""

import json

import pytest

from ors_client._shared.task_file import read_task_file


@pytest.fixture
def write(tmp_path):
    def write(held):
        path = tmp_path / "tasks.json"
        path.write_text(held if isinstance(held, str) else json.dumps(held))
        return path

    return write


def test_list_of_indices_keeps_its_order_and_names_each_once(write):
    file = read_task_file(write([5, 0, 5, 3]))
    assert (file.indices, file.environment, file.split) == ([5, 0, 3], None, None)


def test_profile_names_its_environment_and_split(write):
    tasks = [{"index": 3, "attempts": 4, "passed": 2, "rate": 0.5}, {"index": 1, "attempts": 4, "passed": 1}]
    file = read_task_file(
        write({"environment": "echo", "split": "train", "model": "m", "pass_at": 1.0, "tasks": tasks})
    )
    assert (file.indices, file.environment, file.split) == ([3, 1], "echo", "train")
    file.require(environment="Echo", split="train")
    with pytest.raises(ValueError, match="environment 'echo', not of 'chat'"):
        file.require(environment="chat")
    with pytest.raises(ValueError, match="split 'train', not of 'test'"):
        file.require(environment="echo", split="test")
    with pytest.raises(ValueError, match="split 'train', not of 'Train'"):
        file.require(split="Train")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("no json", "no file of tasks"),
        ("[" * 100_000, "no file of tasks"),
        ({"indices": [1]}, "no file of tasks"),
        ("3", "no file of tasks"),
        ([1, "2"], "'2' names no task"),
        ([-1], "'-1' names no task"),
        ([True], "'True' names no task"),
        ({"tasks": [{"rate": 0.5}]}, "names no task by its index"),
        ([], "names no task."),
    ],
)
def test_file_that_names_no_tasks_is_refused_with_what_it_should_hold(write, held, said):
    with pytest.raises(ValueError, match=said) as caught:
        read_task_file(write(held))
    assert "tasks.json" in str(caught.value)
