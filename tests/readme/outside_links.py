"""Ask for every address outside that the pages link to, and name those that do not answer; `make links` runs it."""

import re
import sys
from collections.abc import Iterable

import httpx
from pages import PAGES

_SECONDS = 20


def outside() -> list[str]:
    """Return the addresses, each once."""
    return sorted({url for text in PAGES.values() for url in re.findall(r"\]\((https?://[^)\s#]+)", text)})


def broken(urls: Iterable[str]) -> list[str]:
    """Return a line for each address that gives no page."""
    lines: list[str] = []
    with httpx.Client(follow_redirects=True, timeout=_SECONDS) as client:
        for url in urls:
            try:
                status = client.get(url).status_code
            except httpx.HTTPError as error:
                lines.append(f"{url}: {error}")
            else:
                if status >= 400:
                    lines.append(f"{url}: HTTP {status}")
    return lines


if __name__ == "__main__":
    found = broken(outside())
    sys.stdout.write("\n".join([*found, f"{len(outside())} addresses, {len(found)} broken", ""]))
    sys.exit(bool(found))
