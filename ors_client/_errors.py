"""Every error a caller can meet, and what each says about the state of the episode.

ORSError
├── TransportError            the network failed and the budget is spent
│   ├── OutcomeUnknown        the call may have run; it was not repeated
│   └── ResultLost            the call ran, its result is gone
├── DeadlineExceeded          (also a TimeoutError) which limit, how long
├── StatusError               an HTTP status that retrying will not change
│   ├── AuthenticationError   401, 403
│   ├── BillingError          402
│   └── CapacityError         429, or no room, after waiting
├── ProtocolError             the server broke the standard
│   └── LimitExceeded         the server sent more than a limit of ours
├── EnvironmentNotFound       no such environment; lists those that are there
├── ClientStateError          (also a RuntimeError) used when closed, after a fork, or from another event loop
├── SetupFailed               the environment's own setup raised
├── SessionLost               the server no longer has this session
└── ToolError
    ├── ToolRejected          unknown tool, bad arguments, episode over
    └── ToolFailed            the tool raised on the server

Messages are one line and built here, so that raise sites pass facts only. Text from a server is shortened in the
message and kept word for word in the field. What a message has no room for stands in the class's docstring: the cause,
what the client has tried by then, and what to do. docs/errors.md is made from these. Errors know nothing of HTTP
libraries, and never hold a key or a secret: who raises one redacts what it passes. Mistakes of the caller are
`ValueError` or `TypeError`, not errors of this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Self, cast

# Of `ClientStateError`, as each part that a client owns says it.
OPENED_BEFORE_FORK = "This client was opened before a fork; open another one in the child process."
CLIENT_CLOSED = "The client is closed; use it inside its `with` block."

_EXCERPT = 200  # characters of a server's text in a message: enough to recognise it, short enough for a log line
_LISTING = 1000  # characters of a list that is to be chosen from

_NO_ROUTE_ADVICE = (
    "There is no such route: an older server, or not the URL of an ORS server (its port, its path prefix; "
    "Layout(api=..., sessions=...) where sessions have a host of their own)."
)

_RAISED_ADVICE = "Something raised on the server; see its log."


CUT = "... ("
"""Stands in a message where a text was cut; who hides a key finds the beginning of one before it."""


def one_line(text: object, limit: int = _EXCERPT) -> str:
    """Fold `text` to one printable line of at most `limit` characters, fit for a message."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= limit else f"{line[:limit]}{CUT}{len(line)} characters)"


def _rebuild(kind: type[ORSError], args: tuple[object, ...], state: dict[str, object]) -> ORSError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


# No two runs of blanks stand beside each other: on many blanks each would be tried at every length of the other.
_WEB_PAGE = re.compile(r"\s*(?:\ufeff\s*)?<(?:!--|(?:!doctype|html|\?xml)(?=[\s>]))", re.IGNORECASE)


def is_web_page(text: str) -> bool:
    """Tell a web page from other text in angle brackets, by how it begins."""
    return _WEB_PAGE.match(text) is not None


# What frameworks say of a path that they have no route for, where it is no page: nothing, or a few fixed words. An
# environment's own 404 names what it has not found.
_NO_ROUTE_TEXT = re.compile(
    r"\s*(?:(?:404\W*)?(?:page |route )?not[ _]found\W*|cannot (?:get|post) /\S*\s*)?", re.IGNORECASE
)


def means_no_route(status: int, detail: str) -> bool:
    """Tell an answer for a path that has no route from other meanings of 404."""
    return status == 405 or (status == 404 and (is_web_page(detail) or _NO_ROUTE_TEXT.fullmatch(detail) is not None))


def _shown(fact: object, show: Callable[[str], str]) -> object:
    if isinstance(fact, str):
        return show(fact)
    if isinstance(fact, list):
        return [_shown(each, show) for each in cast("list[object]", fact)]
    return fact


def _location(url: str | None, session_id: str | None) -> str:
    known = [f"session {session_id}" if session_id else None, url]
    return f" [{', '.join(part for part in known if part)}]" if any(known) else ""


class ORSError(Exception):
    """Base of every error of this package; raised as it is for what has no class of its own.

    Do: Read the message. It says what happened, to which server and session, and what to do.

    Args:
        message: One line.
        url: The address that was asked, without credentials.
        session_id: The session it happened in.
    """

    def __init__(self, message: str, *, url: str | None = None, session_id: str | None = None) -> None:
        self.url = url
        self.session_id = session_id
        super().__init__(message + _location(url, session_id))

    @property
    def message(self) -> str:
        """What happened, where, and what to do, in one line, as `str` gives it."""
        return str(self.args[0])

    def at(self, *, url: str | None, session_id: str | None, show: Callable[[str], str] = str) -> Self:
        """Return this error as its place knows it.

        Args:
            url: Where it happened; added to an error that names no place yet.
            session_id: Likewise.
            show: Applied to every text in the error: what hides the secrets that a server may echo.
        """
        located = self.url is not None or self.session_id is not None
        message = show(self.message) + ("" if located else _location(url, session_id))
        facts: dict[str, object] = {name: _shown(value, show) for name, value in self.__dict__.items()}
        if not located:
            facts |= {"url": url, "session_id": session_id}
        return cast("Self", _rebuild(type(self), (message,), facts))

    def __reduce__(self) -> tuple[object, ...]:
        # An exception's own pickle calls the class with `args`, which keyword-only facts do not survive.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class TransportError(ORSError):
    """Raised when the network failed and every attempt that was safe to make has been made.

    Cause: No connection, a broken one, or 502 or 504 from a gateway.

    Tried: What is safe to repeat, until `RetryPolicy.attempts` in a row made no progress, or for `Timeouts.start_up` at
    a server that had answered before.

    Do: Check that the server is running, and its host and port. 504: the gateway's read time-out may be shorter than
    the setup.

    Args:
        doing: What was attempted, as "POST /echo/call" or "open a session".
        reason: What the last attempt met.
        attempts: How many requests were sent or tried.
        advice: What to do, where it is known better than by the kind of error.
    """

    _advice = "Is the server running, and are host and port right?"

    def __init__(
        self,
        doing: str,
        *,
        reason: str,
        attempts: int = 1,
        advice: str | None = None,
        url: str | None = None,
        session_id: str | None = None,
    ) -> None:
        self.reason = reason
        self.attempts = attempts
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(
            f"{doing} failed after {tries}: {one_line(reason)}. {advice or self._advice}",
            url=url,
            session_id=session_id,
        )


class OutcomeUnknown(TransportError):
    """Raised when a request that changes an episode may have run and its answer was lost.

    Cause: The connection broke, or a gateway answered 502, 503 or 504, after a tool call, a group's scoring or an
    episode's creation had been sent and before the server told an id to resume it by.

    Tried: Nothing. It was sent once.

    Do: Open a fresh session; this episode may have moved.
    """

    _advice = "It may have run and was not repeated; the episode's state is unknown."


class ResultLost(TransportError):
    """Raised when a call ran but the server no longer holds its result (it keeps one for about a minute).

    Cause: The connection was away for longer than that, or the server restarted.

    Tried: To resume the call's stream.

    Do: Go on where the tools tell the episode's state; else open a fresh session.
    """

    _advice = "The call ran; its result is gone from the server."


# The limits that an answer meets which a proxy holds back until it is whole.
_ANSWERED_WITHIN = frozenset({"response", "silence", "call", "timeout"})


class DeadlineExceeded(ORSError, TimeoutError):
    """Raised when a wait reached its limit.

    Cause: The server, or another session that holds the room, took longer than the limit that the message names; or a
    proxy held the answer back.

    Tried: Whatever is safe to repeat, until then.

    Do: Raise that limit if the wait is expected: a field of `Timeouts`, the `timeout` of the call, or
    `episode_timeout`.

    Args:
        limit: The limit's name in `Timeouts`, or the argument that set it.
        seconds: Its length.
        doing: What was waited for.
        advice: What to do, where it is known better than by the limit.
    """

    def __init__(
        self,
        doing: str,
        *,
        limit: str,
        seconds: float,
        url: str | None = None,
        session_id: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.limit = limit
        self.seconds = seconds
        if advice is None:
            advice = "raise that limit if the wait is expected"
            if limit in _ANSWERED_WITHIN:
                advice += "; if a proxy stands before the server, turn off its buffering of answers"
        super().__init__(
            f"{doing} did not finish within {limit}={seconds:g} seconds; {advice}.",
            url=url,
            session_id=session_id,
        )


class StatusError(ORSError):
    """Raised on an HTTP status that sending the request again will not change.

    Cause: 500 is the exception of the environment's author. 404 and 405 are often another program's, or another host's
    than that of the sessions.

    Tried: Nothing.

    Do: 500: see the server's log. 404: check the port, the path prefix and the `Layout`.

    Args:
        status: The HTTP status code.
        detail: The body's `detail`, or an excerpt of the body; redacted by whoever raises.
        advice: What to do, where it is known better than by the kind of error.
    """

    _advice = ""

    def __init__(
        self,
        doing: str,
        *,
        status: int,
        detail: str = "",
        url: str | None = None,
        session_id: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.status = status
        self.detail = detail
        text = f": {one_line(detail).rstrip('.')}" if detail else ""
        hint = advice or self._advice
        if not hint and means_no_route(status, detail):
            hint = _NO_ROUTE_ADVICE
        elif not hint and status == 500:
            hint = _RAISED_ADVICE
        advice = f" {hint}" if hint else ""
        super().__init__(f"{doing} was answered with HTTP {status}{text}.{advice}", url=url, session_id=session_id)


class AuthenticationError(StatusError):
    """Raised on 401 and 403: the key is missing, wrong, or not allowed here.

    Cause: No key was sent, or not the one that the server wants. `OPENREWARD_API_KEY` goes to the catalogue's own hosts
    only.

    Tried: Nothing.

    Do: Pass `api_key=...`. The login of a proxy goes into `headers=`.
    """

    _advice = "Pass api_key=...; a key from the environment is sent to the catalogue's own hosts only."


class BillingError(StatusError):
    """Raised on 402: the account behind the key can't pay for this.

    Cause: The catalogue says so.

    Tried: Nothing.

    Do: Check the account that the key belongs to.
    """

    _advice = "Check the account that the key belongs to."


class CapacityError(StatusError):
    """Raised when the server still had no room after the client waited for it.

    Cause: 429, or no room for a session, for as long as `Timeouts.start_up`.

    Tried: To wait, as long as the server asked for each time.

    Do: Open fewer sessions at a time (`max_sessions=`, `max_concurrency=`), or wait longer.

    Args:
        retry_after: Seconds that the server asked to wait, where it said so.
    """

    _advice = "Open fewer sessions at a time, or wait longer (Timeouts.start_up)."

    def __init__(
        self,
        doing: str,
        *,
        status: int = 429,
        detail: str = "",
        retry_after: float | None = None,
        url: str | None = None,
        session_id: str | None = None,
    ) -> None:
        self.retry_after = retry_after
        super().__init__(doing, status=status, detail=detail, url=url, session_id=session_id)


class ProtocolError(ORSError):
    """Raised when a server's answer breaks the standard; the request is not sent again.

    Cause: A web page, bad JSON, a stream without a result, or a redirect to another host.

    Tried: Nothing.

    Do: Check that this is an ORS server, and no login page before one. The message on a redirect names the URL to
    use.

    Args:
        problem: What is wrong with the answer, as one sentence without its full stop.
        excerpt: The start of the answer, where it helps.
    """

    def __init__(
        self, problem: str, *, excerpt: str = "", url: str | None = None, session_id: str | None = None
    ) -> None:
        self.problem = problem
        self.excerpt = excerpt
        hint = "Is this a login page, or another program's?" if is_web_page(excerpt) else "Is this an ORS server?"
        text = f"; it begins {one_line(excerpt)!r}. {hint}" if excerpt else "."
        super().__init__(f"{problem}{text}", url=url, session_id=session_id)


class LimitExceeded(ProtocolError):
    """Raised when a server sends more than the client is willing to hold.

    Cause: A tool's result, or another answer, is larger than a field of `Limits` allows.

    Tried: Nothing.

    Do: Raise the field that the message names, if so much is wanted.

    Args:
        limit: The setting's name in `Limits`.
        maximum: Its value.
    """

    def __init__(
        self, problem: str, *, limit: str, maximum: int, url: str | None = None, session_id: str | None = None
    ) -> None:
        self.limit = limit
        self.maximum = maximum
        super().__init__(
            f"{problem}: more than {limit}={maximum}; raise Limits.{limit} if it is wanted",
            url=url,
            session_id=session_id,
        )


class EnvironmentNotFound(ORSError):
    """Raised when a server has no environment of that name, or several and no name was given.

    Cause: The name is wrong, or the server needs one.

    Tried: Nothing.

    Do: Use one of the names that the message lists.

    Args:
        name: The name that was asked for, or `None`.
        available: The names that the server has; none where it lists none.
    """

    def __init__(
        self, name: str | None, *, available: Sequence[str], url: str | None = None, session_id: str | None = None
    ) -> None:
        self.name = name
        self.available = list(available)
        there = one_line(", ".join(map(repr, self.available)), _LISTING) or "none that it lists"
        problem = (
            f"No environment named {name!r}; this server has: {there}."
            if name is not None
            else f"This server has several environments; name one of: {there}."
        )
        super().__init__(problem, url=url, session_id=session_id)


class ClientStateError(ORSError, RuntimeError):
    """Raised when a client or session is used where it can't work: closed, in a forked child, in another event loop.

    Cause: It was used before its `with` block was entered or after it was left, after a fork, or in another event loop;
    or a variable such as `HTTPS_PROXY` names no proxy that can be used.

    Tried: Nothing.

    Do: Use one client for each process and event loop, inside its `with`. Correct the variable that the message
    names.
    """


class SetupFailed(ORSError):
    """Raised when the environment's constructor or setup raised on the server.

    Cause: The environment's own code; often a missing secret, or a broken task.

    Tried: Nothing.

    Do: Read `detail` and the server's log.

    Args:
        detail: The server's text, word for word.
    """

    def __init__(self, detail: str, *, url: str | None = None, session_id: str | None = None) -> None:
        self.detail = detail
        super().__init__(
            f"The environment's setup failed on the server: {one_line(detail).rstrip('.')}. See its log; a secret may "
            "be missing, or the task be broken.",
            url=url,
            session_id=session_id,
        )


class SessionLost(ORSError):
    """Raised by the running and every later call once the server no longer has the session.

    Cause: The server restarted, ended the session, or runs several workers that do not know each other's sessions.

    Tried: Pings, three at least and for `KeepalivePolicy.tolerance` seconds, where the server was silent or failing. A
    ping that was answered with 429 counts for nothing.

    Do: Open another session. Where it happens often, see that all requests of a session reach the same worker.

    Args:
        session_id: The session.
        reason: How that is known.
    """

    def __init__(self, session_id: str, *, reason: str, url: str | None = None) -> None:
        self.reason = reason
        super().__init__(
            f"The session is gone from the server ({one_line(reason)}); open a new one.", url=url, session_id=session_id
        )


class ToolError(ORSError):
    """Base of what a tool call can answer instead of a result; the session stays usable.

    Do: Tell the model `text`, and go on.

    Args:
        tool: The tool's name.
        detail: The server's text, word for word.
    """

    _verb = "failed"

    def __init__(
        self, tool: str, *, detail: str, advice: str = "", url: str | None = None, session_id: str | None = None
    ) -> None:
        self.tool = tool
        self.detail = detail
        said = one_line(detail).rstrip(".") if advice else one_line(detail)
        super().__init__(f"Tool {tool!r} {self._verb}: {said}{advice}", url=url, session_id=session_id)

    @property
    def text(self) -> str:
        """What a model is told: the server's text, or a sentence where it gave none."""
        return self.detail or f"The tool {self.tool!r} failed without a word."


class ToolRejected(ToolError):
    """Raised when a call was refused before the tool ran: unknown tool, bad arguments, episode over.

    Cause: The server refused the call; after the end of an episode the client does so itself.

    Tried: Nothing.

    Do: Tell the model `text`.

    Args:
        reason: The server's word for it (`not_found`, `input_validation`, `name_collision`, `episode_finished`, or
            whatever a server says), or `None` where it gave none.
        available: The names of the tools that there are, where there is none of that name.
    """

    _verb = "was rejected"

    def __init__(
        self,
        tool: str,
        *,
        detail: str,
        reason: str | None = None,
        available: Sequence[str] = (),
        url: str | None = None,
        session_id: str | None = None,
    ) -> None:
        self.reason = reason
        self.available = list(available)
        names = one_line(", ".join(map(repr, self.available)), _LISTING)
        super().__init__(
            tool,
            detail=detail,
            advice=f"; there are: {names}." if names else "",
            url=url,
            session_id=session_id,
        )


class ToolFailed(ToolError):
    """Raised when the tool itself raised on the server.

    Cause: The tool's own code.

    Tried: Nothing. The call ran once.

    Do: Tell the model `text`. The session goes on.
    """

    _verb = "raised on the server"
