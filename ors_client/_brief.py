"""A short `repr` for values that may hold megabytes, as a notebook prints whatever a cell ends with."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator

_MOST = 160  # characters of all fields together
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 3
_repr.maxlevel = 3


class Written:
    """What is to be shown as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def brief(value: object) -> str:
    """Return a value's `repr`, or its beginning and end."""
    return _repr.repr(value)


def brief_fields(fields: Iterable[tuple[str | None, object]]) -> Iterator[tuple[str | None, Written]]:
    """Return the fields that are set with short values; those that hold others come last, where a text is clipped."""
    given = [(name, value) for name, value in fields if value is not None]
    given.sort(key=lambda field: not isinstance(field[1], str | int | float))
    return ((name, Written(brief(value))) for name, value in given)


def clipped(text: str) -> str:
    """Return so much of a `repr` as fits into two lines."""
    return text if len(text) <= _MOST else text[: _MOST - 4].rstrip() + " ..."


class BriefFields:
    """Gives a dataclass that is made with `repr=False` a short `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        names: Iterable[str] = getattr(self, "__dataclass_fields__", {})
        shown = brief_fields((name, getattr(self, name)) for name in names)
        return f"{type(self).__name__}({clipped(', '.join(f'{name}={value!r}' for name, value in shown))})"
