"""The page for contributors names places that are there."""

import re

from tests.packaging import house

PAGE = (house.ROOT / "docs" / "contributing.md").read_text()


def test_page_lists_the_rooms_from_the_ground_up():
    rooms = PAGE.partition("## The house")[2]
    assert re.findall(r"^\| `([^`]+)` \|", rooms, flags=re.MULTILINE) == list(house.ORDER)


def test_every_file_and_name_on_the_page_is_there():
    missing: list[str] = []
    for path, names in re.findall(r"`([\w/]+\.py)`(?: \(([^)]*)\))?", PAGE):
        file = house.ROOT / path
        if not file.is_file():
            missing.append(path)
            continue
        source = file.read_text()
        named = re.findall(r"`(\w+)`", names)
        missing += [f"{path}: {name}" for name in named if not re.search(rf"\b(?:def|class) {name}\b", source)]
    assert missing == []
