"""The grammar of hostile answers: heads, codings, bodies, events and ways to deliver them, composed by Hypothesis."""

from __future__ import annotations

import gzip
import json
from functools import cache

from hypothesis import strategies as st

from .hostile import Attack, Step

KEY = b"@KEY@"
"""Stands for the client's key in an attack's bytes."""

ENDPOINTS = (
    "list_environments",
    "splits",
    "num_tasks",
    "task",
    "task_range",
    "tools",
    "create_session",
    "create",
    "prompt",
    "messages",
    "task_tools",
    "call",
    "ping",
    "delete",
    "completions",  # a model's
)

OK = b"HTTP/1.1 200 OK"
STATUS_LINES = st.sampled_from(
    [OK] * 40
    + [
        b"HTTP/1.1 %d Odd" % status
        for status in (
            204,
            206,
            301,
            307,
            308,
            400,
            401,
            402,
            404,
            409,
            410,
            422,
            429,
            500,
            502,
            503,
            504,
            520,
            599,
            999,
        )
    ]
    + [b"HTTP/1.0 200 OK", b"HTTP/1.1 200", b"HTTP/9.9 200 OK", b"ICY 200 OK", b"", b"\x00\xff", KEY]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            b"Content-Encoding: gzip",
            b"Content-Encoding: gzip, gzip, gzip",
            b"Content-Encoding: br",
            b"Retry-After: 0",
            b"Retry-After: 99999999999999999999",
            b"Retry-After: " + KEY,
            b"X-Backend-State: starting",
            b"Location: /elsewhere",
            b"Location: http://127.0.0.1:1/" + KEY,
            b"Location: //",
            b"Set-Cookie: " + KEY + b"=1; Path=/",
            b"Set-Cookie: a=\xff; Domain=.",
            b"Connection: close",
            b"X-Odd: " + b"x" * 5000,
            b"No colon " + KEY,
        ]
    ),
    max_size=3,
    unique=True,
)
TYPES = st.sampled_from(
    [b"application/json"] * 4
    + [b"text/event-stream"] * 4
    + [b"Text/Event-Stream; charset=utf-8", b"text/html", b"", b"application/" + KEY.lower(), b"text/plain"]
)

_SCALARS = st.sampled_from(
    [None, True, 0, -1, 1e308, 10**30, "", "x", "\ud800", "\u2028", KEY.decode(), "a" * 3000]
) | st.text(max_size=8)
_FIELDS = st.sampled_from(
    [
        *("sid", "tools", "tasks", "task", "name", "type", "text", "blocks", "ok", "output", "reward", "finished"),
        *("num_tasks", "detail", "error", "input_schema", "env_name", "messages", "role", KEY.decode()),
        *("choices", "message", "content", "finish_reason", "usage", "tool_calls"),
    ]
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_FIELDS, inner, max_size=5),
    max_leaves=12,
)
# Between environments a client has to choose to the letter.
NAMES = st.lists(
    st.sampled_from(["easy", "hard", "math/hard", "Hard", "counterenvironment", "ü/x", "..", "a b", KEY.decode()]),
    min_size=1,
    max_size=4,
    unique=True,
)
COMPLETIONS = VALUES.map(lambda value: {"choices": [{"message": value, "finish_reason": "stop"}], "usage": value})

MANY_OBJECTS = b"[" + b"{}," * 700_000 + b"{}]"
MANY_NUMBERS = b"[" + b"0," * 1_000_000 + b"0]"


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(2**28), 1)  # a second of work, for whoever attacks and not for whoever collects tests


@cache
def _nested_bomb() -> bytes:
    return gzip.compress(gzip.compress(_bomb(), 1), 1)


@cache
def _own_keys() -> bytes:
    return json.dumps([{f"{i:x}.{key:x}": 1.5 for key in range(20)} for i in range(4_600)]).encode()


def _odd_bodies() -> st.SearchStrategy[bytes]:
    """Return what costs more than it weighs, and what is no JSON at all."""
    return st.sampled_from(
        [
            b"[" * 100_000,
            b"[" * 5_000 + b"]" * 5_000,
            b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
            b"[" + b"0," * 100_000 + b"0]",
            b"[" + b"{}," * 60_000 + b"{}]",
            b'{"num_tasks": 1000000000000}',
            b'{"num_tasks": 1e999}',
            b'{"num_tasks": -5}',
            b"1" * 5_000,
            b"NaN",
            b'"\\ud800"',
            b"\xff\xfe" + KEY,
            b"\xef\xbb\xbf[]",
            b"",
            b"null",
            b"<!DOCTYPE html><html>" + KEY,
            MANY_OBJECTS,
            MANY_NUMBERS,
            _own_keys(),
            _bomb(),
            _nested_bomb(),
        ]
    )


ODD_BODIES = st.deferred(_odd_bodies)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Return the bytes of an event stream, with events in any order."""
    lines = []
    for _ in range(draw(st.integers(0, 6))):
        name = draw(st.sampled_from([b"task_id", b"chunk", b"end", b"error", b"message", b"", KEY]))
        data = draw(
            st.sampled_from([b"t1", b"", b'{"ok":true,', KEY, b"\xff", b"x" * 2000, b" "])
            | VALUES.map(lambda value: json.dumps(value).encode())
        )
        end = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
        lines.append(draw(st.sampled_from([b"", b"", b": keepalive" + end, b"id: 1" + end, b"retry: 1" + end])))
        lines.append(b"event: " + name + end + b"data: " + data + end + draw(st.sampled_from([end, end, b""])))
    return b"".join(lines)


BODIES = (VALUES | NAMES | COMPLETIONS).map(lambda value: json.dumps(value).encode()) | events() | events() | ODD_BODIES


def _chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@st.composite
def answers(draw: st.DrawFn, *, long: bool = False) -> bytes:
    """Return a whole answer: head and body, framed rightly or not; a long one drips for long."""
    body = draw(BODIES)
    status, headers = draw(STATUS_LINES), draw(HEADERS)
    match draw(st.sampled_from([None] * 16 + ["packed", "packed", "costly", "costly"])):
        case "packed":  # by chance alone, no packed body would be told to be one
            body, status, headers = _nested_bomb(), OK, [b"Content-Encoding: gzip, gzip, gzip"]
        case "costly":
            body, status, headers = draw(st.sampled_from([MANY_OBJECTS, MANY_NUMBERS, _own_keys()])), OK, []
        case _:
            pass
    if long:
        body = b" " * 400 + body  # which JSON allows
    lines = [status, b"Content-Type: " + draw(TYPES), *headers]
    framing = draw(st.sampled_from(["length", "length", "chunked", "chunked", "close", "short", "long", "both"]))
    if framing in {"length", "both"}:
        lines.append(b"Content-Length: %d" % len(body))
    if framing == "short":
        lines.append(b"Content-Length: %d" % (len(body) // 2))
    if framing == "long":
        lines.append(b"Content-Length: %d" % (len(body) + 10))
    if framing in {"chunked", "both"}:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(body, draw(st.sampled_from([1000, 65536])))
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n" * draw(st.sampled_from([0, 0, 0, 1, 500]))
    return early + b"\r\n".join(lines) + b"\r\n\r\n" + body


DELIVERIES = ["whole"] * 3 + ["twice", "twice"]
DELIVERIES += ["cut", "late", "pause", "drip", "drip", "early hints", "reset", "nothing"]


@st.composite
def attacks(draw: st.DrawFn, endpoint: str | None = None) -> Attack:
    """Return an attack on one endpoint, which is any where none is named."""
    delivery = draw(st.sampled_from(DELIVERIES))
    answer = draw(answers(long=delivery == "drip"))
    match delivery:
        case "whole":
            steps = (Step("send", answer),)
        case "twice":
            steps = (Step("send", answer * 2),)
        case "cut":
            steps = (Step("send", answer[: draw(st.integers(0, min(len(answer), 3000)))]),)
        case "late":
            steps = (Step("pause", seconds=0.3), Step("send", answer))
        case "pause":
            half = draw(st.integers(0, min(len(answer), 2000)))
            steps = (Step("send", answer[:half]), Step("pause", seconds=60), Step("send", answer[half:]))
        case "drip":
            head, mark, body = answer.partition(b"\r\n\r\n")
            steps = (Step("send", head + mark), Step("drip", body[:400], 0.3), Step("pause", seconds=60))
        case "early hints":
            steps = (Step("drip", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200, 0.01),)
        case "reset":
            steps = (Step("send", answer[: draw(st.integers(0, 400))]), Step("reset"))
        case _:
            steps = (Step("pause", seconds=60),)
    return Attack(
        endpoint=endpoint or draw(st.sampled_from(ENDPOINTS)),
        steps=steps,
        times=draw(st.sampled_from([1, 1, 2, None])),
        forwarded=draw(st.booleans()),
        stays=draw(st.booleans()) or delivery == "twice",
        busy=draw(st.sampled_from([False] * 4 + [True])),
    )
