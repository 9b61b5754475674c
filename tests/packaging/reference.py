"""The API reference: a page for each public module, made by pdoc from signatures and docstrings.

pdoc writes a type as it is evaluated. Ours carry what validates them, which says nothing to a reader, so each type is
reduced to its plain form first; and what only this project calls, as the constructor of a session, is left out.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pdoc.doc
import pdoc.render
from pdoc.doc_ast import walk_tree
from pydantic_core import PydanticUndefined
from typing_extensions import TypeAliasType

from ors_client import Block

MODULES = (
    "ors_client",
    "ors_client.record",
    "ors_client.formats",
    "ors_client.evaluation",
    "ors_client.report",
    "ors_client.replay",
    "trl_bridge",
)

_BLOCK = type("Block", (), {"__module__": "ors_client"})  # stands for the union, under the name that readers know


def build(folder: Path) -> None:
    """Write the pages, `index.html` first among them, to `folder`, which need not exist."""
    pdoc.render.configure(docformat="google", show_source=False)
    modules = {name: pdoc.doc.Module.from_name(name) for name in MODULES}
    for member in (member for module in modules.values() for member in _members(module)):
        _simplify(member)
    pages = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(page, modules) for name, page in modules.items()}
    pages |= {"index.html": pdoc.render.html_index(modules), "search.js": pdoc.render.search_index(modules)}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Build into the folder that is named."""
    parser = argparse.ArgumentParser(description="Write the API reference.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    build(folder)
    sys.stdout.write(f"the API reference is in {folder / 'index.html'}\n")


def _members(parent: pdoc.doc.Namespace) -> Iterator[pdoc.doc.Doc]:
    for member in parent.members.values():
        yield member
        if isinstance(member, pdoc.doc.Class):
            yield from _members(member)


def _simplify(member: pdoc.doc.Doc) -> None:
    """Change what pdoc worked out, which it keeps in cached properties, before it is written."""
    match member:
        case pdoc.doc.Class():
            member.bases = [_public_base(*base) for base in member.bases]
            constructor = member.members.get("__init__")
            if constructor is not None and "Made by" in member.docstring:
                constructor.docstring = "@private"
        case pdoc.doc.Function():
            signature = member.signature
            parameters = [each.replace(annotation=plain(each.annotation)) for each in signature.parameters.values()]
            returned = plain(signature.return_annotation)
            member.signature = signature.replace(parameters=parameters, return_annotation=returned)
        case pdoc.doc.Variable(default_value=value):
            member.annotation = plain(member.annotation)
            member.default_value = pdoc.doc.empty if value is PydanticUndefined else _alias(value)
            member.docstring = member.docstring or _docstring_where_defined(member)


def _public_base(module: str, name: str, shown: str) -> tuple[str, str, str]:
    if name == "_Model":
        return "pydantic", "BaseModel", "pydantic.BaseModel"
    if module.startswith("ors_client._"):
        return "ors_client", name, f"ors_client.{name}"
    return module, name, shown


def _docstring_where_defined(variable: pdoc.doc.Variable) -> str:
    """Return what stands below a module's variable in the private module that it was imported from."""
    inside = [module for name, module in sys.modules.items() if name.startswith(f"{variable.modulename}._")]
    found = [walk_tree(module).var_docstrings.get(variable.qualname) for module in inside]
    return next(filter(None, found), "")


def _alias(value: Any) -> Any:
    """Return the value of a module's variable as it is shown: an alias of a type by what it stands for."""
    if isinstance(value, TypeAliasType):
        return value.__value__
    return reduce(or_, map(plain, get_args(get_args(Block)[0]))) if value == Block else value


def plain(annotation: Any) -> Any:
    """Return a type without what validates it."""
    if annotation == Block:
        return _BLOCK
    if isinstance(annotation, list):  # the parameters of a Callable
        return [plain(each) for each in annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return plain(arguments[0])
    reduced = tuple(map(plain, arguments)) if origin is not Literal else arguments
    if reduced == arguments:
        return annotation
    return reduce(or_, reduced) if origin in {Union, UnionType} else origin[reduced]


if __name__ == "__main__":
    main()
