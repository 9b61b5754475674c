"""Each ORS endpoint as a value: what to send, who reads the answer, and whether sending it twice is safe.

An `Operation` is built from plain arguments, holds its body as bytes and its parser as a function, and does no I/O. It
does not know hosts, keys, retries or connections. Requests hold only what is set, since the servers reject unknown
fields and some reject nulls. What an answer means is known in `responses`.

Source: the standard's pages, openreward 0.1.50 to 0.1.167, ors-sdk 0.1.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Literal, Protocol, Self, TypeVar
from urllib.parse import quote, urlencode

from ors_client._config import Limits
from ors_client._errors import ORSError, ProtocolError, ToolFailed
from ors_client._types import (
    Block,
    GroupCandidate,
    GroupScore,
    JSONObject,
    JSONValue,
    Message,
    Split,
    Task,
    TaskDifficulty,
    TaskRef,
    ToolList,
    ToolOutput,
)

from . import responses
from .json import encode

T = TypeVar("T")
Result_co = TypeVar("Result_co", covariant=True)

Headers = tuple[tuple[bytes, bytes], ...]

_UPKEEP = frozenset({"/ping", "/delete", "/delete_session"})


@dataclass(frozen=True, slots=True)
class Address:
    """Which environment of a server is meant.

    Args:
        environment: The first segment of the path, as the server lists it; empty for the default one of a server that
            lists none, which redirects such paths.
        deployment: "owner/name" in the catalogue, sent as `X-Deployment`.
    """

    environment: str
    deployment: str | None = None

    def path(self, endpoint: str) -> str:
        """Return the path of `endpoint` ("tools") below this environment."""
        return _path(self.environment, endpoint)


@lru_cache(maxsize=256)
def _path(environment: str, endpoint: str) -> str:
    return f"/{quote(environment, safe='')}/{endpoint}" if environment else f"/{endpoint}"


class Cookies(Protocol):
    """The cookies of one session."""

    def clear(self) -> None:
        """Forget all."""
        ...

    def header(self, url: str) -> str | None:
        """Return the value of `Cookie` for a request to `url`, or `None`."""
        ...

    def store(self, url: str, lines: Sequence[str]) -> None:
        """Keep what the `Set-Cookie` headers of an answer from `url` set."""
        ...


@dataclass(slots=True)
class Operation(Generic[Result_co]):
    """One request of the standard; made for each, and by `with_cookies` alone changed after that.

    Args:
        method: The HTTP method.
        path: Below the host's address, query included.
        parse: Reads the decoded JSON of the answer, or of a stream's result.
        body: JSON as bytes, or `None`.
        headers: Its own headers: session, deployment, secrets.
        host: Which host of the layout answers it.
        idempotent: Sending it twice is the same as once.
        waits_for_setup: It is answered when the environment is ready, which may take `Timeouts.start_up`.
        waits_for_teardown: It is answered when the environment has ended, which may take `Timeouts.close`.
        streamed: The answer is an event stream that ends in the result.
        may_be_json: A streamed operation that may also be answered with plain JSON.
        make_error: Makes the error for a stream's `error` event.
        authenticated: The API key goes with it.
        holds_blocks: Its answer holds content blocks.
        lists_models: Its answer lists what becomes models, as tasks.
        follows_redirects: It is sent again to where a redirect leads; otherwise a redirect is an answer.
        cookies: Go with it, and keep what its answer sets; of the session that it belongs to, or makes.
    """

    method: str
    path: str
    parse: Callable[[JSONValue], Result_co]
    body: bytes | None = None
    headers: Headers = ()
    host: Literal["api", "sessions"] = "sessions"
    idempotent: bool = True
    waits_for_setup: bool = False
    waits_for_teardown: bool = False
    streamed: bool = False
    may_be_json: bool = False
    make_error: Callable[[str], ORSError] | None = None
    authenticated: bool = True
    follows_redirects: bool = True
    holds_blocks: bool = False
    lists_models: bool = False
    cookies: Cookies | None = field(default=None, repr=False, compare=False)

    def with_cookies(self, cookies: Cookies) -> Self:
        """Set its session's cookies, and return it. A copy would cost as much as the rest of a call's preparation."""
        self.cookies = cookies
        return self

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.method} {self.path.partition('?')[0]}"

    @property
    def ignores_body(self) -> bool:
        """Whether its success says it all: servers answer with JSON, with `OK`, or with an empty body.

        An episode that begins is another matter: its sign is what the standard says.
        """
        return self.idempotent and self.parse is responses.nothing

    @property
    def is_upkeep(self) -> bool:
        """Whether it keeps a session or ends it, of which a program need not know."""
        return self.path in _UPKEEP

    @property
    def session_id(self) -> str | None:
        """The session it belongs to, where it belongs to one."""
        return self._header(b"x-session-id")

    @property
    def deployment(self) -> str | None:
        """The deployment of the catalogue that it asks, where it asks one."""
        return self._header(b"x-deployment")

    def _header(self, wanted: bytes) -> str | None:
        return next((value.decode("ascii") for name, value in self.headers if name == wanted), None)


def headers(
    *, session_id: str | None = None, deployment: str | None = None, secrets_header: str | None = None
) -> Headers:
    """Return the headers of an operation that are set.

    Raises:
        ValueError: A value can't stand in a header.
    """
    pairs = (
        (b"x-session-id", session_id),
        (b"x-deployment", deployment),
        (b"x-secrets", secrets_header),
    )
    return tuple((name, _header_value(value)) for name, value in pairs if value is not None)


def _header_value(value: str) -> bytes:
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"{value[:80]!r} can't be sent in a header.")
    return value.encode("ascii")


# --- The endpoints ---------------------------------------------------------------------------------------------------


def list_environments(*, deployment: str | None = None, session_id: str | None = None) -> Operation[list[str]]:
    """GET /list_environments: names in order of registration, the first being the default."""
    return Operation(
        "GET",
        "/list_environments",
        responses.environments,
        headers=headers(deployment=deployment, session_id=session_id),
    )


def version(*, deployment: str | None = None, session_id: str | None = None) -> Operation[str | None]:
    """GET /version, which ors-sdk and openreward before 0.1.70 do not have: they redirect to where there is none."""
    return Operation(
        "GET",
        "/version",
        responses.version,
        headers=headers(deployment=deployment, session_id=session_id),
        follows_redirects=False,
    )


def splits(address: Address, *, session_id: str | None = None) -> Operation[list[Split]]:
    """GET /{environment}/splits."""
    return _discovery("GET", address, "splits", responses.splits, session_id)


def tools(address: Address, *, limits: Limits, session_id: str | None = None) -> Operation[ToolList]:
    """GET /{environment}/tools: the shared tools, without terminal and task tools."""
    return _discovery("GET", address, "tools", lambda value: responses.tools(value, limits), session_id)


def tasks(address: Address, split: str, *, session_id: str | None = None) -> Operation[list[Task]]:
    """POST /{environment}/tasks: every task of a split; 400 where tasks are index-based."""
    return _discovery(
        "POST",
        address,
        "tasks",
        lambda value: responses.tasks(value, address.environment, split, first=0),
        session_id,
        {"split": split},
    )


def num_tasks(address: Address, split: str, *, session_id: str | None = None) -> Operation[int]:
    """POST /{environment}/num_tasks."""
    return _discovery("POST", address, "num_tasks", responses.num_tasks, session_id, {"split": split})


def task(address: Address, split: str, index: int, *, session_id: str | None = None) -> Operation[Task]:
    """POST /{environment}/task. ors-sdk and openreward before 0.1.93 answer without `env_name`."""
    return _discovery(
        "POST",
        address,
        "task",
        lambda value: responses.task(value, address.environment, TaskRef(split, index)),
        session_id,
        {"split": split, "index": index},
    )


def task_range(
    address: Address, split: str, start: int | None, stop: int | None, *, session_id: str | None = None
) -> Operation[list[Task]]:
    """POST /{environment}/task_range, resolved like a Python slice. Absent from openreward 0.1.50."""
    body: dict[str, object] = {"split": split}
    if start is not None:
        body["start"] = start
    if stop is not None:
        body["stop"] = stop
    first = 0 if start is None else start
    return _discovery(
        "POST",
        address,
        "task_range",
        lambda value: responses.tasks(value, address.environment, split, first=first),
        session_id,
        body,
    )


def _discovery(  # noqa: PLR0917 - every argument is the endpoint's own, and each line above reads as a table row
    method: str,
    address: Address,
    endpoint: str,
    parse: Callable[[JSONValue], T],
    session_id: str | None,
    body: Mapping[str, object] | None = None,
) -> Operation[T]:
    return Operation(
        method,
        address.path(endpoint),
        parse,
        body=None if body is None else encode(body),
        headers=headers(session_id=session_id, deployment=address.deployment),
        lists_models=endpoint in {"splits", "tasks", "task_range"},
    )


def create_session(
    *,
    deployment: str | None = None,
    env_overrides: Mapping[str, object] | None = None,
    secrets_header: str | None = None,
) -> Operation[str]:
    """POST /create_session: the id of a session that holds no episode yet.

    Three answers are in use: JSON `{"sid"}` (the standard's pages), a stream whose task id is the session id and whose
    `end` is empty (both SDKs' servers), and a stream whose `end` holds JSON with `sid`. A lost answer costs an id
    without an episode, so the request may be repeated.

    openreward 0.1.167 sends the secrets along: the catalogue starts a container here, and tells its network which host
    may get which secret.
    """

    def make_error(text: str) -> ORSError:
        return ProtocolError("The server could not make a session", excerpt=text)

    return Operation(
        "POST",
        "/create_session",
        responses.session_id,
        body=encode({} if env_overrides is None else {"env": env_overrides}),
        headers=headers(deployment=deployment, secrets_header=secrets_header),
        streamed=True,
        may_be_json=True,
        make_error=make_error,
    )


@dataclass(frozen=True, slots=True)
class Episode:
    """What `/create` starts: exactly one of a task's spec, or its split and index."""

    spec: JSONObject | None = None
    split: str | None = None
    index: int | None = None
    toolset: str | None = None


def create(
    address: Address,
    session_id: str,
    episode: Episode,
    *,
    secrets_header: str | None = None,
    secrets_body: Mapping[str, str] | None = None,
) -> Operation[None]:
    """POST /create: start the episode. Runs the constructor on openreward, so it is never repeated with the same id."""
    body: dict[str, object] = {"env_name": address.environment} if address.environment else {}
    if episode.spec is not None:
        body["task_spec"] = episode.spec
    else:
        body |= {"split": episode.split, "index": episode.index}
    if episode.toolset is not None:
        body["toolset_name"] = episode.toolset
    if secrets_body is not None:
        body["secrets"] = secrets_body
    return Operation(
        "POST",
        "/create",
        responses.nothing,
        body=encode(body),
        headers=headers(session_id=session_id, deployment=address.deployment, secrets_header=secrets_header),
        idempotent=False,
        waits_for_setup=True,
    )


def prompt(address: Address, session_id: str) -> Operation[list[Block]]:
    """GET /{environment}/prompt: answered when setup is done."""
    return _of_session("GET", address, "prompt", session_id, responses.prompt, waits_for_setup=True)


def messages(address: Address, session_id: str) -> Operation[list[Message]]:
    """GET /{environment}/messages. Since openreward 0.1.157."""
    return _of_session(
        "GET",
        address,
        "messages",
        session_id,
        responses.messages,
        waits_for_setup=True,
    )


def task_tools(address: Address, session_id: str, *, limits: Limits) -> Operation[ToolList]:
    """GET /{environment}/task_tools: shared and task tools. ors-sdk answers it when setup is done."""
    return _of_session(
        "GET", address, "task_tools", session_id, lambda value: responses.tools(value, limits), waits_for_setup=True
    )


def ping(session_id: str, *, deployment: str | None = None) -> Operation[None]:
    """POST /ping: keep the session from being reaped."""
    return Operation("POST", "/ping", responses.nothing, headers=headers(session_id=session_id, deployment=deployment))


def delete(session_id: str, *, deployment: str | None = None) -> Operation[None]:
    """POST /delete: end the episode; answered when its teardown is done, and for unknown ids too."""
    return Operation(
        "POST",
        "/delete",
        responses.nothing,
        headers=headers(session_id=session_id, deployment=deployment),
        waits_for_teardown=True,
    )


def delete_session(session_id: str, *, deployment: str | None = None) -> Operation[None]:
    """POST /delete_session: give the id back; without effect on self-hosted servers."""
    return Operation(
        "POST", "/delete_session", responses.nothing, headers=headers(session_id=session_id, deployment=deployment)
    )


def _of_session(
    method: str,
    address: Address,
    endpoint: str,
    session_id: str,
    parse: Callable[[JSONValue], T],
    *,
    waits_for_setup: bool = False,
) -> Operation[T]:
    return Operation(
        method,
        address.path(endpoint),
        parse,
        headers=headers(session_id=session_id, deployment=address.deployment),
        waits_for_setup=waits_for_setup,
        holds_blocks=endpoint in {"prompt", "messages"},
    )


def call(address: Address, session_id: str, tool: str, arguments: Mapping[str, object]) -> Operation[ToolOutput]:
    """POST /{environment}/call: run a tool, which steps the episode.

    Raises:
        TypeError: The arguments are not a JSON object.
        ValueError: A number in them is not finite.
    """
    read, make_error = _readers(tool)
    return Operation(
        "POST",
        address.path("call"),
        read,
        holds_blocks=True,
        body=b'{"name":%b,"input":%b}' % (json.dumps(tool).encode("ascii"), encode(arguments, "arguments")),
        headers=headers(session_id=session_id, deployment=address.deployment),
        idempotent=False,
        streamed=True,
        make_error=make_error,
    )


@lru_cache(maxsize=256)
def _readers(tool: str) -> tuple[Callable[[JSONValue], ToolOutput], Callable[[str], ORSError]]:
    """Return what reads a tool's results and its failures, made once: a program has few tools and calls them often."""
    return lambda value: responses.result(value, tool), lambda text: ToolFailed(tool, detail=text)


def score_group(address: Address, session_id: str, candidates: Sequence[GroupCandidate]) -> Operation[list[GroupScore]]:
    """POST /{environment}/score_group: score rollouts of one task beside each other. Since openreward 0.1.157."""
    body = {"candidates": [candidate.model_dump(by_alias=True, exclude_none=True) for candidate in candidates]}
    return Operation(
        "POST",
        address.path("score_group"),
        lambda value: responses.scores(value, count=len(candidates)),
        body=encode(body),
        headers=headers(session_id=session_id, deployment=address.deployment),
        idempotent=False,
        streamed=True,
        make_error=lambda text: ToolFailed("score_group", detail=text),
    )


# --- The catalogue's own routes --------------------------------------------------------------------------------------


def required_secrets(deployment: str) -> Operation[list[str]]:
    """GET /v1/environments/{owner}/{name}/required-secrets."""
    return Operation(
        "GET",
        f"/v1/environments/{quote(deployment)}/required-secrets",
        responses.required_secrets,
        host="api",
    )


def task_difficulty(deployment: str, filters: Mapping[str, str | int | float]) -> Operation[list[TaskDifficulty]]:
    """GET /v1/environments/{owner}/{name}/task-difficulty."""
    query = f"?{urlencode(filters)}" if filters else ""
    return Operation(
        "GET",
        f"/v1/environments/{quote(deployment)}/task-difficulty{query}",
        responses.task_difficulties,
        host="api",
        lists_models=True,
    )


def environment_id(deployment: str) -> Operation[str]:
    """GET /v1/environments/{owner}/{name}: the id that rollouts refer to. openreward 0.1.167 asks without a key."""
    return Operation(
        "GET",
        f"/v1/environments/{quote(deployment)}",
        responses.environment_id,
        host="api",
        authenticated=False,
    )


def variant_ids(deployment: str) -> Operation[dict[str, str]]:
    """GET /v1/environments/{owner}/{name}/variants: the ids of a deployment's environments, by name."""
    return Operation(
        "GET", f"/v1/environments/{quote(deployment)}/variants", responses.variant_ids, host="api", authenticated=False
    )


def upload_rollouts(events: Sequence[bytes]) -> Operation[None]:
    """POST /v1/rollouts: events as JSON texts. Each has an id of its own, so that sending them twice is harmless."""
    return Operation(
        "POST", "/v1/rollouts", responses.nothing, body=b'{"events":[' + b",".join(events) + b"]}", host="api"
    )
