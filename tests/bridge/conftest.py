"""Specs that are closed, servers with a fault proxy before them, and patience for what happens in the background."""

import time
from contextlib import ExitStack

import pytest

from fixtures.proxy import FaultProxy
from trl_bridge import OpenRewardSpec


@pytest.fixture
def make_spec():
    """Make specs that are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(OpenRewardSpec(*args, **kwargs))


@pytest.fixture
def proxy(ours):
    """A proxy before our server."""
    with FaultProxy(ours.url) as proxy:
        yield proxy


@pytest.fixture
def eventually():
    """Wait until a condition holds: what happens in the background has no other end to wait for."""

    def wait(condition, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)

    return wait
