"""Whether what stands before a server leads requests to their session's process, and lets a long call through.

A connection that is kept leads to one process for as long as it lasts, so that a few requests in a row show nothing of
a balancer: here each goes on a connection of its own. What a proxy does to a stream shows in when its parts arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import anyio

from ors_client import (
    AsyncClient,
    AsyncSession,
    JSONValue,
    KeepalivePolicy,
    ORSError,
    OutcomeUnknown,
    ResultLost,
    SessionLost,
)

from .check_report import HeldCall, Problem
from .hints import PIN_SESSIONS, RAISE_TIME_OUT, STREAM_AT_ONCE
from .options import CHECK_TIMEOUT, ServerOptions
from .recording_transport import ExchangeRecorder

SESSIONS = 3
SESSIONS_SECONDS = 20.0
_PINGS = 4  # of each session: with two processes, one session in sixteen is led right each time by chance
_PINGS_SECONDS = 5.0
_POLICY = KeepalivePolicy(interval=0.2)

_HELD_BACK = 1.5  # seconds that a first event may take, which a server sends at once
_SILENCE = 15.0  # seconds without a part of a stream; servers send a comment each ten
OpenSession = Callable[[AsyncClient], AsyncSession]


async def find_stray_sessions(options: ServerOptions, open_session: OpenSession) -> Problem | bool | None:
    """Open a few sessions at once, and ping each on fresh connections.

    Returns:
        The problem, where one was not found by its own server; `True` where all were found each time; `None` where
        none could be opened for another reason, or pings are not answered.
    """
    recorder = ExchangeRecorder(fresh_connections=True)
    found: list[str] = []
    reasons: list[str] = []

    async def ping(client: AsyncClient) -> None:
        try:
            async with open_session(client) as session:
                with anyio.move_on_after(_PINGS_SECONDS):  # fewer pings on a slow network, none where there is no route
                    # Pings are sent by a thread of their own.
                    while session.lost is None and len(recorder.all("ping", session.session_id)) < _PINGS:  # noqa: ASYNC110
                        await anyio.sleep(_POLICY.interval / 4)
                if session.lost is not None:
                    reasons.append(session.lost)
                elif any(answer.status == 200 for answer in recorder.all("ping", session.session_id)):
                    found.append(session.session_id)
        except SessionLost as error:
            reasons.append(error.reason)
        except ORSError:
            return  # the examination of one session tells of it

    client = options.async_client(CHECK_TIMEOUT, transport=recorder.transport, keepalive=_POLICY)
    with anyio.move_on_after(SESSIONS_SECONDS):
        async with client, anyio.create_task_group() as group:
            for _ in range(SESSIONS):
                group.start_soon(ping, client)
    if not reasons:
        return True if found else None
    return Problem(
        f"{len(reasons)} of {SESSIONS} sessions were not known to the process that their next request reached: "
        f"{reasons[0]}",
        list(PIN_SESSIONS),
    )


async def hold_call(
    session: AsyncSession, tool: str, arguments: Mapping[str, JSONValue], recorder: ExchangeRecorder, most: float
) -> tuple[HeldCall, list[Problem]]:
    """Call a tool that takes its time, and judge how its stream arrived.

    Raises:
        ORSError: The call failed, and not for a proxy's sake.
    """
    before = len(recorder.all("call", session.session_id))
    began = anyio.current_time()
    failure: ORSError | None = None
    try:
        await session.call_tool(tool, arguments, timeout=most)
    except ORSError as error:
        failure = error
    streams = recorder.all("call", session.session_id)[before:]
    call = _describe(tool, anyio.current_time() - began, [stream.arrivals for stream in streams])
    problems = list(_problems(call, failure))
    if failure is not None and not problems:
        raise failure
    return call, problems


def _describe(tool: str, seconds: float, streams: list[list[float]]) -> HeldCall:
    first = streams[0] if streams else []
    gaps = [after - before for arrivals in streams for before, after in zip([0.0, *arrivals], arrivals, strict=False)]
    return HeldCall(
        tool,
        seconds=seconds,
        first=first[0] if len(first) > 1 else None,  # the last is the stream's end
        gap=max(gaps, default=seconds),
        cuts=max(0, len(streams) - 1),
        cut_after=first[-1] if len(streams) > 1 else None,
    )


def _problems(call: HeldCall, failure: ORSError | None) -> Iterator[Problem]:
    if isinstance(failure, OutcomeUnknown | ResultLost):
        lost = f"A call was lost on its way after {call.seconds:.0f} s: {failure}"
        yield Problem(lost, [RAISE_TIME_OUT, STREAM_AT_ONCE])
    elif call.cut_after is not None:
        often = "once" if call.cuts == 1 else f"{call.cuts} times"
        yield Problem(
            f"A call of {call.seconds:.0f} s was cut {often}, first after {call.cut_after:.1f} s, and taken up again.",
            [RAISE_TIME_OUT],
        )
    if call.seconds > _HELD_BACK and (call.first is None or call.first > _HELD_BACK or call.gap > _SILENCE):
        first = "none came" if call.first is None else f"the first came after {call.first:.1f} s"
        yield Problem(
            f"A call's stream is held back: of its events {first}, and for {call.gap:.0f} s there was no sign of life.",
            [STREAM_AT_ONCE, "Or the server sends no comment while a tool runs; the official ones do each ten seconds"],
        )
