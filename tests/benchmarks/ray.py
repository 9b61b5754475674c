"""Measure what Ray adds to an evaluation: episodes per second and CPU per episode, of one and of several workers.

`python -m tests.benchmarks.ray` prints a table. The server is the light one; the model answers after 200 ms, calls
three times and then says a word. What is measured lies between the first and the last episodes, when all workers are
busy.
"""

# ruff: noqa: T201 - a script that prints a table

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .light_server import ENVIRONMENT
from .worker import ROOT, light_server

_MODEL_SECONDS = 0.2
_CALLS = 3
_LEAST_SPEEDUP = 1.8  # of two workers against one
_MOST_CPU = 1.25  # of an episode on Ray, driver included, against one in one process
_PATIENCE = 300
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Model(asyncio.Protocol):
    """An endpoint that costs as little as Python allows: it counts the results in a request, and calls or ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self._transport: Any = transport
        self._read = b""

    def data_received(self, data: bytes) -> None:
        """Answer a request once it is whole."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or length is None or len(body) < int(length[1]):
            return
        self._read = b""
        asyncio.get_running_loop().call_later(_MODEL_SECONDS, self._answer, body.count(b'"role": "tool"'))

    def _answer(self, results: int) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": "I say it."}
        if results < _CALLS:
            function = {"name": "echo", "arguments": '{"text": "it"}'}
            message["tool_calls"] = [{"id": f"call_{results}", "type": "function", "function": function}]
        answer = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(answer) + answer)


async def serve_model() -> None:
    """Serve the model until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


@contextmanager
def model() -> Iterator[str]:
    """Run the model for the length of a block; give its base URL."""
    command = [sys.executable, "-m", f"{__package__}.ray", "--serve"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Marks:
    """When the workers were all busy for the first and the last time, and what CPU all processes had used by then."""

    def __init__(self, first: int, last: int) -> None:
        self._at = (first, last)
        self._episodes = 0
        self._marks: list[dict[str, float]] = []

    def advance(self, _: object) -> None:
        """Count an episode."""
        self._episodes += 1
        if self._episodes in self._at:
            self._marks.append(self._look())

    def _look(self) -> dict[str, float]:
        import psutil

        used = {"wall": time.perf_counter(), "driver": time.process_time(), "workers": 0.0, "ray": 0.0}
        for process in psutil.Process().children(recursive=True):
            times = process.cpu_times()
            part = "workers" if "".join(process.cmdline()[:1]).startswith("ray::Worker") else "ray"
            used[part] += times.user + times.system
        return used

    def figures(self) -> dict[str, float]:
        """Return episodes per second, and milliseconds of CPU per episode, by part."""
        first, last = self._marks
        episodes = self._at[1] - self._at[0]
        passed = {name: last[name] - first[name] for name in first}
        parts = {name: passed[name] / episodes * 1e3 for name in ("driver", "workers", "ray")}
        return {"per_s": episodes / passed["wall"], "cpu": parts["driver"] + parts["workers"], **parts}


async def measure(url: str, model_url: str, workers: int, concurrency: int, rounds: int) -> dict[str, float]:
    """Play with so many workers; with none, in this process."""
    from ors_client import AsyncClient, TaskRef
    from ors_client.evaluation import ChatModel, evaluate, evaluate_on_ray

    at_once = concurrency * max(workers, 1)
    attempts = at_once * rounds
    marks = Marks(2 * at_once, attempts - at_once)
    make_client, make_model = partial(AsyncClient, url), partial(ChatModel, "m", model_url)
    tasks = [TaskRef("train", 0)]
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"record": Path(folder, "a.jsonl"), "attempts": attempts, "concurrency": concurrency}
        settings["on_episode"] = marks.advance
        if workers:
            settings |= {"environment": ENVIRONMENT, "workers": workers, "address": "local"}
            figures = await evaluate_on_ray(make_client, tasks, make_model, **settings)
        else:
            async with make_client() as client, make_model() as player:
                figures = await evaluate(client.environment(ENVIRONMENT), tasks, player, **settings)
    assert (figures.episodes, figures.broken) == (attempts, 0)
    return marks.figures()


def main() -> int:
    """Measure each number of workers in a process of its own; return 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--concurrency", type=int, default=16, help="episodes at a time of each worker")
    parser.add_argument("--rounds", type=int, default=10, help="how often each of those is followed by another")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve_model())
    if options.run:
        url, model_url, workers = options.run
        work = measure(url, model_url, int(workers), options.concurrency, options.rounds)
        print(json.dumps(asyncio.run(work)))
        return 0
    columns = ("workers", "episodes/s", "CPU ms/episode", "driver", "workers", "Ray's own processes")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    found: dict[int, dict[str, float]] = {}
    for workers in (0, 1, 2):
        with light_server() as url, model() as model_url:
            command = [sys.executable, "-m", f"{__package__}.ray", "--run", url, model_url, str(workers)]
            command += ["--concurrency", str(options.concurrency), "--rounds", str(options.rounds)]
            variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE
            )
        figures = found[workers] = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{figures[name]:.1f}" for name in ("per_s", "cpu", "driver", "workers", "ray")]
        print(f"| {' | '.join([str(workers) if workers else 'no Ray', *cells])} |", flush=True)
    speedup = found[2]["per_s"] / found[1]["per_s"]
    cpu = max(found[workers]["cpu"] for workers in (1, 2)) / found[0]["cpu"]
    print(f"\nTwo workers play {speedup:.2f} times the episodes per second of one (at least {_LEAST_SPEEDUP}).")
    print(f"An episode on Ray takes {cpu:.2f} times the CPU of one without (at most {_MOST_CPU}).")
    return int(speedup < _LEAST_SPEEDUP or cpu > _MOST_CPU)


if __name__ == "__main__":
    sys.exit(main())
