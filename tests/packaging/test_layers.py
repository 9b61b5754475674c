"""The order of the modules: each imports only from those above it, and the bridge only the client's public names.

A new module has to be placed here. A subpackage is one layer; what its modules import from each other is its affair.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ors_client

ROOT = Path(__file__).parents[2]
ORDER = {
    "ors_client": (
        "_types",
        "_errors",
        "_settings",
        "_json",
        "_json_schema",
        "_layout",
        "_credentials",
        "_redaction",
        "_answers",
        "_operations",
        "_events",
        "_stream",
        "_retry",
        "_patience",
        "_shield",
        "_room",
        "_connections",
        "_proxies",
        "_pool",
        "_transport",
        "_background",
        "_keepalive",
        "_uploader",
        "_rollouts",
        "_server",
        "_lifetime",
        "_setup",
        "_session",
        "_environment",
        "_client",
        "_blocking",
        "_words",
        "_transcriber",
        "record",
        "formats",
        "evaluation",
        "report",
        "replay",
        "__init__",
        "cli",
    ),
    "trl_bridge": (
        "_hints",
        "_content",
        "_schema",
        "_conversation",
        "_tools",
        "_dataset",
        "_scoring",
        "_settings",
        "_arguments",
        "_failures",
        "_loop",
        "_servers",
        "_telling",
        "_descriptions",
        "_connection",
        "_discovery",
        "_rollout",
        "_episode",
        "_seat",
        "_environment",
        "_ahead",
        "_concurrency",
        "_rewards",
        "_groups",
        "_spec",
        "_multi",
        "__init__",
    ),
}
# Nothing that judges the protocol may wait, read a clock or touch the network.
SANS_IO = ("_answers", "_operations", "_stream", "_retry")
IO = {"aiohttp", "anyio", "asyncio", "httpx", "httpx_aiohttp", "requests", "socket", "threading", "time", "trio"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def layer(package: str, path: Path) -> str:
    return path.relative_to(ROOT / package).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield every import of a module as (absolute module, name or None), wherever it stands."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *((node.module,) if node.module else ())))
            yield from ((module, alias.name) for alias in node.names)


def layers_imported(package: str, path: Path) -> set[str]:
    """Return the layers of its own package that a module imports from."""
    found = set()
    for module, name in imports(path):
        first, _, rest = module.partition(".")
        if first == package:
            inner = rest.partition(".")[0]
            found.add(inner or (name if name in ORDER[package] else "__init__"))
    return found


@pytest.mark.parametrize("package", ORDER)
def test_every_module_has_its_place(package):
    assert {layer(package, path) for path in modules(package)} - set(ORDER[package]) == set(), "place it in ORDER"


@pytest.mark.parametrize(
    ("package", "path"),
    [pytest.param(package, path, id=str(path.relative_to(ROOT))) for package in ORDER for path in modules(package)],
)
def test_module_imports_only_from_those_above_it(package, path):
    own = layer(package, path)
    above = set(ORDER[package][: ORDER[package].index(own)])
    inside = {own} if path.parent != ROOT / package else set()
    assert layers_imported(package, path) <= above | inside


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in modules("trl_bridge")])
def test_bridge_imports_only_public_names_of_the_client(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    private = [
        f"{module}.{name}" if name else module
        for module, name in imports(path)
        if module.partition(".")[0] == "ors_client" and not is_public(module, name)
    ]
    private += [
        f"ors_client.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ors_client"
        and not is_public("ors_client", node.attr)
    ]
    assert private == []


def is_public(module: str, name: str | None) -> bool:
    if any(part.startswith("_") for part in (*module.split("."), name or "")):
        return False
    return module != "ors_client" or name is None or name in ors_client.__all__ or name in ORDER["ors_client"]


@pytest.mark.parametrize("name", SANS_IO)
def test_protocol_judgement_imports_nothing_that_does_io(name):
    imported = {module.partition(".")[0] for module, _ in imports(ROOT / "ors_client" / f"{name}.py")}
    assert imported.isdisjoint(IO)


@pytest.mark.parametrize("package", ORDER)
def test_packages_import_neither_sdk_nor_this_repository(package):
    foreign = {module.partition(".")[0] for path in modules(package) for module, _ in imports(path)}
    assert foreign.isdisjoint({"openreward", "ors", "ors_sdk", "fixtures", "tests"})
