"""For every fault at every stage of every endpoint: how often the tool ran, what the caller got, and what is left.

The cases are in `fault_table`. They run together, since they mostly wait, when the first test asks for them; a test
judges those of one endpoint, and lists which failed. `make test` tries every fault on `call` and `create`, and the
sample on the other endpoints. `FAULTS=create-503_retry_after,call-502*` in the environment runs these cases only, and
`-k trio` those of one event loop.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch

import pytest
from fault_episode import DEPLOYMENT, KEY, Seen, observe
from fault_table import SAMPLE, Case, Endpoint, Expected, cases, met
from servers import Server, serve

from ors_client import TransportError

# httpcore's and httpx's own generators, where an answer is not read to its end; trio alone complains.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
    pytest.mark.timeout(1800),  # the first test of a loop runs all cases, and each of those has a limit
]

CHOSEN = "FAULTS"

_IN_FULL = {("asyncio", "call"), ("asyncio", "create")}
"""Of what the fast tier tries every fault. What steps the environment costs most where it goes wrong."""

_CASES = [
    case
    for case in cases(time.time())
    if any(fnmatch(case.id, each) for each in os.environ.get(CHOSEN, "*").split(","))
]


def _runs() -> Iterator[object]:
    for loop in ("asyncio", "trio"):
        for endpoint in dict.fromkeys(case.endpoint.name for case in _CASES):
            met_here = [case for case in _CASES if case.endpoint.name == endpoint and met(case, loop)]
            fast = [case for case in met_here if (loop, endpoint) in _IN_FULL or case.fault in SAMPLE]
            rest = [case for case in met_here if case not in fast]
            if fast:
                marks = [pytest.mark.both_loops] if endpoint == "call" else []
                yield pytest.param(loop, fast, id=f"{loop}-{endpoint}", marks=marks)
            if rest:
                yield pytest.param(loop, rest, id=f"{loop}-{endpoint}-rest", marks=pytest.mark.slow)


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
                runs[loop] = error  # else each test would try again
                raise
        found = runs[loop]
        if isinstance(found, BaseException):
            raise found
        return found

    def run(loop: str) -> dict[str, Seen]:
        chosen = [
            case
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and item.module is request.module
            and item.callspec.params["loop"] == loop
            for case in item.callspec.params["chosen"]
        ]
        return observe(chosen, brisk, platform, backend=loop)

    return see


@pytest.mark.parametrize(("loop", "chosen"), [*_runs()])
def test_fault(seen: Callable[[str], dict[str, Seen]], loop: str, chosen: Sequence[Case]) -> None:
    failed = {}
    for case in chosen:
        try:
            _check(case, seen(loop)[case.id])
        except AssertionError as error:
            failed[case.id] = str(error)
    assert not failed, "\n\n".join([f"{len(failed)} failed", *(f"{case}: {why}" for case, why in failed.items())])


def _check(case: Case, found: Seen) -> None:
    expected = case.expected
    assert found.crash is None, repr(found.crash)
    _check_outcome(expected, found)
    assert found.executions == expected.executions
    assert found.calls == (expected.calls if expected.calls is not None else found.calls)
    assert len(found.sessions) == expected.sessions
    if expected.requests is not None:
        assert len(found.times) in _allowed(case.endpoint, expected)
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
