"""What becomes of blocks on their way to a model."""

import base64
import io
import re
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ors_client import ImageBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolOutput, ToolResultBlock, UnknownBlock
from trl_bridge._chat.content import to_content


def image(size=(4, 3), color="red", *, mode="RGB", encoding="PNG"):
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, encoding)
    return ImageBlock(data=base64.b64encode(buffer.getvalue()).decode(), mime_type=f"image/{encoding.lower()}")


def text(value):
    return TextBlock(text=value)


def test_text_blocks_become_one_string():
    content = to_content([text("a"), text("b  c\n")], images=True, max_chars=None)
    assert content.value == "a\nb  c\n"
    assert content.shown == content.value


@pytest.mark.parametrize("blocks", [[], [text("")], [text(""), text("")]])
def test_empty_output_says_so(blocks):
    assert to_content(blocks, images=False, max_chars=None).value == "(no output)"


def test_empty_prompt_may_stay_empty():
    assert to_content([], images=False, max_chars=None, empty="").value == ""


def test_images_for_a_text_model_become_one_marker_in_their_place():
    blocks = [text("before"), image(), image(), image(encoding="JPEG"), text("after")]
    content = to_content(blocks, images=False, max_chars=None)
    assert content.value == "before\n[3 images left out: 2 image/png, 1 image/jpeg]\nafter"


def test_output_of_one_image_for_a_text_model_is_its_marker():
    assert to_content([image()], images=False, max_chars=None).value == "[1 image left out: image/png]"


def test_images_for_a_vision_model_are_decoded_in_their_place():
    content = to_content([text("a"), text("b"), image((5, 7)), text("c")], images=True, max_chars=None)
    assert [part["type"] for part in content.value] == ["text", "image", "text"]
    assert [part.get("text") for part in content.value] == ["a\nb", None, "c"]
    picture = content.value[1]["image"]
    assert (picture.size, picture.mode, picture.getpixel((0, 0))) == ((5, 7), "RGB", (255, 0, 0))


def test_transparent_image_lands_on_white():
    content = to_content([image(color=(0, 0, 0, 0), mode="RGBA")], images=True, max_chars=None)
    assert content.value[0]["image"].getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "data",
    [
        "not base64!",
        base64.b64encode(b"not an image").decode(),
        base64.b64encode(base64.b64decode(image((64, 64)).data)[:60]).decode(),
        image(encoding="TIFF").data,
        "",
    ],
    ids=["base64", "noise", "truncated", "unusual format", "empty"],
)
def test_unreadable_image_becomes_a_marker(data):
    content = to_content([ImageBlock(data=data, mime_type="image/png")], images=True, max_chars=None)
    assert content.value == "[1 image could not be read: image/png]"


@given(position=st.integers(0, 10_000), value=st.integers(0, 255), encoding=st.sampled_from(["PNG", "JPEG", "GIF"]))
def test_damaged_image_never_raises(position, value, encoding):
    data = bytearray(base64.b64decode(image((9, 9), encoding=encoding).data))
    data[position % len(data)] = value
    block = ImageBlock(data=base64.b64encode(data).decode(), mime_type="image/png")
    assert to_content([block], images=True, max_chars=None).value


def test_images_beyond_pillows_limit_together_are_not_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)  # Pillow's documented setting; its default takes gigabytes
    content = to_content([image((20, 20)), image((20, 20)), image((20, 20))], images=True, max_chars=None)
    assert [part["type"] for part in content.value] == ["image", "image", "text"]
    assert content.value[2]["text"] == "[1 image could not be read: image/png]"


@pytest.mark.parametrize("side", [10_000, 60_000])  # Pillow warns of the first and refuses the second
def test_decompression_bomb_becomes_a_marker(side):
    header = struct.pack(">4sIIBBBBB", b"IHDR", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    bomb = ImageBlock(data=base64.b64encode(data).decode(), mime_type="image/png")
    assert to_content([bomb], images=True, max_chars=None).value == "[1 image could not be read: image/png]"


def test_unknown_block_becomes_a_marker_that_names_its_type():
    block = ToolOutput.model_validate({"blocks": [{"type": "audio", "data": "x"}]}).blocks[0]
    assert isinstance(block, UnknownBlock)
    assert to_content([block], images=True, max_chars=None).value == "[block of type 'audio' left out]"


def test_blocks_of_conversations_are_written_out():
    blocks = [
        ReasoningBlock(text="hmm"),
        ToolCallBlock(id="1", name="look", input={"at": "é"}),
        ToolResultBlock(tool_call_id="1", blocks=[text("seen"), ToolResultBlock(tool_call_id="2", blocks=[image()])]),
    ]
    value = to_content(blocks, images=False, max_chars=None).value
    assert value == 'hmm\n[call of look with {"at": "é"}]\nseen\n[1 image left out: image/png]'


def test_long_text_is_cut_in_the_middle_and_says_by_how_much():
    full = "".join(chr(ord("a") + n % 26) for n in range(1_000_000))
    content = to_content([text(full)], images=False, max_chars=8_000)
    cut = re.search(r"\n\[\.\.\. ([\d,]+) of 1,000,000 characters cut \.\.\.\]\n", content.value)
    assert len(content.value) <= 8_000
    assert len(content.value) > 7_990
    head, tail = content.value[: cut.start()], content.value[cut.end() :]
    assert full.startswith(head)
    assert full.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert int(cut[1].replace(",", "")) == len(full) - len(head) - len(tail)


def test_text_of_exactly_the_limit_is_left_alone():
    content = to_content([text("x" * 100)], images=False, max_chars=100)
    assert content.value == "x" * 100


@given(
    parts=st.lists(st.one_of(st.text(max_size=200), st.none()), max_size=6),
    max_chars=st.integers(0, 300),
)
def test_text_and_marker_never_exceed_the_limit_and_images_survive(parts, max_chars):
    blocks = [image((1, 1)) if part is None else text(part) for part in parts]
    content = to_content(blocks, images=True, max_chars=max_chars, empty="")
    value = content.value if isinstance(content.value, list) else [{"type": "text", "text": content.value}]
    assert content.shown == "".join(part["text"] for part in value if part["type"] == "text")
    assert len(content.shown) <= max_chars or not "".join(filter(None, parts)).strip("\n")
    assert sum(part["type"] == "image" for part in value) == parts.count(None)


def test_cut_may_span_images():
    blocks = [text("a" * 50), image(), text("b" * 100), image(), text("c" * 50)]
    content = to_content(blocks, images=True, max_chars=100)
    assert [part["type"] for part in content.value] == ["text", "image", "image", "text"]
    assert content.value[0]["text"].startswith("a")
    assert content.value[-1]["text"] == "c" * len(content.value[-1]["text"])
    shown = "".join(part.get("text", "") for part in content.value)
    assert len(shown) <= 100
    assert shown.count("characters cut") == 1


def test_lone_surrogates_reach_no_tokenizer():
    content = to_content([text("a\ud83db")], images=False, max_chars=None)
    assert content.value == r"a\ud83db"
