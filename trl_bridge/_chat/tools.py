"""ToolSpec -> what TRL, transformers and a model see of a tool.

Knows how a tool and its parameters are spelt for a model and for Python, and the two faces that TRL wants of it: a
function on the class, by which it finds the tool, and on the instance a callable dict, which chat templates take word
for word. Knows nothing of episodes: a call is passed on as it came, with its tool.

Specs come from a stranger. Nothing of them is ever evaluated, and nothing in them keeps a tool from being offered.
"""

from __future__ import annotations

import inspect
import keyword
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ors_client import ToolSpec
from ors_client._shared import get_logger

from .content import escape_surrogates
from .schemas import DEEPEST, sanitized_schema, too_deep
from .type_hints import Parameter, parameters

logger = get_logger(__name__)

_SECTION = re.compile(r"(Args|Returns|Raises|\((?i:choices)):")
"""What transformers takes for a section of the docstring, wherever it stands."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool under the name that the model calls it by.

    Args:
        spec: The tool as the server knows it; `spec.name` goes on the wire.
        name: The alias.
        parameters: From a spelling that is not the server's name of a parameter to that name.
        schema: The tool in the form that chat templates take, its parameters as the server wrote them.
    """

    spec: ToolSpec
    name: str
    parameters: Mapping[str, str]
    schema: dict[str, Any]

    def arguments(self, kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments under the server's names; nothing is added and nothing dropped."""
        arguments: dict[str, object] = {}
        for name, value in kwargs.items():
            wire = self.parameters.get(name, name)
            # Given in both spellings, the second goes out as it is: the server says what is wrong, in its own words.
            arguments[name if wire in kwargs or wire in arguments else wire] = value
        return arguments


def bind(specs: Sequence[ToolSpec], *, reserved: Collection[str]) -> tuple[BoundTool, ...]:
    """Give every tool an alias, in the server's order. One that needs no change keeps its name: it means itself.

    Args:
        specs: The tools as the server lists them.
        reserved: Names that the environment's class has for itself.
    """
    spelt = {spec.name: _spelling(spec.name, prefix="tool_", reserved=reserved) for spec in specs}
    free = {name for name, spelling in spelt.items() if spelling == name}
    taken = {*reserved, *free}
    bound: list[BoundTool] = []
    for spec in specs:
        keeps = spec.name in free
        free.discard(spec.name)  # listed twice, the second goes round the first
        bound.append(_bound(spec, spec.name if keeps else _unique(spelt[spec.name], taken)))
    return tuple(bound)


def method(tool: BoundTool, call: str = "_call") -> types.FunctionType:
    """Make the function that stands for a tool on the environment's class.

    Calling it calls `self.<call>(tool, kwargs)`. Its signature has the parameters in the server's order and no return
    type: `get_json_schema` would put that before the model.
    """

    def function(self: Any, /, *args: object, **kwargs: object) -> object:
        return getattr(self, call)(tool, _with_positional(described, args, kwargs, skip=1))

    known = parameters(tool.schema["function"]["parameters"])
    spellings = _spellings(parameter.name for parameter in known)
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    described = cast("Any", function)
    described.__name__ = described.__qualname__ = tool.name
    described.__doc__ = _docstring(tool, known, spellings)
    described.__annotations__ = {spellings[parameter.name]: parameter.hint for parameter in known}
    described.__signature__ = inspect.Signature(
        [
            receiver,
            *(
                inspect.Parameter(
                    spellings[parameter.name],
                    inspect.Parameter.KEYWORD_ONLY,  # with a default before one without, they could not be others
                    default=inspect.Parameter.empty if parameter.required else parameter.schema.get("default"),
                    annotation=parameter.hint,
                )
                for parameter in known
            ),
        ]
    )
    return described


class CallableTool(dict[str, Any]):
    """A tool's schema that can be called: on an instance it shadows the function of the same name.

    transformers takes a dict as the schema itself, where a function's signature and docstring could only paraphrase it;
    TRL takes anything callable as a tool. Two such tools are equal only if they are the same one, as methods are.

    Args:
        tool: What it describes.
        call: Is called with the tool and the keyword arguments.
        function: The class's function, whose name, docstring and signature it answers with.
    """

    def __init__(
        self, tool: BoundTool, call: Callable[[BoundTool, dict[str, object]], object], function: types.FunctionType
    ) -> None:
        super().__init__(tool.schema)
        described = cast("Any", self)
        self._tool = tool
        self._call = call
        signature = inspect.signature(function)
        described.__name__ = described.__qualname__ = tool.name
        described.__module__ = None  # Python's errors about bad arguments, which the model reads, would name it
        described.__doc__ = function.__doc__
        described.__annotations__ = {**function.__annotations__, "return": str}
        described.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Call the tool."""
        return self._call(self._tool, _with_positional(self, args, kwargs))

    def __eq__(self, other: object, /) -> bool:
        return self is other

    def __ne__(self, other: object, /) -> bool:
        return self is not other

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType] - a dict says that it has none

    def __repr__(self) -> str:
        return f"<CallableTool {self._tool.name}>"


def _with_positional(
    function: Any, args: Sequence[object], kwargs: dict[str, object], *, skip: int = 0
) -> dict[str, object]:
    """Return the keyword arguments, and those without a keyword under the names of the function's parameters.

    Raises:
        TypeError: There are more than parameters, or one is given twice.
    """
    if not args:
        return kwargs
    names = list(function.__signature__.parameters)[skip:]
    if len(args) > len(names):
        raise TypeError(f"{function.__name__}() takes {len(names)} arguments, but {len(args)} were given.")
    given = dict(zip(names, args, strict=False))
    for name in given:
        if name in kwargs:
            raise TypeError(f"{function.__name__}() got multiple values for argument {name!r}.")
    return {**given, **kwargs}


def tool_schema(spec: ToolSpec, name: str) -> dict[str, Any]:
    """Return a tool as chat templates take it, under the name that the model calls it by."""
    return _bound(spec, name).schema


def _bound(spec: ToolSpec, name: str) -> BoundTool:
    shown = {escape_surrogates(parameter.name): parameter.name for parameter in parameters(spec.input_schema)}
    spelt = {spelling: shown[own] for own, spelling in _spellings(shown).items()}
    schema = sanitized_schema(spec.input_schema)
    if too_deep(spec.input_schema):
        logger.warning(
            "The schema of tool %r is nested too deeply; the model sees %d levels of it.", spec.name, DEEPEST
        )
        spec = spec.model_copy(update={"input_schema": schema})  # or it could not be pickled
    return BoundTool(
        spec=spec,
        name=name,
        parameters={spelling: wire for spelling, wire in {**shown, **spelt}.items() if spelling != wire},
        schema={
            "type": "function",
            "function": {"name": name, "description": escape_surrogates(spec.description), "parameters": schema},
        },
    )


def _spelling(name: str, *, prefix: str, reserved: Collection[str]) -> str:
    spelt = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not spelt or spelt[0] in "_0123456789" or keyword.iskeyword(spelt) or spelt in reserved:
        return prefix + spelt
    return spelt


def _spellings(names: Iterable[str]) -> dict[str, str]:
    """Spell the parameters for Python. One that needs no change keeps its name, so that a name always means itself."""
    ordered = dict.fromkeys(names)
    spelt = {name: _spelling(name, prefix="arg_", reserved=("self",)) for name in ordered}
    taken = {name for name in ordered if spelt[name] == name}
    return {name: name if spelt[name] == name else _unique(spelt[name], taken) for name in ordered}


def _unique(name: str, taken: set[str]) -> str:
    """Return the name, or with the first free number from 2 on; it is taken from then on."""
    unique = name
    number = 1
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    return unique


def _docstring(tool: BoundTool, known: Sequence[Parameter], spellings: Mapping[str, str]) -> str:
    """Write a docstring in Google's style that transformers reads back, whatever the descriptions hold."""
    text = _SECTION.sub(r"\1 :", tool.schema["function"]["description"])
    # Long runs of blanks make the patterns of transformers take quadratic time.
    text = re.sub(r"[^\S\n]{9,}", " " * 8, text)
    text = re.sub(r"\n\s*\n", "\n\n", text).strip() or f"Call {tool.name}."
    if not known:
        return text
    lines = [_line(spellings[parameter.name], parameter) for parameter in known]
    return "\n".join([text, "", "Args:", *lines])


def _line(spelling: str, parameter: Parameter) -> str:
    described = (parameter.schema.get("description"), parameter.schema.get("title"), parameter.name)
    texts = (" ".join(text.split()) for text in described if isinstance(text, str))
    text = _SECTION.sub(r"\1 :", next((text for text in texts if text), "An argument."))
    # A parameter called `maxReturns:` would end the section.
    kind = " (value)" if spelling.endswith(("Returns", "Raises")) else ""
    return f"    {spelling}{kind}: {text}"
