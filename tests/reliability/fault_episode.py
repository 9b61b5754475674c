"""Runs the cases of the fault table, many at a time in one event loop, and writes down what each showed."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
from fault_table import ATTEMPTS, REDIRECTS, Case
from servers import Server

from fixtures.environments.awkward import exact_text
from fixtures.proxy import FaultProxy, Rule
from ors_client import (
    AsyncClient,
    AsyncEnvironment,
    AsyncSession,
    KeepalivePolicy,
    Limits,
    ORSError,
    RetryPolicy,
    TaskRef,
    Timeouts,
)

TOOL = "exact"
LENGTH = 12_000  # of the result's JSON: two chunks and an end

TIMEOUTS = Timeouts(connect=3.0, response=2.5, silence=2.5, start_up=5.0, close=3.0)
RETRY = RetryPolicy(attempts=ATTEMPTS, first_delay=0.02, max_delay=0.1)
LIMITS = Limits(result_bytes=500_000, events=5_000, redirects=REDIRECTS)
PINGS = KeepalivePolicy(interval=0.1, tolerance=30.0)
NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)

_TOGETHER = 24  # cases at a time: they mostly wait
_HANG = 40.0  # seconds after which a case counts as hanging; the longest takes eight


@dataclass
class Seen:
    """What one case showed.

    Attributes:
        error: What the caller of the step got.
        wrong: The value, where it was not the right one.
        times: When the endpoint's requests arrived.
        calls: How many calls the proxy saw.
        sessions: The ids that episodes were created under.
        leaked: How many the client says it could not delete.
        executions: How often the tool ran.
        left: The sessions that the server still has.
        crash: What came instead of an end: the case hung, or saw an error that is none of the client's.
    """

    error: ORSError | None = None
    wrong: object = None
    times: list[float] = field(default_factory=list)
    calls: int = 0
    sessions: set[str] = field(default_factory=set)
    leaked: int = 0
    executions: int = 0
    left: set[str] = field(default_factory=set)
    crash: Exception | None = None


def observe(cases: Sequence[Case], server: Server, *, backend: str) -> dict[str, Seen]:
    """Run the cases, each with a client and a proxy of its own, and then ask the journal what ran."""
    seen = {case.id: Seen() for case in cases}

    async def run_all() -> None:
        room = anyio.CapacityLimiter(_TOGETHER)

        async def run(case: Case) -> None:
            async with room:
                try:
                    with anyio.fail_after(_HANG):
                        await _run(case, server.url, seen[case.id])
                except Exception as error:  # noqa: BLE001 - of one case, which its own test tells of
                    seen[case.id].crash = error

        async with anyio.create_task_group() as group:
            for case in cases:
                group.start_soon(run, case)

    anyio.run(run_all, backend=backend)
    gc.collect()  # what the HTTP libraries left lying about is theirs, and is complained of here
    ran = [entry["sid"] for entry in server.journal.executions(TOOL)]
    live = set(server.live())
    for result in seen.values():
        result.executions = sum(sid in result.sessions for sid in ran)
        result.left = result.sessions & live
    return seen


async def _run(case: Case, upstream: str, seen: Seen) -> None:
    endpoint = case.endpoint
    with FaultProxy(upstream, idle_timeout=1.0 if case.idle else None) as proxy:
        meets: Iterable = case.meets if isinstance(case.meets, tuple) else () if case.meets is None else (case.meets,)
        for fault in meets:
            proxy.add(Rule(endpoint.method, endpoint.path, fault, times=case.times))
        pings = PINGS if endpoint.kind == "ping" else NO_PINGS
        client = AsyncClient(proxy.url, timeout=TIMEOUTS, retry=RETRY, limits=LIMITS, keepalive=pings)
        async with client:
            try:
                await _episode(case, client, proxy, seen)
            except ORSError as error:
                seen.error = error
        seen.leaked = client.leaked_sessions
        proxy.settle()
        seen.times = [request.arrived for request in proxy.find(endpoint.method, endpoint.path)]
        seen.calls = proxy.count("POST", "/call")
        seen.sessions = {request.header("X-Session-ID") or "" for request in proxy.find("POST", "/create")}


async def _episode(case: Case, client: AsyncClient, proxy: FaultProxy, seen: Seen) -> None:
    environment = client.environment("awkwardenvironment")
    session = environment.session(TaskRef("train", 0))
    if case.endpoint.kind == "read":
        await client.server_version()  # a server that has answered before is waited for when it is gone
        await _with_fault(case, proxy, lambda: _look(case, environment, seen))
    if case.endpoint.kind in {"open", "create"}:
        await environment.list_tools()
        await _with_fault(case, proxy, session.__aenter__)
    else:
        await session.__aenter__()
    try:
        await _use(case, session, proxy, seen)
    finally:
        if case.endpoint.kind == "delete":
            await _with_fault(case, proxy, session.aclose)
        else:
            await session.aclose()


async def _look(case: Case, environment: AsyncEnvironment, seen: Seen) -> None:
    match case.endpoint.name:
        case "list_environments":
            value = await environment.name()
            right = value == "awkwardenvironment"
        case "tools":
            value = await environment.list_tools()
            right = TOOL in [tool.name for tool in value]
        case "tasks":
            value = await environment.list_tasks("train")
            right = [task.spec for task in value] == [{"id": "awkward"}]
        case _:
            value = await environment.list_tasks("train", 0, 1)
            right = [task.spec for task in value] == [{"id": "awkward"}]
    if not right:
        seen.wrong = value


async def _use(case: Case, session: AsyncSession, proxy: FaultProxy, seen: Seen) -> None:
    match case.endpoint.name:
        case "prompt":
            await _with_fault(case, proxy, session.get_prompt)
        case "messages":
            await _with_fault(case, proxy, session.get_messages)
        case "task_tools":
            await _with_fault(case, proxy, session.list_tools)
        case "ping":
            await _see_pings(case, session, proxy)
        case _:
            await session.get_prompt()  # the call is then the only request of its step

    async def call() -> None:
        output = await session.call_tool(TOOL, {"json_length": LENGTH})
        if output.text != exact_text(LENGTH):
            seen.wrong = output

    await (_with_fault(case, proxy, call) if case.endpoint.kind == "call" else call())


async def _see_pings(case: Case, session: AsyncSession, proxy: FaultProxy) -> None:
    """Wait until pings go on behind the fault, or it shows that they never will."""

    async def several() -> None:
        if case.fault == "404_route":
            await proxy.wait_for_async("POST", "/ping", 1)
        elif case.expected.error is not None:
            with anyio.fail_after(5):
                while session.lost is None:  # noqa: ASYNC110 - it is set on another thread
                    await anyio.sleep(0.01)
        else:
            before = len(proxy.find("POST", "/ping"))
            await proxy.wait_for_async("POST", "/ping", before + 3, timeout=10)

    await _with_fault(case, proxy, several)


async def _with_fault(case: Case, proxy: FaultProxy, step) -> None:
    if case.idle:
        await anyio.sleep(case.idle)
    if not case.refused:
        await step()
        return
    async with anyio.create_task_group() as group:
        with ExitStack() as down:
            down.enter_context(proxy.refusing())
            group.start_soon(_unwrapped, step, seen := _Raised())
            await anyio.sleep(0.3)
    if seen.error is not None:
        raise seen.error


@dataclass
class _Raised:
    error: ORSError | None = None


async def _unwrapped(step, seen: _Raised) -> None:
    try:
        await step()
    except ORSError as error:
        seen.error = error
