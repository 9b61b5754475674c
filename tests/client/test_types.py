"""Readers are tolerant: a newer, older or hand-written server never costs a caller what it did send."""

import base64
import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from ors_client._types import (
    Block,
    GroupCandidate,
    GroupScore,
    ImageBlock,
    Message,
    ReasoningBlock,
    ResponseChars,
    Split,
    Task,
    TaskDifficulty,
    TaskRef,
    TerminalToolSpec,
    TextBlock,
    ToolCallBlock,
    ToolList,
    ToolOutput,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
)

BLOCK = TypeAdapter(Block)

# The least that each model can be read from, and the optional fields with the values that they then take.
LEAST = {
    TextBlock: ({"text": "a"}, {"detail": None}),
    ImageBlock: ({"data": "AA==", "mimeType": "image/png"}, {"detail": None}),
    ReasoningBlock: ({"text": "a"}, {"signature": None, "detail": None}),
    ToolCallBlock: ({"id": "1", "name": "echo"}, {"input": {}, "detail": None}),
    ToolResultBlock: ({"tool_call_id": "1"}, {"blocks": [], "is_error": False, "detail": None}),
    Message: ({"role": "user"}, {"blocks": [], "detail": None}),
    ToolOutput: ({}, {"blocks": [], "metadata": None, "reward": None, "finished": False}),
    ToolSpec: ({"name": "echo"}, {"description": "", "input_schema": None}),
    TerminalToolSpec: ({"name": "submit"}, {"arg": None, "description": ""}),
    ToolList: (
        {},
        {
            "tools": [],
            "terminal_tool": None,
            "supports_score_group": False,
            "message_block_types": ["text", "image"],
        },
    ),
    Split: ({"name": "train"}, {"type": ""}),
    Task: ({"environment": "echo", "spec": {}}, {"split": None, "index": None}),
    GroupCandidate: ({"messages": []}, {"metadata": None}),
    GroupScore: ({}, {"reward": None, "metadata": None}),
    ResponseChars: ({}, dict.fromkeys(["mean", "p1", "p10", "p25", "p50", "p75", "p90", "p99"])),
    TaskDifficulty: (
        {"task_index": 3},
        {
            "avg_reward": None,
            "min_reward": None,
            "max_reward": None,
            "num_rollouts": 0,
            "response_chars": None,
            "split": None,
            "variant": None,
        },
    ),
}
OPTIONAL = [(model, field) for model, (_, defaults) in LEAST.items() for field in defaults]


@pytest.mark.parametrize(("model", "field"), OPTIONAL)
def test_missing_optional_field_takes_its_default(model, field):
    least, defaults = LEAST[model]
    assert getattr(model.model_validate(least), field) == defaults[field]


@pytest.mark.parametrize(("model", "field"), OPTIONAL)
def test_null_means_missing(model, field):
    least, defaults = LEAST[model]
    assert getattr(model.model_validate({**least, field: None}), field) == defaults[field]


def test_table_of_optional_fields_is_complete():
    optional = {
        (model, name) for model in LEAST for name, field in model.model_fields.items() if not field.is_required()
    }
    assert {pair for pair in optional if pair[1] != "type" or pair[0] is Split} == set(OPTIONAL)


@pytest.mark.parametrize("model", LEAST)
def test_unknown_field_is_ignored(model):
    least, _ = LEAST[model]
    assert model.model_validate({**least, "since_next_year": {"x": [1]}}) == model.model_validate(least)


@pytest.mark.parametrize("model", LEAST)
def test_value_is_frozen_and_travels_in_pickles_and_copies(model):
    value = model.model_validate(LEAST[model][0])
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
    assert copy.deepcopy(value) == value
    with pytest.raises(ValidationError):
        setattr(value, next(iter(model.model_fields)), "changed")


# blocks


@pytest.mark.parametrize(
    ("raw", "block"),
    [
        ({"type": "text", "text": " a\n"}, TextBlock(text=" a\n")),
        ({"type": "text", "text": "a", "detail": {"k": 1}}, TextBlock(text="a", detail={"k": 1})),
        ({"type": "image", "data": "AA==", "mimeType": "image/png"}, ImageBlock(data="AA==", mime_type="image/png")),
        ({"type": "reasoning", "text": "a", "signature": "s"}, ReasoningBlock(text="a", signature="s")),
        (
            {"type": "tool_call", "id": "1", "name": "n", "input": {"a": 1}},
            ToolCallBlock(id="1", name="n", input={"a": 1}),
        ),
        (
            {"type": "tool_result", "tool_call_id": "1", "blocks": [{"type": "text", "text": "a"}], "is_error": True},
            ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="a")], is_error=True),
        ),
    ],
)
def test_block_of_a_known_type_is_read_as_it(raw, block):
    read = BLOCK.validate_python(raw)
    assert type(read) is type(block)
    assert read == block


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"type": "video", "url": "x", "n": [1, None]}, "video"),
        ({"type": "text"}, "text"),
        ({"type": "text", "text": None}, "text"),
        ({"type": "text", "text": 5}, "text"),
        ({"type": "image", "data": "AA=="}, "image"),
        ({"type": "tool_result"}, "tool_result"),
        ({"type": "reasoning", "text": "a", "signature": [1]}, "reasoning"),
        ({"type": "tool_call", "id": "1", "name": "n", "input": "{}"}, "tool_call"),
        ({"type": "tool_result", "tool_call_id": "1", "is_error": "perhaps"}, "tool_result"),
        ({"type": 7}, "7"),
        ({"type": None, "text": "a"}, "unknown"),
        ({"text": "a"}, "unknown"),
        ({}, "unknown"),
        ("just text", "unknown"),
        (None, "unknown"),
        ([1, 2], "unknown"),
    ],
)
def test_block_of_an_unknown_shape_is_kept_whole(raw, kind):
    assert BLOCK.validate_python(raw) == UnknownBlock(type=kind, raw=raw)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KNOWN = st.sampled_from(["text", "image", "reasoning", "tool_call", "tool_result"])
KEYS = ["text", "data", "mimeType", "signature", "id", "name", "input", "tool_call_id", "blocks", "is_error", "detail"]


@given(JSON)
def test_any_json_in_place_of_a_block_leaves_its_neighbours(raw):
    output = ToolOutput.model_validate({"blocks": [{"type": "text", "text": "a"}, raw, {"type": "text", "text": "b"}]})
    assert len(output.blocks) == 3
    assert (output.blocks[0], output.blocks[2]) == (TextBlock(text="a"), TextBlock(text="b"))


@given(
    kind=KNOWN,
    fields=st.dictionaries(st.sampled_from(KEYS), st.text(max_size=3) | JSON, min_size=3),
)
def test_malformed_field_of_a_known_block_never_costs_the_whole_output(kind, fields):
    output = ToolOutput.model_validate({"blocks": [{"type": kind, **fields}], "reward": 1, "finished": True})
    assert (len(output.blocks), output.reward, output.finished) == (1, 1.0, True)


def test_blocks_keep_their_order_with_unknown_ones_in_place():
    raw = [{"type": "text", "text": "a"}, {"type": "video"}, {"type": "image", "data": "", "mimeType": "image/png"}]
    blocks = ToolOutput.model_validate({"blocks": raw}).blocks
    assert [block.type for block in blocks] == ["text", "video", "image"]


def test_blocks_made_by_a_caller_are_taken_as_they_are():
    blocks = [TextBlock(text="a"), UnknownBlock(type="video", raw={"type": "video"}), ToolResultBlock(tool_call_id="1")]
    assert Message(role="user", blocks=blocks).blocks == blocks


@given(st.text())
def test_text_arrives_to_the_letter(text):
    raw = json.loads(json.dumps({"blocks": [{"type": "text", "text": text}]}))
    assert ToolOutput.model_validate(raw).text == text


def test_text_of_an_output_joins_its_text_blocks_by_newlines():
    raw = [{"type": "text", "text": "a"}, {"type": "video"}, {"type": "text", "text": "b"}]
    assert ToolOutput.model_validate({"blocks": raw}).text == "a\nb"
    assert Message.model_validate({"role": "user", "blocks": raw}).text == "a\nb"


@given(st.binary())
def test_image_s_bytes_arrive_identical(content):
    encoded = base64.b64encode(content).decode()
    output = ToolOutput.model_validate({"blocks": [{"type": "image", "data": encoded, "mimeType": "image/png"}]})
    (image,) = output.images
    assert (image.data, image.mime_type, image.decode()) == (encoded, "image/png", content)


def test_image_that_is_no_base64_is_kept_and_refused_only_when_decoded():
    (image,) = ToolOutput.model_validate(
        {"blocks": [{"type": "image", "data": "no base64!", "mimeType": "image/png"}]}
    ).images
    with pytest.raises(ValueError, match="image/png"):
        image.decode()


# results


@pytest.mark.parametrize(
    ("raw", "reward"),
    [(None, None), (0, 0.0), (1, 1.0), (0.3, 0.3), (-1, -1.0), ("0.5", 0.5), (True, 1.0), (False, 0.0)],
)
@pytest.mark.parametrize("model", [ToolOutput, GroupScore])
def test_reward_of_any_spelling_is_a_float_and_null_never_zero(model, raw, reward):
    read = model.model_validate({"reward": raw}).reward
    assert read == reward
    assert read is None or type(read) is float


@pytest.mark.parametrize("raw", [math.nan, math.inf, -math.inf, "nan", "inf", "-Infinity", "NaN"])
def test_reward_that_is_not_finite_is_none(raw):
    assert ToolOutput.model_validate({"reward": raw}).reward is None


@pytest.mark.parametrize("raw", [[1, 2], "text", 5])
def test_metadata_that_is_no_object_is_kept_under_a_name(raw):
    assert ToolOutput.model_validate({"metadata": raw}).metadata == {"value": raw}


def test_result_with_all_that_a_newer_server_adds_is_read():
    raw = {"blocks": [{"type": "text", "text": "a", "annotations": []}], "reward": 1, "trace_id": "x", "usage": {}}
    output = ToolOutput.model_validate(raw)
    assert (output.text, output.reward, output.finished, output.metadata) == ("a", 1.0, False, None)


# splits, tools, tasks


@pytest.mark.parametrize("kind", ["train", "validation", "test", "held_out"])
def test_split_of_any_type_is_kept(kind):
    assert Split.model_validate({"name": "x", "type": kind}).type == kind


def test_tool_s_schema_is_kept_word_for_word():
    schema = {"type": "object", "properties": {"x-y": {"anyOf": [{"type": "null"}, {"enum": [1, "a"]}]}}, "$defs": {}}
    assert ToolSpec.model_validate({"name": "t", "input_schema": schema}).input_schema == schema


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_task_s_spec_is_kept_word_for_word(spec):
    assert Task(environment="echo", spec=spec).spec == spec


@pytest.mark.parametrize(("split", "index"), [("train", 0), ("train", -1), ("x y", 10**6)])
def test_task_ref_holds_a_place(split, index):
    ref = TaskRef(split, index)
    assert (ref.split, ref.index) == (split, index)
    assert hash(ref) == hash(TaskRef(split, index))


@pytest.mark.parametrize(
    ("split", "index"), [("", 0), (None, 0), (5, 0), ("train", "0"), ("train", 1.0), ("train", True)]
)
def test_task_ref_of_a_wrong_type_is_refused(split, index):
    with pytest.raises(TypeError, match="TaskRef"):
        TaskRef(split, index)


@pytest.mark.parametrize("mode", ["python", "json"])
def test_unknown_block_is_written_as_it_came_however_deep(mode):
    raw = {"type": "video", "url": None, "parts": [{"type": "frame"}]}
    result = ToolResultBlock(tool_call_id="1", blocks=[BLOCK.validate_python(each) for each in (raw, "bare")])
    candidate = GroupCandidate(messages=[Message(role="tool", blocks=[result])])
    written = candidate.model_dump(mode=mode, by_alias=True, exclude_none=True)
    assert written["messages"][0]["blocks"][0]["blocks"] == [raw, {"type": "unknown", "raw": "bare"}]


def test_repr_of_what_holds_an_image_leaves_its_data_out():
    output = ToolOutput(blocks=[ImageBlock(data="QUJD" * 1000, mime_type="image/png")], reward=1.0)
    assert len(repr(output)) < 200
    assert "image/png" in repr(output)
    assert output.images[0].decode() == b"ABC" * 1000
