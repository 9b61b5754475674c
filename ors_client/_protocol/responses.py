"""What a server's answers mean: the decoded JSON of each endpoint -> our types.

One function for each kind of answer, tolerant of what servers of other ages and authors leave out or add. They raise
`ValueError` for an answer that breaks the standard, and a tool's error for what a tool answers; whoever sent the
request adds the address. Knows nothing of requests.

Source: the standard's pages, openreward 0.1.50 to 0.1.167, ors-sdk 0.1.0.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter

from ors_client._config import Limits
from ors_client._errors import LimitExceeded, ToolRejected
from ors_client._types import (
    Block,
    GroupScore,
    JSONValue,
    Message,
    Split,
    Task,
    TaskDifficulty,
    TaskRef,
    ToolList,
    ToolOutput,
)

_LONGEST_ID = 256  # official servers send 36 characters; an id also stands in log lines

_blocks: TypeAdapter[list[Block]] = TypeAdapter(list[Block])
_messages: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_difficulties: TypeAdapter[list[TaskDifficulty]] = TypeAdapter(list[TaskDifficulty])
_tasks: TypeAdapter[list[Task]] = TypeAdapter(list[Task])
_scores: TypeAdapter[list[GroupScore]] = TypeAdapter(list[GroupScore])


def check_blocks(value: JSONValue, limits: Limits) -> None:
    """Count what becomes blocks: the parts of a list, of its members' `content` or `blocks`, and of theirs.

    Raises:
        LimitExceeded: They are more than `Limits.blocks`.
    """
    found = value.get("output", value) if isinstance(value, dict) else value
    listed = found.get("blocks") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        return
    count, pending = 0, [listed]
    while pending and count <= limits.blocks:
        parts = pending.pop()
        count += len(parts)
        inner = (item.get("content", item.get("blocks")) for item in parts if isinstance(item, dict))
        pending += [each for each in inner if isinstance(each, list)]
    if count > limits.blocks:
        raise LimitExceeded("The answer has too many blocks", limit="blocks", maximum=limits.blocks)


def check_models(value: JSONValue, limits: Limits, *, size: int) -> None:
    """Count what becomes models in an answer of `size` bytes: the members of its longest list.

    A model takes some 700 bytes, so that many of few bytes each cost far more than they weigh.

    Raises:
        LimitExceeded: They are more than such an answer may hold.
    """
    lists = value.values() if isinstance(value, dict) else [value]
    count = max((len(each) for each in lists if isinstance(each, list)), default=0)
    if count > limits.items // 20 + size // 80:
        problem = f"The answer lists {count} models in {size} bytes"
        raise LimitExceeded(problem, limit="items", maximum=limits.items)


def environments(value: JSONValue) -> list[str]:
    """Read the names of a server's environments, in its order."""
    # A hand-written server may list objects with a name; the standard lists names.
    listed = _list(value.get("environments") if isinstance(value, dict) else value)
    return [_name(_field(cast("JSONValue", item), "name") if isinstance(item, dict) else item) for item in listed]


def splits(value: JSONValue) -> list[Split]:
    """Read splits; a hand-written server may list bare names."""
    listed = value.get("splits") if isinstance(value, dict) else value
    return [
        Split(name=item) if isinstance(item, str) else Split.model_validate(_object(item)) for item in _list(listed)
    ]


def tools(value: JSONValue, limits: Limits) -> ToolList:
    """Read the tools, and what else an environment says that it supports.

    Raises:
        LimitExceeded: There are more than `Limits.tools`.
    """
    listed = {"tools": value} if isinstance(value, list) else _object(value)
    found = listed.get("tools")
    if isinstance(found, list) and len(cast("list[object]", found)) > limits.tools:
        raise LimitExceeded("The server lists too many tools", limit="tools", maximum=limits.tools)
    return ToolList.model_validate(listed)


def num_tasks(value: JSONValue) -> int:
    """Read how many tasks a split has."""
    count = _field(value, "num_tasks")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError("num_tasks is not a count")
    return count


def task(value: JSONValue, environment: str, reference: TaskRef) -> Task:
    """Read one task of an environment, asked for by split and index."""
    return _task(_field(value, "task"), environment, reference.split, reference.index if reference.index >= 0 else None)


def tasks(value: JSONValue, environment: str, split: str, *, first: int) -> list[Task]:
    """Read tasks that follow each other in a split; where the first was counted from the end, none gets an index."""
    listed = _list(value if isinstance(value, list) else _field(value, "tasks"))
    # All at once, as a split may have thousands.
    return _tasks.validate_python(
        [
            {
                "environment": environment,
                "spec": _object(spec),
                "split": split,
                "index": first + offset if first >= 0 else None,
            }
            for offset, spec in enumerate(listed)
        ]
    )


def prompt(value: JSONValue) -> list[Block]:
    """Read a prompt; a hand-written server may send a bare text."""
    if isinstance(value, str):
        value = [{"type": "text", "text": value}]
    return _blocks.validate_python(_list(value.get("blocks") if isinstance(value, dict) else value))


def messages(value: JSONValue) -> list[Message]:
    """Read the conversation that a task begins with."""
    return _messages.validate_python(_list(value))


def session_id(value: JSONValue) -> str:
    """Read the id of a session, which becomes a header of every further request."""
    found = _field(value, "sid")
    if not isinstance(found, str) or not 0 < len(found) <= _LONGEST_ID or not (found.isascii() and found.isprintable()):
        raise ValueError(f"the session id is not printable ASCII of at most {_LONGEST_ID} characters")
    return found


def version(value: JSONValue) -> str | None:
    """Read a server's version, or `None` where it tells none."""
    found = value.get("version") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def nothing(_: JSONValue) -> None:
    """Read an answer of which only its coming matters."""
    return


def result(value: JSONValue, tool: str) -> ToolOutput:
    """Read what a tool answered.

    Raises:
        ToolRejected: The server refused to run it.
    """
    answer = _object(value)
    ok, output = answer.get("ok"), answer.get("output")
    if ok or (ok is None and output is not None):
        return ToolOutput.model_validate(_object(output))
    if ok is None and answer.get("error") is None:
        raise ValueError("it holds neither a result nor an error")
    reason = answer.get("reason")
    raise ToolRejected(tool, detail=str(answer.get("error") or ""), reason=reason if isinstance(reason, str) else None)


def scores(value: JSONValue, *, count: int) -> list[GroupScore]:
    """Read one score for each of `count` candidates."""
    found = _scores.validate_python(_field(value, "scores"))
    if len(found) != count:
        raise ValueError(f"{len(found)} scores came for {count} candidates")
    return found


def required_secrets(value: JSONValue) -> list[str]:
    """Read the names of the secrets that a catalogue environment needs."""
    return [str(name) for name in _list(_field(value, "secrets"))]


def task_difficulties(value: JSONValue) -> list[TaskDifficulty]:
    """Read what past rollouts of a catalogue environment scored."""
    return _difficulties.validate_python(_field(value, "tasks"))


def environment_id(value: JSONValue) -> str:
    """Read the id by which the catalogue's rollouts refer to an environment."""
    return str(_field(value, "id"))


def variant_ids(value: JSONValue) -> dict[str, str]:
    """Read the ids of a deployment's environments, by name."""
    return {str(_field(variant, "name")): str(_field(variant, "id")) for variant in _list(value)}


def _name(value: object) -> str:
    # It becomes a segment of paths, where dots would lead out of the server's own.
    if not isinstance(value, str) or value in {"", ".", ".."}:
        raise ValueError("an environment's name is not a string that a path can hold")
    return value


def _task(spec: JSONValue, environment: str, split: str, index: int | None) -> Task:
    # The path segment as sent comes back as `env_name`, so it says nothing that the address does not.
    return Task(environment=environment, spec=_object(spec), split=split, index=index)


def _object(value: JSONValue) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object was expected, not a {type(value).__name__}")  # noqa: TRY004 - a server's mistake
    return value


def _field(value: JSONValue, key: str) -> Any:
    found = _object(value)
    if found.get(key) is None:
        raise ValueError(f"the field {key!r} is missing")
    return found[key]


def _list(value: JSONValue) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"a list was expected, not a {type(value).__name__}")  # noqa: TRY004 - a server's mistake
    return value
