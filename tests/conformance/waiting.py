"""Waits for what a server will show in a moment; every wait has a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

LIMIT = 15.0
"""Seconds; what is waited for takes milliseconds, on a machine that is not busy."""
_EVERY = 0.02


async def eventually(look: Callable[[], T], *, limit: float = LIMIT) -> T:
    """Return what `look` gives once that is true, without holding up the event loop between looks."""
    deadline = time.monotonic() + limit
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not so after {limit} seconds; seen last: {seen!r}.")
        await anyio.sleep(_EVERY)
    return seen


def finally_(look: Callable[[], T], *, limit: float = LIMIT) -> T:
    """Return what `look` gives once that is true, blocking."""
    deadline = time.monotonic() + limit
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not so after {limit} seconds; seen last: {seen!r}.")
        time.sleep(_EVERY)
    return seen
