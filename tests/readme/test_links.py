"""Links within the pages lead somewhere, and every page is found from the list of pages."""

import pytest
from pages import PAGES, anchors, links
from servers import ROOT

INDEX = "docs/README.md"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_to_one_heading_each(page):
    broken = [
        f"{path}#{anchor}"
        for path, anchor in links(page)
        if not (ROOT / path).exists() or (anchor and anchors(path).count(anchor) != 1)
    ]
    assert broken == []


def test_list_of_pages_names_every_page():
    assert {path for path, _ in links(INDEX)} >= set(PAGES) - {INDEX, "README.md"}
