"""The limits on the waits of one attempt, where no server can be made to meet them on time."""

import anyio
import pytest
import uvicorn

from ors_client._config import Timeouts
from ors_client._http.backends import IDLE_SECONDS
from ors_client._http.deadline import Loop
from ors_client._http.transport import _AttemptDeadline
from ors_client._protocol.operations import ping

pytestmark = pytest.mark.anyio


def test_idle_connection_is_given_up_before_the_servers_of_the_field_do():
    assert uvicorn.Config("app").timeout_keep_alive > IDLE_SECONDS


async def test_answer_at_the_moment_a_limit_runs_out_does_not_rename_the_limit():
    wait = _AttemptDeadline(Timeouts(response=1e-9), ping("s"), Loop.running())
    with wait:
        with anyio.CancelScope(shield=True):  # the answer arrives before the cancellation does
            while not wait.scope.cancel_called:
                await anyio.lowlevel.checkpoint()
            wait.note_stream_progress()
        await anyio.lowlevel.checkpoint()
    assert wait.scope.cancelled_caught
    assert wait.limit == "response"
