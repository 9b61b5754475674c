"""The platform's double, and each face of the client before it."""

import httpx
import pytest
from faces import connect
from platforms import KEY, platform


@pytest.fixture(params=["asyncio", "trio", "blocking"])
def face(request):
    """How the client is used."""
    return request.param


@pytest.fixture
def anyio_backend(face):
    """The event loop of a test; the blocking client is waited for in threads."""
    return "trio" if face == "trio" else "asyncio"


@pytest.fixture
def client_of(face):
    """Return a function that connects a client of this face to a platform."""

    def make(hosts, **more):
        return connect(face, hosts, **{"api_key": KEY, **more})

    return make


@pytest.fixture(scope="module")
def calm():
    """A platform with three environments on which nothing is out of the ordinary."""
    with platform("--guest-key", "sk-guest", "--unpaid-key", "sk-unpaid") as server:
        yield server


@pytest.fixture
def state_of():
    """Return a function that tells the state of a platform's sessions."""
    return lambda server: httpx.get(f"{server.urls[1]}/_platform", trust_env=False).json()
