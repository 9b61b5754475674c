"""Work that a cancelled caller still waits for, for a while.

A shielded scope alone does not do it: it holds anyio's cancellation back, but not a second `Task.cancel()` of asyncio,
which strikes whatever the caller's own task awaits. So the work runs in a task of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Callable[[], Awaitable[T]], *, grace: float) -> T:
    """Run `work`; when the caller is cancelled meanwhile, wait `grace` more seconds for it, then be cancelled.

    Args:
        work: Is not run again, and keeps elsewhere what must survive a cancellation.
        grace: Seconds.
    """
    results: list[T] = []
    failures: list[Exception] = []
    done = anyio.Event()
    scope = anyio.CancelScope(shield=True)

    async def run() -> None:
        try:
            with scope:
                results.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below; the task group would wrap it in a group
            failures.append(error)
        finally:
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            await done.wait()
        except anyio.get_cancelled_exc_class():
            scope.deadline = anyio.current_time() + grace
            raise
    if failures:
        raise failures[0]
    return results[0]
