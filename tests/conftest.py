"""What every test may use: the repository and the modules beside the tests on the path, servers for the whole run."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
SHARED = {"ours", "openreward", "ors_sdk", "server", "echo_server"}
FOLDERS = sorted({test.parent for test in TESTS.glob("*/test_*.py")})
# A folder that is a program too is imported as a package. The last one comes first, so that `fixtures` is that package.
for folder in (*(each for each in FOLDERS if not (each / "__main__.py").exists()), TESTS, ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import KINDS, Server, serve  # noqa: E402 - found through the path above

# Hypothesis' own limits are on the clock, which a busy machine does not keep; pytest's bounds every test. What runs
# unattended tries the same examples each time, so that a failure is the change's.
settings.register_profile(
    "ors", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("ors")


# A shell that runs the tests in the background has Ctrl-C ignored by them and by the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: a worker takes a file whole, and a long one at the end leaves the other idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


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


@pytest.fixture(autouse=True)
def sessions_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, its sessions are gone soon after it: on the servers that tests share, each is to blame."""
    servers = [request.getfixturevalue(name) for name in SHARED & {*request.fixturenames}]  # afterwards it is too late
    yield
    for server in servers:
        if server.process.poll() is None and (left := server.set_aside(seconds=30)):
            pytest.fail(f"Sessions are left on the {server.kind} server: {', '.join(left)}")
