"""What makes a training impossible is an error before it begins, which says what to do."""

import json

import numpy as np
import pytest
from servers import serve
from training import IGNORED, make_trainer

from ors_client import TaskRef
from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

QUIET = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}
NO_TOOL = "no tool but a terminal one.*terminal_tool=True"


@pytest.fixture(scope="module")
def public():
    with serve("ours", "--env", "public,chat") as server:
        yield server


def test_environment_with_nothing_but_a_terminal_tool_names_the_option(public, make_spec, tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig

    spec = make_spec(public.url, env_name="pictureenvironment")
    with pytest.raises(ValueError, match=NO_TOOL):
        _ = spec.train_dataset
    with pytest.raises(ValueError, match=NO_TOOL):
        spec.check(GRPOConfig(str(tmp_path), per_device_train_batch_size=2, num_generations=2, **QUIET))
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "task_index": 0}] * 2)
    trainer = make_trainer(tmp_path, spec, train_dataset=rows)
    with pytest.raises(ValueError, match=NO_TOOL):
        spec.attach(trainer)


def test_terminal_tool_is_enough_where_it_is_asked_for(public, make_spec):
    assert len(make_spec(public.url, env_name="pictureenvironment", terminal_tool=True).train_dataset) == 2
    assert len(make_spec(public.url, env_name="chatenvironment", group_scoring=True).train_dataset) == 2


@pytest.mark.parametrize(
    ("option", "named"),
    [("terminal_tool", "terminal_tool=True.*no terminal tool"), ("group_scoring", "group_scoring=True.*score groups")],
)
def test_option_that_the_environment_has_nothing_for_is_named_with_the_dataset(public, make_spec, option, named):
    spec = make_spec(public.url, env_name="quizenvironment", **{option: True})
    with pytest.raises(ValueError, match=named):
        _ = spec.train_dataset
    with pytest.raises(ValueError, match=named) as raised:
        _ = MultiEnvironmentSpec({"quiz": spec}).train_dataset
    assert "'quiz'" in raised.value.__notes__[0]


def test_images_for_a_model_without_vision_are_an_error_when_attached(ours, make_spec, tmp_path):
    spec = make_spec(ours.url, env_name="imagesenvironment", images=True)
    trainer = make_trainer(tmp_path, spec)
    for each in (spec, MultiEnvironmentSpec({"images": spec})):
        with pytest.raises(ValueError, match=r"images=True.*has no image_processor"):
            each.attach(trainer)


def test_configuration_that_strips_the_columns_is_an_error_when_checked_and_when_attached(ours, make_spec, tmp_path):
    from trl import GRPOConfig

    options = {"remove_unused_columns": True}
    spec = make_spec(ours.url, env_name="echoenvironment")
    trainer = make_trainer(tmp_path, spec, arguments=options)
    args = GRPOConfig(str(tmp_path), per_device_train_batch_size=2, num_generations=2, **options, **QUIET)
    for each in (spec, MultiEnvironmentSpec({"echo": spec})):
        with pytest.raises(ValueError, match="remove_unused_columns=False"):
            each.check(args)
        with pytest.raises(ValueError, match="remove_unused_columns=False"):
            each.attach(trainer)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("max_call", r"no parameter 'max_call'; did you mean max_calls\?"),
        ("environment_name", r"no parameter 'environment_name'; did you mean env_name\?"),
        ("zzz", r"no parameter 'zzz'\.$"),
    ],
)
def test_unknown_keyword_names_the_likely_one(given, message):
    with pytest.raises(TypeError, match=message):
        OpenRewardSpec("http://localhost:8000", **{given: 3})


@pytest.mark.parametrize("target", [None, ""])
def test_unset_target_says_that_a_variable_may_be_unset(target):
    with pytest.raises(ValueError, match=f"target is {target!r}.*may be unset"):
        OpenRewardSpec(target)


@pytest.mark.parametrize(("tasks", "batch"), [(4, 4), (4, 2), (5, 4)])
def test_check_lets_pass_what_fills_a_batch(make_spec, ours, tmp_path, tasks, batch):
    from trl import GRPOConfig

    spec = make_spec(ours.url, env_name="alpha", num_tasks=tasks)
    spec.check(GRPOConfig(str(tmp_path), per_device_train_batch_size=2 * batch, num_generations=2, **QUIET))


def test_check_names_both_numbers_when_a_batch_can_not_be_filled(make_spec, ours, tmp_path):
    from trl import GRPOConfig

    spec = make_spec(ours.url, env_name="alpha", num_tasks=3)
    args = GRPOConfig(str(tmp_path), per_device_train_batch_size=8, num_generations=2, **QUIET)
    with pytest.raises(ValueError, match=r"3 tasks.* 4 prompts"):
        spec.check(args)


def test_check_names_the_size_of_a_split_that_has_fewer_than_num_tasks(ours, make_spec, tmp_path):
    from trl import GRPOConfig

    spec = make_spec(ours.url, env_name="beta", num_tasks=99)
    args = GRPOConfig(str(tmp_path), per_device_train_batch_size=4, num_generations=2, **QUIET)
    with pytest.raises(ValueError, match="num_tasks=99, but split 'train' has 10 tasks"):
        spec.check(args)


@pytest.mark.parametrize(
    "given",
    [
        {"num_tasks": np.int64(2)},
        {"indices": np.arange(2)},
        {"indices": list(np.arange(2))},
        {"unscored": np.float32(0.5), "num_tasks": 2},
        {"record_images": np.bool_(False), "num_tasks": 2},
    ],
    ids=str,
)
def test_numbers_of_numpy_count_as_pythons(echo_server, given):
    with OpenRewardSpec(echo_server.url, **given) as spec:
        assert spec.train_dataset["task_index"] == [0, 1]
    assert json.dumps(TaskRef("train", np.int64(1)).index) == "1"


def test_tensor_of_indices_counts_as_a_list(echo_server):
    import torch

    with OpenRewardSpec(echo_server.url, indices=torch.arange(2)) as spec:
        assert spec.train_dataset["task_index"] == [0, 1]


def test_array_of_other_numbers_is_refused(echo_server):
    with pytest.raises(TypeError, match=r"^indices takes a list of integers"):
        OpenRewardSpec(echo_server.url, indices=np.linspace(0, 1, 3))
