"""Tasks -> a `datasets.Dataset` whose rows TRL spreads over `reset` and the reward functions.

Knows which names a row must not use and which values Arrow keeps as they are. Pure functions over tasks: no session and
no client, and what a task means is never read back from here. A row only points at its task; the columns beside are a
copy for reward functions to read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from ors_client import Task
from ors_client._shared import get_logger
from trl_bridge._chat.content import escape_surrogates

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs] - it has none

logger = get_logger(__name__)

RESERVED_COLUMNS = frozenset(
    {
        # Written by `build`, read by the environment's `reset`.
        *("prompt", "task_index", "split", "environment", "task_spec"),
        # Passed to reward functions beside the row's columns: a column of that name is a TypeError or is overwritten.
        *("prompts", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"),
        *("environments", "environment_reward", "inputs", "rewards", "reward_kwargs"),
        # Read from a row by TRL 1.16: as pictures, as the conversation, as options of the chat template, as labels.
        *("image", "images", "messages", "conversations", "chosen", "rejected", "label", "labels", "tools"),
        *("chat_template_kwargs", "teacher_id", "privileged_context", "input_ids", "attention_mask"),
        # Written over a row by TRL's `rollout_func`.
        *("prompt_ids", "completion_mask", "logprobs", "env_mask", "tool_mask", "advantages"),
        # What functions that take a row as keyword arguments call their own parameters.
        *("self", "cls", "args", "kwargs"),
    }
)
"""Names that a key of a task spec never becomes a column under: it gets the prefix `task_`."""

_NO_IMAGES = "A prompt with images can't stand in a dataset; let each episode's reset hand it out."
_LARGEST_INT = 2**63
_DEEPEST = 32  # levels of lists and dicts that a column is typed by
_LARGEST_EXACT_FLOAT = 2**53  # whole numbers up to here are the same as float and as int


def build(
    tasks: Sequence[Task],
    *,
    split: str | None,
    include_metadata: bool,
    environment: str | Sequence[str] | None = None,
    prompts: Sequence[str | list[Any]] | None = None,
) -> Dataset:
    """Make the dataset of these tasks, a row for each.

    Args:
        tasks: Each must know its index.
        split: Goes into every row, so that one set of environments serves training and evaluation; `None` puts each
            task's own there.
        include_metadata: Whether to add a column per key of the task specs. Values of one shape stay as they are:
            scalars of one type, dicts with the same keys, lists of either; a column of anything else holds each value
            as JSON text. A missing key is `None`, like null.
        environment: Goes into a column of that name, by which TRL picks one of several factories; a sequence has one
            for every task.
        prompts: A text, or a conversation, per task; by default an empty user turn, to which TRL appends what `reset`
            returns.

    Raises:
        ValueError: A task has no index, or the prompts do not match the tasks.
    """
    # Imported here since it takes a second, which importing the bridge should not.
    import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - it has none

    for position, task in enumerate(tasks):
        if task.index is None:
            raise ValueError(
                f"Task {position} of {len(tasks)} has no index, so no row can name it; list the tasks from their split."
            )
    conversations, plain = _conversations(prompts, len(tasks))
    columns: dict[str, list[Any]] = {
        "prompt": conversations,
        "task_index": [task.index for task in tasks],
        "split": [task.split if split is None else split for task in tasks],
    }
    message = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features: dict[str, Any] = {
        # Arrow would give every message all keys of all others; kept as JSON, each comes back as it was.
        "prompt": datasets.List(message if plain else datasets.Json()),
        "task_index": datasets.Value("int64"),
        "split": datasets.Value("string"),
    }
    if environment is not None:
        columns["environment"] = [environment] * len(tasks) if isinstance(environment, str) else list(environment)
        features["environment"] = datasets.Value("string")
    if include_metadata:
        for key, name in column_names(chain.from_iterable(task.spec for task in tasks)).items():
            columns[name], features[name] = _typed([task.spec.get(key) for task in tasks])
    return _dataset(columns, datasets.Features(features))


def column_names(keys: Iterable[str]) -> dict[str, str]:
    """Map the keys of task specs to columns, in the order of their first appearance.

    A key that is free keeps its name, whichever keys are renamed around it.
    """
    unique = list(dict.fromkeys(keys))
    names = {key: key for key in unique if key and key not in RESERVED_COLUMNS and _column(key) == key}
    taken = {*names.values(), *RESERVED_COLUMNS}
    for key in unique:
        if key not in names:
            stem = name = f"task_{_column(key)}"
            number = 1
            while name in taken:
                number += 1
                name = f"{stem}_{number}"
            taken.add(name)
            names[key] = name
    return {key: names[key] for key in unique}


def _column(key: str) -> str:
    return escape_surrogates(key).replace("\0", "_")  # Arrow ends a name at NUL


def fingerprint(tasks: Iterable[Task]) -> str:
    """Hash the tasks, in their order and with their content, whatever the order of the keys within."""
    digest = hashlib.sha256()
    for task in tasks:
        text = json_text([task.environment, task.split, task.index, task.spec], sort_keys=True)
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def json_text(value: Any, *, sort_keys: bool = False) -> str:
    """Write a value as the JSON text that stands in a column that Arrow can't type."""
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)
    except RecursionError:
        logger.warning("A value in a task spec is nested too deeply to be written as JSON; its column says null.")
        return "null"
    # Lone surrogates have no UTF-8 form, but an escape.
    return text if escape_surrogates(text) == text else json.dumps(value, sort_keys=sort_keys)


def _dataset(columns: dict[str, Any], features: Any) -> Dataset:
    """Make a dataset of columns that hold what their features say.

    `Dataset.from_dict` does so too, but looks at each value and pickles the whole for a fingerprint, which takes ten
    times as long.
    """
    import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - see `build`

    arrow: Any = import_module("pyarrow")  # it has no stubs, and nothing of it has a type
    schema = features.arrow_schema
    prompt = schema.field("prompt").type
    if isinstance(prompt.value_type, arrow.JsonType):
        texts = arrow.array(features.encode_column(columns["prompt"], "prompt"), arrow.list_(arrow.string()))
        columns = columns | {"prompt": texts.cast(prompt)}  # Arrow makes no such array of Python's objects
    table = arrow.table(columns, schema=schema)
    stream = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(stream, schema) as writer:
        writer.write_table(table)
    # Of the content, like those of `datasets`: what was derived from equal rows is found again, from others it is not.
    return datasets.Dataset(table, fingerprint=hashlib.sha256(stream.getvalue()).hexdigest())


def _conversations(prompts: Sequence[str | list[Any]] | None, count: int) -> tuple[list[list[dict[str, Any]]], bool]:
    """Return a conversation for each task, and whether all messages are a role and a text."""
    if prompts is None:
        return [[{"role": "user", "content": ""}]] * count, True
    if len(prompts) != count:
        raise ValueError(f"There are {len(prompts)} prompts for {count} tasks; each task needs one.")
    conversations = [_conversation(prompt) for prompt in prompts]
    plain = all(
        message.keys() == {"role", "content"} and _is_text(message)
        for conversation in conversations
        for message in conversation
    )
    return conversations, plain


def _conversation(prompt: str | list[Any]) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": escape_surrogates(prompt)}]
    parts = cast("list[dict[str, Any]]", prompt)
    if parts and all("role" in part for part in parts):
        if any(_shows_images(part) for part in parts):
            raise ValueError(_NO_IMAGES)
        return [{**part, "content": escape_surrogates(part["content"])} if _is_text(part) else part for part in parts]
    if all(part.get("type") == "text" for part in parts):
        return [{"role": "user", "content": escape_surrogates("\n".join(part["text"] for part in parts))}]
    raise ValueError(_NO_IMAGES)


def _shows_images(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        part.get("type") == "image" for part in cast("list[dict[str, Any]]", content)
    )


def _is_text(message: dict[str, Any]) -> bool:
    return isinstance(message.get("content"), str)


def _typed(values: list[Any]) -> tuple[list[Any], Any]:
    """Return the values as a column keeps them, and its feature: JSON text where Arrow would not give them back."""
    import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - see `build`

    if all(value is None or value == [] for value in values) and any(value == [] for value in values):
        return values, datasets.List(datasets.Value("string"))  # nothing says what the lists would hold
    if (feature := _feature(values)) is not None:
        return values, feature
    return [None if value is None else json_text(value) for value in values], datasets.Value("string")


def _feature(values: Iterable[Any], depth: int = 0, *, exact: bool = False) -> Any:
    """Return the feature that keeps every one of these values as it is, if there is one: `Dataset.from_list`'s.

    Whole numbers beside others become floats, but not where values must stay `exact`, as they do within dicts.
    """
    import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - see `build`

    present = [value for value in values if value is not None]
    if not present:
        return datasets.Value("null")
    if (dtype := _scalar_type(present)) is not None:
        mixed = exact and dtype == "float64" and any(isinstance(value, int) for value in present)
        return None if mixed else datasets.Value(dtype)
    if depth < _DEEPEST and all(isinstance(value, list) for value in present):
        items = _feature((item for value in present for item in value), depth + 1, exact=exact)
        return None if items is None else datasets.List(items)
    if depth < _DEEPEST and all(isinstance(value, dict) for value in present):
        return _fields(present, depth + 1)
    return None


def _fields(values: list[dict[str, Any]], depth: int) -> dict[str, Any] | None:
    """Return the features of dicts by key, if all have the same keys: Arrow would give each all keys of all."""
    keys = values[0].keys()
    if not keys or any(value.keys() != keys for value in values):
        return None
    if any(not key or key == "_type" or _column(key) != key for key in keys):  # `datasets` marks features by `_type`
        return None
    fields = {key: _feature((value[key] for value in values), depth, exact=True) for key in keys}
    return None if None in fields.values() else fields


def _scalar_type(values: Sequence[Any]) -> str | None:
    """Name the Arrow type that keeps every one of these values as it is, if there is one."""
    kinds = set[type](map(type, values))
    if kinds == {bool}:
        return "bool"
    if kinds == {str}:
        joined = "".join(values)  # one look at all of them: a dataset has thousands
        return "string" if escape_surrogates(joined) == joined else None
    if kinds == {int}:
        return "int64" if min(values) >= -_LARGEST_INT and max(values) < _LARGEST_INT else None
    if kinds <= {int, float}:
        whole = (value for value in values if type(value) is int)
        return "float64" if all(abs(value) <= _LARGEST_EXACT_FLOAT for value in whole) else None
    return None
