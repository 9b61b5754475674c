"""What a mutant is: a fault that a hasty change could put into the product, and the tests that should notice it."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        name: What is wrong.
        file: Where.
        old: What stands there, exactly once.
        new: What is put in its place.
        breaks: What a user meets.
        tests: Selections that should notice, the likeliest first.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def area(self) -> str:
        """The package or layer that it lies in."""
        package, layer = self.file.split("/")[:2]
        return package if package == "trl_bridge" else f"{package}/{layer}"

    def source(self, tree: Path) -> str:
        """Return the file with the fault.

        Raises:
            ValueError: What it changes is not there exactly once, or leaves no Python.
        """
        path = tree / self.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {count} times in {self.file}")
        mutated = text.replace(self.old, self.new)
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} becomes no Python ({error})") from None
        return mutated

    def place(self, tree: Path) -> str:
        """Return the function or class that it lies in, or the module where it lies in none."""
        text = (tree / self.file).read_text(encoding="utf-8")
        line = text[: text.index(self.old.lstrip())].count("\n") + 1
        names: list[str] = []
        node: ast.AST = ast.parse(text)
        while True:
            inner = (
                each
                for each in ast.walk(node)
                if each is not node
                and isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and each.lineno <= line <= (each.end_lineno or each.lineno)
            )
            found = next(inner, None)
            if found is None:
                return f"{Path(self.file).stem}.{'.'.join(names)}" if names else Path(self.file).stem
            names.append(found.name)
            node = found


@dataclass(frozen=True)
class Module:
    """A module with mutants, and what should notice any of them."""

    file: str
    tests: tuple[str, ...]

    def mutant(self, name: str, old: str, new: str, breaks: str, *first: str) -> Mutant:
        """Make a mutant of this module; `first` are selections that are likelier to notice it than the module's."""
        return Mutant(name, self.file, old, new, breaks, (*first, *(each for each in self.tests if each not in first)))


def module(file: str, *tests: str) -> Module:
    """Name a module below the repository, without its suffix, and the tests of all of its mutants."""
    return Module(f"{file}.py", tests)


def files_of(selection: str) -> str:
    """Return the file or folder of a selection: `client/retry -k delay` is that in `tests/client/test_retry.py`."""
    folder, _, name = selection.split(maxsplit=1)[0].partition("/")
    return f"tests/{folder}/test_{name}.py" if name else f"tests/{folder}"


def command_of(selection: str) -> list[str]:
    """Return pytest's arguments for a selection."""
    return [files_of(selection), *selection.split()[1:]]


def problems(tree: Path, mutants: tuple[Mutant, ...]) -> list[str]:
    """Say which mutants can't be made of a tree, and why."""
    found = [f"{name}: {count} mutants have this name" for name, count in names(mutants).items() if count > 1]
    for mutant in mutants:
        try:
            mutant.source(tree)
        except ValueError as error:
            found.append(str(error))
        found += [
            f"{mutant.name}: there is no {files_of(selection)}"
            for selection in mutant.tests
            if not (tree / files_of(selection)).exists()
        ]
    return found


def names(mutants: tuple[Mutant, ...]) -> Counter[str]:
    """Count the names."""
    return Counter(mutant.name for mutant in mutants)
