"""Images as files, and as what terminals draw."""

import base64
import re

import pytest

from ors_client import ImageBlock
from ors_client.cli.images import ImageStore, escape_sequence, image_protocol


def _image(content, mime_type="image/png"):
    return ImageBlock(data=base64.b64encode(content).decode(), mime_type=mime_type)


@pytest.mark.parametrize(
    ("environ", "how"),
    [
        ({}, None),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"KITTY_WINDOW_ID": "1", "TMUX": "/tmp/x"}, None),  # noqa: S108 - a value, not a file
        ({"LC_TERMINAL": "iTerm2", "TERM": "screen-256color"}, None),
    ],
)
def test_protocol_is_known_by_the_environment(environ, how):
    assert image_protocol(environ) == how


@pytest.mark.parametrize("size", [1, 3072, 3073, 10_000])
def test_kitty_gets_the_image_in_pieces_of_which_the_last_says_so(size):
    content = bytes(index % 251 for index in range(size))
    pieces = re.findall(r"\033_G([^;]*);([^\033]*)\033\\", escape_sequence(_image(content), "kitty"))
    assert base64.b64decode("".join(text for _, text in pieces)) == content
    assert all(len(text) <= 4096 for _, text in pieces)
    assert [keys[-3:] for keys, _ in pieces] == ["m=1"] * (len(pieces) - 1) + ["m=0"]


def test_iterm2_gets_the_image_with_its_size():
    assert escape_sequence(_image(b"abc", "image/jpeg"), "iterm2") == "\033]1337;File=inline=1;size=3:YWJj\a\n"


def test_kitty_is_not_sent_what_it_cannot_read():
    assert escape_sequence(_image(b"abc", "image/jpeg"), "kitty") is None


def test_album_leaves_files_that_are_there(tmp_path):
    (tmp_path / "image-001.png").write_bytes(b"mine")
    kept = ImageStore(tmp_path).save(_image(b"new"))
    assert (kept.name, kept.read_bytes(), (tmp_path / "image-001.png").read_bytes()) == (
        "image-002.png",
        b"new",
        b"mine",
    )


@pytest.mark.parametrize("mime_type", ["../../x", "text/html", ""])
def test_album_takes_no_name_from_a_server(tmp_path, mime_type):
    assert ImageStore(tmp_path).save(_image(b"x", mime_type)) == tmp_path / "image-001.bin"


def test_image_that_is_not_base64_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not base64"):
        ImageStore(tmp_path / "new").save(ImageBlock(data="***", mime_type="image/png"))
    assert not (tmp_path / "new").exists()
