"""The figures: how each is measured, what it is compared with, and what was to be reached.

A figure is the median of several rounds; in a round the clients take turns on the same server.
"""

import json
import os
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.servers import serve

from . import installed
from .light_server import LATE_SECONDS, PING_SECONDS
from .trainer_work import ITERATIONS, ROLLOUTS
from .worker import QUIET, ROOT, Worker, light_server

SDK = "openreward"
OURS = "ours"
COLUMNS = (SDK, "openreward variant", "ors-sdk", "aiohttp", OURS)
_DELAY = 0.05
_TRAINER_SECONDS = 600

Medians = dict[str, dict[str, float]]
"""By client, by quantity."""


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Args:
        name: What was measured.
        values: By client, ready to be read.
        ratio: Ours to the one that it is held against.
        target: What was to be reached.
        reached: Whether it was.
    """

    name: str
    values: dict[str, str]
    ratio: str = ""
    target: str = ""
    reached: bool | None = None


@dataclass
class Scale:
    """How much is measured: enough to trust, or enough to see that it works."""

    rounds: int = 3
    levels: dict[int, int] = field(default_factory=lambda: {1: 60, 32: 40, 256: 10, 1024: 4})
    """Calls of each session, by the number of sessions."""
    churned: int = 400
    idle: int = 1000
    idle_seconds: float = 25.0
    results: int = 7
    many_one_by_one: bool = True
    steps: int = 2


QUICK = Scale(
    rounds=1,
    levels={1: 10, 32: 10, 256: 3, 1024: 2},
    churned=100,
    idle=200,
    idle_seconds=13.0,
    results=3,
    many_one_by_one=False,
    steps=1,
)


def calls(scale: Scale) -> Iterator[Figure]:
    """CPU of a call, and what it adds to the server's time."""
    medians: dict[int, Medians] = {}
    with light_server(delay=_DELAY) as url, ExitStack() as stack:
        workers = {client: stack.enter_context(Worker(client)) for client in COLUMNS}
        for level, times in scale.levels.items():
            medians[level] = _rounds(
                workers,
                scale.rounds,
                lambda w, level=level, times=times: w.ask("calls", url, sessions=level, calls=times),
            )
    for level, found in medians.items():
        sdk, bare = _ratio(found, "cpu_ms", SDK), _ratio(found, "cpu_ms", "aiohttp")
        yield Figure(
            f"CPU per tool call, {level} sessions (ms)",
            _values(found, "cpu_ms", "{:.3f}"),
            f"{sdk:.2f} x SDK, {bare:.2f} x aiohttp",
            "<= 0.5 x SDK; goal 0.35 x SDK, 2 x aiohttp",
            sdk <= 0.5,
        )
    growth = {client: medians[1024][client]["cpu_ms"] / medians[32][client]["cpu_ms"] for client in COLUMNS}
    yield Figure(
        "CPU per tool call, 1024 sessions against 32",
        {client: f"{value:.2f} x" for client, value in growth.items()},
        f"{growth[OURS]:.2f}",
        "<= 1.2",
        growth[OURS] <= 1.2,
    )
    for key in ("p50_ms", "p99_ms"):
        added = {c: {key: max(0.0, values[key] - _DELAY * 1e3)} for c, values in medians[256].items()}
        ratio = _ratio(added, key, SDK)
        yield Figure(
            f"latency added to a call, 256 sessions, {key[:3]} (ms)",
            _values(added, key, "{:.0f}"),
            f"{ratio:.2f} x SDK",
            "<= 0.6 x SDK",
            ratio <= 0.6,
        )


def churn(scale: Scale) -> Iterator[Figure]:
    """Sessions opened and closed."""
    with light_server() as url, ExitStack() as stack:
        workers = {client: stack.enter_context(Worker(client)) for client in COLUMNS}
        found = _rounds(workers, scale.rounds, lambda w: w.ask("churn", url, sessions=scale.churned, at_once=32))
    ratio = _ratio(found, "per_second", SDK)
    yield Figure(
        "sessions opened and closed per second",
        _values(found, "per_second", "{:.0f}"),
        f"{ratio:.2f} x SDK",
        ">= 2 x SDK",
        ratio >= 2,
    )
    yield Figure(
        "CPU per session opened and closed (ms)",
        _values(found, "cpu_ms", "{:.2f}"),
        f"{_ratio(found, 'cpu_ms', SDK):.2f} x SDK",
    )


def idle(scale: Scale) -> Iterator[Figure]:
    """Sessions that are kept alive."""
    found: Medians = {}
    for client in (SDK, "ors-sdk", OURS):  # a server and a process each, since memory is measured
        with light_server() as url, Worker(client) as worker:
            found[client] = worker.ask("idle", url, sessions=scale.idle, seconds=scale.idle_seconds)
            found[client] |= _report(url)
    name = f"{scale.idle:,} idle sessions"
    for key, text, unit in (
        ("cpu_us_per_second", "{:.0f}", "CPU per session and second (us)"),
        ("kib", "{:.0f}", "memory per session (KiB)"),
    ):
        ratio = _ratio(found, key, SDK)
        yield Figure(f"{name}: {unit}", _values(found, key, text), f"{ratio:.2f} x SDK", "<= 0.5 x SDK", ratio <= 0.5)
    late = {
        client: f"{values['late']:.0f} of {values['pings']:.0f}; {values['longest']:.1f} s"
        for client, values in found.items()
    }
    name = f"{name}: pings more than {LATE_SECONDS:g} s late; longest gap (due every {PING_SECONDS:g} s)"
    yield Figure(name, late, target="none", reached=found[OURS]["late"] == 0)


def long_result(scale: Scale) -> Iterator[Figure]:
    """A tool result of 5 MB."""
    clients = (SDK, "ors-sdk", "aiohttp", OURS)
    rounds: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
    with light_server(delay=0.0, result=5_000_000) as url:
        for turn in range(min(scale.rounds, 3)):
            for client in _turned(clients, turn):
                with Worker(client) as worker:
                    rounds[client].append(worker.ask("result", url, times=scale.results))
    found = {client: _median(values) for client, values in rounds.items()}
    for key, unit in (("wall_ms", "time"), ("cpu_ms", "CPU")):
        ratio = _ratio(found, key, SDK)
        yield Figure(
            f"5 MB tool result: {unit} (ms)",
            _values(found, key, "{:.0f}"),
            f"{ratio:.2f} x SDK",
            "<= 1 x SDK",
            ratio <= 1,
        )
    peak = found[OURS]["peak"]
    yield Figure(
        "5 MB tool result: peak memory over its size",
        _values(found, "peak", "{:.1f} x"),
        f"{peak:.1f}",
        "<= 4",
        peak <= 4,
    )


def imports(scale: Scale) -> Iterator[Figure]:
    """What a package costs before it does anything."""
    modules = {SDK: "openreward", "ors-sdk": "ors.client", "aiohttp": "aiohttp", OURS: "ors_client"}
    rounds: dict[str, list[dict[str, float]]] = {client: [] for client in modules}
    for turn in range(min(scale.rounds, 3) + 1):  # in the first, files are read that are in memory from then on
        for client in _turned(tuple(modules), turn):
            cost = installed.import_cpu(modules[client])
            if turn:
                rounds[client].append({"cpu_ms": cost * 1e3})
    found = {client: _median(values) for client, values in rounds.items()}
    ratio = _ratio(found, "cpu_ms", SDK)
    yield Figure(
        "import (CPU, ms)", _values(found, "cpu_ms", "{:.0f}"), f"{ratio:.2f} x SDK", "<= 0.2 x SDK", ratio <= 0.2
    )
    names = {SDK: "openreward", "ors-sdk": "ors-sdk", "aiohttp": "aiohttp", OURS: "ors-client"}
    sizes = {client: {"mb": installed.size(name) / 1e6} for client, name in names.items()}
    ratio = _ratio(sizes, "mb", SDK)
    yield Figure(
        "installed, with all it needs (MB)",
        _values(sizes, "mb", "{:.1f}"),
        f"{ratio:.2f} x SDK",
        "<= 0.25 x SDK",  # aiohttp and pydantic alone, which both need, are 0.21
        ratio <= 0.25,
    )


def datasets(scale: Scale) -> Iterator[Figure]:
    """Tasks as a dataset, against `trl.experimental.openreward`."""
    kinds = [(64, "64", "64 of 64 tasks"), (5000, "all", "5,000 tasks, all there are")]
    if scale.many_one_by_one:
        kinds.append((5000, "5000", "5,000 tasks, asked for by number"))
    for tasks, asked, name in kinds:
        rounds: dict[str, list[dict[str, float]]] = {SDK: [], OURS: []}
        with light_server(tasks=tasks) as url:
            for turn in range(1 if asked == "5000" else min(scale.rounds, 3)):
                for side in _turned((SDK, OURS), turn):
                    rounds[side].append(_trainer_work("dataset", side, url, asked))
        found = {client: _median(values) for client, values in rounds.items()}
        ratio = _ratio(found, "wall", SDK)
        most = 0.1 if asked == "64" else 1
        yield Figure(
            f"{name}, as a dataset (s)",
            _values(found, "wall", "{:.3f}"),
            f"{ratio:.3f} x TRL's",
            f"<= {most} x TRL's",
            ratio <= most,
        )


def step(scale: Scale) -> Iterator[Figure]:
    """The environments' share of a GRPO step, beside TRL's and beside the least that it can be."""
    seconds = 0.2
    slowest = seconds * (1 + ITERATIONS)
    for rollouts in (ROLLOUTS, 4 * ROLLOUTS, 8 * ROLLOUTS):
        found: Medians = {}
        sides = (SDK, OURS) if rollouts == ROLLOUTS else (OURS,)  # TRL's waits grow with the rollouts: minutes
        with light_server(delay=seconds, setup=seconds, tasks=rollouts) as url:
            for side in sides:
                found[side] = _trainer_work("step", side, url, str(scale.steps), str(rollouts))
            alone = _trainer_work("step", "instant", url, str(scale.steps), str(rollouts))["wall"]
        with light_server(delay=0.0, tasks=rollouts) as url:
            requests = _trainer_work("requests", "aiohttp", url, str(rollouts))["wall"]
        least = slowest + alone + requests
        times = found[OURS]["wall"] / least
        parts = f"{slowest:.1f} s waits of the slowest rollout, {alone:.2f} TRL alone, {requests:.2f} bare aiohttp"
        ratio = _ratio(found, "wall", SDK) if SDK in found else None
        yield Figure(
            f"environment time of a GRPO step, {rollouts} rollouts, {ITERATIONS} tool turns (s)",
            _values(found, "wall", "{:.2f}"),
            (f"{ratio:.3f} x TRL's, " if ratio is not None else "") + f"{times:.2f} x the least ({parts})",
            ("<= 0.1 x TRL's, " if ratio is not None else "") + "<= 1.25 x the least",
            times <= 1.25 and (ratio is None or ratio <= 0.1),
        )


def turns(_: Scale) -> Iterator[Figure]:
    """What the model is asked to generate, with `stop_at_finish` and by TRL alone."""
    for kind, name in (("echo", "the demo's environment, one call"), ("failing", "an environment of three calls")):
        with serve("ours", "--env", kind) as server:
            found = {side: _trainer_work("turns", side, server.url, f"{kind}environment") for side in (SDK, OURS)}
        same = found[SDK]["reward"] == found[OURS]["reward"]
        saved = {key: 1 - _ratio(found, key, SDK) for key in ("turns", "tokens")}
        yield Figure(
            f"generated for {ROLLOUTS} rollouts of {name}",
            {side: f"{values['turns']:.0f} turns, {values['tokens']:.0f} tokens" for side, values in found.items()},
            f"{saved['turns']:.0%} of the turns and {saved['tokens']:.0%} of the tokens saved",
            "some saved, the same reward",
            same and saved["turns"] > 0 and saved["tokens"] > 0,
        )


FIGURES: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    "calls": calls,
    "churn": churn,
    "idle": idle,
    "result": long_result,
    "imports": imports,
    "datasets": datasets,
    "step": step,
    "turns": turns,
}


def _rounds(workers: dict[str, Worker], rounds: int, work: Callable[[Worker], dict[str, float]]) -> Medians:
    found: dict[str, list[dict[str, float]]] = {client: [] for client in workers}
    for turn in range(rounds):
        for client in _turned(tuple(workers), turn):
            found[client].append(work(workers[client]))
    return {client: _median(values) for client, values in found.items()}


def _turned(clients: tuple[str, ...], turn: int) -> tuple[str, ...]:
    """Let another one begin in each round."""
    first = turn % len(clients)
    return clients[first:] + clients[:first]


def _median(values: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(value[key] for value in values) for key in values[0]}


def _ratio(found: Medians, key: str, peer: str) -> float:
    return found[OURS][key] / found[peer][key] if found[peer][key] else float("inf")


def _values(found: Medians, key: str, text: str) -> dict[str, str]:
    return {client: text.format(values[key]) for client, values in found.items()}


def _report(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/_report", timeout=10) as answer:  # noqa: S310 - our own server
        return json.load(answer)


def _trainer_work(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", f"{__package__}.trainer_work", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | QUIET, capture_output=True, text=True, timeout=_TRAINER_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
