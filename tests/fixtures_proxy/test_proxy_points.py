"""A point is at the same byte however the stream is cut into pieces, and nothing behind it was let through before."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from scripted_answers import CHUNK_1, CHUNK_2, END, EVENTS, STREAM_HEAD, TASK_ID

from fixtures.proxy import AfterBytes, AfterEvent, BeforeBlankLine, BeforeEvent, BeforeHeaders, InsideEvent
from fixtures.proxy._wire import Piece

STREAM = b"".join(EVENTS)
PLACES = {
    BeforeHeaders(): None,
    AfterBytes(0): 0,
    AfterBytes(7): 7,
    AfterEvent("task_id"): len(TASK_ID),
    AfterEvent("chunk", 2): STREAM.index(END),
    AfterEvent("end"): len(STREAM),
    BeforeEvent("task_id"): 0,
    BeforeEvent("chunk", 2): STREAM.index(CHUNK_2),
    BeforeEvent("end"): STREAM.index(END),
    InsideEvent("chunk"): STREAM.index(b"456789"),
    InsideEvent("chunk", skip=999): STREAM.index(CHUNK_1) + len(CHUNK_1) - 2,
    BeforeBlankLine(): len(STREAM) - 2,
}


def walk(point, pieces):
    """Give the offsets up to which each step lets bytes through, the last being the point's if it was found."""
    search = point.search()
    offsets = []
    for piece in pieces:
        offset, found = search.feed(piece)
        offsets.append(offset)
        if found:
            return offsets, True
    return offsets, False


@given(
    place=st.sampled_from(list(PLACES.items())),
    cuts=st.sets(st.integers(1, len(STREAM) - 1)),
    end=st.sampled_from(["\r\n", "\n", "\r"]),
)
def test_point_is_where_it_is_in_any_cutting(place, cuts, end):
    point, expected = place
    stream, edges = STREAM, [0, *sorted(cuts), len(STREAM)]
    if end != "\r\n" and not isinstance(point, AfterBytes | InsideEvent):
        stream = STREAM.replace(b"\r\n", end.encode())
        edges = sorted({min(edge, len(stream)) for edge in edges})
        if expected is not None:
            expected = len(STREAM[:expected].replace(b"\r\n", end.encode()))
    payload = [Piece("payload", stream[one:other]) for one, other in itertools.pairwise(edges)]
    offsets, found = walk(point, [Piece("head", STREAM_HEAD), *payload])
    assert found
    at = offsets[-1] - len(STREAM_HEAD)
    wanted = -len(STREAM_HEAD) if expected is None else expected
    # A CR at the end of a piece ends its line before the LF is seen, so a cut behind a line may come one byte early.
    assert at in (wanted, wanted - 1) if end == "\r\n" and isinstance(point, AfterEvent) else at == wanted
    assert all(offset <= offsets[-1] for offset in offsets)


@given(cuts=st.sets(st.integers(1, len(STREAM) - 1)))
def test_point_that_is_not_there_is_not_found(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [Piece("payload", STREAM[one:other]) for one, other in itertools.pairwise(edges)]
    for point in (AfterEvent("error"), AfterEvent("chunk", 3), BeforeEvent("chun"), BeforeBlankLine(("error",))):
        assert walk(point, pieces)[1] is False
