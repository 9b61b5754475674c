"""What has to hold whatever a server answers, checked over one whole use of a client."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import cast

import anyio
import anyio.lowlevel
import psutil

from ors_client import (
    AsyncClient,
    EnvironmentNotFound,
    ImageBlock,
    KeepalivePolicy,
    LimitExceeded,
    Limits,
    Message,
    ORSError,
    ProtocolError,
    ReasoningBlock,
    RetryPolicy,
    Split,
    StatusError,
    Task,
    TaskRef,
    TextBlock,
    Timeouts,
    ToolCallBlock,
    ToolOutput,
    ToolRejected,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
)
from ors_client.evaluation import ChatModel

from .grammar import KEY
from .hostile import Attack, hostile

SECRET = "sk-attack-0123456789"
SPELLINGS = (SECRET, SECRET.encode().hex(), "c2stYXR0YWNrLTAxMjM0NTY3ODk")

TIMEOUTS = Timeouts(connect=1, response=0.6, silence=0.6, start_up=1.2, call=2, close=1.5)
RETRY = RetryPolicy(attempts=2, first_delay=0.01, max_delay=0.02)
PINGS = KeepalivePolicy(interval=0.2, tolerance=0.6)
LIMITS = Limits(result_bytes=2**22)
BLOCKS = (TextBlock, ImageBlock, ReasoningBlock, ToolCallBlock, ToolResultBlock, UnknownBlock)

# An operation has `attempts` attempts of at most `start_up` and a second, waits within `start_up`, and first waits for
# its session's setup; a machine that is shared gets as much again.
OPERATION_SECONDS = 2 * (RETRY.attempts * (TIMEOUTS.start_up + 1) + TIMEOUTS.start_up + 2)
MEMORY_BYTES = 96 * 2**20
BLOCKED_SECONDS = 2.0


# What an operation's value comes from, beside the list of environments. Where none of it is attacked, the value of an
# honest server is the only right one.
SOURCES = {
    "list_environments": (),
    "list_splits": ("splits",),
    "num_tasks": ("num_tasks",),
    "get_task": ("task",),
    "list_tasks": ("task_range", "tasks", "num_tasks", "task"),
    "list_tools": ("tools",),
    "get_prompt": ("prompt", "create", "create_session"),
    "get_messages": ("messages", "prompt", "create", "create_session"),
    "tools": ("task_tools", "tools", "create", "create_session"),
    "call": ("call", "prompt", "create", "create_session"),
}

# What an operation can't raise where what it asks for is answered honestly: another answer was taken for its own.
MISTAKEN = (ProtocolError, LimitExceeded, StatusError, EnvironmentNotFound, ToolRejected)


@dataclass
class Findings:
    """What was seen, and what did not hold.

    Attributes:
        values: What each operation returned, where it returned.
        errors: What each operation raised, where that is foreseen.
        broken: What did not hold.
        shown: Every text that a person may see.
    """

    values: dict[str, object] = field(default_factory=dict)
    errors: dict[str, ORSError] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    async def ask(self, name: str, ask: Callable[[], Awaitable[object]], check: Callable[[object], bool]) -> object:
        """Ask for one thing, in time; note what is wrong with the way it ended."""
        began = time.monotonic()
        value = None
        try:
            with anyio.fail_after(2 * OPERATION_SECONDS):
                value = await ask()
        except ORSError as error:
            self.errors[name] = error
            self.shown += [str(error), repr(error), repr(vars(error))]
        except TimeoutError:
            self.broken.append(f"{name} did not end within {2 * OPERATION_SECONDS:.0f} s")
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            self.broken.append(f"{name} raised {error!r}\n{''.join(traceback.format_exception(error))}")
            return None
        else:
            self.values[name] = value.text if isinstance(value, ToolOutput) else value
            if not check(value):
                self.broken.append(f"{name} returned {value!r:.300}")
        seconds = time.monotonic() - began
        if seconds > OPERATION_SECONDS:
            self.broken.append(f"{name} took {seconds:.1f} s")
        return value


def is_list_of(*kinds: type) -> Callable[[object], bool]:
    """Return a check that a value is a list of some kinds."""
    return lambda value: isinstance(value, list) and all(isinstance(each, kinds) for each in value)


async def use(url: str, findings: Findings, *, busy: bool = False, pings_hang: bool = False) -> int:
    """Do everything that a program does with a server, as far as it lets one; return how many sessions it left."""
    client = AsyncClient(url, api_key=SECRET, timeout=TIMEOUTS, retry=RETRY, keepalive=PINGS, limits=LIMITS)
    async with anyio.create_task_group() as group:
        group.start_soon(burn if busy else watch, findings)
        try:
            async with client:
                await _use(client, findings, pings_hang=pings_hang)
        finally:
            group.cancel_scope.cancel()
    return client.leaked_sessions


async def burn(_: Findings) -> None:
    """Keep the event loop busy, one turn after the other."""
    while True:
        end = time.monotonic() + 0.06
        while time.monotonic() < end:
            pass
        await anyio.lowlevel.checkpoint()


async def watch(findings: Findings) -> None:
    """Notice when the event loop stands still."""
    while True:
        began = time.monotonic()
        await anyio.sleep(0.05)
        if (gap := time.monotonic() - began) > BLOCKED_SECONDS:
            findings.broken.append(f"the event loop stood still for {gap:.1f} s")


async def _choose(client: AsyncClient, findings: Findings) -> None:
    """Choose environments by name: what is listed under another name is not what was asked for."""
    names = findings.values.get("list_environments")
    if not is_list_of(str)(names) or len(listed := cast("list[str]", names)) < 2:
        return
    for name in (*listed[:3], f"me/{listed[-1]}"):
        found = await findings.ask("name", client.environment(name).name, lambda value: isinstance(value, str))
        if isinstance(found, str) and found.lower() != name.lower():
            findings.broken.append(f"{name!r} gave {found!r}, of {listed}")


async def ask_model(url: str, findings: Findings, *, busy: bool = False) -> int:
    """Ask a model for a reply, which opens no session."""
    async with anyio.create_task_group() as group:
        group.start_soon(burn if busy else watch, findings)
        try:
            async with ChatModel("m", f"{url}/v1", api_key=SECRET, attempts=2, first_delay=0.01, timeout=0.6) as model:
                for name in ("reply", "second reply"):
                    await findings.ask(name, lambda: model.ask({"messages": []}), lambda value: value is not None)
                findings.shown.append(repr(model))
        finally:
            group.cancel_scope.cancel()
    return 0


async def _use(client: AsyncClient, findings: Findings, *, pings_hang: bool) -> None:
    await findings.ask("list_environments", client.list_environments, is_list_of(str))
    await _choose(client, findings)
    environment = client.environment("counterenvironment")
    await findings.ask("list_splits", environment.list_splits, is_list_of(Split))
    await findings.ask("num_tasks", lambda: environment.num_tasks("train"), lambda value: isinstance(value, int))
    await findings.ask("get_task", lambda: environment.get_task("train", 0), lambda value: isinstance(value, Task))
    await findings.ask("list_tasks", lambda: environment.list_tasks("train", 0, 3), is_list_of(Task))
    await findings.ask("list_tools", environment.list_tools, is_list_of(ToolSpec))
    session = environment.session(TaskRef("train", 0))
    if await findings.ask("open", session.__aenter__, lambda value: value is session) is None:
        return
    try:
        findings.shown.append(repr(session))
        await findings.ask("get_prompt", session.get_prompt, is_list_of(*BLOCKS))
        await findings.ask("get_messages", session.get_messages, is_list_of(Message))
        await findings.ask("tools", session.list_tools, is_list_of(ToolSpec))
        await findings.ask("call", lambda: session.call_tool("step", {}), lambda value: isinstance(value, ToolOutput))
        await anyio.sleep(PINGS.interval * 2)
        if pings_hang:  # each may take two intervals, and the next goes out regardless
            await anyio.sleep(PINGS.interval * 10)
    finally:
        await findings.ask("close", session.aclose, lambda value: value is None)
    findings.shown.append(repr(session))


def attack(upstream: str, what: Attack, *, backend: str) -> list[str]:
    """Attack one use of a client; return what did not hold."""
    findings = Findings()
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("ors_client")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    gc.collect()
    _forget_peak()
    before = psutil.Process().memory_info().rss
    began = time.monotonic()
    try:
        with hostile(upstream, what, replacing={KEY: SECRET.encode(), KEY.lower(): SECRET.encode()}) as seen:
            pings_hang = what.endpoint == "ping" and what.never_ends
            whole = ask_model if what.endpoint == "completions" else partial(use, pings_hang=pings_hang)
            leaked = anyio.run(partial(whole, seen.url, findings, busy=what.busy), backend=backend)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    grown = _peak() - before
    if what.endpoint != "list_environments":
        findings.broken += _mistaken(findings, what.endpoint, honest(upstream))
    if what.endpoint == "completions" and what.times == 1 and "second reply" in findings.values:
        findings.broken.append("a model's second reply came, which nobody sent for it")
    said = what.steps[0].data
    if pings_hang and (not said or said.startswith(b"HTTP/1.1 200")) and seen.pings < 2 and "call" in findings.values:
        findings.broken.append(f"{seen.pings} pings came, the first of which was not answered")
    if grown > MEMORY_BYTES:
        findings.broken.append(f"memory grew by {grown / 2**20:.0f} MiB")
    if time.monotonic() - began > 12 * OPERATION_SECONDS:
        findings.broken.append("the whole use took too long")
    findings.shown += [record.getMessage() for record in records]
    for text in findings.shown:
        if any(spelling in text for spelling in SPELLINGS):
            findings.broken.append(f"the key is shown: {text[:300]}")
    if seen.calls > 1:
        findings.broken.append(f"a call may have run {seen.calls} times")
    # A server that says that a session is gone is believed, where it says so when the episode begins.
    gone = what.endpoint == "create" and what.says_gone
    if (left := (seen.confirmed & seen.used) - seen.deleted - {""}) and not gone:
        findings.broken.append(f"nobody asked to delete {left}; {leaked} are counted as left")
    return findings.broken


def _mistaken(findings: Findings, attacked: str, right: dict[str, object]) -> Iterator[str]:
    """Name the operations that took for their answer what was none of theirs."""
    for name, sources in SOURCES.items():
        if attacked in sources:
            continue
        if name in findings.values and findings.values[name] != right[name]:
            yield f"{name} returned {findings.values[name]!r:.300}, not what the honest server says"
        error = findings.errors.get(name)
        if isinstance(error, MISTAKEN):
            yield f"{name} raised {error!r}, though the honest server answered"


def _forget_peak() -> None:
    """Let the kernel count the most that this process holds anew, where it can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    """Return the most that this process held; what it holds where the kernel doesn't tell."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))):
        return int(found[1]) * 1024
    return psutil.Process().memory_info().rss


@cache
def honest(upstream: str) -> dict[str, object]:
    """Return what each operation returns where nobody attacks."""
    findings = Findings()
    anyio.run(use, upstream, findings)
    assert set(SOURCES) <= set(findings.values), findings.errors
    return findings.values
