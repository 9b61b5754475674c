"""A limit on waiting holds on every event loop, however it was started."""

import asyncio

import anyio
import pytest

from ors_client._http.deadline import Deadline


async def _wait():
    with Deadline(0.05) as deadline:
        await anyio.sleep(30)
    return deadline.scope.cancelled_caught


async def _be_patient():
    with Deadline(0.05) as deadline:
        deadline.reschedule(anyio.current_time() + 30)
        await anyio.sleep(0.3)
    return deadline.scope.cancelled_caught


async def _set_a_limit_late():
    with Deadline(None) as deadline:
        deadline.reschedule(anyio.current_time() + 0.05)
        await anyio.sleep(30)
    return deadline.scope.cancelled_caught


RUNNERS = {
    "asyncio.run": lambda function: asyncio.run(function()),
    "anyio on asyncio": anyio.run,
    "anyio on trio": lambda function: anyio.run(function, backend="trio"),
}


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_patience_ends_a_wait_on_every_loop(run):
    assert run(_wait)


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_patience_whose_deadline_moved_lets_the_wait_go_on(run):
    assert not run(_be_patient)


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_limit_that_is_set_on_an_endless_wait_ends_it(run):
    assert run(_set_a_limit_late)
