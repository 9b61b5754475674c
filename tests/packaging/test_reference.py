"""The API reference: it builds without a warning, and a user can work from it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reference

pytestmark = pytest.mark.slow  # pdoc renders every page

ROOT = Path(__file__).parents[2]
_START = r'<(?:section|div) id="'
_ENTRY = re.compile(rf'{_START}([\w.]+)"(?: class="classattr")?>(.*?)(?={_START}|</main>)', re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """Return the folder of a reference that is built as `make docs` does it, with warnings as errors."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-W", "error", "-m", "tests.packaging.reference", str(folder)]
    built = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


def entries(pages: Path, module: str) -> dict[str, str]:
    """Return what a module's page has on each name."""
    return dict(_ENTRY.findall((pages / f"{module.replace('.', '/')}.html").read_text()))


@pytest.mark.parametrize("module", reference.MODULES)
def test_every_public_name_has_an_entry_with_its_docstring(pages, module):
    found = entries(pages, module)
    assert [name for name in importlib.import_module(module).__all__ if 'class="docstring"' not in found[name]] == []


@pytest.mark.parametrize("module", reference.MODULES)
def test_every_method_and_property_has_a_docstring(pages, module):
    # A field, and the constructor, are described on the class.
    silent = [
        name
        for name, entry in entries(pages, module).items()
        if "." in name and 'class="attr function"' in entry and not name.endswith("__init__")
        if 'class="docstring"' not in entry
    ]
    assert silent == []


@pytest.mark.parametrize("module", reference.MODULES)
def test_sections_of_docstrings_are_rendered(pages, module):
    page = (pages / f"{module.replace('.', '/')}.html").read_text()
    assert "Args:" not in page
    assert ">Arguments:</h6>" in page


@pytest.mark.parametrize("module", reference.MODULES)
def test_types_are_shown_without_what_validates_them(pages, module):
    page = re.sub(r"<[^>]+>", "", (pages / f"{module.replace('.', '/')}.html").read_text())
    assert not re.search(r"Annotated|Validator|Pydantic\w*Undefined|0x[0-9a-f]{6}", page)


def test_index_leads_to_every_module(pages):
    index = (pages / "index.html").read_text()
    assert [module for module in reference.MODULES if f"{module.replace('.', '/')}.html" not in index] == []
