"""The page of errors, docs/errors.md, made from the docstrings of the public error classes.

A docstring says in paragraphs what is known: `Cause:`, `Tried:`, `Do:`. Fields are what a class and its parents set on
themselves, in the words of their `Args:`.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from ors_client import ORSError, _errors

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
MODULES = ("ors_client", "ors_client.evaluation", "trl_bridge")
LABELS = ("Cause", "Tried", "Do")

_HEAD = """# Errors

Each class's docstring says the same as its entry here: `help(ors_client.SessionLost)`.

Every error is an `ORSError`. Its message is one line: what happened, to which server and session, and what to do. It
survives pickling and copying with its fields, and shows no key and no secret. Mistakes of the caller are `ValueError`
or `TypeError`. What the client does after each kind of failure is in [Failures](failures.md).

"""
_BASE_FIELDS = "Every error has `.message`, `.url` and `.session_id`; the fields below come on top.\n"


def errors() -> Iterator[type[ORSError]]:
    """Yield every public class, those of the client in the order of the tree."""
    public = {getattr(module, name) for module in map(importlib.import_module, MODULES) for name in module.__all__}
    yield from sorted(
        (each for each in public if isinstance(each, type) and issubclass(each, ORSError)),
        key=lambda kind: (MODULES.index(kind.__module__.partition("._")[0]), inspect.getsourcelines(kind)[1]),
    )


def paragraphs(kind: type[ORSError]) -> dict[str, str]:
    """Return what a docstring says, by label; its first sentences have the label ""."""
    said = inspect.cleandoc(kind.__doc__ or "").partition("\nArgs:\n")[0]
    found: dict[str, str] = {}
    for paragraph in said.strip().split("\n\n"):
        label, _, text = " ".join(paragraph.split()).partition(": ")
        if label in LABELS:
            found[label] = text
        else:
            found[""] = " ".join(paragraph.split())
    return found


def fields(kind: type[ORSError]) -> dict[str, str]:
    """Return the attributes of a class, its parents' after its own, and what each holds."""
    found: dict[str, str] = {}
    for each in kind.__mro__[: kind.__mro__.index(ORSError)]:
        if not issubclass(each, ORSError):
            continue
        described = dict(
            re.findall(r"^    (\w+): (.+(?:\n     .+)*)", inspect.cleandoc(each.__doc__ or ""), re.MULTILINE)
        )
        properties = {name: value.__doc__ for name, value in vars(each).items() if isinstance(value, property)}
        named = re.findall(r"^ +self\.(\w+)(?:: [^=]+)? = ", inspect.getsource(each), re.MULTILINE)
        for name, text in [*((name, described[name]) for name in named), *properties.items()]:
            found.setdefault(name, " ".join(text.split()).rstrip("."))
    return found


def entry(kind: type[ORSError]) -> str:
    """Write one class's section."""
    said = paragraphs(kind)
    module = kind.__module__.partition("._")[0]
    belongs = [f"Of `{module}`."] if module != "ors_client" else []
    belongs += [f"Also a `{parent.__name__}`." for parent in kind.__bases__ if parent not in {Exception, ORSError}]
    lines = [f"## {kind.__name__}", "", " ".join([said[""], *belongs]), ""]
    lines += [f"- **{label}:** {said[label]}" for label in LABELS if label in said]
    lines += ["- **Fields:**"] if (own := fields(kind)) else []
    lines += [f"  - `.{name}`: {text}." for name, text in own.items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Write the whole page."""
    tree = (_errors.__doc__ or "").split("\n\n")[1]
    return "\n".join([f"{_HEAD}```text\n{tree}\n```\n", _BASE_FIELDS, *map(entry, errors())])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
