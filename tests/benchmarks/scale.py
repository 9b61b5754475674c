"""Measure what docs/scale.md is made of: thousands of sessions of one client on several light servers.

`python -m tests.benchmarks.scale` prints a table; `--sessions 1000 5000` chooses other numbers. For each number a new
process opens all sessions at once, leaves them idle, lets each call every twenty seconds, lets all call at once,
closes half of them at once, and the client with the rest. The servers share one port, as behind a balancer, and write
down what reaches them, so that gaps and sessions left behind are what they saw. A process may need as many files as it
has sessions (`ulimit -Hn`); the soft limit is raised here.
"""

# ruff: noqa: T201 - a script that prints a table

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ors_client import AsyncClient, AsyncSession, Client, ORSError, TaskRef

from .light_server import ENVIRONMENT, PING_SECONDS
from .worker import ROOT, forget_peak, peak, resident, shared_servers

_IDLE = 3  # rounds of pings that are watched
_CALLING = 2  # rounds of calls, one of each session
_TURN = 20.0  # seconds between two calls of a session, as a model that serves thousands takes
_PATIENCE = 900
_ROWS = {
    "sessions opened per second, all asked for at once": "{opened_per_s:.0f}",
    "open files at most meanwhile": "{files_opening:.0f}",
    "memory per idle session (KiB)": "{kib_idle:.1f}",
    "**idle:** pings per second, sent and due": "{pings_per_s:.1f} of {pings_due:.0f}",
    "longest time between two pings of one session (s)": "{longest_idle:.2f}",
    "CPU per ping, client (ms)": "{ms_per_ping:.2f}",
    "CPU of the keepalive thread (of a core)": "{keepalive:.1%}",
    "open files at most": "{files_idle:.0f}",
    "**a call of each every 20 s:** calls per second": "{calls_per_s:.0f}",
    "CPU per call (ms)": "{ms_per_call:.2f}",
    "longest time between two pings (s) ": "{longest_calling:.2f}",
    "open files at most ": "{files_calling:.0f}",
    "**all call at once:** seconds until the last result": "{burst_s:.1f}",
    "CPU per call (ms) ": "{burst_ms:.2f}",
    "longest time between two pings (s)  ": "{longest_burst:.2f}",
    "open files at most  ": "{files_burst:.0f}",
    "most memory per session (KiB)": "{kib_burst:.0f}",
    "**the end:** seconds to close half of the sessions at once": "{closed_s:.1f}",
    "seconds for the client to close with the other half": "{client_closed_s:.1f}",
    "calls lost, of": "{lost:.0f} of {calls:.0f}",
    "sessions left on the servers; not known to be deleted": "{left:.0f}; {leaked:.0f}",
    "CPU of the servers per request (ms)": "{server_ms:.2f}",
    "load average": "{load:.1f}",
}


class Files:
    """Counts the open files of this process, and keeps the most."""

    def __init__(self) -> None:
        self.most = 0

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.most = max(self.most, len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - counted often
            await asyncio.sleep(0.2)

    def take(self) -> int:
        """Return the most since the last time."""
        most, self.most = self.most, 0
        return most


class Servers:
    """What the servers saw; they share a clock with this process.

    Args:
        urls: Where each tells what it saw.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    def seen(self) -> list[tuple[float, str, str]]:
        """Return what was seen since the last time, in order: the moment, the endpoint, the session."""
        return sorted(tuple(entry) for url in self._urls for entry in _ask(url, "_journal"))

    def used(self) -> Counter[str]:
        """Return the seconds of CPU that they have used, and the requests that they have answered."""
        used: Counter[str] = Counter()
        for url in self._urls:
            told: dict[str, float] = _ask(url, "_report")
            used.update({"cpu": told["cpu"], "requests": told["requests"]})
        return used


def _ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/{path}", timeout=60) as answer:  # noqa: S310 - our own server
        return json.load(answer)


class Measurement:
    """One client and its sessions; each phase adds to `found`.

    Args:
        client: The client, entered.
        servers: What it talks to.
        sessions: How many.
    """

    def __init__(self, client: AsyncClient, servers: Servers, sessions: int) -> None:
        self._client = client
        self._servers = servers
        self._count = sessions
        self._open: list[AsyncSession] = []
        self._files = Files()
        self._memory = 0
        self._alive: dict[str, float] = {}  # when a session was last heard of
        self._deleted: set[str] = set()
        self._lost = 0
        self.found: dict[str, float] = {"sessions": sessions, "pings_due": sessions / PING_SECONDS}

    async def run(self) -> None:
        """Go through all phases but the last, which is that the client is closed."""
        watching = asyncio.create_task(self._files.watch())
        for phase in (self._begin, self._idle, self._call_in_turn, self._call_at_once, self._close_half):
            await phase()
            print(f"{self._count} sessions, {phase.__name__.strip('_')}: done", file=sys.stderr, flush=True)
        watching.cancel()

    def end(self, closing: float) -> None:
        """Take the figures once the client is closed, which took so many seconds."""
        self._look()
        used = self._servers.used()
        self.found |= {
            "client_closed_s": closing,
            "calls": self._count * (_CALLING + 1),
            "lost": self._lost,
            "left": len(self._alive),
            "leaked": self._client.leaked_sessions,
            "server_ms": used["cpu"] / used["requests"] * 1e3,
            "load": os.getloadavg()[0],
        }

    async def _begin(self) -> None:
        environment, task = self._client.environment(ENVIRONMENT), TaskRef("train", 0)
        async with environment.session(task) as first:
            await self._call(first)
        self._open = [environment.session(task) for _ in range(self._count)]
        gc.collect()
        self._look()
        self._files.take()
        self._memory, began = resident(), time.perf_counter()
        await asyncio.gather(*(session.__aenter__() for session in self._open))
        self.found["opened_per_s"] = self._count / (time.perf_counter() - began)
        self.found["files_opening"] = self._files.take()
        await asyncio.sleep(PING_SECONDS)  # every session was pinged once, and idle connections are closed
        gc.collect()
        self.found["kib_idle"] = (resident() - self._memory) / self._count / 2**10
        self._look()
        self._files.take()

    async def _idle(self) -> None:
        cpu, wall = _keepalive_seconds(), time.perf_counter()
        await asyncio.sleep(_IDLE * PING_SECONDS)
        cpu, wall = _keepalive_seconds() - cpu, time.perf_counter() - wall
        pings, longest = self._look()
        self.found |= {"pings_per_s": pings / wall, "ms_per_ping": cpu / pings * 1e3, "keepalive": cpu / wall}
        self.found |= {"longest_idle": longest, "files_idle": self._files.take()}

    async def _call_in_turn(self) -> None:
        async def play(session: AsyncSession) -> None:
            await asyncio.sleep(random.uniform(0, _TURN))
            for turn in range(_CALLING):
                if turn:
                    await asyncio.sleep(_TURN)
                await self._call(session)

        cpu, wall = time.thread_time(), time.perf_counter()
        await asyncio.gather(*map(play, self._open))
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        calls = self._count * _CALLING
        _, longest = self._look()
        self.found |= {"calls_per_s": calls / wall, "ms_per_call": cpu / calls * 1e3}
        self.found |= {"longest_calling": longest, "files_calling": self._files.take()}

    async def _call_at_once(self) -> None:
        forget_peak()
        cpu, wall = time.thread_time(), time.perf_counter()
        await asyncio.gather(*map(self._call, self._open))
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        _, longest = self._look()
        self.found |= {"burst_s": wall, "burst_ms": cpu / self._count * 1e3}
        self.found |= {"longest_burst": longest, "files_burst": self._files.take()}
        self.found["kib_burst"] = (peak() - self._memory) / self._count / 2**10

    async def _close_half(self) -> None:
        wall = time.perf_counter()
        await asyncio.gather(*(session.aclose() for session in self._open[: self._count // 2]))
        self.found["closed_s"] = time.perf_counter() - wall

    async def _call(self, session: AsyncSession) -> None:
        try:
            await session.call_tool("echo", {"text": "now"})
        except ORSError as error:
            if not self._lost:
                print(error, file=sys.stderr)
            self._lost += 1

    def _look(self) -> tuple[int, float]:
        """Return what the servers saw of a phase: pings, and the longest time that a session went without one."""
        pings, longest = 0, 0.0
        for moment, path, session in self._servers.seen():
            if session in self._deleted or path == "call":
                continue
            longest = max(longest, moment - self._alive.get(session, moment))
            pings += path == "ping"
            if path == "delete":
                self._alive.pop(session, None)
                self._deleted.add(session)
            else:
                self._alive[session] = moment
        return pings, longest


async def measure(url: str, servers: Servers, sessions: int) -> dict[str, float]:
    """Open the sessions, leave them idle, let them call, and close them."""
    async with AsyncClient(url) as client:
        measurement = Measurement(client, servers, sessions)
        await measurement.run()
        began = time.perf_counter()
    measurement.end(time.perf_counter() - began)
    return measurement.found


def _keepalive_seconds() -> float:
    """Return the CPU that the thread of the client's pings has used."""
    [thread] = [thread for thread in threading.enumerate() if thread.name == "ors-client-keepalive"]
    return _cpu(Path(f"/proc/self/task/{thread.native_id}/stat"))


def _cpu(status: Path) -> float:
    fields = status.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raise_file_limit(needed: int) -> None:
    """Raise the soft limit on open files of this process and its children as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        print(f"{needed} files are needed, and the hard limit is {hard} (`ulimit -Hn`).", file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def ping_cost(kind: str) -> float:
    """Return the seconds of CPU that a ping costs a server: "ours", "openreward" or "ors-sdk"."""
    sys.path.insert(0, str(ROOT / "tests"))
    import httpx
    from servers import serve

    with (
        serve(kind, "--env", "echo") as server,
        Client(server.url) as client,
        client.environment().session(TaskRef("train", 0)) as session,
        httpx.Client(headers={"X-Session-ID": session.session_id}) as http,
    ):

        def ping(times: int) -> None:
            for _ in range(times):
                http.post(f"{server.url}/ping").raise_for_status()

        ping(50)
        status = Path(f"/proc/{server.process.pid}/stat")
        before = _cpu(status)
        ping(500)
        return (_cpu(status) - before) / 500


def main() -> None:
    """Measure each number of sessions in a process and on servers of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 1_000, 3_000, 10_000])
    parser.add_argument("--servers", type=int, default=3, help="processes that serve (%(default)s)")
    parser.add_argument("--urls", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.urls:
        url, *own = options.urls
        print(json.dumps(asyncio.run(measure(url, Servers(own), options.sessions[0]))))
        return
    raise_file_limit(max(options.sessions) + 1024)
    columns: list[dict[str, float]] = []
    for sessions in options.sessions:
        with shared_servers(options.servers) as urls:
            command = [sys.executable, "-m", f"{__package__}.scale", "--sessions", str(sessions), "--urls", *urls]
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE)
        columns.append(json.loads(done.stdout))
        print(f"{sessions} sessions: done", file=sys.stderr, flush=True)
    now = datetime.now(UTC)
    print(f"{now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {options.servers} servers\n")
    print(f"| sessions | {' | '.join(f'{sessions:,}' for sessions in options.sessions)} |")
    print(f"|{' --- |' * (len(columns) + 1)}")
    for name, text in _ROWS.items():
        print(f"| {name.strip()} | {' | '.join(text.format(**found) for found in columns)} |")
    costs = ", ".join(f"{kind} {ping_cost(kind) * 1e3:.2f} ms" for kind in ("ours", "openreward", "ors-sdk"))
    print(f"\nCPU of a real server per ping: {costs}")


if __name__ == "__main__":
    main()
