"""How many requests the same work costs through our client and through the openreward SDK.

Both ask the real openreward server, each piece of work through a proxy of its own that counts. Run it as a script for
the table; only loopback is contacted.
"""

# ruff: noqa: T201 - a script that prints a table

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import Server, serve  # noqa: E402 - found through the path above

from fixtures.proxy import FaultProxy, RecordedRequest  # noqa: E402
from ors_client import Client, TaskRef  # noqa: E402

TASKS = 64
ENVIRONMENT = "echoenvironment"
SERVER = ("openreward", "--env", "echo", "--num-tasks", str(TASKS))
_SDK_SECONDS = 90  # importing it takes six, on a machine that is doing nothing else

# The SDK's client is global to a process and reads its address when it is made, so it gets a process of its own.
_SDK = """
import os, sys
import openreward

def environment(url):
    os.environ["OPENREWARD_API_URL"] = os.environ["OPENREWARD_SESSION_URL"] = url
    client = openreward.OpenReward()
    return client, client.environments.get("{environment}")

one_by_one, by_range, episode = sys.argv[1:]

client, env = environment(one_by_one)  # as trl.experimental.openreward does it
tasks = [env.get_task("train", i) for i in range(min({tasks}, env.num_tasks("train")))]
assert len(tasks) == {tasks}
client.close()

client, env = environment(by_range)
assert len(env.get_task_range("train", 0, {tasks})) == {tasks}
client.close()

client, env = environment(episode)
with env.session(split="train", index=0) as session:
    session.get_prompt()
    session.list_tools()
    session.call_tool("echo", {{"text": "no"}})
    assert session.call_tool("echo", {{"text": "hello"}}).finished
client.close()
"""


@dataclass(frozen=True)
class Row:
    """One piece of work: what passed, pings aside, as they depend on time."""

    work: str
    ours: list[RecordedRequest]
    sdk: list[RecordedRequest]


def measure(server: Server) -> list[Row]:
    """Count both clients on a server that was started with `SERVER`."""
    ours = [_count(server, _our_tasks), _count(server, _our_episode)]
    one_by_one, by_range, episode = _count_sdk(server)
    return [
        Row(f"{TASKS} tasks as a dataset", ours[0], one_by_one),
        Row(f"{TASKS} tasks as a dataset, the SDK's range call", ours[0], by_range),
        Row("one episode: prompt, tools, two calls", ours[1], episode),
    ]


def redirects(requests: Iterable[RecordedRequest]) -> int:
    """Return how many of the requests were answered with a redirect."""
    return sum(300 <= (request.upstream_status or 0) < 400 for request in requests)


def table(rows: Iterable[Row]) -> str:
    """Return the counts as Markdown."""
    lines = ["| work | ors_client | openreward SDK 0.1.167 |", "| --- | --- | --- |"]
    for row in rows:
        redirected = redirects(row.sdk)
        of_them = f" ({redirected} of them redirects)" if redirected else ""
        lines.append(f"| {row.work} | {len(row.ours)} | {len(row.sdk)}{of_them} |")
    return "\n".join(lines)


def _count(server: Server, work: Callable[[Client], None]) -> list[RecordedRequest]:
    with FaultProxy(server.url) as proxy:
        with Client(proxy.url) as client:
            work(client)
        return _without_pings(proxy)


def _our_tasks(client: Client) -> None:
    tasks = client.environment(ENVIRONMENT).list_tasks("train", 0, TASKS)
    if len(tasks) != TASKS:
        raise ValueError(f"{len(tasks)} tasks came, not {TASKS}.")


def _our_episode(client: Client) -> None:
    with client.environment(ENVIRONMENT).session(TaskRef("train", 0)) as session:
        session.get_prompt()
        session.list_tools()
        session.call_tool("echo", {"text": "no"})
        session.call_tool("echo", {"text": "hello"})


def _count_sdk(server: Server) -> list[list[RecordedRequest]]:
    script = _SDK.format(environment=ENVIRONMENT, tasks=TASKS)
    with FaultProxy(server.url) as first, FaultProxy(server.url) as second, FaultProxy(server.url) as third:
        proxies = (first, second, third)
        subprocess.run(
            [sys.executable, "-c", script, *(proxy.url for proxy in proxies)],
            env={**os.environ, "OPENREWARD_API_KEY": "not-a-key", "OPENREWARD_DISABLE_UPDATE_CHECK": "1"},
            check=True,
            timeout=_SDK_SECONDS,
            capture_output=True,
        )
        return [_without_pings(proxy) for proxy in proxies]


def _without_pings(proxy: FaultProxy) -> list[RecordedRequest]:
    return [request for request in proxy.requests if request.path != "/ping"]


if __name__ == "__main__":
    with serve(*SERVER) as running:
        print(table(measure(running)))
