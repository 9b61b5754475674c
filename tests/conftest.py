"""What every test may use: the repository on the path, and servers that live as long as the test run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
for folder in (ROOT / "tests", ROOT):  # the last one comes first, so that `fixtures` is the package of that name
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import KINDS, Server, serve  # noqa: E402 - found through the path above


@pytest.fixture(scope="session")
def ours() -> Iterator[Server]:
    """Our server with every environment, echo first."""
    with serve("ours", "--env", "all") as server:
        yield server


@pytest.fixture(scope="session")
def openreward() -> Iterator[Server]:
    """The openreward server with every environment, echo first."""
    with serve("openreward", "--env", "all") as server:
        yield server


@pytest.fixture(scope="session")
def ors_sdk() -> Iterator[Server]:
    """The ors-sdk server with every environment, echo first."""
    with serve("ors-sdk", "--env", "all") as server:
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the three servers in turn, with every environment, echo first."""
    return request.getfixturevalue(request.param.replace("-", "_"))


@pytest.fixture(scope="session")
def echo_server() -> Iterator[Server]:
    """Our server with the echo environment alone."""
    with serve("ours", "--env", "echo") as server:
        yield server
