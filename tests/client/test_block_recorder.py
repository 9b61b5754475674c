"""What an environment sends is in the record as it was sent, and a stranger's images have a bound there."""

import json

import pytest

from ors_client import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
    UnknownBlock,
)
from ors_client._shared.block_recorder import BlockRecorder, conversation_text, is_one_text

PICTURE = ImageBlock(data="aGk=", mimeType="image/png")
WRITTEN = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
LEFT_OUT = {"type": "text", "text": "[1 image left out: image/png]"}


def size(block):
    """Return how many bytes of a line a block takes."""
    return len(json.dumps(block, separators=(",", ":"), ensure_ascii=False).encode())


def received(*blocks):
    """Return blocks as they are read from a server."""
    return ToolOutput.model_validate({"blocks": list(blocks)}).blocks


def user(*blocks):
    return Message(role="user", blocks=list(blocks))


@pytest.mark.parametrize("blocks", [[], [TextBlock(text="hello")]])
def test_what_is_one_text_needs_no_blocks(blocks):
    assert BlockRecorder().blocks(blocks) is None


def test_one_text_of_the_users_is_told_from_every_other_opening():
    text = TextBlock(text="hello")
    assert is_one_text([user(text)])
    assert is_one_text([])
    assert not any(
        map(is_one_text, ([user()], [user(text, text)], [user(text)] * 2, [Message(role="system", blocks=[text])]))
    )


def test_conversation_is_kept_turn_by_turn():
    opening = [Message(role="system", blocks=[TextBlock(text="Be brief.")]), user(TextBlock(text="See:"), PICTURE)]
    assert BlockRecorder().messages(opening) == [
        {"role": "system", "blocks": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "blocks": [{"type": "text", "text": "See:"}, WRITTEN]},
    ]
    assert conversation_text(opening) == "Be brief.\n\nSee:\n[1 image]"


def test_blocks_that_are_not_understood_are_kept_as_they_came():
    raw = {"type": "sound", "wave": "aGk="}
    assert BlockRecorder(images=False).blocks([UnknownBlock(type="sound", raw=raw)]) == [raw]


@pytest.mark.parametrize("inner", [None, 5, "text", {"type": "image"}, [5]])
def test_result_that_breaks_the_rules_is_kept_as_it_came(inner):
    raw = {"type": "tool_result", "blocks": inner}
    assert BlockRecorder().blocks(received(raw)) == [raw]
    assert BlockRecorder().messages([user(*received(raw))]) == [{"role": "user", "blocks": [raw]}]


def test_result_of_another_shape_gets_no_blocks_that_it_has_not():
    raw = {"type": "tool_result", "output": "done"}
    assert BlockRecorder().blocks(received(raw)) == [raw]


def test_image_that_finds_no_room_is_told_in_its_place_wherever_it_stands():
    recorder = BlockRecorder(byte_budget=2 * size(WRITTEN) + 100)
    result = ToolResultBlock(tool_call_id="1", blocks=[PICTURE, TextBlock(text="between"), PICTURE])
    assert recorder.messages([user(PICTURE)]) == [{"role": "user", "blocks": [WRITTEN]}]
    (kept,) = recorder.blocks([result])
    assert kept["blocks"] == [WRITTEN, {"type": "text", "text": "between"}, LEFT_OUT]
    assert recorder.blocks([PICTURE, TextBlock(text="x")]) == [LEFT_OUT, {"type": "text", "text": "x"}]


@pytest.mark.parametrize(
    ("raw", "marker"),
    [
        ({"type": "sound", "wave": ["aGk="] * 20}, "[block of type 'sound' left out]"),
        ({"type": "image", "data": "aGk=" * 20}, "[block of type 'image' left out]"),
        ({"type": "image", "data": "\n" * 40, "mimeType": "image/png"}, "[1 image left out: image/png]"),
    ],
)
def test_block_of_any_type_counts_what_it_takes_in_the_line(raw, marker):
    blocks = received(raw)
    assert BlockRecorder(byte_budget=size(raw)).blocks(blocks) == [raw]
    assert BlockRecorder(byte_budget=size(raw) - 1).blocks(blocks) == [{"type": "text", "text": marker}]


def test_detail_counts_too_and_goes_first():
    detail = {"scores": ["aGk="] * 20}
    image, text = {**WRITTEN, "detail": detail}, {"type": "text", "text": "x", "detail": detail}
    for block, bare in ((image, WRITTEN), (text, {"type": "text", "text": "x"})):
        assert BlockRecorder(byte_budget=size(block)).blocks(received(block)) == [block]
        assert BlockRecorder(byte_budget=size(block) - 1).blocks(received(block)) == [bare]


def test_texts_are_kept_where_no_room_is_left():
    recorder = BlockRecorder(byte_budget=0)
    assert recorder.blocks([TextBlock(text="a"), PICTURE]) == [{"type": "text", "text": "a"}, LEFT_OUT]


def test_results_that_nest_too_deeply_for_a_line_are_message_text():
    block = TextBlock(text="x")
    for _ in range(100):
        block = ToolResultBlock(tool_call_id="1", blocks=[block])
    assert "[block of type 'tool_result' left out]" in json.dumps(BlockRecorder().blocks([block]))


def test_block_that_no_line_can_hold_is_message_text():
    deep = []
    for _ in range(1000):
        deep = [deep]
    blocks = [ToolCallBlock(id="1", name="x", input={"deep": deep}), TextBlock(text="a", detail={"deep": deep})]
    assert [block["text"] for block in BlockRecorder().blocks(blocks)] == ["[block of type 'tool_call' left out]", "a"]


def test_prompt_has_all_text_and_a_word_on_what_is_none():
    result = ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="noted"), PICTURE, PICTURE])
    call = ToolCallBlock(id="1", name="note", input={"note": "é"})
    opening = [
        Message(role="assistant", blocks=[ReasoningBlock(text="A greeting."), TextBlock(text="Hello."), call]),
        user(result, *received({"type": "sound"})),
    ]
    said, given = conversation_text(opening).split("\n\n")
    assert said == 'A greeting.\nHello.\n[call of note with {"note": "é"}]'
    assert given == "noted\n[2 images]\n[block of type 'sound' left out]"


def test_no_image_is_kept_where_none_is_wanted():
    assert BlockRecorder(images=False).blocks([PICTURE]) == [LEFT_OUT]
    broken = {"type": "image", "data": "aGk=", "mimeType": None}
    kept = [{"type": "text", "text": "[block of type 'image' left out]"}]
    assert BlockRecorder(images=False).blocks(received(broken)) == kept


def test_type_that_is_an_essay_is_shortened():
    (kept,) = BlockRecorder(images=False).blocks([ImageBlock(data="", mimeType="x" * 1000)])
    assert len(kept["text"]) < 100
