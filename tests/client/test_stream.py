"""Every transition of a stream, and that a result survives any cut, once and to the letter."""

import asyncio
import functools
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ors_client._config import Limits
from ors_client._errors import LimitExceeded, ProtocolError
from ors_client._protocol.stream import End, Forgotten, Raised, Stream, StreamState

ID = ("task_id", "0123456789abcdef")
SENT, STARTED, DONE = StreamState


def stream_after(*connections, limits=None):
    """A stream that met these connections, each a list of events."""
    stream = Stream(limits=limits or Limits())
    for connection in connections:
        stream.connect()
        for event, data in connection:
            stream.receive(event, data)
    return stream


# the table


@pytest.mark.parametrize(
    ("connections", "state", "outcome"),
    [
        ([], SENT, None),
        ([[]], SENT, None),
        ([[ID]], STARTED, None),
        ([[ID, ID]], STARTED, None),
        ([[("chunk", "a")]], SENT, None),
        ([[ID, ("chunk", "a")]], STARTED, None),
        ([[("end", "a")]], DONE, End("a")),
        ([[ID, ("end", "a")]], DONE, End("a")),
        ([[ID, ("end", "")]], DONE, End("")),
        ([[("chunk", "a"), ("end", "b")]], DONE, End("ab")),
        ([[ID, ("chunk", "a"), ("chunk", "b"), ("end", "")]], DONE, End("ab")),
        ([[("error", "boom")]], DONE, Raised("boom")),
        ([[ID, ("error", "boom")]], DONE, Raised("boom")),
        ([[ID, ("error", "")]], DONE, Raised("")),
        ([[ID, ("chunk", "a"), ("error", "boom")]], DONE, Raised("boom")),
        ([[("error", "unknown task_id")]], DONE, Raised("unknown task_id")),
        ([[], [("error", "unknown task_id")]], DONE, Raised("unknown task_id")),
        ([[ID, ("error", "unknown task_id")]], DONE, Raised("unknown task_id")),
        ([[ID], [("error", "unknown task_id")]], DONE, Forgotten()),
        ([[ID], [("message", ""), ("error", "unknown task_id")]], DONE, Forgotten()),
        ([[ID], [], [("error", "unknown task_id")]], DONE, Forgotten()),
        ([[ID], [ID, ("error", "unknown task_id")]], DONE, Raised("unknown task_id")),
        ([[ID], [("chunk", "a"), ("error", "unknown task_id")]], DONE, Raised("unknown task_id")),
        ([[ID], [("error", "boom")]], DONE, Raised("boom")),
        ([[ID, ("chunk", "a")], []], STARTED, None),
        ([[ID, ("chunk", "a")], [ID, ("chunk", "a"), ("end", "b")]], DONE, End("ab")),
        ([[ID, ("chunk", "a")], [("chunk", "a"), ("end", "b")]], DONE, End("ab")),
        ([[("chunk", "a")], [("chunk", "a"), ("end", "b")]], DONE, End("ab")),
        ([[("progress", "1"), ("message", ""), ("", ""), ("End", "x")]], SENT, None),
        ([[ID, ("progress", "1"), ("chunk", "a"), ("message", ""), ("end", "b")]], DONE, End("ab")),
    ],
)
def test_stream_follows_the_table(connections, state, outcome):
    stream = stream_after(*connections)
    assert (stream.state, stream.outcome) == (state, outcome)


@pytest.mark.parametrize("first", [("end", "a"), ("error", "boom")])
@pytest.mark.parametrize(
    "later", [ID, ("task_id", "another"), ("task_id", ""), ("chunk", "x"), ("end", "x"), ("error", "x"), ("other", "x")]
)
@pytest.mark.parametrize("reconnects", [False, True])
def test_stream_ignores_everything_after_its_outcome(first, later, reconnects):
    stream = stream_after([ID, first])
    before = (stream.outcome, stream.task_id)
    if reconnects:
        stream.connect()
    stream.receive(*later)
    assert (stream.outcome, stream.task_id, stream.state) == (*before, DONE)


def test_stream_ignores_any_number_of_events_after_its_outcome():
    stream = stream_after([ID, ("end", "a"), *[("chunk", "x" * 100)] * 100], limits=Limits(events=5, result_bytes=10))
    assert stream.outcome == End("a")


def test_stream_without_task_id_is_not_resumable():
    assert stream_after([("chunk", "a")]).task_id is None


def test_stream_keeps_its_task_id_over_connections():
    assert stream_after([ID], [], []).task_id == ID[1]


@pytest.mark.parametrize("connections", [[[ID, ("task_id", "another")]], [[ID], [("task_id", "another")]]])
def test_stream_of_two_task_ids_breaks_the_standard(connections):
    with pytest.raises(ProtocolError, match="task_id"):
        stream_after(*connections)


@pytest.mark.parametrize("task_id", ["", "x" * 257, "a\nb", "a\x00", "\x7f", "\x85", "a\r\nX-Evil: 1"])
def test_task_id_that_is_no_id_breaks_the_standard_and_is_not_quoted(task_id):
    with pytest.raises(ProtocolError, match="task_id") as caught:
        stream_after([("task_id", task_id)])
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize("task_id", ["x" * 256, "a/b c:d", "é", "\U0001f600", "None"])
def test_task_id_is_opaque(task_id):
    assert stream_after([("task_id", task_id)]).task_id == task_id


# progress


def test_first_connection_advances_with_its_first_characters():
    stream = stream_after([ID])
    assert not stream.advanced
    stream.receive("chunk", "")
    assert not stream.advanced
    stream.receive("chunk", "a")
    assert stream.advanced


def test_resumed_connection_advances_only_past_the_furthest_before_it():
    stream = stream_after([ID, ("chunk", "abcd")], [ID, ("chunk", "ab")], [ID, ("chunk", "ab"), ("chunk", "cd")])
    assert not stream.advanced
    stream.receive("chunk", "e")
    assert stream.advanced


def test_new_connection_has_not_advanced_yet():
    assert not stream_after([ID, ("chunk", "abcd")], []).advanced


# limits


@pytest.mark.parametrize("unit", ["a", "é", "€", "\U0001f600", "\ud800"])
def test_result_is_limited_by_its_bytes(unit):
    fits = 12 // len(unit.encode("utf-8", "surrogatepass"))
    limits = Limits(result_bytes=12)
    exact = stream_after([ID, ("chunk", unit * (fits - 1)), ("end", unit)], limits=limits)
    assert exact.outcome == End(unit * fits)
    with pytest.raises(LimitExceeded) as caught:
        stream_after([ID, ("chunk", unit * fits), ("end", unit)], limits=limits)
    assert (caught.value.limit, caught.value.maximum) == ("result_bytes", 12)


@pytest.mark.parametrize("event", ["chunk", "end", "error"])
def test_every_event_that_carries_text_counts_towards_the_limit(event):
    with pytest.raises(LimitExceeded):
        stream_after([ID, (event, "x" * 13)], limits=Limits(result_bytes=12))


def test_replayed_chunks_count_once_towards_the_limit():
    lost = [ID, ("chunk", "x" * 10)]
    stream = stream_after(lost, lost, lost, [*lost, ("end", "yy")], limits=Limits(result_bytes=12))
    assert stream.outcome == End("x" * 10 + "yy")


@pytest.mark.parametrize("event", [ID, ("chunk", ""), ("progress", "1")])
def test_events_of_one_connection_are_limited(event):
    limits = Limits(events=5)
    assert stream_after([event] * 5, [event] * 5, limits=limits).outcome is None
    with pytest.raises(LimitExceeded) as caught:
        stream_after([event] * 6, limits=limits)
    assert (caught.value.limit, caught.value.maximum) == ("events", 5)


# any text, any chunks, any cuts


@st.composite
def replays(draw):
    """A text and the connections that bring it: each cut into chunks and broken off anywhere, the last one whole."""
    text = draw(st.text(max_size=60))
    noise = st.lists(st.sampled_from([("message", ""), ("progress", "50%"), ("ping", "x")]), max_size=1)
    connections = []
    for is_last in (*[False] * draw(st.integers(0, 5)), True):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
        pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
        events = [ID, *(("chunk", piece) for piece in pieces[:-1]), ("end", pieces[-1])]
        if not is_last:
            events = events[: draw(st.integers(0, len(events) - 1))]
        connections.append([event for own in events for event in (*draw(noise), own)])
    return text, connections


@given(replays())
def test_result_over_any_connections_is_exactly_the_text_once(replay):
    text, connections = replay
    stream = Stream(limits=Limits())
    furthest = 0
    outcomes = []
    for connection in connections:
        stream.connect()
        length = 0
        for event, data in connection:
            stream.receive(event, data)
            length += len(data) if event in {"chunk", "end"} else 0
            assert stream.advanced == (length > furthest)
            outcomes.append(stream.outcome)
        furthest = max(furthest, length)
    assert outcomes[:-1] == [None] * (len(outcomes) - 1)
    assert outcomes[-1] == End(text)


official_chunkers = pytest.mark.parametrize(
    "chunker", [("openreward", "environments/reconnect.py"), ("ors", "_reconnect.py")], ids=["openreward", "ors-sdk"]
)


@functools.cache
def load_alone(package, path):
    """Load one file of a package without the package, which takes seconds to import."""
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    spec = importlib.util.spec_from_file_location(f"{package}_chunker", Path(folder, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for themselves there
    spec.loader.exec_module(module)
    return module


class Connected:
    """What the official servers' stream asks of a request."""

    async def is_disconnected(self):
        return False


# openreward takes five seconds to import, with the packages of three providers.
@official_chunkers
@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 8192, 8193])
@pytest.mark.parametrize("unit", ["x", " ", "\U0001f600"])
def test_stream_agrees_with_the_official_servers_chunker(chunker, length, unit):
    official = load_alone(*chunker)
    text = unit * length

    async def run():
        async def tool():
            return text

        served = official.sse_task_stream(tool, Connected())
        first = [(event["event"], event["data"]) async for event in served]
        resumed = official.sse_task_stream(tool, Connected(), first[0][1])
        return first, [(event["event"], event["data"]) async for event in resumed]

    first, resumed = asyncio.run(asyncio.wait_for(run(), 10))
    names = [event for event, _ in first]
    assert names == ["task_id", *["chunk"] * ((length - 1) // 4096), "end"]
    assert stream_after(first).outcome == End(text)
    assert stream_after(first[:-1], resumed).outcome == End(text)


@official_chunkers
def test_stream_tells_a_forgotten_run_from_a_tool_that_raised_the_same_words(chunker):
    official = load_alone(*chunker)

    async def run():
        async def tool():
            raise RuntimeError("unknown task_id")

        raised = [(e["event"], e["data"]) async for e in official.sse_task_stream(tool, Connected())]
        replayed = official.sse_task_stream(tool, Connected(), raised[0][1])
        forgotten = official.sse_task_stream(tool, Connected(), "not its id")
        return (
            raised,
            [(e["event"], e["data"]) async for e in replayed],
            [(e["event"], e["data"]) async for e in forgotten],
        )

    raised, replayed, forgotten = asyncio.run(asyncio.wait_for(run(), 10))
    assert stream_after(raised).outcome == Raised("unknown task_id")
    assert stream_after(raised[:1], replayed).outcome == Raised("unknown task_id")
    assert stream_after(raised[:1], forgotten).outcome == Forgotten()
