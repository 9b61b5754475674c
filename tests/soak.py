"""Hundreds of sessions under random faults, for as long as is wanted: `python -m tests.soak --minutes 10`.

Rollouts open sessions, think, call, are cancelled and leave, while their event loop is blocked now and then. They reach
two servers through a balancer that pins by cookie, and a proxy that breaks what passes. At the end the books of both
sides are compared: what the server ran, what callers got, and what the proxy broke. The exit status is 1
where a call ran twice, a result was lost that could be had, a session was left, or something grew.
"""

# ruff: noqa: T201 - it talks to a terminal

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import psutil

ROOT = Path(__file__).parent.parent
for folder in (ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import Server, serve  # noqa: E402 - found through the path above

from fixtures.balancer import Balancer  # noqa: E402
from fixtures.journal import VARIABLE  # noqa: E402
from fixtures.proxy import (  # noqa: E402
    CleanEndWithout,
    CutAfterBytes,
    CutAfterEvent,
    CutBeforeFinalBlankLine,
    CutInsideEvent,
    Exchange,
    Fault,
    FaultProxy,
    OneByteAtATime,
    ResetAfterForward,
    ResetAfterRead,
    ResetBeforeRead,
    Rule,
    Silence,
    Status,
    StatusAfterForward,
)
from ors_client import (  # noqa: E402
    AsyncClient,
    AsyncSession,
    KeepalivePolicy,
    ORSError,
    OutcomeUnknown,
    RetryPolicy,
    TaskRef,
    Timeouts,
)
from ors_client._http.backends import IDLE_SECONDS  # noqa: E402


@dataclass(frozen=True)
class Drip(Fault):
    """The server's answer, a twentieth each tenth of a second."""

    async def act(self, exchange: Exchange) -> None:
        """Answer slowly."""
        head, body = await _whole(exchange)
        await exchange.send(head)
        step = max(1, len(body) // 20)
        for start in range(0, len(body), step):
            await exchange.sleep(0.1)
            await exchange.send(body[start : start + step])
        exchange.ending = "complete"


@dataclass(frozen=True)
class Surplus(Fault):
    """The server's answer, and half of it once more."""

    async def act(self, exchange: Exchange) -> None:
        """Answer one and a half times."""
        head, body = await _whole(exchange)
        await exchange.send(head + body + (head + body)[: len(head + body) // 2])
        exchange.ending = "complete"


async def _whole(exchange: Exchange) -> tuple[bytes, bytes]:
    reply = await exchange.forward()
    body = await reply.read()
    head = reply.head.replacing({"Content-Length": str(len(body)), "Transfer-Encoding": None})
    return head.raw, body


# Each fault hits this share of the requests that it can; together, every tenth call meets one.
SHARE = 0.01

# After these nobody can tell whether the call ran: one `OutcomeUnknown` each is right.
AMBIGUOUS: tuple[Fault, ...] = (
    ResetBeforeRead(),
    ResetAfterRead(),
    ResetAfterForward(),
    CutAfterBytes(0),
    StatusAfterForward(502),
)
# After these the result can be had, so that not having it is a loss.
RECOVERABLE: tuple[Fault, ...] = (
    Status(429, headers={"Retry-After": "0.2"}),
    Status.starting("0.2"),
    CutAfterEvent("task_id"),
    CutInsideEvent("chunk"),
    CutBeforeFinalBlankLine(),
    CleanEndWithout("end"),
    Silence(None, "after_task_id"),
    Silence(1.0),
    OneByteAtATime(64),
    Drip(),
    Surplus(),
)
# What happens to everything else: opening, preparing, keeping alive and deleting.
ELSEWHERE: tuple[Fault, ...] = (
    Status(503),
    Status(429, headers={"Retry-After": "0.2"}),
    ResetAfterRead(),
    ResetAfterForward(),
    StatusAfterForward(504),
    Silence(1.0),
    Drip(),
    Surplus(),
)
PATHS = (
    ("POST", "/create_session"),
    ("POST", "/create"),
    ("GET", "/prompt"),
    ("POST", "/ping"),
    ("POST", "/delete"),
)

LIMITS = Timeouts(connect=10, response=20, silence=5, start_up=120, close=20)
RETRY = RetryPolicy(attempts=8, first_delay=0.1, max_delay=2.0)
PINGS = KeepalivePolicy(interval=5, tolerance=120)


@dataclass
class Books:
    """What the callers saw.

    Attributes:
        calls: How many were made.
        right: How many gave their result.
        cancelled: How many were cancelled by their caller.
        errors: The others, by type.
        doubled: How many results showed a step too many.
        missing: How many results showed a step too few: one that was told to have run, and had not.
        unopened: The sessions that could not be opened, by type of error.
        leaked: The sessions that the client could not delete.
    """

    calls: int = 0
    right: int = 0
    cancelled: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    doubled: int = 0
    missing: int = 0
    unopened: Counter[str] = field(default_factory=Counter[str])
    leaked: int = 0


@dataclass(frozen=True)
class Size:
    """What this process holds."""

    files: int
    threads: int
    megabytes: float

    @classmethod
    def now(cls) -> Size:
        """Measure."""
        process = psutil.Process()
        return cls(process.num_fds(), process.num_threads(), process.memory_info().rss / 2**20)

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.files} open files, {self.threads} threads, {self.megabytes:.0f} MiB"


@dataclass(frozen=True)
class Sizes:
    """What this process holds over time. Under load, the number of open files is chance.

    Args:
        before: Before the first session.
        early: After a quarter of the time.
        late: Shortly before its end.
        after: When the sessions have ended and no connection is kept for a next request.
    """

    before: Size
    early: Size
    late: Size
    after: Size

    def grown(self) -> list[str]:
        """Name what is larger than chance explains."""
        found = []
        if self.after.files > self.before.files + 10:
            found.append("open files")
        if self.after.threads > self.before.threads + 4 or self.late.threads > self.early.threads + 4:
            found.append("threads")
        if self.late.megabytes > self.early.megabytes * 1.2 + 20:
            found.append("memory")
        return found


# --- The rollouts ----------------------------------------------------------------------------------------------------


async def rollouts(client: AsyncClient, books: Books, *, until: float, dice: random.Random) -> None:
    """Open one session after another until the time is over."""
    environment = client.environment("counterenvironment")
    while time.monotonic() < until:
        try:
            async with environment.session(TaskRef("train", 0)) as session:
                await episode(session, books, dice)
        except ORSError as error:
            books.unopened[type(error).__name__] += 1


async def episode(session: AsyncSession, books: Books, dice: random.Random) -> None:
    """Step, checking the count that comes back, until the episode's length is reached or its state is unknown."""
    certain = perhaps = 0  # steps that have run, and that may have
    for _ in range(dice.randint(2, 12)):
        await anyio.sleep(dice.uniform(0.2, 2.0))  # the model generates
        books.calls += 1
        try:
            with anyio.move_on_after(dice.uniform(0, 0.05) if dice.random() < 0.02 else None) as scope:
                output = await session.call_tool("step")
        except ORSError as error:
            books.errors[type(error).__name__] += 1
            if not isinstance(error, OutcomeUnknown):
                return
            perhaps += 1
            continue
        if scope.cancelled_caught:
            books.cancelled += 1
            perhaps += 1
            continue
        books.right += 1
        count = int(output.text)
        books.doubled += count > certain + perhaps + 1
        books.missing += count < certain + 1
        certain, perhaps = count, 0


async def soak(proxy_url: str, *, sessions: int, seconds: float, seed: int) -> tuple[Books, Sizes]:
    """Run, and measure before, under the same load twice, and after."""
    books = Books()
    began = time.monotonic()
    until = began + seconds
    sizes = [Size.now()]
    async with AsyncClient(proxy_url, timeout=LIMITS, retry=RETRY, keepalive=PINGS) as client:

        async def measure() -> None:
            for share in (0.25, 0.95):
                await anyio.sleep(began + share * seconds - time.monotonic())
                sizes.append(Size.now())

        async def report() -> None:
            while time.monotonic() < until - 5:
                await anyio.sleep(min(60.0, until - time.monotonic()))
                done = f"{books.calls} calls, {client.open_sessions} sessions"
                print(f"  {time.monotonic() - began:4.0f} s  {done}, {Size.now()}", flush=True)

        async def block() -> None:
            dice = random.Random(seed)
            while time.monotonic() < until:
                await anyio.sleep(dice.uniform(0.5, 3.0))
                time.sleep(dice.uniform(0.0, 0.5))  # noqa: ASYNC251 - a program that computes in its event loop

        async with anyio.create_task_group() as group:
            group.start_soon(measure)
            group.start_soon(block)
            group.start_soon(report)
            for number in range(sessions):
                dice = random.Random(seed * 100_003 + number)
                group.start_soon(lambda dice=dice: rollouts(client, books, until=until, dice=dice))
        await anyio.sleep(3 * IDLE_SECONDS)  # libraries look at idle connections once in that time
        sizes.append(Size.now())
    books.leaked = client.leaked_sessions
    return books, Sizes(*sizes)


# --- The proxy, in a process of its own, since it keeps every request ------------------------------------------------


def run_proxy(servers: list[str], seed: int) -> None:
    """Break what passes; at the first line of input tell what was broken, and end."""
    with Balancer(servers) as balancer, FaultProxy(balancer.url, seed=seed) as proxy:
        rules = {
            "ambiguous": [
                proxy.add(Rule("POST", "/call", fault, times=None, probability=SHARE)) for fault in AMBIGUOUS
            ],
            "recoverable": [
                proxy.add(Rule("POST", "/call", fault, times=None, probability=SHARE)) for fault in RECOVERABLE
            ],
            "elsewhere": [
                proxy.add(Rule(method, path, fault, times=None, probability=SHARE))
                for method, path in PATHS
                for fault in ELSEWHERE
            ],
        }
        print(proxy.url, flush=True)
        sys.stdin.readline()
        print(json.dumps({kind: sum(rule.acted for rule in added) for kind, added in rules.items()}), flush=True)


@contextlib.contextmanager
def proxy_before(*servers: Server, seed: int) -> Iterator[subprocess.Popen[str]]:
    """Run the proxy for the length of a block."""
    command = [sys.executable, "-m", "tests.soak", "--seed", str(seed), "--proxy", *(server.url for server in servers)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


# --- The books -------------------------------------------------------------------------------------------------------


def main() -> int:
    """Soak, print and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of faults and rollouts; timing stays chance")
    parser.add_argument("--proxy", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.proxy:
        run_proxy(arguments.proxy, arguments.seed)
        return 0
    seconds = arguments.minutes * 60
    print(f"{arguments.sessions} sessions for {seconds:.0f} s, every tenth call broken", flush=True)
    options = ("--env", "counter", "--keepalive-comment", "1", "--session-timeout", "120")
    with (
        serve("ours", *options, env={VARIABLE: ""}) as one,
        serve("ours", *options, env={VARIABLE: ""}) as other,
        proxy_before(one, other, seed=arguments.seed) as proxy,
    ):
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        url = proxy.stdout.readline().strip()
        books, sizes = anyio.run(lambda: soak(url, sessions=arguments.sessions, seconds=seconds, seed=arguments.seed))
        proxy.stdin.write("\n")
        proxy.stdin.flush()
        broken = json.loads(proxy.stdout.readline())
        executions = sum(sum(server.stats()["executions"].values()) for server in (one, other))
        left = sum(len(server.live()) for server in (one, other))
    return judge(books, sizes, broken=broken, executions=executions, left=left)


def judge(books: Books, sizes: Sizes, *, broken: dict[str, int], executions: int, left: int) -> int:
    """Print the books; return the exit status."""
    unknown = books.errors["OutcomeUnknown"]
    perhaps = unknown + books.cancelled + sum(books.errors.values()) - unknown
    doubled = books.doubled + max(0, executions - books.right - perhaps)
    # Every ambiguous fault explains one unknown outcome; whatever else ended a call had a result that could be had.
    lost = books.missing + sum(books.errors.values()) - unknown + max(0, unknown - broken["ambiguous"])
    grown = sizes.grown()
    print(f"calls       {books.calls}: {books.right} right, {books.cancelled} cancelled, errors {dict(books.errors)}")
    print(f"broken      {broken}; sessions that did not open: {dict(books.unopened)}")
    print(f"executions  {executions}")
    print(f"lost        {lost} (unknown outcomes: {unknown}, after {broken['ambiguous']} faults that leave no other)")
    print(f"doubled     {doubled}")
    print(f"leaked      {left} on the server, {books.leaked} that the client could not delete")
    for moment, size in vars(sizes).items():
        print(f"{moment:<10}  {size}")
    if grown:
        print(f"grown       {', '.join(grown)}")
    return int(bool(lost or doubled or left or books.leaked or grown))


if __name__ == "__main__":
    sys.exit(main())
