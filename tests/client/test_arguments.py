"""Whatever is public says at once what is wrong with an argument: its name, what it takes, and what to write.

The cases are made from the signatures, so that a new function or parameter is among them by itself.
"""

import inspect
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

PACKAGES = (
    "ors_client",
    "ors_client.evaluation",
    "ors_client.record",
    "ors_client.formats",
    "ors_client.report",
    "ors_client.replay",
    "trl_bridge",
)
# What a program gets and does not make: results, which hold what was counted, and what TRL calls with a row's columns.
RESULTS = {
    "CallTimes",
    "Reply",
    "AttemptKey",
    "Merged",
    "ToolCall",
    "Comparison",
    "Estimate",
    "TaskRate",
    "ToolFigures",
}
OF_THE_TRAINER = {"RolloutEnvironment", "EnvironmentFactory"}
# Settings judge each value themselves, with a `ValueError`; the tests of `_config` and of each have the values.
SETTINGS = {"Timeouts", "RetryPolicy", "KeepalivePolicy", "Limits", "Layout", "TaskRef"}
# `Secret` says what is wrong by the secret's name.
OWN_WORDS = {"Secret"}


class Stranger:
    """A value of a kind that nothing takes."""


def made_by_users() -> dict[str, Any]:
    """Return every public function, class and method, by its name."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                found[f"{package}.{name}"] = thing
            elif inspect.isclass(thing) and not issubclass(thing, BaseModel | BaseException):
                if name in RESULTS | OF_THE_TRAINER | OWN_WORDS:
                    continue
                found[f"{package}.{name}.__init__"] = thing.__init__
                found |= {
                    f"{package}.{name}.{each}": member
                    for each, member in vars(thing).items()
                    if inspect.isfunction(member) and not each.startswith("_") and name not in SETTINGS
                }
    return found


PUBLIC = made_by_users()


def parameters(name: str) -> list[inspect.Parameter]:
    function = PUBLIC[name]
    given = list(inspect.signature(function).parameters.values())
    return given[1:] if "." in function.__qualname__ else given


def is_settings(name: str) -> bool:
    return name.split(".")[-2] in SETTINGS


def judged(parameter: inspect.Parameter) -> bool:
    """Tell whether some values are of another kind than a parameter takes."""
    return parameter.annotation not in ("Any", "object") and parameter.kind is not parameter.VAR_KEYWORD


JUDGED = [
    pytest.param(name, each.name, id=f"{name}({each.name})")
    for name in PUBLIC
    if not is_settings(name)
    for each in parameters(name)
    if judged(each)
]


def call(name: str, given: dict[str, object]) -> None:
    """Call a function with some of its arguments; a method without its object, as these are looked at first."""
    function = PUBLIC[name]
    result = function(*([None] if "." in function.__qualname__ else []), **given)
    if inspect.iscoroutine(result):
        result.send(None)


@pytest.mark.parametrize(("name", "parameter"), JUDGED)
def test_argument_of_another_kind_is_refused_by_its_name_before_anything_is_done(name, parameter):
    with pytest.raises(TypeError, match=rf"^{parameter} takes .+, not "):
        call(name, {parameter: Stranger()})


@pytest.mark.parametrize(
    "name", [name for name in PUBLIC if all(each.kind is not each.VAR_KEYWORD for each in parameters(name))]
)
def test_keyword_that_is_not_there_is_refused_with_those_that_are(name):
    with pytest.raises(
        TypeError, match=r"has no parameter 'no_such_thing'(\.$|; there are: |; it takes none|; what a tool)"
    ):
        call(name, {"no_such_thing": 1})
