"""JSON Schema -> Python type hints, as far as a signature can say what a schema says.

Knows the hints that `transformers.utils.get_json_schema` reads. A schema comes from a stranger: whatever in it is
malformed, recursive, too deep or beyond a hint gives `Any` or a bare `list` or `dict`, never an error and never a long
wait. What a hint can't say (bounds, patterns, fields of objects) the schema itself says elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, cast

from ors_client._shared import SchemaResolver, mapping, sequence

_DEEPEST = 6  # list[list[...]] beyond this tells a reader nothing
_MOST_VALUES = 1_000  # of an enum; longer ones are a table, not a choice

_PLAIN: Mapping[object, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tool: the server's name, the schema with references resolved once, and its hint."""

    name: str
    schema: Mapping[str, Any]
    hint: Any
    required: bool


def parameters(schema: object) -> list[Parameter]:
    """List the parameters that the schema of a tool's arguments names, in its order; the required ones at least."""
    reader = _Reader(schema)
    properties, required = reader.properties(schema, _DEEPEST)
    for name in required:
        properties.setdefault(name, {})
    return [
        Parameter(name, reader.resolver.resolve(inner), reader.hint(inner), name in required)
        for name, inner in properties.items()
    ]


class _Reader:
    def __init__(self, root: object) -> None:
        self.resolver = SchemaResolver(root)

    def properties(self, schema: object, depth: int) -> tuple[dict[str, Any], dict[str, None]]:
        """Return the properties of an object, those of its parts among them, and the required names as ordered keys."""
        schema = self.resolver.resolve(schema)
        if depth == 0 or self.resolver.is_exhausted():
            return {}, {}
        properties = {str(name): inner for name, inner in mapping(schema.get("properties")).items()}
        required = dict.fromkeys(name for name in sequence(schema.get("required")) if isinstance(name, str))
        for part in sequence(schema.get("allOf")):
            inner, needed = self.properties(part, depth - 1)
            _add(properties, inner)
            required.update(needed)
        for keyword in ("anyOf", "oneOf"):
            branches = [self.properties(part, depth - 1) for part in sequence(schema.get(keyword))]
            for inner, _ in branches:
                _add(properties, inner)
            # A choice demands what every one of its branches demands.
            for name in branches[0][1] if branches else ():
                if all(name in needed for _, needed in branches):
                    required[name] = None
        return properties, required

    def hint(self, schema: object, depth: int = _DEEPEST) -> Any:
        """Return a hint for the values that a schema allows."""
        if depth == 0 or self.resolver.is_exhausted():
            return _PLAIN.get(_keyword(mapping(schema), "type"), Any)
        found = self.resolver.resolve(schema)
        hint = self._values(found) or self._of_types(found, depth) or self._of_parts(found, depth) or Any
        # OpenAPI's way to allow null.
        return _union([hint, type(None)]) if found.get("nullable") is True else hint

    def _values(self, schema: Mapping[str, Any]) -> Any:
        if "const" in schema:
            values: Sequence[Any] = [schema["const"]]
        elif isinstance(schema.get("enum"), list) and 0 < len(schema["enum"]) <= _MOST_VALUES:
            values = schema["enum"]
        else:
            return None
        if all(type(value) in {str, int, float, bool, type(None)} for value in values):
            return _subscribed(Literal, tuple(values))
        return _union([_PLAIN[_name(value)] for value in values])

    def _of_types(self, schema: Mapping[str, Any], depth: int) -> Any:
        names = schema.get("type")
        if isinstance(names, list):
            return _union([self._of_type(name, schema, depth) for name in cast("list[object]", names)[:_MOST_VALUES]])
        if isinstance(names, str):
            return self._of_type(names, schema, depth)
        if "properties" in schema:
            return dict
        return self._of_type("array", schema, depth) if "items" in schema else None

    def _of_type(self, name: object, schema: Mapping[str, Any], depth: int) -> Any:
        if name == "array":
            return self._array(schema, depth)
        if name == "object" and not schema.get("properties"):
            values = self.hint(mapping(schema.get("additionalProperties")), depth - 1)
            return dict if values is Any else dict[str, values]
        return _PLAIN.get(name, Any) if isinstance(name, str) else Any

    def _array(self, schema: Mapping[str, Any], depth: int) -> Any:
        first = sequence(schema.get("prefixItems"))
        if len(first) >= 2:  # transformers has no form for a tuple of one
            return _subscribed(tuple, tuple(self.hint(item, depth - 1) for item in first))
        items = self.hint(schema.get("items"), depth - 1)
        return list if items is Any else list[items]

    def _of_parts(self, schema: Mapping[str, Any], depth: int) -> Any:
        for keyword in ("anyOf", "oneOf"):
            if choices := sequence(schema.get(keyword)):
                return _union([self.hint(choice, depth - 1) for choice in choices])
        hints = (self.hint(part, depth - 1) for part in sequence(schema.get("allOf")))
        return next((hint for hint in hints if hint is not Any), None)


def _keyword(schema: Mapping[str, Any], name: str) -> object:
    value = schema.get(name)
    return value if isinstance(value, str) else None


def _name(value: object) -> str:
    names = {"str": "string", "bool": "boolean", "int": "integer", "float": "number", "NoneType": "null"}
    return names.get(type(value).__name__, "array" if isinstance(value, list) else "object")


def _add(properties: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, schema in more.items():
        properties.setdefault(name, schema)


def _union(hints: Iterable[Any]) -> Any:
    members = list(hints)
    if not members or any(member is Any for member in members):
        return Any
    return _subscribed(Union, tuple(members))


def _subscribed(form: Any, arguments: tuple[Any, ...]) -> Any:
    return form[arguments]  # made from values, so it is an expression and not an annotation
