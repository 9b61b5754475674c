"""One way to write a test for the client's three faces: the blocking one is awaited, in a thread for each call."""

import inspect
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread

from ors_client import AsyncClient, Client, Layout


class Awaited:
    """A blocking object whose methods are coroutines, and whose context manager is an async one."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return found
        if name in {"environment", "session"}:  # they hand out another object and ask nothing
            return lambda *args, **kwargs: Awaited(found(*args, **kwargs))
        return lambda *args, **kwargs: anyio.to_thread.run_sync(partial(found, *args, **kwargs))

    async def __aenter__(self):
        await anyio.to_thread.run_sync(self._inner.__enter__)
        return self

    async def __aexit__(self, *error):
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(self._inner.__exit__, *error))


@asynccontextmanager
async def connect(face, hosts, **more):
    """Open a client of two hosts."""
    layout = Layout(api=hosts[0], sessions=hosts[1])
    client = Awaited(Client(layout, **more)) if face == "blocking" else AsyncClient(layout, **more)
    async with client:
        yield client
