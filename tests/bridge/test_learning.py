"""What is learnt when the infrastructure breaks a fifth of the episodes: the same as when it does not.

That partial rewards of broken episodes do teach something else, where they are kept, the benchmark shows.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def failures():
    """The benchmark whose table shows the same at more length."""
    path = Path(__file__).parents[1] / "benchmarks" / "failures.py"
    spec = importlib.util.spec_from_file_location("failures", path)
    module = sys.modules["failures"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_episodes_do_not_change_what_is_learnt(failures):
    seen = failures.measure("ours", failures.SHARE, steps=20, seed=1)
    assert seen["lost"] > 0.1
    assert seen["after"] > 0.9  # as without failures, which the benchmark shows beside it
    assert seen["reward"] == pytest.approx(failures.REWARDS["road"][1], abs=0.01)
