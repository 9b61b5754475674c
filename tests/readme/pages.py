"""The pages that users read, README.md and docs/*.md, and what stands in them: snippets, headings, links, commands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A fenced text of a page.

    Args:
        page: The page's path.
        heading: The heading under which it stands.
        language: As the fence names it.
    """

    page: str
    heading: str
    language: str
    text: str

    @property
    def title(self) -> str:
        return f"{self.page.removeprefix('docs/').removesuffix('.md')}: {self.heading}"


def snippets(*languages: str) -> Iterator[Snippet]:
    """Yield the snippets in these languages, in the order of the pages."""
    for page, text in PAGES.items():
        for fence in _FENCE.finditer(text):
            if fence[1] in languages:
                before = _FENCE.sub("", text[: fence.start()])
                yield Snippet(page, _HEADING.findall(before)[-1], fence[1], fence[2])


def anchors(page: str) -> list[str]:
    """Return the anchors that a code host gives a page's headings."""
    headings = _HEADING.findall(_FENCE.sub("", PAGES[page]))
    return [re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings]


def links(page: str) -> list[tuple[str, str]]:
    """Return where a page's links within the repository lead: paths from its root, and anchors."""
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", _FENCE.sub("", PAGES[page]))
    here = Path(page)
    return [(_path(here.parent, path) if path else page, anchor) for path, anchor in found]


def _path(folder: Path, path: str) -> str:
    return (ROOT / folder / path).resolve().relative_to(ROOT.resolve()).as_posix()
