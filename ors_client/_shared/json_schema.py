"""References in a JSON Schema, followed within its own document.

A schema comes from a stranger: what is malformed or refers to nothing gives an empty schema, and circles end. Nothing
is ever fetched. What a schema means is for others to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

_MOST_REFERENCES = 8  # that lead to one another
_MOST_STEPS = 2_000  # of a walk and of a pointer, and entries of a list, so that what fans out at every level ends


class SchemaResolver:
    """Follows the references of one document; whoever walks it counts the steps here.

    Args:
        root: The document, which references point into.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._steps = _MOST_STEPS

    def resolve(self, schema: object) -> Mapping[str, Any]:
        """Follow a schema's references; its own keywords win over those that it refers to."""
        found = mapping(schema)
        for _ in range(_MOST_REFERENCES):
            if "$ref" not in found:
                return found
            own = {key: value for key, value in found.items() if key != "$ref"}
            found = {**mapping(self._at(found["$ref"])), **own}
        return {}

    def is_exhausted(self) -> bool:
        """Count a step; tell whether there were as many before as one document is worth."""
        self._steps -= 1
        return self._steps < 0

    def _at(self, pointer: object) -> object:
        """Find what a local JSON pointer (RFC 6901) points at."""
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        found: object = self._root
        for step in pointer[1:].split("/")[1 : _MOST_STEPS + 1]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                entries = cast("list[object]", found)
                # Python refuses to read very long numbers.
                found = entries[int(key)] if key.isdecimal() and len(key) < 10 and int(key) < len(entries) else None
            else:
                found = mapping(found).get(key)
        return found


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object's members; none where it is no object."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """Return a list's entries, of very long ones the first; none where it is no list."""
    return cast("list[Any]", value)[:_MOST_STEPS] if isinstance(value, list) else ()
