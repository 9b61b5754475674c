"""A tool's arguments as questions: what each may be, read from the tool's JSON Schema, and an answer as a value.

It asks nobody. What a schema says beyond the type of an argument is the server's to check; its refusal is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ors_client import JSONValue, ToolSpec
from ors_client._shared.json_schema import SchemaResolver, mapping, sequence

from .json_input import read_json

_SCALARS = ("string", "integer", "number", "boolean")
_SHOWN = 60  # characters of a nested type in a menu
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matches {}",
    "format": "as {}",
}
_DEPTH = 8  # of alternatives within alternatives, which may be a circle


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool.

    Args:
        name: As the server spells it.
        types: Of `string`, `integer`, `number`, `boolean`, `null`, or `json` for what is written as JSON.
        label: Its type in words.
        required: Whether the tool asks for it.
        default: What the tool takes when it is left out, as JSON text, where the schema tells.
        choices: The values of an enumeration, or none.
        description: In the schema's words.
        bounds: What the schema says of size, length or pattern, in words.
    """

    name: str
    types: tuple[str, ...]
    label: str
    required: bool
    default: str | None = None
    choices: tuple[JSONValue, ...] = ()
    description: str = ""
    bounds: str = ""

    def summary(self) -> str:
        """Return it as a signature would write it."""
        return f"{self.name}{'' if self.required else '?'}: {self.takes()}"

    def takes(self) -> str:
        """Return its type, bounds and default."""
        bounds = f" ({self.bounds})" * bool(self.bounds)
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.label}{bounds}{default}"

    def read(self, text: str) -> JSONValue:
        """Turn what a person typed into a value.

        Raises:
            ValueError: It is none of what the argument may be; the message says what is.
        """
        stripped = text.strip()
        if self.choices:
            return self._choose(stripped)
        if "null" in self.types and stripped == "null":
            return None
        for kind in self.types:
            value = _SCALAR_READERS[kind](stripped) if kind in _SCALAR_READERS else None
            if value is not None:
                return value
        return self._read_json(stripped) if "string" not in self.types else self._read_text(text)

    def _read_json(self, text: str) -> JSONValue:
        if "json" not in self.types:
            raise ValueError(f"{text!r} does not fit; {self.name} is: {self.label}.")
        try:
            return read_json(text)
        except ValueError as error:
            raise ValueError(f"That is not JSON ({error}); {self.name} is: {self.label}.") from None

    def _read_text(self, text: str) -> JSONValue:
        """Take text as it is, save what is written as JSON: a string in quotes, which is how line breaks are typed."""
        if "json" in self.types or text.lstrip().startswith('"'):
            try:
                value = read_json(text)
            except ValueError:
                return text
            return value if "json" in self.types or isinstance(value, str) else text
        return text

    def _choose(self, text: str) -> JSONValue:
        for choice in self.choices:
            if text in (json.dumps(choice), choice):
                return choice
        if text.isdecimal() and 1 <= int(text) <= len(self.choices):
            return self.choices[int(text) - 1]
        raise ValueError(f"{text!r} is none of: {self.label}.")


def read_arguments(tool: ToolSpec) -> list[Argument]:
    """Return a tool's arguments, the required ones first."""
    resolver = SchemaResolver(tool.input_schema)
    schema = _resolve(tool.input_schema, resolver)
    required = sequence(schema.get("required"))
    found = [
        _argument(name, mapping(value), resolver, required=name in required)
        for name, value in mapping(schema.get("properties")).items()
    ]
    return sorted(found, key=lambda argument: not argument.required)


def signature(tool: ToolSpec) -> list[str]:
    """Return a tool's arguments, each as a signature would write it."""
    return [argument.summary() for argument in read_arguments(tool)]


def _argument(name: str, written: Mapping[str, Any], resolver: SchemaResolver, *, required: bool) -> Argument:
    schema = _resolve(written, resolver)
    choices = _choices(schema)
    default = written.get("default", schema.get("default"))
    has_default = "default" in written or "default" in schema
    return Argument(
        name,
        types=_types(schema, resolver),
        label=_label(schema, resolver),
        required=required,
        default=json.dumps(default, ensure_ascii=False) if has_default else None,
        choices=choices,
        description=str(written.get("description") or schema.get("description") or ""),
        bounds=_bounds({**schema, **written}, resolver),
    )


def _bounds(schema: Mapping[str, Any], resolver: SchemaResolver) -> str:
    """Say what a schema, or those of its alternatives that say something, ask of a value beyond its type."""
    for alternative in [schema, *_alternatives(schema, resolver, 0)]:
        said = [words.format(_shown(alternative[word])) for word, words in _BOUNDS.items() if word in alternative]
        if said:
            return ", ".join(said)
    return ""


def _shown(bound: object) -> str:
    text = str(bound)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _choices(schema: Mapping[str, Any]) -> tuple[JSONValue, ...]:
    if "const" in schema:
        return (schema["const"],)
    values = schema.get("enum")
    return tuple(cast("list[JSONValue]", values)) if isinstance(values, list) else ()


def _types(schema: Mapping[str, Any], resolver: SchemaResolver, depth: int = 0) -> tuple[str, ...]:
    alternatives = _alternatives(schema, resolver, depth)
    if alternatives:
        found = [kind for alternative in alternatives for kind in _types(alternative, resolver, depth + 1)]
        # A number is tried before text, which takes anything.
        order = ("null", "boolean", "integer", "number", "json", "string")
        return tuple(sorted(dict.fromkeys(found), key=order.index))
    kind = schema.get("type")
    return (kind,) if kind in {*_SCALARS, "null"} else ("json",)


def _label(schema: Mapping[str, Any], resolver: SchemaResolver, depth: int = 0, lists: int = 0) -> str:
    choices = _choices(schema)
    if choices:
        return " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    alternatives = _alternatives(schema, resolver, depth)
    if alternatives:
        labels = dict.fromkeys(_label(alternative, resolver, depth + 1, lists) for alternative in alternatives)
        return " | ".join(labels)
    kind = schema.get("type")
    if kind == "array":
        inside = _label(_resolve(schema.get("items"), resolver), resolver, depth, lists + 1) if lists < 2 else "…"
        label = f"list of {inside}"
    elif kind == "object":
        names = list(mapping(schema.get("properties")))
        label = f"{{{', '.join(names)}}}" if names else "object"
    else:
        label = str(kind) if isinstance(kind, str) else "any JSON"
    return label if len(label) <= _SHOWN else f"{label[: _SHOWN - 1]}…"


def _alternatives(schema: Mapping[str, Any], resolver: SchemaResolver, depth: int) -> list[Mapping[str, Any]]:
    if depth >= _DEPTH:
        return []
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return [_resolve(item, resolver) for item in sequence(schema[word]) if not resolver.is_exhausted()]
    return [{**schema, "type": kind} for kind in sequence(schema.get("type")) if not resolver.is_exhausted()]


def _resolve(schema: object, resolver: SchemaResolver) -> Mapping[str, Any]:
    """Follow references, and look through an `allOf` of one."""
    for _ in range(_DEPTH):
        found = resolver.resolve(schema)
        every = sequence(found.get("allOf"))
        if len(every) != 1:
            return found
        schema = every[0]
    return {}


def _boolean(text: str) -> bool | None:
    return {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}.get(text.lower())


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None  # JSON has no others


_SCALAR_READERS = {"boolean": _boolean, "integer": _integer, "number": _number}
