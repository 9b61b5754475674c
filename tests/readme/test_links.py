"""The links within the README."""

import re

from servers import ROOT

README = (ROOT / "README.md").read_text()


def test_links_within_the_page_lead_to_one_heading_each():
    text = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = [re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert [link for link in re.findall(r"\]\(#([^)]+)\)", text) if anchors.count(link) != 1] == []
