"""Specs that are closed, and a server with a fault proxy before it."""

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
