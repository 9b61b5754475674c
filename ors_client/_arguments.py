"""Holds the arguments of public functions to their annotations, for callers without a type checker.

A wrong kind or an unknown keyword is a `TypeError` where it is given, which names the parameter, what it takes and what
to write: it would otherwise be an `AttributeError` from inside the client, in the middle of a run, or no error at all.
Kinds alone are judged here; what values make sense, each function says itself.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, Union, cast

T = TypeVar("T")

# Whose values may hold a key or a password, of which no error shows anything.
_HIDDEN = frozenset({"api_key", "secrets", "headers", "hide", "url", "target", "base_url", "value"})
# Where `None` is what a variable held that nobody set; what takes these says so.
_MAY_BE_UNSET = frozenset({"url", "target"})
_SHOWN = 80  # characters of a value in a message
_LISTED = 12  # names of parameters in a message

# What to write, by the kind that a parameter takes or by its name.
_EXAMPLES = {
    "RetryPolicy": "RetryPolicy(attempts=3)",
    "KeepalivePolicy": "KeepalivePolicy(interval=5)",
    "Timeouts": "Timeouts(response=5) for an answer or Timeouts(call=5) for a tool call",
    "Limits": "Limits(result_bytes=2**20)",
    "TaskRef": "TaskRef('train', 0)",
    "Budget": "Budget(turns=10)",
    "Rules": "Rules(budget=Budget(turns=10))",
    "shard": "(2, 8) for the second of eight",
    "clamp": "(0.0, 1.0)",
}
_CALLABLE: object = typing.get_origin(Callable[[], Any])
_WORDS: dict[object, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "booleans"),
    os.PathLike: ("a path", "paths"),
    types.NoneType: ("None", "None"),
    abc.Mapping: ("a mapping of names to values", "mappings"),
    _CALLABLE: ("a class or a function", "functions"),
    tuple: ("a tuple", "tuples"),
}
_OF_KEYS: tuple[object, ...] = (abc.Collection, abc.Iterable)  # a mapping is one, of its keys
_SEVERAL: tuple[object, ...] = (abc.Sequence, abc.Collection, abc.Iterable, abc.Set, list, set, frozenset)


def checked(thing: T) -> T:
    """Check what is given to a function, or to the constructor and the public methods of a class."""
    if not isinstance(thing, type):
        return cast("T", _checking(cast("Callable[..., Any]", thing)))
    for name, member in list(vars(thing).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(thing, name, _checking(member, method=True))
    return thing


def checked_names(kind: type[T]) -> type[T]:
    """Check the names alone of what is given to the constructor of settings, which judge their values themselves."""
    setattr(kind, "__init__", _checking(kind.__init__, method=True, names_only=True))  # noqa: B010 - of any class
    return kind


def _checking(function: Callable[..., Any], *, method: bool = False, names_only: bool = False) -> Callable[..., Any]:
    @functools.cache  # at the first call, when every name in the annotations is there
    def parameters() -> _Parameters:
        return _Parameters(function, method=method, names_only=names_only)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = parameters().check(args, kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        args = parameters().check(args, kwargs)
        return await function(*args, **kwargs)

    return call_async if inspect.iscoroutinefunction(function) else call


class _Parameters:
    """What a function takes, read from its signature once."""

    def __init__(self, function: Callable[..., Any], *, method: bool, names_only: bool) -> None:
        own = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
        names = [each.name for each in own]
        self._name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        self._skip = 1 if method else 0
        self._positional = [each.name for each in own if each.kind is not each.KEYWORD_ONLY]
        annotations = {} if names_only else {name: function.__annotations__.get(name, Any) for name in names}
        given = types.SimpleNamespace(__annotations__=annotations)  # those of the parameters alone
        hints = typing.get_type_hints(given, globalns=inspect.unwrap(function).__globals__)
        for unset in _MAY_BE_UNSET & hints.keys():
            hints[unset] |= None
        self._kinds = {name: _Kind(hints.get(name, Any)) for name in names}

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Raise unless each argument is of a kind that its parameter takes.

        Returns:
            The positional arguments; those of NumPy or torch are Python's now, and those of `kwargs` likewise.
        """
        kinds = self._kinds
        for position, name in enumerate(self._positional[: len(args) - self._skip], start=self._skip):
            if not kinds[name].takes(args[position]):
                args = (*args[:position], kinds[name].convert(name, args[position]), *args[position + 1 :])
        for name, value in kwargs.items():
            kind = kinds.get(name)
            if kind is None:
                raise self._unknown(name)
            if not kind.takes(value):
                kwargs[name] = kind.convert(name, value)
        return args

    def _unknown(self, name: str) -> TypeError:
        if "arguments" in self._kinds:
            hint = f"; what a tool takes goes in one mapping: arguments={{{name!r}: ...}}."
        elif near := difflib.get_close_matches(name, self._kinds, n=1):
            hint = f"; did you mean {near[0]}?"
        elif len(self._kinds) > _LISTED:
            hint = "."
        else:
            hint = f"; there are: {', '.join(self._kinds)}." if self._kinds else "; it takes none."
        return TypeError(f"{self._name}() has no parameter {name!r}{hint}")


class _Kind:
    """What one annotation takes."""

    def __init__(self, hint: Any) -> None:
        self._hints = list(_alternatives(hint))
        self._literals = [value for each in self._hints for value in _literals(each)]
        # What fits by its class alone, as nearly all does, and is asked for once: some hints take microseconds.
        self._by_class = [each for each in self._hints if not _literals(each) and not _has_items(each)]
        self._known: set[type] = set()

    def takes(self, value: object) -> bool:
        """Tell whether a value is of this kind."""
        if type(value) in self._known:
            return True
        if any(_fits(value, hint) for hint in self._by_class):
            self._known.add(type(value))
            return True
        return any(_fits(value, hint) for hint in self._hints)

    def convert(self, name: str, value: object) -> object:
        """Return numbers of NumPy or torch as Python's, which JSON and records take.

        Raises:
            TypeError, ValueError: The value is of another kind.
        """
        plain = _plain(value)
        if self.takes(plain):
            return plain
        raise self.error(name, value)

    def error(self, name: str, value: object) -> TypeError | ValueError:
        """Return the error of a value that is of another kind."""
        shown = _shown(name, value)
        if self._literals and isinstance(value, str):
            return ValueError(f"{name} is one of {', '.join(map(repr, self._literals))}, not {shown}.")
        name, value, shown = next(self._misfits(name, value), (name, value, shown))
        words = [word for word in (_words(hint)[0] for hint in self._hints) if word != "None"]
        takes = " or ".join(dict.fromkeys(words))
        return TypeError(f"{name} takes {takes}, not {shown}{self._remedy(name, value)}.")

    def _misfits(self, name: str, value: object) -> Iterator[tuple[str, object, str]]:
        """Name the items of a list that do not fit, where it is the items that are wrong."""
        if not _is_several(value) or name in _HIDDEN:
            return
        for hint in self._hints:
            for index, item in enumerate(cast("Iterable[object]", value)):
                if any(not _fits(item, each) for each in _items(hint)):
                    yield name, value, f"{_shown(name, item)} at position {index}"

    def _remedy(self, name: str, value: object) -> str:
        for hint in self._hints:
            example = _EXAMPLES.get(getattr(hint, "__name__", "")) or _EXAMPLES.get(name)
            if example is not None:
                return f"; write {name}={example}"
            origin, items = typing.get_origin(hint), _items(hint)
            if items and all(_fits(value, item) for item in items) and name not in _HIDDEN and not _is_several(value):
                return f"; write {name}=[{value!r:.{_SHOWN}}]"
            if origin is _CALLABLE and typing.get_args(hint)[0] == []:
                made = typing.get_args(hint)[1]
                return f"; write {name}=lambda: {getattr(made, '__name__', 'value')}(...)"
        return ""


def _plain(value: object) -> object:
    to_list = getattr(value, "tolist", None)  # of arrays, tensors and their scalars
    if callable(to_list):
        return to_list()
    return [_plain(item) for item in cast("list[object]", value)] if isinstance(value, list | tuple) else value


def _alternatives(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _alternatives(each)
    elif origin is typing.Annotated:
        yield from _alternatives(typing.get_args(hint)[0])
    elif hint is None:
        yield types.NoneType
    else:
        yield hint


def _literals(hint: Any) -> tuple[object, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _has_items(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return origin in _SEVERAL or origin is tuple


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _shown(name: str, value: object) -> str:
    """Return what a message shows of a value: itself where it is small and can't be a key, else its class."""
    hidden = name in _HIDDEN or (isinstance(value, str) and len(value) > _SHOWN)
    small = isinstance(value, str | int | float | None) and not hidden
    return repr(value) if small else type(value).__name__


def _items(hint: Any) -> tuple[Any, ...]:
    """Return the one hint of a list's items, or none where they are of any kind."""
    return typing.get_args(hint)[:1] if typing.get_origin(hint) in _SEVERAL else ()


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if origin in (Union, types.UnionType, typing.Annotated):
        return any(_fits(value, each) for each in _alternatives(hint))
    if origin is typing.Literal:
        return value in arguments
    if origin is _CALLABLE:
        return callable(value)
    if kind in _SEVERAL or kind is tuple:
        return _fits_several(value, kind, arguments)
    if kind is int or kind is float:
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return hint is Any or not isinstance(kind, type) or isinstance(value, kind)


def _fits_several(value: object, kind: object, arguments: tuple[Any, ...]) -> bool:
    if not _is_several(value) or (isinstance(value, abc.Mapping) and kind not in _OF_KEYS):
        return False
    if not isinstance(value, abc.Collection):  # an iterator, which a look into it would use up
        return kind is abc.Iterable
    items = cast("Iterable[object]", value)
    if kind is tuple:  # whose length the function judges
        return isinstance(value, tuple | list) and all(map(_fits, items, arguments))
    return all(_fits(item, each) for each in arguments[:1] for item in items)


def _words(hint: Any) -> tuple[str, str]:
    """Return what one and several of a kind are called."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is typing.Literal:
        named = " or ".join(map(repr, arguments))
        return named, named
    if kind in _SEVERAL:
        several = dict.fromkeys(_words(each)[1] for item in arguments[:1] for each in _alternatives(item))
        return f"a list of {' or '.join(several)}" if several else "a list", "lists"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}", f"{name} objects"
