"""Which versions a record was written with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def known_versions(*packages: str, server: str | None) -> dict[str, str]:
    """Return the versions of those packages that are installed, and the server's where it is known."""
    found: dict[str, str] = {} if server is None else {"server": server}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
