"""Event streams are read exactly, however their bytes are cut; httpx-sse, an implementation of its own, agrees."""

import codecs
from itertools import pairwise

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import example, given
from hypothesis import strategies as st

from ors_client import ProtocolError
from ors_client._http.sse import EventParser

END = ("end", "1")


def events_of(*pieces):
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    parser.finish()
    return events


def independently(text):
    """Read events with httpx-sse, which has no piece to wait for."""
    response = httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, content=text.encode())
    return [(event.event, event.data) for event in EventSource(response).iter_sse()]


def cut(data, places):
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
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
def test_events_do_not_depend_on_how_their_bytes_are_cut(text, places):
    # httpx-sse keeps a byte order mark, and delivers empty events after the fields `id` and `retry`.
    text = text.replace("i", "").replace("y", "").removeprefix("\ufeff") + "\n\n"
    data = text.encode("utf-8", "replace")
    expected = independently(data.decode())
    assert events_of(data) == expected
    assert events_of(*cut(data, places)) == expected
    assert events_of(*(bytes([byte]) for byte in data)) == expected


@pytest.mark.parametrize("newline", ["\n", "\r", "\r\n"])
def test_line_may_end_in_any_of_three_ways(newline):
    stream = newline.join(["event: end", "data: 1", "", ""]).encode()
    assert events_of(stream) == [END]


def test_event_is_complete_with_the_first_half_of_its_last_line_end():
    assert EventParser().feed(b"event: end\r\ndata: 1\r\n\r") == [END]


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
