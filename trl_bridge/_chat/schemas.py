"""What of a server's schema can be put before a model: all of it, unless a template or a tokenizer would raise.

Knows what the chat templates that TRL ships and the renderer of transformers can't carry. A template that raises ends a
training run, so what they can't carry is left out; everything else, key order included, is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from .content import escape_surrogates

DEEPEST = 64
"""Levels of a schema that are passed on: templates and pickle work recursively, within Python's 1000 frames."""

_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}  # keys inside are names
_VALUES = {"default", "const", "enum", "examples", "example"}  # no schemas inside


def sanitized_schema(schema: object) -> dict[str, Any]:
    """Copy the schema of a tool's arguments; `None` means that it takes none."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    return _schema(cast("dict[str, object]", schema), DEEPEST)


def too_deep(schema: object) -> bool:
    """Tell whether a schema is nested beyond what is passed on; below, `sanitized_schema` allows anything."""
    level = [schema]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    return any(_inside(value) for value in level)


def _schema(schema: object, depth: int) -> Any:
    if not isinstance(schema, dict):
        return _value(schema, depth)
    copy: dict[str, Any] = {}
    for key, inner in cast("dict[object, object]", schema).items() if depth else ():
        if key == "description" and not isinstance(inner, str):
            continue  # gptoss adds it to a string
        if key in _NAMED:
            if isinstance(inner, dict) and depth > 1:
                named = cast("dict[object, object]", inner)
                copy[str(key)] = {
                    escape_surrogates(str(name)): _schema(value, depth - 2) for name, value in named.items()
                }
            continue  # gemma4 and gptoss take whatever stands there for a mapping
        copy[escape_surrogates(str(key))] = _value(inner, depth - 1) if key in _VALUES else _schemas(inner, depth - 1)
    return copy


def _schemas(value: object, depth: int) -> Any:
    if isinstance(value, list):
        return [_schema(inner, depth - 1) for inner in cast("list[object]", value)] if depth else []
    return _schema(value, depth)


def _value(value: object, depth: int) -> Any:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value)
        return (
            {escape_surrogates(str(key)): _value(inner, depth - 1) for key, inner in entries.items()} if depth else {}
        )
    if isinstance(value, list):
        return [_value(inner, depth - 1) for inner in cast("list[object]", value)] if depth else []
    return value


def _inside(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return cast("dict[object, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()
