"""Servers for the tests of reliability: the same as everywhere, with the times of a day scaled to those of a test."""

from collections.abc import Iterator

import pytest
from servers import Server, expect_no_sessions, serve


@pytest.fixture(scope="session")
def brisk() -> Iterator[Server]:
    """Our server with every environment; a silent stream gets a comment five times a second."""
    with serve("ours", "--env", "all", "--keepalive-comment", "0.2") as server:
        yield server


@pytest.fixture(autouse=True)
def sessions_end_with_their_test(shared: list[Server]) -> Iterator[None]:
    """Whatever a test does, its sessions are gone soon after it: each test is to blame for its own."""
    yield
    expect_no_sessions(shared)


@pytest.fixture(params=("asyncio", "trio"))
def backend(request: pytest.FixtureRequest) -> str:
    """Each event loop in turn: with asyncio requests go through aiohttp, with trio through httpcore."""
    return request.param
