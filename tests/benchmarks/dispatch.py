"""Measure how many workers the driver of an evaluation on Ray can feed: `python -m tests.benchmarks.dispatch`.

A thousand workers, all in this process: the queue and the writer of the record are the real ones, and the workers
answer as a worker on Ray does, but play nothing: their episodes end after a moment, ready to be recorded. No Ray and no
socket is there, but what Ray would unpickle in the driver is unpickled. So what is measured is the most that the driver
can do; `tests.benchmarks.ray` says what Ray's own part costs.
"""

# ruff: noqa: T201 - a script that prints a table

import argparse
import asyncio
import os
import pickle
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ors_client import TaskRef
from ors_client.evaluation._dispatcher import Dispatcher
from ors_client.evaluation._plan import Plan
from ors_client.evaluation._ray_worker import Outcome, Stopped
from ors_client.evaluation._rules import Rules
from ors_client.evaluation._shard import Attempt, attempts_of
from ors_client.record import CallRecord, EpisodeRecord, RecordWriter, RunRecord
from ors_client.report import Figures

_GATHER_SECONDS = 0.02  # as a worker's
_EPISODE_SECONDS = 0.5  # far less than one takes: the driver is to be the bound
_REAL_SECONDS = (30, 60, 300)  # what an episode takes with a model


class SimulatedWorker:
    """What the dispatcher calls in place of a worker's handle.

    Args:
        episode: The pickled record of each of its episodes.
    """

    def __init__(self, episode: bytes) -> None:
        self._episode = episode
        self._ended: list[Attempt] = []
        self._some_ended = asyncio.Event()
        self.start = SimpleNamespace(remote=self._start)
        self.exchange = SimpleNamespace(remote=self._exchange)
        self.stop = SimpleNamespace(remote=self._stop)

    async def _start(self, _: bytes) -> str:
        return "token"

    def _exchange(self, _: str, attempts: Sequence[Attempt]) -> Awaitable[list[Outcome]]:
        loop = asyncio.get_running_loop()
        for attempt in attempts:
            loop.call_later(_EPISODE_SECONDS * random.uniform(0.5, 1.5), self._end, attempt)
        return self._outcomes()

    async def _outcomes(self) -> list[Outcome]:
        await self._some_ended.wait()
        await asyncio.sleep(_GATHER_SECONDS)
        ended, self._ended = self._ended, []
        self._some_ended.clear()
        return [(attempt, pickle.loads(self._episode)) for attempt in ended]  # noqa: S301 - what was just made

    def _end(self, attempt: Attempt) -> None:
        self._ended.append(attempt)
        self._some_ended.set()

    async def _stop(self) -> Stopped:
        return Stopped([], 0)


def an_episode(calls: int, characters: int) -> EpisodeRecord:
    """Return an episode as a worker sends it, with results of so many characters."""

    def text(number: int) -> str:
        return (f"{number} it said, and this is what came of it. " * (characters // 40 + 1))[:characters]

    messages: list[dict[str, Any]] = [{"role": "user", "blocks": [{"type": "text", "text": text(calls)}]}]
    made: list[CallRecord] = []
    for number in range(calls):
        arguments = {"query": f"what came of {number}", "page": number}
        call = {"id": f"call_{number}", "name": "search", "arguments": arguments}
        words = {"type": "text", "text": f"I look for {number}. {text(number)[:200]}"}
        messages.append({"role": "assistant", "blocks": [words], "calls": [call]})
        messages.append({"role": "tool", "blocks": [{"type": "text", "text": text(number)}], "call_id": call["id"]})
        made.append(CallRecord(tool="search", arguments=arguments, output=text(number), reward=0.0, seconds=0.2))
    return EpisodeRecord(
        prompt=text(calls),
        calls=made,
        rewards=[0.0] * calls,
        reward=0.0,
        status="scored",
        messages=messages,
        session_id="0" * 32,
        started=datetime.now(UTC),
        seconds=60.0,
    )


def plan_of(record: Path, attempts: list[Attempt]) -> Plan:
    """Return a plan as one is made of a server's answers."""
    return Plan(
        attempts=attempts,
        requested=len(attempts),
        notes=[],
        environment="simulated",
        rules=Rules(),
        concurrency=1,
        secrets=None,
        run=RunRecord(environment="simulated", model="m"),
        specs={},
        writer=RecordWriter(record, hide=["sk-of-the-model", "of-the-environment"]),
        summarise=Figures,
        unplayed=Figures,
    )


async def dispatch(
    attempts: list[Attempt],
    finished: Callable[[Attempt, EpisodeRecord], Awaitable[None]],
    *,
    episode: bytes,
    workers: int,
    concurrency: int,
) -> dict[str, float]:
    """Let the dispatcher feed the workers until all is played."""
    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayActorError=ConnectionError, ActorDiedError=ConnectionError), kill=lambda _: None
    )
    dispatcher = Dispatcher(ray, b"", attempts, finished, concurrency=concurrency, on_leaked=lambda _: None)
    simulated = [SimulatedWorker(episode) for _ in range(workers)]
    cpu, wall = time.process_time(), time.perf_counter()
    await dispatcher.play(simulated)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"per_s": len(attempts) / wall, "cpu_ms": cpu / len(attempts) * 1e3}


def _lines(record: Path) -> tuple[int, int]:
    """Return the episodes of a record, and its bytes."""
    with record.open("rb") as lines:
        return sum(line.startswith(b'{"type":"episode"') for line in lines), record.stat().st_size


async def measure(workers: int, concurrency: int, rounds: int) -> None:
    """Print what the driver can do, and what so many workers need."""
    attempts = attempts_of([TaskRef("train", index) for index in range(workers)], concurrency * rounds)
    print(f"{workers:,} workers, {concurrency} episodes at a time each, {len(attempts):,} episodes\n")
    columns = ("episodes", "handed out and taken back per second", "CPU ms", "recorded, too, per second", "CPU ms")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    for calls, characters in ((3, 100), (10, 1_000), (30, 2_000)):
        episode = an_episode(calls, characters)
        sent = pickle.dumps(episode)

        async def forget(_: Attempt, __: EpisodeRecord) -> None:
            pass

        settings: dict[str, Any] = {"episode": sent, "workers": workers, "concurrency": concurrency}
        handed = await dispatch(attempts, forget, **settings)
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder, "a.jsonl")
            some = attempts[: len(attempts) // 2]
            recorded = await dispatch(some, plan_of(record, some).finish, **settings)
            written, size = _lines(record)
        assert written == len(some)
        cells = [f"{calls} calls, {size / written / 1024:.0f} KiB a line"]
        for found in (handed, recorded):
            cells += [f"{found['per_s']:,.0f}", f"{found['cpu_ms']:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    print()
    for seconds in _REAL_SECONDS:
        print(f"They need {workers * concurrency / seconds:,.0f} a second where an episode takes {seconds} s.")
    print(f"load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=16, help="episodes at a time of each worker (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="how many each of those plays (%(default)s)")
    options = parser.parse_args()
    asyncio.run(measure(options.workers, options.concurrency, options.rounds))


if __name__ == "__main__":
    main()
