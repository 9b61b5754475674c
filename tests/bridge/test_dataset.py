"""What tasks look like as rows."""

import json
import math

import datasets
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ors_client import Task
from trl_bridge._datasets.tasks import RESERVED_COLUMNS, build, column_names, fingerprint

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None), max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
KEYS = st.one_of(
    st.sampled_from([*sorted(RESERVED_COLUMNS), "_type", "a.b", "", "task_prompt", "id", "level"]),
    st.text(st.characters(codec=None), max_size=6),
)


def tasks(*specs):
    return [Task(environment="env", spec=spec, split="train", index=index) for index, spec in enumerate(specs)]


def dataset(*specs):
    return build(tasks(*specs), split="train", include_metadata=True)


def same(left, right):
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def as_floats(value):
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    return float(value) if isinstance(value, int) else value


def test_row_holds_an_empty_user_turn_and_its_place():
    rows = build(tasks({"a": 1}, {"a": 2})[::-1], split="test", include_metadata=False)
    assert rows.column_names == ["prompt", "task_index", "split"]
    assert rows[0] == {"prompt": [{"role": "user", "content": ""}], "task_index": 1, "split": "test"}
    assert rows.features["task_index"] == datasets.Value("int64")


@given(specs=st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=5))
@example(specs=[{"level": 2**70}, {"level": 1}])
@example(specs=[{"level": [None, []]}, {"level": []}])
@example(specs=[{"level": [1, None]}, {"level": None}, {}])
@example(specs=[{"level": [{}]}, {"level": {}}])
@example(specs=[{"_type": {"_type": "Value"}}, {"_type": "Value"}])
@example(specs=[{"\ud800": "\ud800"}, {"\\ud800": 1}])
def test_any_mixture_of_specs_makes_a_dataset_that_keeps_every_value(specs):
    rows = dataset(*specs)
    assert rows.num_rows == len(specs)
    names = column_names(key for spec in specs for key in spec)
    for row, spec in zip(rows, specs, strict=True):
        assert row["prompt"] == [{"role": "user", "content": ""}]
        for key, name in names.items():
            value = spec.get(key)
            if same(row[name], value) or ("float64" in repr(rows.features[name]) and same(row[name], as_floats(value))):
                continue
            assert rows.features[name] == datasets.Value("string")
            assert same(json.loads(row[name]), value)


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([True, None], datasets.Value("bool")),
        ([1, -(2**63)], datasets.Value("int64")),
        ([1, 0.5], datasets.Value("float64")),
        (["a", "é"], datasets.Value("string")),
        ([["a"], [], [None]], datasets.List(datasets.Value("string"))),
        ([[1, 2], [3]], datasets.List(datasets.Value("int64"))),
        ([None, None], datasets.Value("null")),
    ],
)
def test_column_of_one_type_keeps_it(values, feature):
    rows = dataset(*({"x": value} for value in values))
    assert rows.features["x"] == feature
    assert rows["x"][:] == values


@pytest.mark.parametrize(
    "values",
    [
        [1, "1"],
        [[1], 1],
        [{"a": 1}, "x"],
        [True, 1],
        [2**70, 1],
        [0.5, 2**60 + 1],
        [{}, {}],
        [{"a": 1}, {"b": "x"}],
        [[{"a": 1}], [{"b": 2}]],
        [[1], ["a"]],
        [[[1]], [["a"]]],
        [{"a": 1}, {"a": 0.5}],
        [{"_type": "Value"}],
    ],
)
def test_column_that_arrow_would_change_is_json_text(values):
    rows = dataset(*({"x": value} for value in values))
    assert rows.features["x"] == datasets.Value("string")
    read = [json.loads(value) for value in rows["x"]]
    assert [(type(value), value) for value in read] == [(type(value), value) for value in values]


def test_missing_key_is_none():
    rows = dataset({"x": 1, "y": {"a": 1}}, {}, {"y": None})
    assert rows["x"][:] == [1, None, None]
    assert rows["y"][:] == [{"a": 1}, None, None]


def test_nan_stays_nan_beside_none():
    first, second = dataset({"x": math.nan}, {"x": None})["x"]
    assert math.isnan(first)
    assert second is None


@pytest.mark.parametrize("key", ["prompt", "prompts", "image", "environment", "task_spec", "self", "task_index"])
def test_reserved_key_becomes_a_column_with_a_prefix(key):
    rows = dataset({key: "hijack"})
    assert rows[0][f"task_{key}"] == "hijack"
    assert rows[0]["prompt"] == [{"role": "user", "content": ""}]
    assert rows[0]["task_index"] == 0
    assert set(rows.column_names) == {"prompt", "task_index", "split", f"task_{key}"}


def test_renamed_key_gives_way_to_the_one_of_that_name():
    rows = dataset({"prompt": "a", "task_prompt": "b", "": "c"})
    assert rows[0]["task_prompt"] == "b"
    assert rows[0]["task_prompt_2"] == "a"
    assert rows[0]["task_"] == "c"


def test_environment_is_a_column_when_named():
    rows = build(tasks({"environment": "of the task"}), split="train", include_metadata=True, environment="echo")
    assert rows[0]["environment"] == "echo"
    assert rows[0]["task_environment"] == "of the task"


def test_prompts_given_stand_in_the_rows():
    rows = build(tasks({}, {}), split="train", include_metadata=False, prompts=["one", [{"type": "text", "text": "2"}]])
    assert rows["prompt"][:] == [[{"role": "user", "content": "one"}], [{"role": "user", "content": "2"}]]


def test_conversations_given_come_back_without_padding():
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    talk = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "user", "content": "u"},
    ]
    rows = build(tasks({}), split="train", include_metadata=False, prompts=[talk])
    assert rows[0]["prompt"] == talk


def test_prompts_with_lone_surrogates_are_spelt_out():
    prompts = ["\ud800", [{"role": "system", "content": "s"}, {"role": "user", "content": "\ud800"}]]
    rows = build(tasks({}, {}), split="train", include_metadata=False, prompts=prompts)
    assert [row[-1]["content"] for row in rows["prompt"]] == [r"\ud800", r"\ud800"]


def test_prompts_must_match_the_tasks():
    with pytest.raises(ValueError, match="1 prompts for 2 tasks"):
        build(tasks({}, {}), split="train", include_metadata=False, prompts=["one"])


def test_prompt_with_an_image_is_refused():
    with pytest.raises(ValueError, match="reset"):
        build(tasks({}), split="train", include_metadata=False, prompts=[[{"type": "image", "image": object()}]])


def test_task_without_an_index_is_an_error():
    with pytest.raises(ValueError, match="Task 0 of 1 has no index"):
        build([Task(environment="e", spec={})], split="train", include_metadata=False)


def test_no_tasks_make_an_empty_dataset_with_its_columns():
    rows = dataset()
    assert rows.num_rows == 0
    assert rows.column_names == ["prompt", "task_index", "split"]


def test_value_nested_beyond_json_does_not_raise():
    deep = []
    for _ in range(20_000):
        deep = [deep]
    rows = build(
        [Task.model_construct(environment="e", spec={"x": deep, "y": 1}, index=0)], split="s", include_metadata=True
    )
    assert (rows[0]["x"], rows[0]["y"]) == ("null", 1)


def test_five_thousand_tasks_make_a_dataset_in_memory():
    specs = [{"q": f"question {n}", "n": n, "tags": ["a", "b"], "cfg": {f"k{n % 7}": n}} for n in range(5_000)]
    rows = dataset(*specs)
    assert rows.num_rows == 5_000
    assert rows.cache_files == []
    assert json.loads(rows[4_999]["cfg"]) == {"k1": 4_999}


def test_datasets_of_equal_rows_share_what_is_derived_from_them_and_no_others_do():
    base = {"n": 1, "text": "a"}
    others = [
        dataset({"n": 1, "text": "b"}),
        dataset({"n": 1, "other": "a"}),
        dataset({"n": 1.0, "text": "a"}),
        dataset(base, base),
        build(tasks(base), split="test", include_metadata=True),
        build(tasks(base), split="train", include_metadata=True, prompts=["one"]),
        build(tasks(base), split="train", include_metadata=True, prompts=[[{"role": "user", "content": "", "x": 1}]]),
    ]
    assert dataset(base)._fingerprint == dataset(base)._fingerprint
    assert len({rows._fingerprint for rows in [dataset(base), *others]}) == len(others) + 1


def test_rows_are_mapped_as_any_dataset_is():
    rows = dataset({"n": 1}, {"n": 2}).map(lambda row: {"n": row["n"] * 10})
    assert rows["n"][:] == [10, 20]
    assert rows.features["prompt"] == dataset({"n": 1}).features["prompt"]


def test_fingerprint_tells_order_and_content_apart_but_not_key_order():
    base = tasks({"a": 1, "b": [2]}, {"a": 2})
    assert fingerprint(base) == fingerprint(tasks({"b": [2], "a": 1}, {"a": 2}))
    others = [base[::-1], base[:1], tasks({"a": 1, "b": [3]}, {"a": 2}), tasks({"a": 1, "b": [2]}, {"a": "2"}), []]
    assert len({fingerprint(other) for other in [base, *others]}) == 6


@pytest.mark.parametrize(
    "values",
    [
        [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        [[{"a": 1}, {"a": 2}], [], [{"a": 3}], None],
        [[[1, 2], []], [[3]]],
        [{"a": {"b": [{"c": True}]}}, {"a": {"b": []}}],
    ],
)
def test_nested_values_of_one_shape_are_typed_as_from_list_types_them(values):
    import datasets

    rows = dataset(*({"x": value} for value in values))
    plain = datasets.Dataset.from_list([{"x": value} for value in values])
    assert rows.features["x"] == plain.features["x"]
    assert list(rows["x"]) == list(plain["x"]) == values


@pytest.mark.parametrize(
    "values",
    [
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": "x"}],
        [[{"a": 1}, {"b": 1}]],
        [{"a": 1}, {}],
        [{"a\0": 1}],
        [[[1], ["x"]]],
        [{"a": 1}, [1]],
    ],
)
def test_nested_values_of_other_shapes_are_json_text(values):
    rows = dataset(*({"x": value} for value in values))
    assert rows.features["x"].dtype == "string"
    assert [json.loads(value) for value in rows["x"]] == values
