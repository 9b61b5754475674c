"""The site: the pages of docs/ and a page for each public module, which Sphinx makes searchable.

A module's page is Markdown, made from signatures and docstrings as pdoc reads them. Types are read as they are
evaluated. Ours carry what validates them, which says nothing to a reader, so each type is reduced to its plain form
first; and what only this project calls, as the constructor of a session, is left out.
"""

import argparse
import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pdoc.doc
import pdoc.docstrings
import sphinx.cmd.build
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

ROOT = Path(__file__).parents[2]

_CONFIGURATION = """
project = "ors-client"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # as code hosts make them
html_theme = "furo"
html_title = "ors-client"
html_show_sourcelink = False
smartquotes = False  # they would change the quotes of code in running text
suppress_warnings = ["myst.header"]  # a page may begin below the first level
"""

_BLOCK = type("Block", (), {"__module__": "ors_client"})  # stands for the union, under the name that readers know


def build(folder: Path) -> None:
    """Write the site to `folder`, which need not exist; a link that leads nowhere is an error."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        front = _pages(source)
        (source / "reference").mkdir()
        for module in MODULES:
            (source / "reference" / f"{module}.md").write_text(module_page(module), encoding="utf-8")
        listed = re.findall(r"\]\((\w[\w-]*)\.md\)", (source / "docs" / "README.md").read_text(encoding="utf-8"))
        others = [path.relative_to(source).with_suffix("").as_posix() for path in sorted(source.glob("tests/**/*.md"))]
        guide = ["docs/README", *(f"docs/{page}" for page in dict.fromkeys(listed)), *others]
        reference = [f"reference/{module}" for module in MODULES]
        front += _contents("Guide", [*guide, "CHANGELOG"]) + _contents("Reference", reference)
        (source / "index.md").write_text(front, encoding="utf-8")
        (source / "conf.py").write_text(_CONFIGURATION, encoding="utf-8")
        arguments = ["-q", "-W", "--keep-going", "-n", "-d", str(source / "doctrees"), str(source), str(folder)]
        if sphinx.cmd.build.main(arguments):
            raise SystemExit("The site was not built: see above.")


def main() -> None:
    """Build into the folder that is named."""
    parser = argparse.ArgumentParser(description="Write the site: the pages of docs/ and the API reference.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    build(folder)
    sys.stdout.write(f"the site is in {folder / 'index.html'}\n")


def _pages(source: Path) -> str:
    """Copy the pages, and those of other folders that they link to; return the front page's text."""
    shutil.copytree(ROOT / "docs", source / "docs")
    for page in (source / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8").replace("](../README.md", "](../index.md")
        page.write_text(text, encoding="utf-8")
        for linked in re.findall(r"\]\(\.\./(\w+/[^)#]+\.md)", text):
            (source / linked).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / linked, source / linked)
    for other in ("CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / other, source)
    return (ROOT / "README.md").read_text(encoding="utf-8").rstrip() + "\n\n"


def module_page(name: str) -> str:
    """Write a module's page: what it says of itself, then every public name, in the order of its `__all__`."""
    module = pdoc.doc.Module.from_name(name)
    for member in _members(module):
        _simplify(member)
    public = [module.members[each] for each in importlib.import_module(name).__all__]
    return "\n\n".join([f"# {name}", _said(module), *(part for member in public for part in _entry(member, 2))]) + "\n"


def _entry(member: pdoc.doc.Doc, level: int) -> Iterator[str]:
    """Yield the parts of a name's entry: its heading, how it is written, what it says, and its own members."""
    if "@private" in member.docstring:
        return
    yield f"{'#' * level} {member.qualname if level > 2 else member.name}"
    match member:
        case pdoc.doc.Class():
            written = f"class {member.name}{_called(member)}"
        case pdoc.doc.Function():
            written = f"{member.funcdef} {member.name}{member.signature}"
        case pdoc.doc.Variable():
            written = (
                f"{member.name}{member.annotation_str}{member.default_value_str and f' = {member.default_value_str}'}"
            )
        case _:
            written = member.name
    yield f"```python\n{_short(written)}\n```"
    if said := _said(member):
        yield said
    if isinstance(member, pdoc.doc.Class):
        for own in member.own_members:
            if not own.name.startswith("_") and (own.docstring or isinstance(own, pdoc.doc.Function)):
                yield from _entry(own, level + 1)


def _called(kind: pdoc.doc.Class) -> str:
    """Return how a class is made where a user makes it; else what it derives from."""
    made = kind.members.get("__init__")
    if kind.bases or not isinstance(made, pdoc.doc.Function) or "@private" in made.docstring:
        return f"({', '.join(base for _, _, base in kind.bases)})".replace("()", "")
    parameters = [each for name, each in made.signature.parameters.items() if name != "self"]
    signature = made.signature.replace(parameters=parameters, return_annotation=made.signature.empty)
    return str(signature)


def _said(member: pdoc.doc.Doc) -> str:
    """Return a docstring as Markdown; its sections are no headings, which would be the page's."""
    text = pdoc.docstrings.convert(member.docstring, "google", None)
    return re.sub(r"^#+ (.+?):?$", r"**\1**\n", text, flags=re.MULTILINE).strip()


def _short(written: str) -> str:
    """Return types under the names that users import."""
    written = re.sub(r"<class '(\w+)'>", r"\1", written)
    return re.sub(r"\b(?:ors_client|trl_bridge)(?:\._?\w+)*\.(?=[A-Z])|\b(?:typing|collections\.abc)\.", "", written)


def _contents(caption: str, pages: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", "", ""])


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
    """Return what stands below a variable of a module in the one that it was imported from."""
    inside = [module for name, module in sys.modules.items() if name.startswith(f"{variable.modulename}.")]
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
