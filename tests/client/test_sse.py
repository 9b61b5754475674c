"""Event streams are read exactly, however their bytes are cut; a reader of whole texts, written anew, agrees."""

import codecs
import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ors_client import LimitExceeded, ProtocolError
from ors_client._http.sse import read_events

END = ("end", "1")


def events_of(*pieces, enough=lambda _: False):
    """Read events from pieces of bytes, until there are enough."""
    left = filter(None, pieces)
    events = []

    async def read():
        return next(left, b"")

    def receive(event, data):
        events.append((event, data))
        return enough(events)

    with pytest.raises(StopIteration):  # nothing here has to be waited for, so that no event loop is needed
        read_events(read, receive).send(None)
    return events


def independently(text):
    """Read the events of a whole text as the standard's section 9.2.6 says it."""
    events, name, data = [], "", []
    for line in re.split(r"\r\n|\r|\n", text)[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data" and line:
            data.append(value)
        elif not line and (name not in {"", "message"} or any(data) or len(data) > 1):
            events.append((name or "message", "\n".join(data)))
        if not line:
            name, data = "", []
    return events


def cut(data, cuts):
    bounds = [0, *sorted(cut_at % (len(data) + 1) for cut_at in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]


# What parsers get wrong, more often than chance would have it.
FRAGMENTS = st.sampled_from(
    [
        "data",
        "event",
        "comment",
        ":",
        ": ",
        " ",
        "  ",
        "\r",
        "\n",
        "\r\n",
        "\r\n\r\n",
        "end",
        "\u2028",
        "\x85",
        "😀",
        "{}",
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=30).map("".join), st.lists(st.integers(0), max_size=8))
@example("data: a\r\n\r\ndata: b\r\n\r\n", [8])
@example("event\n\n", [])
def test_events_do_not_depend_on_how_their_bytes_are_cut(text, cuts):
    text = text.removeprefix("\ufeff") + "\n\n"
    data = text.encode("utf-8", "replace")
    expected = independently(data.decode())
    assert events_of(data) == expected
    assert events_of(*cut(data, cuts)) == expected
    assert events_of(*(bytes([byte]) for byte in data)) == expected


@pytest.mark.parametrize("newline", ["\n", "\r", "\r\n"])
def test_line_may_end_in_any_of_three_ways(newline):
    stream = newline.join(["event: end", "data: 1", "", ""]).encode()
    assert events_of(stream) == [END]


def test_event_is_complete_with_the_first_half_of_its_last_line_end():
    assert events_of(b"event: end\r\ndata: 1\r\n\r", b"\xff", enough=lambda _: True) == [END]


def test_one_space_after_the_colon_is_dropped_and_no_more():
    assert events_of(b"data:  two \n\n") == [("message", " two ")]


def test_data_of_several_lines_is_joined_by_line_feeds():
    assert events_of(b"event: error\r\ndata: a\r\ndata: \r\ndata\r\ndata: b\r\n\r\n") == [("error", "a\n\n\nb")]


def test_event_without_data_is_delivered():
    assert events_of(b"event: end\n\n") == [("end", "")]


def test_keepalive_comments_and_fields_for_resuming_are_no_events():
    assert events_of(b": ping\r\n\r\nid: 7\r\n\r\nretry: 10\r\n\r\nother: 1\r\n\r\n") == []


def test_byte_order_mark_is_no_part_of_the_first_field():
    assert events_of(codecs.BOM_UTF8 + b"event: end\ndata: 1\n\n") == [END]


def test_event_without_its_blank_line_is_none():
    assert events_of(b"event: end\ndata: 1\n") == []


@pytest.mark.parametrize("pieces", [(b"data: \xff\n\n",), (b"data: \xf0\x9f", b"\n\n"), (b"data: \xf0\x9f",)])
def test_stream_that_is_not_utf8_breaks_the_standard(pieces):
    with pytest.raises(ProtocolError, match="not UTF-8"):
        events_of(*pieces)


def test_failure_to_take_an_event_ends_the_reading():
    def refuse(_):
        raise LimitExceeded("A stream has too many events", limit="events", maximum=1)

    with pytest.raises(LimitExceeded):
        events_of(b"data: 1\n\ndata: 2\n\n", b"\xff", enough=refuse)
