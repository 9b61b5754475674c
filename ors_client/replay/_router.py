"""Requests of the standard, answered from a script: what is asked as a value, and what to answer as a value.

Knows the routes and their answers, as openreward 0.1.167 gives them. Opens no socket and reads no clock; how long an
answer takes is said with it.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from ors_client._errors import LimitExceeded, one_line
from ors_client._json import decode
from ors_client._settings import Limits
from ors_client._types import JSONObject
from ors_client.record import CallRecord

from ._index import NOT_RECORDED, Rehearsal, Scene, Script, listed

SESSION_SECONDS = 900.0
"""When a session that nobody cares for is ended, as by the official servers."""

_KEPT = 1024  # results that can be asked for again by their task id
_LIMITS = Limits()  # of nesting: a record holds less, and what compares the two works recursively
_LISTED = 20  # indices that a refusal names
_CHUNK = 4096  # code points of a result in one event
_ROUTES = {
    "health": "GET",
    "version": "GET",
    "list_environments": "GET",
    "create_session": "POST",
    "create": "POST",
    "ping": "POST",
    "delete": "POST",
    "delete_session": "POST",
}
_OF_ENVIRONMENT = {
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
class Asked:
    """A request; the names of its headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer: JSON, or events.

    Args:
        value: The body, where it is JSON.
        events: Name and data of each; the first is sent at once.
        seconds: What the recorded call took.
        location: Where the route is.
    """

    status: int = 200
    value: object = None
    events: tuple[tuple[str, str], ...] | None = None
    seconds: float = 0.0
    location: str | None = None


class _Refused(Exception):
    """Raised where a request ends in an error's status."""

    def __init__(self, status: int, detail: str) -> None:
        self.answer = Answer(status, {"detail": detail})
        super().__init__(detail)


@dataclass(slots=True)
class _Session:
    """An open session, and when a client last cared for it."""

    rehearsal: Rehearsal
    seen: float


class Answers:
    """The server behind the wire: its sessions, and the results that it still holds.

    Args:
        script: What to answer from.
        session_timeout: Seconds without a request to a session after which it is ended; a ping is one, too.
    """

    def __init__(self, script: Script, *, session_timeout: float = SESSION_SECONDS) -> None:
        self._script = script
        self._session_timeout = session_timeout
        self._now = 0.0
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # the one longest uncared for comes first
        self._results: OrderedDict[str, Answer] = OrderedDict()

    def sessions(self, *, now: float) -> int:
        """Return how many are open."""
        self._end_forgotten(now)
        return len(self._sessions)

    def to(self, asked: Asked, *, now: float) -> Answer:
        """Answer a request.

        Args:
            asked: The request.
            now: Seconds on a clock that only goes forward.
        """
        self._end_forgotten(now)
        try:
            return self._route(asked)
        except _Refused as refused:
            return refused.answer

    def _end_forgotten(self, now: float) -> None:
        self._now = now
        while self._sessions and now - next(iter(self._sessions.values())).seen > self._session_timeout:
            self._sessions.popitem(last=False)

    def _route(self, asked: Asked) -> Answer:
        parts = [unquote(part) for part in urlsplit(asked.target).path.split("/") if part]
        if len(parts) == 1 and parts[0] in _ROUTES:
            _check_method(asked, _ROUTES[parts[0]])
            return self._of_server(parts[0], asked)
        if parts and parts[0].lower() not in self._script.scenes:
            # A path without an environment is sent on to the first one, as the official servers do.
            first = next(iter(self._script.scenes), None)
            return Answer(308, location=f"/{first}{asked.target}") if first else Answer(404, {"detail": "Not Found"})
        if len(parts) != 2 or parts[1] not in _OF_ENVIRONMENT:
            raise _Refused(404, "Not Found")
        _check_method(asked, _OF_ENVIRONMENT[parts[1]])
        return self._of_environment(parts[0], parts[1], asked)

    def _of_server(self, route: str, asked: Asked) -> Answer:
        match route:
            case "health" | "ping":
                if route == "ping":
                    self._session(asked)
                return Answer(value={"status": "ok"})
            case "version":
                return Answer(value={"version": "replay", "build_sha": None})
            case "list_environments":
                return Answer(value=list(self._script.scenes))
            case "create_session":
                return Answer(events=(("task_id", str(uuid.uuid4())), ("end", "")))
            case "create":
                return self._create(asked)
            case _:
                session_id = _session_id(asked)
                if route == "delete":
                    self._sessions.pop(session_id, None)
                return Answer(value={"sid": session_id})

    def _of_environment(self, name: str, route: str, asked: Asked) -> Answer:
        scene = self._script.scenes[name.lower()]
        match route:
            case "tools":
                return Answer(value=listed(scene.tools))
            case "splits":
                return Answer(value=[{"name": split, "type": _split_type(split)} for split in scene.splits])
            case "tasks" | "num_tasks" | "task" | "task_range":
                return _tasks(scene, name, route, _body(asked))
            case "prompt" | "messages":
                take = self._session(asked).rehearsal.take
                return Answer(value=take.prompt if route == "prompt" else take.messages)
            case "task_tools":
                self._session(asked)
                return Answer(value=listed(scene.tools))
            case "score_group":
                raise _Refused(404, f"Environment {name!r} does not implement score_group")
            case _:
                return self._call(asked)

    def _session(self, asked: Asked) -> _Session:
        session_id = _session_id(asked)
        session = self._sessions.get(session_id)
        if session is None:
            raise _Refused(404, "Active environment not found")
        session.seen = self._now
        self._sessions.move_to_end(session_id)
        return session

    def _create(self, asked: Asked) -> Answer:
        session_id, body = _session_id(asked), _body(asked)
        if session_id in self._sessions:
            raise _Refused(400, "Session already exists")
        name = body.get("env_name")
        scene = self._script.scenes.get(str(name).lower()) if name else next(iter(self._script.scenes.values()), None)
        if scene is None:
            raise _Refused(404, f"unknown environment {str(name)!r}")
        given = body.get("task_spec")
        place = scene.find_spec(cast("JSONObject", given) if isinstance(given, dict) else body)
        if place is None:
            raise _Refused(400, _missing(scene, cast("JSONObject", given) if isinstance(given, dict) else body))
        self._sessions[session_id] = _Session(scene.begin(place), self._now)
        return Answer(value={"sid": session_id})

    def _call(self, asked: Asked) -> Answer:
        rehearsal, body = self._session(asked).rehearsal, _body(asked)
        tool, arguments, task_id = body.get("name"), body.get("input"), body.get("task_id")
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise _Refused(422, "name is a string and input an object")
        if task_id is not None:
            return self._results.get(str(task_id)) or Answer(events=(("error", "unknown task_id"),))
        task_id = uuid.uuid4().hex
        seconds = 0.0
        if rehearsal.finished:
            events = _result(_refusal("The episode is over.", "episode_finished"))
        else:
            found = rehearsal.call(tool, cast("JSONObject", arguments))
            if isinstance(found, str):
                events = _result(_refusal(found, NOT_RECORDED))
            else:
                events, seconds = _recorded(found), found.seconds
        answer = self._results[task_id] = Answer(events=(("task_id", task_id), *events), seconds=seconds)
        while len(self._results) > _KEPT:
            self._results.popitem(last=False)
        return answer


def _check_method(asked: Asked, method: str) -> None:
    if asked.method != method:
        raise _Refused(405, "Method Not Allowed")


def _session_id(asked: Asked) -> str:
    session_id = asked.headers.get("x-session-id", "").strip()
    if not session_id:
        raise _Refused(400, "X-Session-ID header is required")
    return session_id


def _body(asked: Asked) -> JSONObject:
    try:
        value = decode(asked.body.decode(), limits=_LIMITS)
    except LimitExceeded:
        raise _Refused(422, f"the body is nested more than {_LIMITS.schema_depth} levels deep") from None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _Refused(422, "the body is no JSON object")
    return value


def _split_type(name: str) -> str:
    return name if name in {"train", "validation", "test"} else "validation"


def _tasks(scene: Scene, name: str, route: str, body: JSONObject) -> Answer:
    split = body.get("split")
    if not isinstance(split, str) or split not in scene.splits:
        raise _Refused(400, "Invalid split")
    indices = scene.indices(split)
    if route == "num_tasks":
        return Answer(value={"num_tasks": len(indices)})
    if route == "task":
        index = body.get("index")
        place = scene.find(split, index) if isinstance(index, int) else None
        if place is None:
            raise _Refused(400, "Invalid index")
        return Answer(value={"task": scene.spec(place), "env_name": name})
    specs = [scene.spec((split, index)) for index in indices]
    bounds = (body.get("start"), body.get("stop")) if route == "task_range" else (None, None)
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        raise _Refused(422, "start and stop are integers")
    return Answer(value={"tasks": specs[slice(*bounds)], "env_name": name})


def _missing(scene: Scene, asked: JSONObject) -> str:
    split, index = asked.get("split"), asked.get("index")
    if not isinstance(split, str) or not isinstance(index, int):
        return f"The task {one_line(json.dumps(asked))} is not in the record"
    recorded = sorted(scene.indices(split))
    shown = ", ".join(map(str, recorded[:_LISTED])) + (", ..." if len(recorded) > _LISTED else "")
    return f"Task {index} of split {split!r} is not in the record, which has: {shown or 'none of that split'}"


def _refusal(error: str, reason: str | None) -> JSONObject:
    return {"ok": False, "error": error} | ({"reason": reason} if reason else {})


def _recorded(call: CallRecord) -> tuple[tuple[str, str], ...]:
    if call.error is not None and call.kind == "ToolRejected":
        return _result(_refusal(call.error, None))
    if call.error is not None:
        return (("error", call.error),)
    blocks: list[Any] = call.blocks if call.blocks is not None else []
    if call.blocks is None and call.output:
        blocks = [{"type": "text", "text": call.output, "detail": None}]
    output = {"blocks": blocks, "metadata": call.metadata, "reward": call.reward, "finished": call.finished}
    return _result({"ok": True, "output": output})


def _result(value: JSONObject) -> tuple[tuple[str, str], ...]:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    pieces = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    return (*(("chunk", piece) for piece in pieces[:-1]), ("end", pieces[-1]))
