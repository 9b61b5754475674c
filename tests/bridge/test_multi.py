"""Several environments in one run: whose rows there are, whose tools a rollout sees, and whose metrics are whose."""

import pickle
import re
from collections import Counter

import pytest
from servers import serve
from training import END, IGNORED, call, from_trl, make_trainer

from ors_client import Task
from ors_client.record import read
from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec
from trl_bridge._multi import _dataset
from trl_bridge._spec import Rows

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def nowhere():
    """Two specs that nobody asks anything."""
    return {"echo": OpenRewardSpec(NOWHERE), "paint": OpenRewardSpec(NOWHERE)}


@pytest.fixture
def make_multi(make_spec, ours):
    """Make a spec of several environments of our server, by name."""

    def make(*names, weights=None, seed=0, **settings):
        specs = {name: make_spec(ours.url, env_name=f"{name}environment", **settings) for name in names}
        return MultiEnvironmentSpec(specs, weights=weights, seed=seed)

    return make


def dataset_rows(dataset):
    return list(zip(dataset["environment"], dataset["task_index"], strict=True))


# --- What it refuses


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"echo": 1, "pant": 1}, "'pant'.*'echo', 'paint'"),
        ({"echo": 1}, "leaves out 'paint'"),
        ({"echo": 1, "paint": 0}, "'paint'.*not 0"),
        ({"echo": -1, "paint": 1}, "'echo'.*not -1"),
        ({"echo": 1, "paint": float("nan")}, "'paint'.*nan"),
        ({"echo": 1, "paint": True}, "'paint'.*True"),
    ],
)
def test_weights_that_do_not_match_the_environments_are_refused(nowhere, weights, said):
    with pytest.raises(ValueError, match=said):
        MultiEnvironmentSpec(nowhere, weights=weights)


@pytest.mark.parametrize(
    ("names", "said"), [(("a b", "a-b"), "'a b' and 'a-b'"), (("Echo", "echo"), "'Echo' and 'echo'"), (("",), "''")]
)
def test_names_that_metrics_can_not_tell_apart_are_refused(names, said):
    with pytest.raises(ValueError, match=said):
        MultiEnvironmentSpec({name: OpenRewardSpec(NOWHERE) for name in names})


def test_one_spec_under_two_names_is_refused():
    spec = OpenRewardSpec(NOWHERE)
    with pytest.raises(ValueError, match="'a' and 'b' are the same spec"):
        MultiEnvironmentSpec({"a": spec, "b": spec})


def test_no_specs_and_other_things_than_specs_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        MultiEnvironmentSpec({})
    with pytest.raises(TypeError, match=r"'echo'.*http"):
        MultiEnvironmentSpec({"echo": NOWHERE})


def test_specs_of_which_only_some_own_their_reward_are_refused(nowhere):
    with pytest.raises(ValueError, match="holds for 'own' and not for 'echo', 'paint'"):
        MultiEnvironmentSpec({**nowhere, "own": OpenRewardSpec(NOWHERE, owns_reward=True)})


def test_trouble_with_one_environment_names_it(make_multi):
    multi = make_multi("echo", "images")
    with pytest.raises(ValueError, match="'nosuch'") as raised:
        multi.dataset({"echo": "train", "images": "nosuch"})
    assert "'images'" in raised.value.__notes__[0]
    with pytest.raises(ValueError, match=r"'image'.*'echo', 'images'"):
        multi.dataset({"image": "train"})


# --- The dataset


def test_dataset_has_every_task_of_every_environment_once_and_mixed(make_multi):
    rows = dataset_rows(make_multi("echo", "images").train_dataset)
    assert sorted(rows) == [*(("echo", index) for index in range(4)), *(("images", index) for index in range(3))]
    assert rows != sorted(rows)


def test_dataset_is_the_same_for_the_same_seed_only(make_multi):
    weights = {"echo": 3, "images": 1}
    one, same, other = (
        dataset_rows(make_multi("echo", "images", weights=weights, seed=s).train_dataset) for s in (1, 1, 2)
    )
    assert one == same != other


def test_weights_whose_sum_is_no_number_are_shares_as_well(make_multi):
    rows = dataset_rows(make_multi("echo", "images", weights={"echo": 1.5e308, "images": 1.5e308}).train_dataset)
    assert set(Counter(name for name, _ in rows).values()) <= {len(rows) // 2, (len(rows) + 1) // 2}


def test_weights_are_the_shares_of_the_rows(make_multi):
    rows = dataset_rows(make_multi("echo", "images", weights={"echo": 2, "images": 5}).train_dataset)
    assert Counter(name for name, _ in rows) == {"echo": 2, "images": 5}
    assert {index for name, index in rows if name == "images"} == {0, 1, 2}  # repeated evenly, none left out
    assert len({index for name, index in rows if name == "echo"}) == 2


def test_smallest_share_is_still_a_row(make_multi):
    rows = dataset_rows(make_multi("echo", "images", weights={"echo": 1000, "images": 1}).train_dataset)
    assert Counter(name for name, _ in rows) == {"echo": 6, "images": 1}


def test_columns_of_one_environment_are_none_for_the_others(make_multi):
    dataset = make_multi("echo", "images").train_dataset
    for row in dataset:
        assert (row["target"] is None) == (row["environment"] == "images")
        assert (row["colour"] is None) == (row["environment"] == "echo")


def test_columns_on_whose_type_environments_disagree_are_json_text():
    def rows(*specs, include_metadata=True):
        tasks = [Task(environment="e", spec=spec, split="train", index=index) for index, spec in enumerate(specs)]
        return Rows(tasks, None, include_metadata=include_metadata)

    specs = {"a": rows({"answer": 4, "topic": "sums"}), "b": rows({"answer": ["x", "y"]}, {"answer": ["4"]})}
    dataset = _dataset(specs, [("a", 0), ("b", 0), ("b", 1)])
    assert dataset["answer"][:] == ["4", '["x", "y"]', '["4"]']
    assert dataset["topic"][:] == ["sums", None, None]


def test_environment_without_metadata_has_no_columns(make_spec, ours):
    specs = {
        "echo": make_spec(ours.url, env_name="echoenvironment"),
        "images": make_spec(ours.url, env_name="imagesenvironment", include_metadata=False),
    }
    dataset = MultiEnvironmentSpec(specs).train_dataset
    assert set(dataset.column_names) == {"prompt", "task_index", "split", "environment", "id", "target"}


def test_evaluation_dataset_has_all_tasks_of_the_splits_in_order(make_spec, ours):
    specs = {name: make_spec(ours.url, env_name=name, num_tasks=1) for name in ("alpha", "beta")}
    multi = MultiEnvironmentSpec(specs, weights={"alpha": 9, "beta": 1})
    dataset = multi.dataset("train")
    assert dataset_rows(dataset) == [("alpha", 0), ("beta", 0)]
    mixed = multi.dataset({"beta": "train", "alpha": "test"})
    assert dataset_rows(mixed) == [("beta", 0), ("alpha", 0)]
    assert mixed["split"][:] == ["train", "test"]
    assert dataset_rows(multi.dataset({"alpha": "test"})) == [("alpha", 0)]


def test_prompts_stand_in_the_rows_of_the_environments_that_ask_for_it(make_spec, ours):
    specs = {
        "echo": make_spec(ours.url, env_name="echoenvironment", prompts="dataset"),
        "images": make_spec(ours.url, env_name="imagesenvironment"),
    }
    for row in MultiEnvironmentSpec(specs).train_dataset:
        assert (row["prompt"][0]["content"] == "") == (row["environment"] == "images")


def test_configuration_whose_batch_the_rows_do_not_fill_is_refused(make_multi, tmp_path):
    configuration = from_trl("GRPOConfig")
    quiet = {"use_cpu": True, "bf16": False, "activation_checkpointing": False, "num_generations": 2}
    multi = make_multi("echo", "images")
    multi.check(configuration(str(tmp_path), per_device_train_batch_size=14, **quiet))
    with pytest.raises(ValueError, match="7 tasks, but a batch has 8"):
        multi.check(configuration(str(tmp_path), per_device_train_batch_size=16, **quiet))


# --- The factories


def test_factories_cross_process_boundaries_and_keep_their_tools(make_multi):
    factories = make_multi("echo", "images").environment_factory
    again = pickle.loads(pickle.dumps(factories))  # noqa: S301 - our own
    assert type(again["echo"]()) is type(factories["echo"]())
    assert hasattr(type(again["echo"]()), "echo")
    assert not hasattr(type(again["images"]()), "echo")


def test_owned_rewards_are_logged_under_different_names(make_multi):
    factories = make_multi("echo", "images", owns_reward=True).environment_factory
    assert {type(factory()).__name__ for factory in factories.values()} == {
        "OpenRewardEnvironment_echo",
        "OpenRewardEnvironment_images",
    }


def test_spec_that_owns_its_reward_has_no_reward_function(make_multi):
    with pytest.raises(ValueError, match="reward_funcs=None"):
        _ = make_multi("echo", "images", owns_reward=True).reward_funcs


def test_closing_deletes_the_sessions_of_all_environments(make_multi, ours, eventually):
    before = set(ours.live())
    with make_multi("echo", "images") as multi:
        for factory in multi.environment_factory.values():
            factory().reset(task_index=0)
    eventually(lambda: set(ours.live()) <= before)


# --- A run


def act(seen):
    """Make a policy that does what each prompt asks for, once, and notes which tools it was shown where."""

    def policy(text):
        tools = frozenset(re.findall(r'"name": "(\w+)"', text.partition("<tools>\n")[2].partition("</tools>")[0]))
        if "<tool_response>" in text:
            return "Done." + END
        if word := re.search(r"text='(\w+)' to win", text):
            seen["echo"].add(tools)
            return call("echo", text=word[1]) + END
        seen["failing"].add(tools)
        # The other environment's tool is not this one's, whatever the model may have learned there.
        return call("echo", text="hello") + call("finish", reward=0.25) + END

    return policy


@pytest.mark.slow
def test_trainer_runs_two_servers_with_disjoint_tools_at_once(openreward, tmp_path, eventually):
    seen = {"echo": set(), "failing": set()}
    with (
        serve("ours", "--env", "failing") as ours,
        MultiEnvironmentSpec(
            {
                "echo": OpenRewardSpec(openreward.url, env_name="echoenvironment", record=tmp_path / "echo"),
                "failing": OpenRewardSpec(
                    ours.url, indices=[0, 0, 0, 0], discover_task_tools=False, record=tmp_path / "failing"
                ),
            }
        ) as multi,
    ):
        trainer = make_trainer(
            tmp_path,
            policy=act(seen),
            rollouts=8,
            train_dataset=multi.train_dataset,
            environment_factory=multi.environment_factory,
            reward_funcs=multi.reward_funcs,
        )
        multi.attach(trainer)
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "reward" in entry]
        eventually(lambda: ours.live() == [])
    episodes = {name: list(read(tmp_path / name)) for name in ("echo", "failing")}
    assert len(steps) == 2
    assert seen["echo"] == {frozenset({"echo"})}
    assert len(seen["failing"]) == 1
    assert "echo" not in next(iter(seen["failing"]))
    # All tasks in one epoch: four words, and four times the same sound task.
    assert {name: len(each) for name, each in episodes.items()} == {"echo": 8, "failing": 8}
    assert {episode.reward for episode in episodes["echo"]} == {1.0}
    assert {episode.reward for episode in episodes["failing"]} == {0.25}
    assert {call.tool for episode in episodes["failing"] for call in episode.calls} == {"finish"}
    for name, reward in (("echo", 1.0), ("failing", 0.25)):
        logged = [step for step in steps if f"environments/{name}/reward" in step]
        assert logged
        assert {step[f"environments/{name}/reward"] for step in logged} == {reward}
        assert {step[f"environments/{name}/calls"] for step in logged} == {1.0}
        assert {step[f"environments/{name}/finished"] for step in logged} == {1.0}
