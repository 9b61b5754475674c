"""The settings of an evaluation, as its record holds them, and whether those of another start in the same file agree.

An evaluation goes on where its record ends. What shapes an episode must be the same then, or the figures would be of
two settings at once; what only explains figures, as the server's address, may differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict

from ors_client._environment import AsyncEnvironment
from ors_client._errors import ORSError
from ors_client._shared.versions import known_versions
from ors_client._types import JSONObject, JSONValue, TaskRef
from ors_client.record import RunRecord
from ors_client.record._tasks import task_ranges

from ._model import ChatModel
from ._rules import Rules

_SHOWN = 60  # characters of a value in a message
_ALTERNATIVES = 3  # that a message names: a record of merged shards has one for each


class SettingsDiffer(ValueError):
    """Raised when a record holds episodes of the same environment and model that were played with other settings.

    Args:
        record: The file.
        differences: One text for each setting.
    """

    def __init__(self, record: str, differences: list[str]) -> None:
        self.record = record
        self.differences = differences
        super().__init__(
            f"{record!r} has episodes with other settings: {'; '.join(differences)}. Name another record, or force it."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.record, self.differences)


async def describe_run(
    environment: AsyncEnvironment,
    model: ChatModel,
    *,
    rules: Rules,
    tasks: Iterable[TaskRef],
    target: str = "",
    noted: Mapping[str, JSONValue] | None = None,
) -> RunRecord:
    """Return the settings of an evaluation.

    Args:
        environment: Where the tasks are.
        model: Who plays.
        rules: How episodes are played, and when they are cut.
        tasks: All that are to be played, all shards together.
        target: The server's address.
        noted: What may differ from one start to the next.
    """
    settings = asdict(rules)
    budget = settings.pop("budget")
    server: str | None = None
    with suppress(ORSError):  # nothing depends on it
        server = await environment.server_version()
    return RunRecord(
        environment=await environment.name(),
        target=target,
        model=model.name,
        base_url=model.base_url,
        parameters=model.parameters,
        budget=budget,
        settings=settings,
        noted={"model_timeout": model.timeout, **(noted or {})},
        versions=known_versions("ors-client", server=server),
        tasks=task_ranges((task.split, task.index) for task in tasks),
    )


def check_settings(
    record: str | os.PathLike[str], before: Iterable[RunRecord], run: RunRecord, *, force: bool = False
) -> list[str]:
    """Compare a run's settings with those of the same environment and model that a record holds.

    Args:
        record: The file.
        before: The settings that it holds.
        run: What is about to be played.
        force: Whether differing settings are returned instead of raised.

    Returns:
        A text for each difference that may be.

    Raises:
        SettingsDiffer: The settings that shape an episode differ.
    """
    before = [other for other in before if other.kind == run.kind]
    shaping = _differences(before, run, _shaping)
    if shaping and not force:
        raise SettingsDiffer(os.fspath(record), shaping)
    return [*shaping, *_differences(before, run, _explaining)]


_Flat = Mapping[str, JSONValue]
_Of = Callable[[RunRecord], _Flat]


def _shaping(run: RunRecord) -> _Flat:
    return {
        **{f"--set {name}": value for name, value in run.parameters.items()},
        **{f"--max-{name}": value for name, value in run.budget.items()},
        **_options(run.settings),
    }


def _explaining(run: RunRecord) -> _Flat:
    addresses: _Flat = {"the server": run.target, "--base-url": run.base_url}
    versions = {f"the version of {name}": number for name, number in run.versions.items()}
    return {**addresses, **versions, **_options(run.noted)}


def _options(values: JSONObject) -> _Flat:
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


def _differences(before: Iterable[RunRecord], run: RunRecord, of: _Of) -> list[str]:
    """Return a text for each value in which a run differs from any before it."""
    now = of(run)
    differing: dict[str, dict[str, None]] = {}
    for other in before:
        then = of(other)
        for name in [*then, *(name for name in now if name not in then)]:
            if then.get(name) != now.get(name):
                differing.setdefault(name, {})[_shown(then, name)] = None
    return [f"{name} was {_alternatives(then)}, and is {_shown(now, name)}" for name, then in differing.items()]


def _alternatives(texts: Iterable[str]) -> str:
    first = list(texts)
    return " or ".join(first if len(first) <= _ALTERNATIVES else [*first[: _ALTERNATIVES - 1], "another"])


def _shown(values: _Flat, name: str) -> str:
    value = values.get(name)
    if value is None:
        return "left out"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
