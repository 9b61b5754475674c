"""A process in which one client works, and what asks it to.

The process does one piece of work after another, each with a client of its own, and tells what it cost. So the clients
take turns within one run, and importing them costs nothing that is counted.
"""

# ruff: noqa: T201 - the answers are printed

import asyncio
import contextlib
import gc
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

from .clients import CLIENTS, Client

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"OPENREWARD_DISABLE_UPDATE_CHECK": "1", "OPENREWARD_API_KEY": "not-a-key", "HF_HUB_OFFLINE": "1"}
_STOP_SECONDS = 20


class Worker:
    """A process with one client.

    Args:
        client: A key of `CLIENTS`.
    """

    def __init__(self, client: str) -> None:
        command = [sys.executable, "-m", f"{__package__}.worker", client]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | QUIET, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def ask(self, work: str, url: str, **parameters: Any) -> dict[str, float]:
        """Let it do one piece of work, and return what it measured."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps({"work": work, "url": url, "parameters": parameters}), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"A worker ended in the middle of {work!r}.")
        return json.loads(line)


@contextlib.contextmanager
def light_server(**options: float) -> Iterator[str]:
    """Run the light server for the length of a block; give its address."""
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", f"{__package__}.light_server", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def shared_servers(count: int) -> Iterator[list[str]]:
    """Run light servers that share a port; give the address of that, and then the own one of each."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(socket.socket())  # never listens, and keeps the port from others
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        own = [stack.enter_context(light_server(shared=port)) for _ in range(count)]
        yield [f"http://127.0.0.1:{port}", *own]


# --- In the process --------------------------------------------------------------------------------------------------


async def calls(client: Client, *, sessions: int, calls: int) -> dict[str, float]:
    """Measure calls that all sessions make at once, each one after another."""
    opened = await asyncio.gather(*(client.open() for _ in range(sessions)))
    await asyncio.gather(*map(client.call, opened))  # its connections are made, its code is warm
    seconds: list[float] = []

    async def make(session: Any) -> None:
        for _ in range(calls):
            began = time.perf_counter()
            await client.call(session)
            seconds.append(time.perf_counter() - began)

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*map(make, opened))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await asyncio.gather(*map(client.close, opened))
    seconds.sort()
    total = len(seconds)
    return {
        "cpu_ms": cpu / total * 1e3,
        "calls_per_second": total / wall,
        "p50_ms": seconds[total // 2] * 1e3,
        "p99_ms": seconds[min(total - 1, total * 99 // 100)] * 1e3,
    }


async def churn(client: Client, *, sessions: int, at_once: int) -> dict[str, float]:
    """Measure sessions that are opened and closed, `at_once` of them at any time."""
    await client.close(await client.open())
    left = sessions

    async def open_and_close() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.close(await client.open())

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(open_and_close() for _ in range(at_once)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"per_second": sessions / wall, "cpu_ms": cpu / sessions * 1e3}


async def idle(client: Client, *, sessions: int, seconds: float) -> dict[str, float]:
    """Measure sessions that are open while nobody calls."""
    await client.close(await client.open())
    gc.collect()
    before = resident()
    opened: list[Any] = []
    for start in range(0, sessions, 100):  # as many at once would measure the memory of opening
        opened += await asyncio.gather(*(client.open() for _ in range(min(100, sessions - start))))
    gc.collect()
    held = resident() - before
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    grown = resident() - before
    for start in range(0, sessions, 100):
        await asyncio.gather(*map(client.close, opened[start : start + 100]))
    return {"cpu_us_per_second": cpu / wall / sessions * 1e6, "kib": max(held, grown) / sessions / 2**10}


async def result(client: Client, *, times: int) -> dict[str, float]:
    """Measure calls with a long result."""
    session = await client.open()
    gc.collect()
    before = resident()
    forget_peak()
    size = await client.call(session)
    grown = peak() - before
    walls: list[float] = []
    cpu = time.process_time()
    for _ in range(times):
        began = time.perf_counter()
        await client.call(session)
        walls.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    await client.close(session)
    return {"peak": grown / size, "cpu_ms": cpu / times * 1e3, "wall_ms": sorted(walls)[times // 2] * 1e3}


def forget_peak() -> None:
    """Let the peak of memory start again from here."""
    Path("/proc/self/clear_refs").write_text("5")


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return _status("VmRSS")


def peak() -> int:
    """Return the most bytes of memory that this process has held since `forget_peak`."""
    return _status("VmHWM")


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 2**10


WORK: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]] = {
    "calls": calls,
    "churn": churn,
    "idle": idle,
    "result": result,
}


def main() -> None:
    """Do what is asked for, line by line, until nothing more is asked."""
    make = CLIENTS[sys.argv[1]]

    async def do(work: str, url: str, parameters: dict[str, Any]) -> dict[str, float]:
        async with make(url) as client:
            return await WORK[work](client, **parameters)

    for line in sys.stdin:
        print(json.dumps(asyncio.run(do(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
