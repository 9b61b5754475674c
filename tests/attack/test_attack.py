"""Whatever a server answers, an operation ends in time, with a value of the standard or an `ORSError`, and no more."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from .grammar import attacks
from .invariants import attack

# httpcore leaves the generators of a cancelled request to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")

# A seed of our own for the few that every run tries; `python -m tests.attack` tries others for as long as is wanted.
FEW = settings(
    max_examples=4,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@FEW
@given(what=attacks())
def test_client_survives_hostile_answers(ours, backend, what):
    assert attack(ours.url, what, backend=backend) == []
    ours.set_aside(seconds=0)  # where the deletions themselves are attacked, they reach no honest server
