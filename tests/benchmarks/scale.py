"""Measure what SCALE.md is made of: thousands of real sessions of one client, idle and calling, on the light server.

`python -m tests.benchmarks.scale` prints a table; `--sessions 1000 5000` and `--intervals 10 1` choose others.
"""

# ruff: noqa: T201 - a script that prints a table

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from .light_server import ENVIRONMENT
from .worker import ROOT, light_server, resident

_AT_ONCE = 200  # sessions that are opened and closed side by side
_SECONDS = 22.0  # two rounds of pings
_PATIENCE = 600
_COLUMNS = {
    "sessions": "{:.0f}",
    "interval": "{:g}",
    "opened_per_s": "{:.0f}",
    "kib_per_session": "{:.1f}",
    "files_idle": "{:.0f}",
    "pings_per_s": "{:.0f}",
    "longest_gap_s": "{:.2f}",
    "cpu_share": "{:.1%}",
    "cpu_us_per_ping": "{:.0f}",
    "server_us_per_ping": "{:.0f}",
    "files_calling": "{:.0f}",
    "kib_calling": "{:.0f}",
    "call_all_s": "{:.2f}",
    "cpu_ms_per_call": "{:.2f}",
}


async def measure(url: str, sessions: int, interval: float) -> dict[str, float]:
    """Open the sessions, leave them idle, let all call at once, and close them."""
    import ors_client

    found: dict[str, float] = {"sessions": sessions, "interval": interval}
    keepalive = ors_client.KeepalivePolicy(interval=interval)
    async with ors_client.AsyncClient(url, keepalive=keepalive) as client:
        environment = client.environment(ENVIRONMENT)
        async with environment.session(ors_client.TaskRef("train", 0)) as first:
            await first.call_tool("echo", {"text": "warm"})
        gc.collect()
        before, began = resident(), time.perf_counter()
        opened = [environment.session(ors_client.TaskRef("train", 0)) for _ in range(sessions)]
        await _in_turns([session.__aenter__ for session in opened])
        found["opened_per_s"] = sessions / (time.perf_counter() - began)
        await _in_turns([session.get_prompt for session in opened])
        gc.collect()
        found["kib_per_session"] = (resident() - before) / sessions / 2**10

        await asyncio.sleep(interval)  # every session was pinged once, and idle connections are closed
        start, cpu, wall = _report(url), time.process_time(), time.perf_counter()
        files = 0
        while time.perf_counter() - wall < max(_SECONDS, 2 * interval):
            await asyncio.sleep(1.0)
            files = max(files, _files())
        cpu, wall, end = time.process_time() - cpu, time.perf_counter() - wall, _report(url)
        pings = end["pings"]
        found |= {
            "files_idle": files,
            "pings_per_s": pings / wall,
            "longest_gap_s": end["longest"],
            "cpu_share": cpu / wall,
            "cpu_us_per_ping": cpu / pings * 1e6,
            "server_us_per_ping": (end["cpu"] - start["cpu"]) / pings * 1e6,
        }

        cpu, wall = time.process_time(), time.perf_counter()
        calls = asyncio.gather(*(session.call_tool("echo", {"text": "now"}) for session in opened))
        files = held = 0
        while not calls.done():
            files, held = max(files, _files()), max(held, resident() - before)
            await asyncio.wait([calls], timeout=0.25)
        await calls
        found |= {
            "files_calling": files,
            "kib_calling": held / sessions / 2**10,
            "call_all_s": time.perf_counter() - wall,
            "cpu_ms_per_call": (time.process_time() - cpu) / sessions * 1e3,
        }
        await _in_turns([session.aclose for session in opened])
    return found


async def _in_turns(work: list[Any]) -> None:
    for start in range(0, len(work), _AT_ONCE):
        await asyncio.gather(*(one() for one in work[start : start + _AT_ONCE]))


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process, counted often


def _report(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/_report", timeout=30) as answer:  # noqa: S310 - our own server
        return json.load(answer)


def ping_cost(kind: str) -> float:
    """Return the seconds of CPU that a ping costs a server: "ours", "openreward" or "ors-sdk"."""
    sys.path.insert(0, str(ROOT / "tests"))
    import httpx
    from servers import serve

    import ors_client

    with (
        serve(kind, "--env", "echo") as server,
        ors_client.Client(server.url) as client,
        client.environment().session(ors_client.TaskRef("train", 0)) as session,
        httpx.Client(headers={"X-Session-ID": session.session_id}) as http,
    ):

        def ping(times: int) -> None:
            for _ in range(times):
                http.post(f"{server.url}/ping").raise_for_status()

        ping(50)
        before = _cpu(server.process.pid)
        ping(500)
        return (_cpu(server.process.pid) - before) / 500


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure each size in a process and on a server of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1000, 2000, 5000])
    parser.add_argument("--intervals", type=float, nargs="+", default=[10.0])
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url:
        print(json.dumps(asyncio.run(measure(options.url, options.sessions[0], options.intervals[0]))))
        return
    print(f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}", flush=True)
    for interval in options.intervals:
        for sessions in options.sessions:
            with light_server() as url:
                command = [sys.executable, "-m", f"{__package__}.scale", "--url", url]
                command += ["--sessions", str(sessions), "--intervals", str(interval)]
                done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=_PATIENCE)
            found = json.loads(done.stdout)
            print(f"| {' | '.join(text.format(found[key]) for key, text in _COLUMNS.items())} |", flush=True)
    costs = ", ".join(f"{kind} {ping_cost(kind) * 1e6:.0f} us" for kind in ("ours", "openreward", "ors-sdk"))
    print(f"\nCPU of a server per ping: {costs}")


if __name__ == "__main__":
    main()
