"""Links within the pages lead somewhere, and every page is found from the list of pages."""

import pytest
from outside_links import broken
from pages import PAGES, ROOT, anchors, links

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


def test_outside_addresses_that_give_no_page_are_named(ours, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    urls = [f"{ours.url}/health", f"{ours.url}/health/none", "http://127.0.0.1:1/"]
    assert [line.partition(": ")[0] for line in broken(urls)] == urls[1:]
