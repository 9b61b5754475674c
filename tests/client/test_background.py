"""The loop serves any thread, and nobody waits for one that has stopped."""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

from ors_client import ClientStateError
from ors_client._http.background import LoopThread, wait


@pytest.fixture
def loop():
    loop = LoopThread("test")
    yield loop
    loop.stop(join_seconds=5)


async def _double(number):
    await asyncio.sleep(0)
    return 2 * number


def test_loop_runs_coroutines_for_many_threads(loop):
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(lambda n: loop.run(_double(n)), range(64))) == [2 * n for n in range(64)]


def test_loop_runs_on_one_thread_that_is_not_the_callers(loop):
    async def thread():
        return threading.current_thread()

    first, second = loop.run(thread()), loop.run(thread())
    assert first is second is not threading.current_thread()
    assert first.daemon


def test_loop_hands_on_exceptions(loop):
    async def fail():
        raise KeyError("no")

    with pytest.raises(KeyError):
        loop.run(fail())


def test_loop_that_stopped_refuses_at_once(loop):
    loop.stop(join_seconds=5)
    with pytest.raises(ClientStateError, match="closed"):
        loop.run(_double(1))


def test_loop_that_stops_ends_the_waits_for_what_runs_on_it(loop):
    started = threading.Event()

    async def forever():
        started.set()
        await asyncio.Event().wait()

    future = loop.submit(forever())
    assert started.wait(30)
    loop.stop(join_seconds=5)
    with pytest.raises(ClientStateError, match="closed"):
        wait(future)


def test_loop_lets_cancelled_coroutines_clean_up_when_it_stops(loop):
    started, cleaned = threading.Event(), threading.Event()

    async def forever():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    loop.submit(forever())
    assert started.wait(30)
    loop.stop(join_seconds=5)
    assert cleaned.is_set()


def test_loop_cancels_what_an_interrupted_caller_waited_for(loop):
    cancelled = threading.Event()

    class Interrupted:
        """A future whose waiter gets Ctrl-C as soon as it waits."""

        def __init__(self, future):
            self.future = future

        def result(self):
            raise KeyboardInterrupt

        def cancel(self):
            return self.future.cancel()

    started = threading.Event()

    async def forever():
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = loop.submit(forever())
    assert started.wait(30)
    with pytest.raises(KeyboardInterrupt):
        wait(Interrupted(future))
    assert cancelled.wait(30)


def test_coroutine_sees_the_context_of_its_caller(loop):
    variable = ContextVar("variable")
    variable.set("the caller's")

    async def look():
        return variable.get()

    assert loop.run(look()) == "the caller's"


FORKED = """
import asyncio, os
from ors_client import ClientStateError
from ors_client._http.background import LoopThread

loop = LoopThread("test")
loop._lock.acquire()  # as another thread may, at the moment of the fork
child = os.fork()
if child == 0:
    try:
        loop.submit(asyncio.sleep(0))
    except ClientStateError as error:
        print(error.message, flush=True)
    loop.stop()
    os._exit(0)
os.waitpid(child, 0)
loop._lock.release()
print(loop.run(asyncio.sleep(0, "still runs")), flush=True)
loop.stop()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_loop_refuses_a_forked_child_at_once_and_goes_on_for_the_parent():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = "This client was opened before a fork; open another one in the child process."
    assert (done.stdout.splitlines(), done.stderr) == ([said, "still runs"], "")
