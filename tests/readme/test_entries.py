"""The README's entries about errors, one for each public class and none for anything else; and its links."""

import importlib
import inspect
import re

import pytest
from servers import ROOT

from ors_client import ORSError

README = (ROOT / "README.md").read_text()
SECTION = re.search(r"^## Errors\n(.*?)^## ", README, flags=re.DOTALL | re.MULTILINE)[1]
ENTRIES = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", SECTION, flags=re.DOTALL | re.MULTILINE))


def _errors():
    for module in map(importlib.import_module, ("ors_client", "ors_client.evaluation", "trl_bridge")):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, ORSError):
                yield value


ERRORS = [pytest.param(error, id=error.__name__) for error in _errors()]


def test_public_errors_and_entries_are_the_same():
    assert set(ENTRIES) == {error.__name__ for error in _errors()}


@pytest.mark.parametrize("error", ERRORS)
def test_error_points_to_its_entry(error):
    assert error.anchor == error.__name__.lower()  # as headings become anchors


@pytest.mark.parametrize("error", ERRORS)
def test_entry_says_what_happened_what_was_tried_and_what_to_do(error):
    wanted = {ORSError: ("Cause", "Do")}.get(error, ("Cause", "Tried", "Do"))
    wanted = ("Cause",) if error.__name__ == "ToolError" else wanted
    assert [label for label in wanted if f"**{label}:**" not in ENTRIES[error.__name__]] == []


@pytest.mark.parametrize("error", ERRORS)
def test_entry_names_the_fields_of_its_class(error):
    _, _, listed = ENTRIES[error.__name__].partition("**Fields:**")
    documented = set(re.findall(r"`\.(\w+)`", listed))
    set_here = re.findall(r"self\.(\w+) = ", inspect.getsource(error))
    assert set(set_here) <= documented


def test_links_within_the_page_lead_to_one_heading_each():
    text = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = [re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert [link for link in re.findall(r"\]\(#([^)]+)\)", text) if anchors.count(link) != 1] == []
