"""Lines of a record: their kinds, how they refer to each other, and how a line's kind is told without parsing it.

`run`, `tools` and `image` lines stand once in a file and are referred to by `id`, a hash of what they hold; an
`episode` refers to them, and `words` to an episode. No I/O.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, cast

from pydantic_core import from_json, to_json

from ors_client._types import JSONObject

SHARED_KINDS = frozenset({"run", "tools", "image"})
"""Kinds of lines that others refer to."""

_START = re.compile(rb'\s*\{\s*"type"\s*:\s*"(\w+)"\s*,\s*"id"\s*:\s*"([^"\\]+)"')
_VERSION_1 = re.compile(rb'\s*\{\s*"v"\s*:\s*1\b')
_ID_CHARS = 32  # of a hash: enough that no two of a file are alike by chance


def kind_and_id(line: bytes) -> tuple[str | None, str | None]:
    """Return the kind of a line, and its id if it has one; a line of version 1, and any that can't be read, has none.

    Lines of this module are known by how they begin; those of other writers are parsed.
    """
    if found := _START.match(line):
        return found[1].decode(), found[2].decode()
    if _VERSION_1.match(line):
        return None, None
    value = parse(line)
    if value is None:
        return None, None
    kind, identity = value.get("type"), value.get("id")
    return (kind if isinstance(kind, str) else None), (identity if isinstance(identity, str) else None)


def parse(line: bytes) -> JSONObject | None:
    """Return the object of a line, or `None` where it is none."""
    try:
        value = cast("object", from_json(line))
    except ValueError:
        return None
    return cast("JSONObject", value) if isinstance(value, dict) else None


def write(kind: str, identity: str | None, fields: JSONObject) -> bytes:
    """Return a line, its end included."""
    start: JSONObject = {"type": kind} if identity is None else {"type": kind, "id": identity}
    # NaN and the infinities are no JSON; they were never sent either.
    return to_json(start | fields, inf_nan_mode="null") + b"\n"


def content_id(fields: JSONObject) -> str:
    """Return the id of what these fields say."""
    return hashlib.sha256(to_json(fields, inf_nan_mode="null")).hexdigest()[:_ID_CHARS]


def without_images(messages: list[JSONObject], keep: Callable[[str, JSONObject], object]) -> list[JSONObject]:
    """Return messages, or blocks, with a reference in the place of each image.

    Args:
        messages: As the standard writes them, fit for JSON.
        keep: Is called with the id and the fields of each image.
    """

    def refer(block: JSONObject) -> JSONObject | None:
        if block.get("type") != "image" or not isinstance(block.get("data"), str):
            return None
        fields: JSONObject = {"mimeType": block.get("mimeType"), "data": block["data"]}
        identity = content_id(fields)
        keep(identity, fields)
        return {"type": "image", "image": identity, **{key: block[key] for key in block if key not in {"type", "data"}}}

    return _map_blocks(messages, refer)


def with_images(messages: list[JSONObject], find: Callable[[str], JSONObject | None]) -> list[JSONObject]:
    """Return messages, or blocks, with each image in the place of the reference to it.

    Args:
        messages: From `without_images`.
        find: Returns the fields of an image by its id, `None` where the file has lost it.
    """

    def resolve(block: JSONObject) -> JSONObject | None:
        if block.get("type") != "image" or "data" in block or not isinstance(block.get("image"), str):
            return None
        fields = find(block["image"])
        if fields is None:
            return {"type": "text", "text": f"[1 image missing: {block.get('mimeType')}]"}
        start = {"type": "image", "data": fields.get("data")}
        return start | {key: block[key] for key in block if key not in {"type", "image"}}

    return _map_blocks(messages, resolve)


def _map_blocks(values: list[JSONObject], change: Callable[[JSONObject], JSONObject | None]) -> list[JSONObject]:
    """Return blocks, and those within them, changed where `change` returns something; what is no object stays."""

    def changed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        block = cast("JSONObject", value)
        if (found := change(block)) is not None:
            return found
        inner = block.get("blocks")  # of a block that breaks the rules, anything
        if not isinstance(inner, list):
            return block
        return block | {"blocks": [changed(each) for each in cast("list[Any]", inner)]}

    return [changed(value) for value in values]
