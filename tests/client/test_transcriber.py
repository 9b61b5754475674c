"""What an environment sends is in the record as it was sent, and a stranger's images have a bound there."""

import pytest

from ors_client import ImageBlock, Message, TextBlock, ToolResultBlock, UnknownBlock
from ors_client.record import Transcriber, told

PICTURE = ImageBlock(data="aGk=", mimeType="image/png")
SIZE = len("image" + "aGk=" + "image/png")
WRITTEN = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
LEFT_OUT = {"type": "text", "text": "[1 image left out: image/png]"}


def user(*blocks):
    return Message(role="user", blocks=list(blocks))


@pytest.mark.parametrize("blocks", [[], [TextBlock(text="hello")]])
def test_what_is_one_text_needs_no_blocks(blocks):
    assert Transcriber().blocks(blocks) is None
    assert Transcriber().messages([user(*blocks)]) is None


def test_conversation_is_kept_turn_by_turn():
    opening = [Message(role="system", blocks=[TextBlock(text="Be brief.")]), user(TextBlock(text="See:"), PICTURE)]
    assert Transcriber().messages(opening) == [
        {"role": "system", "blocks": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "blocks": [{"type": "text", "text": "See:"}, WRITTEN]},
    ]
    assert told(opening) == "Be brief.\n\nSee:\n[1 image]"


def test_blocks_that_are_not_understood_are_kept_as_they_came():
    raw = {"type": "sound", "wave": "aGk="}
    assert Transcriber(images=False).blocks([UnknownBlock(type="sound", raw=raw)]) == [raw]


def test_image_that_finds_no_room_is_told_in_its_place_wherever_it_stands():
    transcriber = Transcriber(room=2 * SIZE)
    result = ToolResultBlock(tool_call_id="1", blocks=[PICTURE, TextBlock(text="between"), PICTURE])
    assert transcriber.messages([user(PICTURE)]) == [{"role": "user", "blocks": [WRITTEN]}]
    (kept,) = transcriber.blocks([result])
    assert kept["blocks"] == [WRITTEN, {"type": "text", "text": "between"}, LEFT_OUT]
    assert transcriber.blocks([PICTURE, TextBlock(text="x")]) == [LEFT_OUT, {"type": "text", "text": "x"}]


def test_no_image_is_kept_where_none_is_wanted():
    assert Transcriber(images=False).blocks([PICTURE]) == [LEFT_OUT]


def test_type_that_is_an_essay_is_shortened():
    (kept,) = Transcriber(images=False).blocks([ImageBlock(data="", mimeType="x" * 1000)])
    assert len(kept["text"]) < 100
