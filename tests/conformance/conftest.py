"""Clients of the three servers, straight and through a proxy that keeps what was sent."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from servers import Server, serve

import ors_client
from fixtures.proxy import FaultProxy


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, unless a test asks for both."""
    return "asyncio"


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ors_client.AsyncClient]:
    """A client of each server in turn."""
    async with ors_client.AsyncClient(server.url) as client:
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A proxy before each server in turn; it breaks nothing unless it is told to."""
    with FaultProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
async def watched(proxy: FaultProxy) -> AsyncIterator[ors_client.AsyncClient]:
    """A client of each server in turn, through the proxy."""
    async with ors_client.AsyncClient(proxy.url) as client:
        yield client


@pytest.fixture
async def stranger(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Raw requests to each server in turn, past our client."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as stranger:
        yield stranger


@pytest.fixture(scope="session")
def spec_server() -> Iterator[Server]:
    """A server written from the standard's pages alone, with every environment."""
    with serve("ours", "--env", "all", "--dialect", "spec") as server:
        yield server


@pytest.fixture(scope="session")
def old_server() -> Iterator[Server]:
    """A server that behaves like openreward 0.1.50, with every environment."""
    with serve("ours", "--env", "all", "--dialect", "openreward-0.1.50") as server:
        yield server


@pytest.fixture(params=["spec_server", "old_server"])
def sparse_server(request: pytest.FixtureRequest) -> Server:
    """Each of the servers that lack most optional routes."""
    return request.getfixturevalue(request.param)
