"""The table: every fault, at every stage, of every endpoint, and what has to come of it.

Each `Case` is one episode in which one endpoint meets one fault. What must be seen is written down here by what is
known of delivery, and nothing here runs anything: `fault_episode` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Literal

from fixtures.proxy import (
    BadJson,
    CleanEndWithout,
    CutAfterBytes,
    CutAfterEvent,
    CutBeforeFinalBlankLine,
    CutInsideEvent,
    Fault,
    HtmlPage,
    HugeBody,
    OneByteAtATime,
    PrependBom,
    Redirect,
    Refuse,
    ReplaceBody,
    ReplaceHeaders,
    ResetAfterForward,
    ResetAfterRead,
    ResetBeforeRead,
    RewriteLineEnds,
    Silence,
    Status,
    StatusAfterForward,
)
from ors_client import (
    AuthenticationError,
    BillingError,
    CapacityError,
    DeadlineExceeded,
    EnvironmentNotFound,
    LimitExceeded,
    OutcomeUnknown,
    ProtocolError,
    ResultLost,
    SessionLost,
    SetupFailed,
    StatusError,
    TransportError,
)

ATTEMPTS = 3  # of the retry policy that all cases run with
REDIRECTS = 3  # `Limits.redirects`

Kind = Literal["open", "create", "setup", "read", "api", "call", "ping", "delete"]


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of the standard.

    Attributes:
        kind: What a client may do with it: `open` and `read` may be repeated, `setup` may and is waited for, `create`
            makes an episode, `call` steps one; `api` is `read` on the API host, and no episode follows.
        stream: Its answer is an event stream.
        like: It is treated as this one is, which meets every fault; it meets the sample.
    """

    name: str
    method: str
    path: str
    kind: Kind
    stream: bool = False
    like: str = ""


ENDPOINTS = (
    Endpoint("tools", "GET", "/tools", "read"),
    Endpoint("list_environments", "GET", "/list_environments", "read", like="tools"),
    Endpoint("tasks", "POST", "/tasks", "read", like="tools"),
    Endpoint("task_range", "POST", "/task_range", "read", like="tools"),
    Endpoint("splits", "GET", "/splits", "read", like="tools"),
    Endpoint("num_tasks", "POST", "/num_tasks", "read", like="tools"),
    Endpoint("task", "POST", "/task", "read", like="tools"),
    Endpoint("version", "GET", "/version", "read", like="tools"),
    Endpoint("required_secrets", "GET", "/required-secrets", "api"),
    Endpoint("task_difficulty", "GET", "/task-difficulty", "api", like="required_secrets"),
    Endpoint("create_session", "POST", "/create_session", "open", stream=True),
    Endpoint("create", "POST", "/create", "create"),
    Endpoint("prompt", "GET", "/prompt", "setup"),
    Endpoint("messages", "GET", "/messages", "setup", like="prompt"),
    Endpoint("task_tools", "GET", "/task_tools", "setup", like="prompt"),
    Endpoint("call", "POST", "/call", "call", stream=True),
    Endpoint("score_group", "POST", "/score_group", "call", stream=True),
    Endpoint("ping", "POST", "/ping", "ping"),
    Endpoint("delete", "POST", "/delete", "delete"),
    Endpoint("delete_session", "POST", "/delete_session", "delete", like="delete"),
)

SAMPLE = frozenset(
    {
        "refused",
        "429_seconds",
        "reset_after_read_always",
        "reset_after_answer",
        "502",
        "silent_before_head",
        "404_route",
        "500",
        "html",
        "huge_body",
        "small_pieces",
        "stale_connection",
    }
)
"""What an endpoint meets that does not meet all: one fault at least of each thing that a client can do about one."""

STEPS = frozenset({"create", "call", "score_group"})
"""The endpoints that step an episode, where an error of ours costs most."""


@dataclass(frozen=True)
class Expected:
    """What must be seen.

    Attributes:
        error: What the caller gets instead of the right value.
        nothing: The value is `None`, as of a server that has no such route.
        requests: How many requests of the endpoint are sent; `None` where that depends on time.
        executions: How often the tool of the step runs, or the group is scored.
        sessions: How many sessions are made.
        leaked: How many the client says it could not delete.
        calls: How many calls are sent; pings that lose a session keep the next one from being sent.
        limit: The limit that the error names.
        spacing: Seconds that lie at least between the first two requests.
    """

    error: type[Exception] | None = None
    nothing: bool = False
    requests: int | None = 1
    executions: int = 1
    sessions: int = 1
    leaked: int = 0
    calls: int | None = None
    limit: str | None = None
    spacing: float = 0.0


@dataclass(frozen=True)
class Case:
    """One endpoint that meets one fault.

    Attributes:
        fault: Its name in the table.
        meets: What the proxy does to the endpoint's requests; several are met one after another.
        times: To how many of them; `None` is all.
        refused: The server is down when the step begins, and comes back.
        stale: The server ends the idle connections before the step.
        runs_out: A limit on waiting is met, and therefore short. In all other cases none is, however busy the machine.
    """

    endpoint: Endpoint
    fault: str
    meets: Fault | tuple[Fault, ...] | None
    expected: Expected
    times: int | None = 1
    refused: bool = False
    stale: bool = False
    runs_out: bool = False

    @property
    def id(self) -> str:
        """How it is told of, and chosen."""
        return f"{self.endpoint.name}-{self.fault}"


@dataclass(frozen=True)
class Row:
    """One fault, for the endpoints that it can meet."""

    fault: str
    meets: Fault | tuple[Fault, ...] | None
    expected: dict[str, Expected]  # by kind, or by an endpoint's own name, which comes first
    times: int | None = 1
    refused: bool = False
    stale: bool = False
    runs_out: bool = False
    only: tuple[str, ...] = ()  # names of endpoints
    streams: bool | None = None  # only those that are streams, or only those that are not


_KINDS: tuple[Kind, ...] = ("open", "create", "setup", "read", "call", "ping", "delete")


def _all(expected: Expected = Expected(), **others: Expected) -> dict[str, Expected]:
    return {kind: others.get(kind, expected) for kind in _KINDS}


def _harmless() -> dict[str, Expected]:
    return _all(ping=Expected(requests=None))


def _again(spacing: float = 0.0) -> dict[str, Expected]:
    """Not delivered: sent again, whatever it is."""
    return _all(Expected(requests=2, spacing=spacing), ping=Expected(requests=None))


def _lost(*, ran: bool) -> dict[str, Expected]:
    """Perhaps delivered: what reads is repeated, an id is given up, a call is not sent again."""
    return _all(
        Expected(requests=2),
        create=Expected(requests=2, sessions=2),
        call=Expected(OutcomeUnknown, executions=int(ran)),
        ping=Expected(requests=None),
    )


def _lost_always(*, ran: bool) -> dict[str, Expected]:
    """The same for ever: bounded, and told."""
    gave_up = Expected(TransportError, requests=ATTEMPTS, executions=0)
    return {
        "read": gave_up,
        "setup": gave_up,
        "open": Expected(TransportError, requests=ATTEMPTS, executions=0),
        "create": Expected(TransportError, requests=ATTEMPTS, executions=0, sessions=ATTEMPTS),
        "call": Expected(OutcomeUnknown, executions=int(ran)),
        "delete": Expected(requests=None, leaked=1),
    }


_NO_ROUTE = Expected(nothing=True)


def _final(error: type[Exception], *, limit: str | None = None, ran: bool = False) -> dict[str, Expected]:
    """The server said no, or nonsense: never repeated."""
    told = Expected(error, executions=0, limit=limit)
    return _all(
        told,
        open=Expected(error, executions=0, limit=limit),
        call=Expected(error, executions=int(ran), limit=limit),
        ping=Expected(requests=None),
        delete=Expected(requests=None),  # deleted in the background
    ) | ({"version": _NO_ROUTE} if error is StatusError else {})


def _date(seconds: float) -> str:
    return formatdate(seconds, usegmt=True)


def _never_delivered(now: float) -> Iterator[Row]:
    yield Row("refused", None, _harmless(), refused=True)
    for name, headers in (("seconds", {"Retry-After": "1"}), ("no_hint", {})):
        yield Row(f"429_{name}", Status(429, headers=headers), _again(1.0 if headers else 0.0))
    date = _date(now + 3600)
    # The server's own clock is an hour ahead: its date means one second.
    ahead = {"Retry-After": date, "Date": _date(now + 3599)}
    yield Row("429_date", Status(429, headers=ahead), _again(1.0))
    yield Row("503_starting_seconds", Status.starting("1"), _again(1.0))
    yield Row("503_starting_date", Status(503, headers={"X-Backend-State": "starting", **ahead}), _again(1.0))
    yield Row(
        "429_always",
        Status(429),
        {
            **_all(Expected(CapacityError, requests=None, executions=0)),
            "version": Expected(nothing=True, requests=None),
            "open": Expected(CapacityError, requests=None, executions=0),
            "ping": Expected(requests=None),
            "delete": Expected(requests=None, leaked=1),
        },
        times=None,
        runs_out=True,
    )
    yield Row(
        "503_starting_always",
        Status(503, headers={"X-Backend-State": "starting"}),
        {
            **_all(Expected(DeadlineExceeded, requests=None, executions=0, limit="start_up")),
            "open": Expected(DeadlineExceeded, requests=None, executions=0, limit="start_up"),
            "ping": Expected(requests=None),
            "delete": Expected(requests=None, leaked=1),
        },
        times=None,
        runs_out=True,
    )


def _perhaps_delivered() -> Iterator[Row]:
    for name, fault, ran in (
        ("reset_before_read", ResetBeforeRead(), False),
        ("reset_after_read", ResetAfterRead(), False),
        ("closed_after_read", ResetAfterRead(end="fin"), False),
        ("restart", Refuse(0.3), False),
        ("reset_when_answered", ResetAfterForward("headers"), True),
        ("reset_after_answer", ResetAfterForward(), True),
        ("closed_after_answer", ResetAfterForward(end="fin"), True),
        ("cut_in_head", CutAfterBytes(30, of="whole"), True),
        ("502", Status(502), False),
        ("503", Status(503), False),
        ("503_retry_after", Status(503, headers={"Retry-After": "0"}), False),
        ("504", Status(504), False),
        ("502_html", HtmlPage(502), False),
        ("502_after_answer", StatusAfterForward(502), True),
        ("504_after_answer", StatusAfterForward(504), True),
    ):
        yield Row(name, fault, _lost(ran=ran))
        if name != "restart":
            yield Row(f"{name}_always", fault, _lost_always(ran=ran), times=None)
    for name, fault in (
        ("cut_after_head", CutAfterBytes(0)),
        ("cut_in_body", CutAfterBytes(1)),
        ("closed_in_body", CutAfterBytes(1, end="fin")),
    ):
        yield Row(name, fault, _lost(ran=True), streams=False)
    for name, fault in (
        ("reset_after_head", CutAfterBytes(0)),
        ("closed_after_head", CutAfterBytes(0, end="fin")),
        ("ended_after_head", CutAfterBytes(0, end="last_chunk")),
        ("reset_in_task_id", CutInsideEvent("task_id")),
        ("ended_in_task_id", CutInsideEvent("task_id", end="last_chunk")),
    ):
        yield Row(name, fault, _lost(ran=True), streams=True)
        yield Row(f"{name}_always", fault, _lost_always(ran=True), times=None, streams=True)


def _under_a_name() -> Iterator[Row]:
    calls = ("call", "score_group")
    for name, fault, endpoints in (
        ("reset_after_task_id", CutAfterEvent("task_id"), calls),
        ("closed_after_task_id", CutAfterEvent("task_id", end="fin"), calls),
        ("ended_after_task_id", CutAfterEvent("task_id", end="last_chunk"), calls),
        ("reset_in_chunk", CutInsideEvent("chunk"), ("call",)),
        ("closed_in_chunk", CutInsideEvent("chunk", skip=3000, end="fin"), ("call",)),
        ("reset_after_chunk", CutAfterEvent("chunk", nth=2), ("call",)),
        ("ended_without_end", CleanEndWithout("end"), calls),
        ("reset_before_last_line", CutBeforeFinalBlankLine(), calls),
        ("ended_before_last_line", CutBeforeFinalBlankLine(end="last_chunk"), calls),
    ):
        yield Row(name, fault, _all(Expected(requests=2)), only=endpoints)
        gave_up = Expected(TransportError, requests=None)
        yield Row(f"{name}_always", fault, _all(gave_up), times=None, only=endpoints)
    for name, fault in (
        ("reset_after_task_id", CutAfterEvent("task_id")),
        ("ended_without_end", CleanEndWithout("end")),
        ("reset_before_last_line", CutBeforeFinalBlankLine()),
    ):
        yield Row(name, fault, _lost(ran=True), only=("create_session",))


def _silence() -> Iterator[Row]:
    silent = Silence(None)
    yield Row(
        "silent_before_head",
        silent,
        {
            "read": Expected(DeadlineExceeded, executions=0, limit="response"),
            "open": Expected(DeadlineExceeded, executions=0, limit="response"),
            "setup": Expected(requests=2),
            "create": Expected(requests=2, sessions=2),
            "call": Expected(OutcomeUnknown),
            "ping": Expected(requests=None),
            "delete": Expected(requests=None),
        },
        runs_out=True,
    )
    yield Row(
        "silent_after_head",
        Silence(None, "after_headers"),
        {
            "read": Expected(DeadlineExceeded, executions=0, limit="response"),
            "open": Expected(DeadlineExceeded, executions=0, limit="silence"),
            "setup": Expected(requests=2),
            "create": Expected(requests=2, sessions=2),
            "call": Expected(OutcomeUnknown),
            "ping": Expected(requests=None),
            "delete": Expected(requests=None),
        },
        runs_out=True,
    )
    silent, again = Silence(None, "after_task_id"), _all(Expected(requests=2))
    yield Row("silent_after_task_id", silent, again, only=("call", "score_group"), runs_out=True)
    yield Row("silent_in_chunk", Silence(None, "mid_chunk"), again, only=("call",), runs_out=True)
    yield Row("late_head", Silence(0.3), _harmless())
    yield Row("late_body", Silence(0.3, "after_headers"), _harmless())
    yield Row("late_chunk", Silence(0.3, "mid_chunk"), _all(), only=("call",))


def _refusals() -> Iterator[Row]:
    for code, error in (
        (400, StatusError),
        (401, AuthenticationError),
        (402, BillingError),
        (403, AuthenticationError),
        (418, StatusError),
        (422, StatusError),
    ):
        yield Row(f"{code}", Status(code, body=_body(code)), _final(error))
    refused = _final(StatusError)
    yield Row(
        "500",
        Status(500, "ValueError: no"),
        {
            **refused,
            "create": Expected(SetupFailed, executions=0),
            "task_tools": Expected(SetupFailed, executions=0),
            "api": Expected(requests=2),  # no environment raised it
        },
    )
    gone = Expected(SessionLost, executions=0)
    for name, fault in (
        ("404_episode", Status(404, "Active environment not found")),
        ("410", Status(410, "Session deleted")),
    ):
        yield Row(
            name,
            fault,
            {"setup": gone, "call": gone, "ping": Expected(SessionLost, executions=0, calls=0)},
        )
    yield Row(
        "404_episode",
        StatusAfterForward(404, "Active environment not found"),
        _all(),
        only=("delete", "delete_session"),
    )
    yield Row("410", StatusAfterForward(410, "Session deleted"), _all(), only=("delete", "delete_session"))
    yield Row(
        "404_environment",
        Status(404, "unknown environment 'x'"),
        {"create": Expected(EnvironmentNotFound, executions=0)},
    )
    route = Status(404, "Not Found")
    yield Row(
        "404_route", route, {"call": Expected(StatusError, executions=0), "create": Expected(StatusError, executions=0)}
    )
    for endpoint in ("messages", "task_tools", "task_range", "tasks", "num_tasks", "task"):
        yield Row("404_route", route, _all(), only=(endpoint,))  # there is something else to ask
    yield Row("404_route", route, _all(_NO_ROUTE), only=("version",))
    missing = Expected(StatusError, executions=0)
    yield Row("404_route", route, _all(missing), only=("splits", "required_secrets", "task_difficulty"))
    # Asked once more before it is believed: what answers 404 may be a proxy that is finding its server.
    yield Row("404_route", route, _all(Expected(requests=2)), only=("ping",), times=None)


def _nonsense() -> Iterator[Row]:
    broken = _final(ProtocolError)
    for name, fault in (
        ("html", HtmlPage()),
        ("redirect_elsewhere", Redirect("http://127.0.0.1:9{path}")),
        ("redirect_to_https", Redirect("https://127.0.0.1/x")),
        ("redirect_without_location", Redirect("")),
    ):
        told = {} if name == "html" else {"version": _NO_ROUTE}  # a deployment is redirected to its environment's path
        yield Row(name, fault, broken | told)
    yield Row(
        "bad_json",
        BadJson(),
        {
            **broken,
            "open": Expected(),  # the stream has named the session before
            "call": Expected(ProtocolError),
        },
    )
    yield Row("not_utf8", ReplaceBody(b'{"a": "\xff\xfe"}'), broken, streams=False)
    yield Row("empty_body", ReplaceBody(b""), broken, streams=False)
    yield Row(
        "json_for_stream",
        ReplaceBody(b'{"ok": true}', {"Content-Type": "application/json"}),
        {"call": Expected(ProtocolError)},
    )
    yield Row(
        "empty_end", ReplaceBody(b"event: task_id\ndata: a\n\nevent: end\ndata\n\n"), {"call": Expected(ProtocolError)}
    )
    yield Row(
        "not_utf8",
        ReplaceBody(b"event: task_id\ndata: a\xff\n\n"),
        broken | {"call": Expected(ProtocolError)},
        streams=True,
    )
    yield Row(
        "forgotten",
        (CutAfterEvent("task_id"), ReplaceBody(b"event: error\ndata: unknown task_id\n\n")),
        {"call": Expected(ResultLost, requests=2)},
    )
    for code in (301, 302, 303):
        yield Row(f"{code}", Redirect("{path}", code), _final(StatusError))
    yield Row(
        "redirect_for_ever",
        Redirect("{path}"),
        {
            "version": _NO_ROUTE,
            "read": Expected(LimitExceeded, requests=REDIRECTS + 1, executions=0, limit="redirects"),
            "setup": Expected(LimitExceeded, requests=REDIRECTS + 1, executions=0, limit="redirects"),
            "create": Expected(LimitExceeded, requests=REDIRECTS + 1, executions=0, limit="redirects"),
            "call": Expected(LimitExceeded, requests=REDIRECTS + 1, executions=0, limit="redirects"),
        },
        times=None,
    )
    yield Row("huge_body", HugeBody(2_000_000), _final(LimitExceeded, limit="result_bytes"), streams=False)
    yield Row(
        "huge_stream",
        ReplaceBody(b"event: task_id\ndata: a\n\n" + b"event: chunk\ndata: " + b"x" * 2_000_000 + b"\n\n"),
        {"call": Expected(LimitExceeded, limit="result_bytes")},
    )
    yield Row(
        "flood_of_events",
        ReplaceBody(b"event: task_id\ndata: a\n\n" + b"event: chunk\ndata: x\n\n" * 6_000),
        {"call": Expected(LimitExceeded, limit="events")},
    )


def _strange() -> Iterator[Row]:
    yield Row("redirect_307", Redirect("{path}", 307), _again() | {"version": _NO_ROUTE})
    yield Row("redirect_308", Redirect("{path}", 308), _again() | {"version": _NO_ROUTE})
    yield Row("byte_order_mark", PrependBom(), _harmless())
    yield Row("one_byte_at_a_time", OneByteAtATime(chunks=False), _harmless(), streams=False)
    yield Row("small_pieces", OneByteAtATime(size=7), _harmless())
    yield Row("cr_only", RewriteLineEnds("\r"), _harmless(), streams=True)
    yield Row("lf_only", RewriteLineEnds("\n"), _harmless(), streams=True)
    wrong = {"Content-Type": "text/event-stream; charset=latin-1"}
    yield Row("wrong_charset", ReplaceHeaders(wrong), _harmless(), streams=True)
    wrong = {"Content-Type": "application/json; charset=utf-16"}
    yield Row("wrong_charset", ReplaceHeaders(wrong), _harmless(), streams=False)
    yield Row("no_content_type", ReplaceHeaders({"Content-Type": None}), _harmless(), streams=False)
    yield Row("stale_connection", None, _harmless(), stale=True)


def rows(now: float) -> Iterator[Row]:
    """Give the table.

    Args:
        now: For the dates in it, in seconds since the epoch.
    """
    yield from _never_delivered(now)
    yield from _perhaps_delivered()
    yield from _under_a_name()
    yield from _silence()
    yield from _refusals()
    yield from _nonsense()
    yield from _strange()


def _body(code: int) -> str:
    """Give an error's body; a 422 names a field."""
    if code == 422:
        return '{"detail": [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": "not permitted", "input": 1}]}'
    return "no"


def met(case: Case, loop: str) -> bool:
    """Tell whether a case is run on an event loop.

    With trio requests go through another HTTP library than with asyncio: that is tried in full where it matters most.
    """
    fully = case.endpoint.name in STEPS or (loop == "asyncio" and not case.endpoint.like)
    return fully or case.fault in SAMPLE


def cases(now: float = 0.0) -> list[Case]:
    """Give every case of the table."""
    found: list[Case] = []
    for row in rows(now):
        for endpoint in ENDPOINTS:
            if row.only and endpoint.name not in row.only:
                continue
            if row.streams is not None and row.streams is not endpoint.stream:
                continue
            names = (endpoint.name, endpoint.kind, *(("read",) if endpoint.kind == "api" else ()))
            expected = next((row.expected[name] for name in names if name in row.expected), None)
            if expected is None:
                continue
            if endpoint.kind == "api":
                expected = replace(expected, executions=0, sessions=0)
            if expected.error is not None and endpoint.kind in {"read", "open"}:
                expected = replace(expected, sessions=0)  # the episode ends before it has one
            found.append(
                Case(
                    endpoint,
                    row.fault,
                    row.meets,
                    expected,
                    times=row.times,
                    refused=row.refused,
                    stale=row.stale,
                    runs_out=row.runs_out,
                )
            )
    return found
