"""For every fault at every stage of every endpoint: how often the tool ran, what the caller got, and what is left.

The cases are in `fault_table`; they run together when the first of them is asked for, those that were selected only.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from fault_episode import DEPLOYMENT, KEY, Seen, observe
from fault_table import SAMPLE, Endpoint, Expected, cases
from servers import Server, serve

from ors_client import TransportError

# httpcore's and httpx's own generators, where an answer is not read to its end; trio alone complains.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
    pytest.mark.timeout(1800),  # the first test runs all cases, and each of those has a limit
]

_CASES = {case.id: case for case in cases(time.time())}
_RUNS = [
    pytest.param(loop, name, id=f"{loop}-{name}")
    for loop in ("asyncio", "trio")
    for name, case in _CASES.items()
    if loop == "asyncio" or not case.endpoint.like or case.fault in SAMPLE
]


@pytest.fixture(scope="module")
def platform() -> Iterator[Server]:
    """A deployment in the catalogue, whose API host knows it."""
    arguments = ("--env", "awkward", "--platform", "--api-key", KEY, "--deployment", DEPLOYMENT)
    with serve("ours", *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, brisk: Server, platform: Server) -> Callable[[str], dict[str, Seen]]:
    """Return a function that tells what every selected case showed on one kind of event loop, where it runs once."""
    runs: dict[str, dict[str, Seen] | BaseException] = {}

    def see(loop: str) -> dict[str, Seen]:
        if loop not in runs:
            try:
                runs[loop] = run(loop)
            except BaseException as error:
                runs[loop] = error  # else each of a thousand tests would try again
                raise
        found = runs[loop]
        if isinstance(found, BaseException):
            raise found
        return found

    def run(loop: str) -> dict[str, Seen]:
        chosen = {
            item.callspec.params["case"]
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and item.module is request.module
            and item.callspec.params["loop"] == loop
        }
        return observe([_CASES[name] for name in _CASES if name in chosen], brisk, platform, backend=loop)

    return see


@pytest.mark.parametrize(("loop", "case"), _RUNS)
def test_fault(seen: Callable[[str], dict[str, Seen]], loop: str, case: str) -> None:
    expected, found = _CASES[case].expected, seen(loop)[case]

    assert found.crash is None, repr(found.crash)
    _check_outcome(expected, found)
    assert found.executions == expected.executions
    assert found.calls == (expected.calls if expected.calls is not None else found.calls)
    assert len(found.sessions) == expected.sessions
    if expected.requests is not None:
        assert len(found.times) in _allowed(_CASES[case].endpoint, expected)
    if expected.spacing:
        assert found.times[1] - found.times[0] >= expected.spacing
    assert found.leaked == expected.leaked
    if not expected.leaked:
        assert not found.left


def _allowed(endpoint: Endpoint, expected: Expected) -> set[int]:
    # aiohttp sends a GET that was lost once more of its own accord, within one attempt of ours.
    twice = endpoint.method == "GET" and expected.error is TransportError
    # A deletion that does not fit into the close limit, on a busy machine, is sent again in the background.
    again = endpoint.kind == "delete" and expected.requests == 2
    return {expected.requests, expected.requests * 2 if twice else expected.requests + again}


def _check_outcome(expected, found: Seen) -> None:
    if expected.error is None:
        assert found.error is None, repr(found.error)
        assert found.wrong is None
        return
    assert type(found.error) is expected.error, repr(found.error)
    if expected.limit is not None:
        assert found.error.limit == expected.limit
