"""The site builds without a warning, is searched from one index, and a user can work from its reference."""

import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import website

pytestmark = pytest.mark.slow  # every docstring is read, and every page rendered

_ENTRY = re.compile(r"^#{2,3} (\S+)\n\n```python\n(.*?)\n```(.*?)(?=^#{2,3} |\Z)", re.DOTALL | re.MULTILINE)


@cache
def entries(module: str) -> dict[str, tuple[str, str]]:
    """Return what a module's page has on each name: how it is written, and what it says."""
    return {name: (written, said.strip()) for name, written, said in _ENTRY.findall(website.module_page(module))}


def test_site_has_every_page_and_one_index_for_all(tmp_path: Path):
    # As `make docs` does it; a link that leads nowhere is an error, and so is a type that pdoc can't read.
    command = [sys.executable, "-W", "error::UserWarning", "-m", "tests.packaging.website", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=website.ROOT, check=False, capture_output=True, text=True, timeout=200)
    assert (built.returncode, built.stderr) == (0, "")
    pages = [f"docs/{page.stem}" for page in website.ROOT.glob("docs/*.md")] + [
        f"reference/{module}" for module in website.MODULES
    ]
    assert [page for page in pages if not (tmp_path / "site" / f"{page}.html").exists()] == []
    index = (tmp_path / "site" / "searchindex.js").read_text()
    assert [page for page in pages if f'"{page}"' not in index] == []
    front = (tmp_path / "site" / "index.html").read_text()
    assert [page for page in pages if f'href="{page}.html' not in front] == []


@pytest.mark.parametrize("module", website.MODULES)
def test_every_public_name_has_an_entry_with_its_docstring(module):
    public = importlib.import_module(module).__all__
    assert [name for name in public if not entries(module).get(name, ("", ""))[1]] == []


@pytest.mark.parametrize("module", website.MODULES)
def test_every_method_has_a_docstring(module):
    assert [name for name, (written, said) in entries(module).items() if "def " in written and not said] == []


@pytest.mark.parametrize("module", website.MODULES)
def test_sections_of_docstrings_are_rendered(module):
    page = website.module_page(module)
    assert "Args:" not in page
    assert "**Arguments**" in page


@pytest.mark.parametrize("module", website.MODULES)
def test_types_are_shown_without_what_validates_them(module):
    page = website.module_page(module)
    assert not re.search(r"Annotated|Validator|Pydantic\w*Undefined|0x[0-9a-f]{6}|ors_client\._", page)
