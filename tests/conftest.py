"""What every test may use: the repository and the modules beside the tests on the path, servers for the whole run."""

import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
# What is parametrised by how a client is used is tried on asyncio in every run; of what else there is, every fifth.
OTHER_FACES = {"trio", "blocking"}
OTHER_FACES_EVERY = 5
USES_TORCH = re.compile(
    r"^from ((bridge\.)?training|benchmarks.fidelity) import|"
    r"import torch|demo\._(model|measure|transcripts)|failures\.py|Qwen/",
    re.MULTILINE,
)
FOLDERS = sorted({test.parent for test in TESTS.glob("*/test_*.py")})
# A folder that is a program too is imported as a package. The last one comes first, so that `fixtures` is that package.
for folder in (*(each for each in FOLDERS if not (each / "__main__.py").exists()), TESTS, ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import KINDS, Server, eventually, expect_no_sessions, serve  # noqa: E402 - found through the path above

from tests.forkserver import forking  # noqa: E402

# Hypothesis' own limits are on the clock, which a busy machine does not keep; pytest's bounds every test. What runs
# unattended tries the same examples each time, so that a failure is the change's.
for name, examples in (("all", 100), ("fast", 25)):
    settings.register_profile(
        name,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=bool(os.environ.get("CI")),
        max_examples=examples,
    )
settings.load_profile("all")


# A shell that runs the tests in the background has Ctrl-C ignored by them and by the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Hand out files whole, and what imports the same heavy packages to one worker: torch is as slow as 100 tests."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file.startswith("tests/formats/"):  # hold the formats to the types in three providers' packages
                return "providers"
            return "torch" if uses_torch(ROOT / file) else file

    return Files(config, log)


@cache
def uses_torch(path: Path) -> bool:
    """Tell whether a file's tests import torch, themselves or by what they use."""
    return USES_TORCH.search(path.read_text(encoding="utf-8")) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell apart what only `make test-all` runs, and put long files first: torch's, then slow ones.

    A worker takes a file whole, and a long one at the end leaves the other idle. Without workers the order stays.
    """
    seen: Counter[object] = Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample:
            share, every = item.nodeid.partition("[")[0], sample.args[0]
        elif not OTHER_FACES.isdisjoint(_texts_of_parameters(item)) and not item.get_closest_marker("both_loops"):
            share, every = item.path, OTHER_FACES_EVERY
        else:
            continue
        if seen[share] % every:
            item.add_marker(pytest.mark.slow)
        seen[share] += 1
    if not hasattr(config, "workerinput"):
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not uses_torch(item.path), item.path not in slow))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the processes that all workers' servers are forked off."""
    config = session.config
    if not hasattr(config, "workerinput") and not config.getoption("collectonly"):
        servers_are_forked = forking()
        servers_are_forked.__enter__()
        config.add_cleanup(lambda: servers_are_forked.__exit__(None, None, None))


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what will stay: it would look at half a million objects again and again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what failed in the last run and passed in this one: that a retry helped explains nothing."""
    if config.getoption("lf", default=False):
        for report in terminalreporter.getreports("passed"):
            terminalreporter.write_line(f"A failure to be explained: {report.nodeid} passed when run again", red=True)


def _texts_of_parameters(item: pytest.Item) -> set[str]:
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    return {value for value in parameters if isinstance(value, str)}


@pytest.fixture(scope="session")
def shared() -> list[Server]:
    """The servers that tests share, as far as they were started."""
    return []


@pytest.fixture(scope="session")
def ours(shared: list[Server]) -> Iterator[Server]:
    """Our server with every environment, echo first."""
    with serve("ours", "--env", "all") as server:
        shared.append(server)
        yield server


@pytest.fixture(scope="session")
def openreward(shared: list[Server]) -> Iterator[Server]:
    """The openreward server with every environment, echo first."""
    with serve("openreward", "--env", "all") as server:
        shared.append(server)
        yield server


@pytest.fixture(scope="session")
def ors_sdk(shared: list[Server]) -> Iterator[Server]:
    """The ors-sdk server with every environment, echo first."""
    with serve("ors-sdk", "--env", "all") as server:
        shared.append(server)
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the three servers in turn, with every environment, echo first."""
    return request.getfixturevalue(request.param.replace("-", "_"))


@pytest.fixture(scope="session")
def echo_server(shared: list[Server]) -> Iterator[Server]:
    """Our server with the echo environment alone."""
    with serve("ours", "--env", "echo") as server:
        shared.append(server)
        yield server


@pytest.fixture(name="eventually")
def eventually_() -> Callable[..., None]:
    """The function that waits until a condition holds that nothing else tells of."""
    return eventually


@pytest.fixture(autouse=True, scope="module")
def sessions_end_with_their_module(shared: list[Server]) -> Iterator[None]:
    """Whatever the tests of a module do, their sessions are gone soon after them."""
    yield
    expect_no_sessions(shared)
