"""How a tool is called by a model: by its own name, or by an alias where a provider would refuse that.

One rule serves all providers, so that a conversation can move between them: what OpenAI and Anthropic take
(`[a-zA-Z0-9_-]{1,64}`), starting with a letter or an underscore as Google wants it. MCP takes more, but its tools end
up before the same models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ors_client._arguments import checked
from ors_client._http.redaction import get_logger
from ors_client._types import ToolSpec

logger = get_logger(__name__)

_LONGEST = 64
_ACCEPTED = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{_LONGEST - 1}}}")


@checked
class ToolNames:
    """The tools under the names that a model calls them by.

    A name that every provider takes is kept, whatever else the server lists. The others have each refused character
    replaced by `_`, and the prefix `tool_` where they would be empty or start with neither a letter nor `_`; they are
    cut to 64 characters, and get `_2`, `_3` in the server's order where they would be taken.

    Args:
        tools: As the server lists them. The second of two with the same name can't be reached and is left out, with a
            warning.
    """

    def __init__(self, tools: Iterable[ToolSpec] = ()) -> None:
        specs: dict[str, ToolSpec] = {}
        for spec in tools:
            if specs.setdefault(spec.name, spec) is not spec:
                logger.warning("The server lists the tool %r twice; the model sees the first.", spec.name)
        self.specs = tuple(specs.values())
        self._aliases = {name: name for name in specs if _ACCEPTED.fullmatch(name)}
        taken = set(self._aliases)
        for name in specs:
            if name not in self._aliases:
                self._aliases[name] = _unused_name(_accepted_name(name), taken)
                taken.add(self._aliases[name])
        self._tools = {alias: name for name, alias in self._aliases.items()}

    def alias(self, tool: str) -> str:
        """Return the name for the model; an unlisted tool, as in old messages, gets one by the same rule."""
        return self._aliases.get(tool) or _accepted_name(tool)

    def tool(self, alias: str) -> str:
        """Return the server's name; an unknown alias stays as it is, and the server rejects it."""
        return self._tools.get(alias, alias)


def _accepted_name(name: str) -> str:
    if _ACCEPTED.fullmatch(name):
        return name
    accepted = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", accepted):
        accepted = f"tool_{accepted}"
    return accepted[:_LONGEST]


def _unused_name(name: str, taken: set[str]) -> str:
    free = name
    number = 1
    while free in taken:
        number += 1
        suffix = f"_{number}"
        free = name[: _LONGEST - len(suffix)] + suffix
    return free
