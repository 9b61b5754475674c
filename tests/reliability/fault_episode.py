"""Runs the cases of the fault table, many at a time in one event loop, and writes down what each showed."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
from fault_table import ATTEMPTS, REDIRECTS, Case
from servers import Server

from fixtures.environments.awkward import exact_text
from fixtures.proxy import FaultProxy, Rule
from ors_client import (
    AsyncClient,
    AsyncEnvironment,
    AsyncSession,
    GroupCandidate,
    KeepalivePolicy,
    Layout,
    Limits,
    Message,
    ORSError,
    RetryPolicy,
    TaskRef,
    TextBlock,
    Timeouts,
)

KEY = "sk-Faults-5c20"
DEPLOYMENT = "owner/name"
TOOL = "exact"
LENGTH = 12_000  # of the result's JSON: two chunks and an end

SHORT = Timeouts(connect=3.0, response=2.5, silence=2.5, start_up=5.0, close=3.0)
# A client that may have created a session looks after it for as long as it may close.
PATIENT = Timeouts(connect=30.0, response=30.0, silence=30.0, start_up=60.0, close=8.0)
RETRY = RetryPolicy(attempts=ATTEMPTS, first_delay=0.02, max_delay=0.1)
LIMITS = Limits(result_bytes=500_000, events=5_000, redirects=REDIRECTS)
PINGS = KeepalivePolicy(interval=0.1, tolerance=30.0)
NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)

_TOGETHER = 24  # cases at a time: they mostly wait
_HANG = 120.0  # seconds after which a case counts as hanging; the longest takes eight


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


def observe(cases: Sequence[Case], server: Server, platform: Server, *, backend: str) -> dict[str, Seen]:
    """Run the cases, each with a client and a proxy of its own, and then ask the journal what ran.

    Args:
        cases: What to run.
        server: Has every environment.
        platform: Serves the deployment to those who have the key, with an API host.
        backend: The event loop.
    """
    seen = {case.id: Seen() for case in cases}

    async def run_all() -> None:
        limiter = anyio.CapacityLimiter(_TOGETHER)

        async def run(case: Case) -> None:
            async with limiter:
                try:
                    with anyio.fail_after(_HANG):
                        await _run(case, server, platform, seen[case.id])
                except Exception as error:  # noqa: BLE001 - of one case, which its own test tells of
                    seen[case.id].crash = error

        async with anyio.create_task_group() as group:
            for case in cases:
                group.start_soon(run, case)

    anyio.run(run_all, backend=backend)
    gc.collect()  # what the HTTP libraries left lying about is theirs, and is complained of here
    ran = {
        "call": [entry["sid"] for entry in server.journal.executions(TOOL)],
        "score_group": [entry["sid"] for entry in server.journal.entries("score_group")],
    }
    live = set(server.live())
    for case in cases:
        result = seen[case.id]
        step = ran["score_group" if case.endpoint.name == "score_group" else "call"]
        result.executions = sum(sid in result.sessions for sid in step)
        result.left = result.sessions & live
    return seen


async def _run(case: Case, server: Server, platform: Server, seen: Seen) -> None:
    endpoint = case.endpoint
    with FaultProxy(platform.urls[0] if endpoint.kind == "api" else server.url) as proxy:
        meets: Iterable = case.meets if isinstance(case.meets, tuple) else () if case.meets is None else (case.meets,)
        for fault in meets:
            proxy.add(Rule(endpoint.method, endpoint.path, fault, times=case.times))
        pings = PINGS if endpoint.kind == "ping" else NO_PINGS
        target, key = proxy.url, None
        if endpoint.kind == "api":
            target, key = Layout(api=proxy.url, sessions=platform.url), KEY
        elif endpoint.name == "delete_session":  # where there are two hosts, an id is given back by itself
            target = Layout(api=server.url, sessions=proxy.url)
        client = AsyncClient(
            target,
            api_key=key,
            timeout=SHORT if case.runs_out else PATIENT,
            retry=RETRY,
            limits=LIMITS,
            keepalive=pings,
        )
        async with client:
            try:
                await (_ask_api if endpoint.kind == "api" else _episode)(case, client, proxy, seen)
            except ORSError as error:
                seen.error = error
        seen.leaked = client.leaked_sessions
        await anyio.to_thread.run_sync(proxy.wait_until_idle)  # the others go on
        seen.times = [request.arrived for request in proxy.find(endpoint.method, endpoint.path)]
        seen.calls = proxy.count("POST", "/call")
        seen.sessions = {request.header("X-Session-ID") or "" for request in proxy.find("POST", "/create")}


async def _ask_api(case: Case, client: AsyncClient, proxy: FaultProxy, seen: Seen) -> None:
    environment = client.environment(DEPLOYMENT)

    async def ask() -> None:
        if case.endpoint.name == "required_secrets":
            value = await environment.required_secrets()
            right = value == []
        else:
            value = await environment.task_difficulty(split="train")
            right = len(value) == 1
        if not right:
            seen.wrong = value

    # A server that has answered before is waited for when it is gone.
    await (environment.task_difficulty if case.endpoint.name == "required_secrets" else environment.required_secrets)()
    await _with_fault(case, proxy, ask)


async def _episode(case: Case, client: AsyncClient, proxy: FaultProxy, seen: Seen) -> None:
    scores = case.endpoint.name == "score_group"
    environment = client.environment("chatenvironment" if scores else "awkwardenvironment")
    session = environment.session(TaskRef("train", 0))
    if case.endpoint.kind == "read":
        # A server that has answered before is waited for when it is gone.
        await (environment.name if case.endpoint.name == "version" else client.server_version)()
        await _with_fault(case, proxy, lambda: _look(case, client, environment, seen))
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


async def _look(case: Case, client: AsyncClient, environment: AsyncEnvironment, seen: Seen) -> None:
    match case.endpoint.name:
        case "version":
            value = await client.server_version()
            right = (value is None) == case.expected.nothing
        case "splits":
            value = await environment.list_splits()
            right = "train" in [split.name for split in value]
        case "num_tasks":
            value = await environment.num_tasks("train")
            right = value == 1
        case "task":
            value = await environment.get_task("train", 0)
            right = value.spec == {"id": "awkward"}
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

    async def score() -> None:
        said = GroupCandidate(messages=[Message(role="user", blocks=[TextBlock(text="x")])])
        scores = await session.score_group([said, said])
        if [each.reward for each in scores] != [1.0, 1.0]:
            seen.wrong = scores

    if case.endpoint.kind == "call":
        await _with_fault(case, proxy, score if case.endpoint.name == "score_group" else call)
    else:
        await call()


async def _see_pings(case: Case, session: AsyncSession, proxy: FaultProxy) -> None:
    """Wait until pings go on behind the fault, or it shows that they never will."""

    async def several() -> None:
        if case.fault == "404_route":
            await proxy.wait_for_async("POST", "/ping", 1)
        elif case.expected.error is not None:
            with anyio.fail_after(30):
                while session.lost is None:  # noqa: ASYNC110 - it is set on another thread
                    await anyio.sleep(0.01)
        else:
            before = len(proxy.find("POST", "/ping"))
            await proxy.wait_for_async("POST", "/ping", before + 3, timeout=30)

    await _with_fault(case, proxy, several)


async def _with_fault(case: Case, proxy: FaultProxy, step) -> None:
    if case.stale:
        with proxy.refusing(existing="close_idle"):
            pass
        await anyio.sleep(0.3)  # for the ends of the connections to arrive
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
