"""JSON as the servers read and write it: strict in what is sent, bounded in what is taken.

Knows nothing of endpoints. What it refuses to send raises `TypeError` or `ValueError`, before any request.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

from ors_client._config import Limits
from ors_client._errors import LimitExceeded
from ors_client._types import JSONValue

_HALF = re.compile("[\ud800-\udfff]")
_STRING = re.compile('"[^"]*"')  # of JSON without escapes
# Characters from which on looking at the few parts of a long result beats looking at its text, three times over.
_LONG = 2**16


def encode(value: Mapping[str, object], name: str = "") -> bytes:
    """Write JSON as the servers read it, ASCII only; errors call it `name`, and its items by their path from there.

    Raises:
        TypeError: A value is not JSON, or a key is not a string.
        ValueError: A number is not finite, or the value contains itself.
    """
    _check_json(value, name)
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


# Most of what is sent; checking for an abstract class costs ten times as much.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def _check_json(value: object, where: str) -> None:
    # json.dumps would write {1: "x"} as {"1": "x"} and a tuple as a list: what the caller meant is then a guess.
    pending: list[tuple[object, str, int]] = [(value, where, 0)]
    while pending:
        item, path, depth = pending.pop()
        if depth > 500:  # half of Python's recursion limit, which the encoder would meet
            raise ValueError(f"{where or 'The object'} is nested more than 500 deep or contains itself.")
        if type(item) in _PLAIN and not (type(item) is float and not math.isfinite(item)):
            continue
        if isinstance(item, Mapping):
            for key, inner in cast("Mapping[object, object]", item).items():
                if not isinstance(key, str):
                    raise TypeError(
                        f"A key of {path or 'the object'} is {key!r}; the keys of a JSON object are strings."
                    )
                pending.append((inner, f"{path}.{key}" if path else key, depth + 1))
        elif isinstance(item, list | tuple):
            pending.extend((inner, f"{path}[]", depth + 1) for inner in cast("Sequence[object]", item))
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{path} is {item!r}, which JSON does not have; write None or a finite number.")
        elif not isinstance(item, str | int | float):
            kind = type(item).__name__
            raise TypeError(f"{path} is {item!r:.80}, of the type {kind}, which JSON does not have.")


def decode(text: str, *, limits: Limits) -> JSONValue:
    """Read JSON from a server.

    Raises:
        ValueError: It is not JSON.
        LimitExceeded: It has more items than `Limits.items`, or is nested deeper than `Limits.schema_depth`.
    """
    check_items(text, limits)
    try:
        return _decode(text, limits)
    except RecursionError:  # a limit may be set higher than Python can go
        raise _too_deep(limits) from None


def check_items(text: str, limits: Limits) -> None:
    """Count the items of lists and objects in JSON text, what they would take, and its escapes, before they are made.

    Raises:
        LimitExceeded: They are more than `Limits.items` or `Limits.escapes`, or would take far more than their text.
    """
    if text.count("\\") > limits.escapes:
        raise LimitExceeded("The answer has too many escapes", limit="escapes", maximum=limits.escapes)
    most = limits.items
    if len(text) <= most or _keys_affordable(text, text.count('"'), len(text), most) >= text.count(":"):
        return
    # What strings hold does not count. Without escapes, each ends at the next quote; an object of as many items has two
    # strings for each at most.
    plain = text.replace("\\\\", "\0").replace('\\"', "\1")
    quotes = plain.count('"')
    if quotes <= 4 * most + 4:
        structure = _STRING.sub("", plain)
        affordable = _keys_affordable(structure, quotes, len(text), most)
        if affordable >= 0 and _count_keys(plain, structure.count(":"), most=affordable) <= affordable:
            return
    raise LimitExceeded("The answer has too many items", limit="items", maximum=most)


def _keys_affordable(structure: str, quotes: int, size: int, most: int) -> int:
    """Return how many different keys may be in JSON of these parts; a negative number where it is too much already."""
    commas, lists, objects = structure.count(","), structure.count("["), structure.count("{")
    if commas + lists + objects > most:
        return -1
    # What CPython takes for each, in bytes: 49,000 objects of one number each would take 24 times their text. A key
    # that comes again is made once; the parser holds a table of all.
    cost = 32 * commas + 88 * lists + 192 * objects + 28 * quotes
    return (40 * most + 8 * size - cost) // 100


def _count_keys(plain: str, colons: int, *, most: int) -> int:
    """Return how many different keys there are at most, or any number above `most`."""
    pieces = plain.split('":')
    keys = set[str]()
    apart = max(0, colons - len(pieces) + 1)  # with a blank before the colon: each may be a key of its own
    for piece in pieces[:-1]:
        keys.add(piece[piece.rfind('"') + 1 :])
        if len(keys) + apart > most:
            break
    return len(keys) + apart


def _decode(text: str, limits: Limits) -> JSONValue:
    value = cast("JSONValue", json.loads(text))
    if len(text) > _LONG and _is_plain(value, most=limits.schema_depth):
        return value
    if text.count("[") + text.count("{") > limits.schema_depth:
        _check_depth(value, limits)
    # JavaScript servers cut strings between surrogates and escape the halves; no Python text may hold them.
    escaped = "\\u" in text and ("\\ud" in text or "\\uD" in text)
    return _without_surrogates(value) if escaped else value


def _is_plain(value: JSONValue, *, most: int) -> bool:
    """Tell whether a value has few parts, and so is not deep, and no characters that may need repair."""
    pending: list[JSONValue] = [value]
    for _ in range(most):
        if not pending:
            return True
        item = pending.pop()
        if isinstance(item, str):
            if not item.isascii():
                return False
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return not pending


def _too_deep(limits: Limits) -> LimitExceeded:
    return LimitExceeded("The answer is nested too deeply", limit="schema_depth", maximum=limits.schema_depth)


_CONTAINERS = frozenset({dict, list})  # the only kinds that JSON is read into


def _check_depth(value: JSONValue, limits: Limits) -> None:
    level: list[JSONValue] = [value]
    depth = 0
    while level:
        inner: list[JSONValue] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = [item for item in inner if type(item) in _CONTAINERS]
        depth += 1
        if depth > limits.schema_depth:
            raise _too_deep(limits)


def _without_surrogates(value: JSONValue) -> JSONValue:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)  # pairs were joined when they were read
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {str(_without_surrogates(key)): _without_surrogates(item) for key, item in value.items()}
    return value


def detail(value: JSONValue) -> str:
    """Return what an error body says, without the input that a 422 echoes (it may hold a secret)."""
    message = value.get("detail", value.get("error", value.get("message", ""))) if isinstance(value, dict) else value
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        return "; ".join(_field_error(item) for item in message)
    return "" if message is None else json.dumps(message)


def _field_error(item: JSONValue) -> str:
    if not isinstance(item, dict):
        return str(item)
    path = item.get("loc")
    where = ".".join(map(str, path)) if isinstance(path, list) else ""
    return f"{where}: {item.get('msg', '')}" if where else str(item.get("msg", ""))


def refuses_body_secrets(value: JSONValue) -> bool:
    """Tell whether a 422 says that this server takes secrets in the header only (openreward from 0.1.70)."""
    errors = value.get("detail") if isinstance(value, dict) else None
    return isinstance(errors, list) and any(
        isinstance(item, dict) and item.get("loc") == ["body", "secrets"] for item in errors
    )
