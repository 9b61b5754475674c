"""The routes of the standard, answered from a record: a request as a value in, a response as a value out.

Knows the routes and their responses, as openreward 0.1.167 gives them. Opens no socket and reads no clock: a response
says how long it takes.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

from ors_client._config import Limits
from ors_client._errors import LimitExceeded, one_line
from ors_client._protocol.json import decode
from ors_client._types import JSONObject
from ors_client.record import CallRecord

from ._index import NOT_RECORDED, RecordedEnvironment, ReplaySession, Script, tool_list_json

SESSION_SECONDS = 900.0
"""After how long without a request a session is ended, as by the official servers."""

_MAX_RESULTS = 1024  # that can be requested again by their task id
_LIMITS = Limits()  # of nesting: a record holds less, and what compares the two works recursively
_MAX_INDICES = 20  # that an error message names
_CHUNK_CHARS = 4096  # of a result in one event
_SERVER_ROUTES = {
    "health": "GET",
    "version": "GET",
    "list_environments": "GET",
    "create_session": "POST",
    "create": "POST",
    "ping": "POST",
    "delete": "POST",
    "delete_session": "POST",
}
_ENVIRONMENT_ROUTES = {
    "tools": "GET",
    "splits": "GET",
    "tasks": "POST",
    "num_tasks": "POST",
    "task": "POST",
    "task_range": "POST",
    "prompt": "GET",
    "messages": "GET",
    "task_tools": "GET",
    "call": "POST",
    "score_group": "POST",
}


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request; its headers are looked up in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class ReplayResponse:
    """A response: JSON, or events.

    Args:
        value: The body, if it is JSON.
        events: Name and data of each; the first is sent at once.
        seconds: How long the recorded call took.
        location: Where a redirect leads.
    """

    status: int = 200
    value: object = None
    events: tuple[tuple[str, str], ...] | None = None
    seconds: float = 0.0
    location: str | None = None


class _RequestError(Exception):
    """Raised when a request is answered with an error's status."""

    def __init__(self, status: int, detail: str) -> None:
        self.response = ReplayResponse(status, {"detail": detail})
        super().__init__(detail)


@dataclass(slots=True)
class _OpenSession:
    """A session, and when a client last used or pinged it."""

    replay: ReplaySession
    last_used: float


class Router:
    """Answers requests; holds the open sessions and the latest results.

    Args:
        script: The record.
        session_timeout: Seconds without a request or a ping after which a session is ended.
    """

    def __init__(self, script: Script, *, session_timeout: float = SESSION_SECONDS) -> None:
        self._script = script
        self._session_timeout = session_timeout
        self._now = 0.0
        self._sessions: OrderedDict[str, _OpenSession] = OrderedDict()  # the longest unused comes first
        self._results: OrderedDict[str, ReplayResponse] = OrderedDict()

    def sessions(self, *, now: float) -> int:
        """Return how many sessions are open."""
        self._end_expired(now)
        return len(self._sessions)

    def respond(self, request: ReplayRequest, *, now: float) -> ReplayResponse:
        """Answer a request.

        Args:
            request: The request.
            now: Seconds on a monotonic clock.
        """
        self._end_expired(now)
        try:
            return self._route(request)
        except _RequestError as error:
            return error.response

    def _end_expired(self, now: float) -> None:
        self._now = now
        while self._sessions and now - next(iter(self._sessions.values())).last_used > self._session_timeout:
            self._sessions.popitem(last=False)

    def _route(self, request: ReplayRequest) -> ReplayResponse:
        parts = [unquote(part) for part in urlsplit(request.target).path.split("/") if part]
        if len(parts) == 1 and parts[0] in _SERVER_ROUTES:
            _check_method(request, _SERVER_ROUTES[parts[0]])
            return self._respond_for_server(parts[0], request)
        if parts and parts[0].lower() not in self._script.environments:
            # A path without an environment is redirected to the first one, as by the official servers.
            first = next(iter(self._script.environments), None)
            if first is None:
                raise _RequestError(404, "Not Found")
            return ReplayResponse(308, location=f"/{quote(first, safe='')}{request.target}")
        if len(parts) != 2 or parts[1] not in _ENVIRONMENT_ROUTES:
            raise _RequestError(404, "Not Found")
        _check_method(request, _ENVIRONMENT_ROUTES[parts[1]])
        return self._respond_for_environment(parts[0], parts[1], request)

    def _respond_for_server(self, route: str, request: ReplayRequest) -> ReplayResponse:
        match route:
            case "health" | "ping":
                if route == "ping":
                    self._session(request)
                return ReplayResponse(value={"status": "ok"})
            case "version":
                return ReplayResponse(value={"version": "replay", "build_sha": None})
            case "list_environments":
                return ReplayResponse(value=list(self._script.environments))
            case "create_session":
                return ReplayResponse(events=(("task_id", str(uuid.uuid4())), ("end", "")))
            case "create":
                return self._create(request)
            case _:
                session_id = _session_id(request)
                if route == "delete":
                    self._sessions.pop(session_id, None)
                return ReplayResponse(value={"sid": session_id})

    def _respond_for_environment(self, name: str, route: str, request: ReplayRequest) -> ReplayResponse:
        environment = self._script.environments[name.lower()]
        match route:
            case "tools":
                return ReplayResponse(value=tool_list_json(environment.tools))
            case "splits":
                splits = [{"name": split, "type": _split_type(split)} for split in environment.splits]
                return ReplayResponse(value=splits)
            case "tasks" | "num_tasks" | "task" | "task_range":
                return _tasks(environment, name, route, _body(request))
            case "prompt" | "messages":
                episode = self._session(request).replay.episode
                return ReplayResponse(value=episode.prompt if route == "prompt" else episode.messages)
            case "task_tools":
                self._session(request)
                return ReplayResponse(value=tool_list_json(environment.tools))
            case "score_group":
                raise _RequestError(404, f"Environment {name!r} does not implement score_group")
            case _:
                return self._call(request)

    def _session(self, request: ReplayRequest) -> _OpenSession:
        session_id = _session_id(request)
        session = self._sessions.get(session_id)
        if session is None:
            raise _RequestError(404, "Active environment not found")
        session.last_used = self._now
        self._sessions.move_to_end(session_id)
        return session

    def _create(self, request: ReplayRequest) -> ReplayResponse:
        session_id, body = _session_id(request), _body(request)
        if session_id in self._sessions:
            raise _RequestError(400, "Session already exists")
        name = body.get("env_name")
        environments = self._script.environments
        environment = environments.get(str(name).lower()) if name else next(iter(environments.values()), None)
        if environment is None:
            raise _RequestError(404, f"unknown environment {str(name)!r}")
        given = body.get("task_spec")
        spec = cast("JSONObject", given) if isinstance(given, dict) else body
        task = environment.find_spec(spec)
        if task is None:
            raise _RequestError(400, _unknown_task(environment, spec))
        self._sessions[session_id] = _OpenSession(environment.start_session(task), self._now)
        return ReplayResponse(value={"sid": session_id})

    def _call(self, request: ReplayRequest) -> ReplayResponse:
        session, body = self._session(request).replay, _body(request)
        tool, arguments, task_id = body.get("name"), body.get("input"), body.get("task_id")
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise _RequestError(422, "name is a string and input an object")
        if task_id is not None:
            return self._results.get(str(task_id)) or ReplayResponse(events=(("error", "unknown task_id"),))
        task_id = uuid.uuid4().hex
        seconds = 0.0
        if session.finished:
            events = _result_events(_rejection("The episode is over.", "episode_finished"))
        else:
            found = session.call(tool, cast("JSONObject", arguments))
            if isinstance(found, str):
                events = _result_events(_rejection(found, NOT_RECORDED))
            else:
                events, seconds = _call_events(found), found.seconds
        response = self._results[task_id] = ReplayResponse(events=(("task_id", task_id), *events), seconds=seconds)
        while len(self._results) > _MAX_RESULTS:
            self._results.popitem(last=False)
        return response


def _check_method(request: ReplayRequest, method: str) -> None:
    if request.method != method:
        raise _RequestError(405, "Method Not Allowed")


def _session_id(request: ReplayRequest) -> str:
    session_id = request.headers.get("x-session-id", "").strip()
    if not session_id:
        raise _RequestError(400, "X-Session-ID header is required")
    return session_id


def _body(request: ReplayRequest) -> JSONObject:
    try:
        value = decode(request.body.decode(), limits=_LIMITS)
    except LimitExceeded:
        raise _RequestError(422, f"the body is nested more than {_LIMITS.schema_depth} levels deep") from None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _RequestError(422, "the body is no JSON object")
    return value


def _split_type(name: str) -> str:
    return name if name in {"train", "validation", "test"} else "validation"


def _tasks(environment: RecordedEnvironment, name: str, route: str, body: JSONObject) -> ReplayResponse:
    split = body.get("split")
    if not isinstance(split, str) or split not in environment.splits:
        raise _RequestError(400, "Invalid split")
    indices = environment.indices(split)
    if route == "num_tasks":
        return ReplayResponse(value={"num_tasks": len(indices)})
    if route == "task":
        index = body.get("index")
        task = environment.find(split, index) if isinstance(index, int) else None
        if task is None:
            raise _RequestError(400, "Invalid index")
        return ReplayResponse(value={"task": environment.spec(task), "env_name": name})
    specs = [environment.spec((split, index)) for index in indices]
    bounds = (body.get("start"), body.get("stop")) if route == "task_range" else (None, None)
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        raise _RequestError(422, "start and stop are integers")
    return ReplayResponse(value={"tasks": specs[slice(*bounds)], "env_name": name})


def _unknown_task(environment: RecordedEnvironment, spec: JSONObject) -> str:
    split, index = spec.get("split"), spec.get("index")
    if not isinstance(split, str) or not isinstance(index, int):
        return f"The task {one_line(json.dumps(spec))} is not in the record"
    recorded = sorted(environment.indices(split))
    shown = ", ".join(map(str, recorded[:_MAX_INDICES])) + (", ..." if len(recorded) > _MAX_INDICES else "")
    return f"Task {index} of split {split!r} is not in the record, which has: {shown or 'none of that split'}"


def _rejection(error: str, reason: str | None) -> JSONObject:
    return {"ok": False, "error": error} | ({"reason": reason} if reason else {})


def _call_events(call: CallRecord) -> tuple[tuple[str, str], ...]:
    if call.error is not None and call.kind == "ToolRejected":
        return _result_events(_rejection(call.error, None))
    if call.error is not None:
        return (("error", call.error),)
    blocks: list[Any] = call.blocks if call.blocks is not None else []
    if call.blocks is None and call.output:
        blocks = [{"type": "text", "text": call.output, "detail": None}]
    output = {"blocks": blocks, "metadata": call.metadata, "reward": call.reward, "finished": call.finished}
    return _result_events({"ok": True, "output": output})


def _result_events(value: JSONObject) -> tuple[tuple[str, str], ...]:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    pieces = [text[start : start + _CHUNK_CHARS] for start in range(0, len(text), _CHUNK_CHARS)]
    return (*(("chunk", piece) for piece in pieces[:-1]), ("end", pieces[-1]))
