"""What becomes of sessions when their process ends, is interrupted, or forks."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import finally_

ROOT = Path(__file__).parent.parent.parent
LIMIT = 30  # seconds for a whole process, on a busy machine

OPEN = """
import sys, os, ors_client
client = ors_client.Client(sys.argv[1]); client.__enter__()
session = client.environment("slowenvironment").session(ors_client.TaskRef("train", 0)); session.__enter__()
session.get_prompt()
print(session.session_id, flush=True)
"""

ASYNC = """
import asyncio, sys, ors_client
async def main():
    client = ors_client.AsyncClient(sys.argv[1]); await client.__aenter__()
    session = client.environment("slowenvironment").session(ors_client.TaskRef("train", 0))
    await session.__aenter__()
    await session.get_prompt()
    print(session.session_id, flush=True)
    return client, session
kept = asyncio.run(main())
"""

INTERRUPTED = """
import sys, ors_client
with ors_client.Client(sys.argv[1]) as client:
    with client.environment("slowenvironment").session(ors_client.TaskRef("train", 0)) as session:
        print(session.session_id, flush=True)
        session.call_tool("wait", {"seconds": 20})
"""

FORKED = (
    OPEN
    + """
child = os.fork()
if child == 0:
    try:
        session.call_tool("count")
    except ors_client.ClientStateError as error:
        print("old:", type(error).__name__, flush=True)
    client.close()
    with ors_client.Client(sys.argv[1]) as fresh:
        with fresh.environment("slowenvironment").session(ors_client.TaskRef("train", 0)) as second:
            print("new:", second.call_tool("count").text, flush=True)
    sys.exit()
print("child:", os.waitpid(child, 0)[1], flush=True)
print("parent:", session.call_tool("count").text, flush=True)
session.close()
client.close()
"""
)


# A process costs a second; what ors-sdk would show is no different.
pytestmark = [
    pytest.mark.parametrize("server", ["ours", "openreward"], indirect=True),
    pytest.mark.slow,
]  # a process for each end, on each server


def start(script, server):
    # What was left open must not be complained about. (`-X dev` would also tell of slow callbacks, on a busy machine.)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, server.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("script", [OPEN, ASYNC], ids=["blocking", "asyncio"])
def test_interpreter_that_ends_deletes_its_sessions_and_says_nothing(server, script):
    with start(script, server) as process:
        told, complaints = process.communicate(timeout=LIMIT)
    assert (process.returncode, complaints) == (0, "")
    session_id = told.strip()
    assert session_id not in server.live()
    assert session_id in {entry["sid"] for entry in server.journal.entries("teardown")}


def test_interrupted_call_deletes_its_session(server):
    with start(INTERRUPTED, server) as process:
        session_id = process.stdout.readline().strip()
        finally_(lambda: server.journal.executions("wait", sid=session_id))
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=LIMIT)
    assert complaints.strip().endswith("KeyboardInterrupt")
    assert process.returncode != 0
    assert session_id not in server.live()
    assert session_id in {entry["sid"] for entry in server.journal.entries("teardown")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_gets_an_error_or_a_connection_of_its_own(server):
    with start(FORKED, server) as process:
        told, complaints = process.communicate(timeout=LIMIT)
    assert complaints == ""
    _, *lines = told.splitlines()
    assert lines == ["old: ClientStateError", "new: 1", "child: 0", "parent: 1"]
