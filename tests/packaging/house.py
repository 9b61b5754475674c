"""The structure of the two packages, computed from their imports: rooms, floors, and what is wrong with them.

A room is a folder, or a group of modules that lie in a package's own folder (`GROUPS`). A room stands one floor above
the highest room that it imports from. `python -m tests.packaging.house` prints the house.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("ors_client", "trl_bridge")
# From the ground up: a room imports from those named before it, and from no other.
ORDER = (
    "ors_client: values, errors, settings",
    "ors_client/_protocol",
    "ors_client/_http",
    "ors_client/_rollouts",
    "ors_client/_lifecycle",
    "ors_client: clients, environments, sessions",
    "ors_client/record",
    "ors_client/_shared",
    "ors_client/formats",
    "ors_client/report",
    "ors_client/evaluation",
    "ors_client/replay",
    "ors_client/cli",
    "trl_bridge: settings",
    "trl_bridge/_chat",
    "trl_bridge/_datasets",
    "trl_bridge/_runtime",
    "trl_bridge/_rollout",
    "trl_bridge/_trainer",
    "trl_bridge: specs",
)
GROUPS = {
    "ors_client: values, errors, settings": (
        "ors_client._types",
        "ors_client._errors",
        "ors_client._config",
        "ors_client._arguments",
        "ors_client._misuse",
        "ors_client._brief",
    ),
    "ors_client: clients, environments, sessions": (
        "ors_client",
        "ors_client._client",
        "ors_client._environment",
        "ors_client._session",
        "ors_client._sync",
    ),
    "trl_bridge: settings": ("trl_bridge._settings", "trl_bridge._scoring"),
    "trl_bridge: specs": ("trl_bridge", "trl_bridge._spec", "trl_bridge._multi"),
}


@dataclass(frozen=True)
class Import:
    """One name that a module takes from another, wherever in the module that stands."""

    module: str
    name: str | None

    @property
    def package(self) -> str:
        """The top-level package that it comes from."""
        return self.module.partition(".")[0]


@cache
def sources() -> dict[str, Path]:
    """Return every module of both packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    """Return a module's syntax tree; each file is parsed once."""
    return ast.parse(sources()[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Return everything that a module imports, with absolute names."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[Import]:
    folder = sources()[module].relative_to(ROOT).parent.parts
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            source = ".".join((*base, *((node.module,) if node.module else ())))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield Import(inner, None) if inner in sources() else Import(source, alias.name)


@cache
def room(module: str) -> str:
    """Return the room that a module lies in."""
    for name, modules in GROUPS.items():
        if module in modules:
            return name
    return "/".join(module.split(".")[:2])


@cache
def edges() -> dict[str, frozenset[str]]:
    """Return the modules of the two packages that each module imports from."""
    return {
        module: frozenset(each.module for each in imports(module) if each.module in sources()) for module in sources()
    }


@cache
def rooms() -> dict[str, frozenset[str]]:
    """Return the other rooms that each room imports from."""
    below: dict[str, set[str]] = defaultdict(set)
    for module, imported in edges().items():
        below[room(module)] |= {room(each) for each in imported} - {room(module)}
    return {name: frozenset(found) for name, found in below.items()}


@cache
def floor(name: str) -> int:
    """Return the floor of a room, from 1; only of a house without circles."""
    return 1 + max((floor(each) for each in rooms()[name]), default=0)


def circles() -> list[list[str]]:
    """Return modules that import each other, directly or through others."""
    reachable = {module: set(found) for module, found in edges().items()}
    for middle, beyond in reachable.items():
        for found in reachable.values():
            if middle in found:
                found.update(beyond)
    groups = {tuple(sorted(m for m in found if module in reachable[m])) for module, found in reachable.items()}
    return sorted([*group] for group in groups if group)


def print_house() -> None:
    """Print the rooms from the top floor down, with their lines and what each imports from."""
    lines: dict[str, int] = defaultdict(int)
    for module, path in sources().items():
        lines[room(module)] += len(path.read_text(encoding="utf-8").splitlines())
    print(f"{len(rooms())} rooms on {max(map(floor, rooms()))} floors, {sum(lines.values()):,} lines")  # noqa: T201
    for name in sorted(rooms(), key=lambda each: (-floor(each), ORDER.index(each))):
        print(f"floor {floor(name):2}  {name} ({lines[name]:,}) <- {', '.join(sorted(rooms()[name])) or 'nothing'}")  # noqa: T201


if __name__ == "__main__":
    print_house()
