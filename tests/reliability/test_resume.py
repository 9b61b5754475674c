"""A call whose id is known is resumed while it gets anywhere, and its session outlives a result that is lost."""

import threading
from collections.abc import Iterator

import anyio
import pytest
from aftermath import NO_PINGS, slow, until
from servers import Server, serve, stop

from fixtures.environments.awkward import exact_text
from fixtures.proxy import CutAfterEvent, CutInsideEvent, FaultProxy, ResetAfterRead, Rule
from ors_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    ResultLost,
    RetryPolicy,
    SessionLost,
    TaskRef,
    Timeouts,
    TransportError,
)

FAST = RetryPolicy(attempts=3, first_delay=0.02, max_delay=0.05)


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Server]:
    """A server that keeps a result for half a second."""
    with serve("ours", "--env", "counter,slow", "--linger", "0.5") as server:
        yield server


@pytest.mark.parametrize("cut", [CutAfterEvent, CutInsideEvent], ids=["between_chunks", "within_chunks"])
def test_call_that_gets_further_each_time_is_resumed_any_number_of_times(ours: Server, backend: str, cut) -> None:
    chunks = 15
    length = 4096 * chunks + 100

    async def main(proxy: FaultProxy) -> None:
        async with (
            AsyncClient(proxy.url, retry=FAST, keepalive=NO_PINGS) as client,
            client.environment("awkwardenvironment").session(TaskRef("train", 0)) as session,
        ):
            output = await session.call_tool("exact", {"json_length": length})
            assert output.text == exact_text(length)
            assert len(ours.journal.executions("exact", sid=session.session_id)) == 1

    with FaultProxy(ours.url) as proxy:
        for nth in range(2, chunks + 1):
            proxy.add(Rule("POST", "/call", cut("chunk", nth=nth)))
        anyio.run(main, proxy, backend=backend)
        calls = proxy.find("POST", "/call")
        assert len(calls) == chunks
        assert len({call.json().get("task_id") for call in calls[1:]}) == 1


def test_call_that_gets_nowhere_stops_after_a_bounded_number_of_attempts(ours: Server) -> None:
    with (
        FaultProxy(ours.url) as proxy,
        Client(proxy.url, retry=FAST, keepalive=NO_PINGS) as client,
        client.environment("awkwardenvironment").session(TaskRef("train", 0)) as session,
    ):
        proxy.add(Rule("POST", "/call", CutAfterEvent("chunk", nth=1), times=None))
        with pytest.raises(TransportError) as caught:
            session.call_tool("exact", {"json_length": 20_000})
        assert type(caught.value) is TransportError
        assert proxy.count("POST", "/call") == caught.value.attempts == FAST.attempts
        assert len(ours.journal.executions("exact", sid=session.session_id)) == 1


def test_call_that_is_resumed_for_ever_ends_at_its_deadline(ours: Server) -> None:
    patient = RetryPolicy(attempts=10_000, first_delay=0.05, max_delay=0.05)
    with (
        FaultProxy(ours.url) as proxy,
        Client(proxy.url, retry=patient, timeout=Timeouts(call=1.0), keepalive=NO_PINGS) as client,
        client.environment("slowenvironment").session(slow()) as session,
    ):
        session.get_prompt()
        proxy.add(Rule("POST", "/call", CutAfterEvent("task_id"), times=None))
        with pytest.raises(DeadlineExceeded) as caught:
            session.call_tool("count")
        assert caught.value.limit == "call"
        assert len(ours.journal.executions("count", sid=session.session_id)) == 1


def test_result_that_the_server_forgot_is_told_apart_from_a_tool_that_failed(forgetful: Server, backend: str) -> None:
    async def main(proxy: FaultProxy) -> None:
        late = RetryPolicy(attempts=5, first_delay=0.5, max_delay=0.5, jitter=0.0)
        async with (
            AsyncClient(proxy.url, retry=late, keepalive=NO_PINGS) as client,
            client.environment("counterenvironment").session(TaskRef("train", 0)) as session,
        ):
            await session.get_prompt()
            proxy.add(Rule("POST", "/call", CutAfterEvent("task_id")))
            proxy.add(Rule("POST", "/call", ResetAfterRead(), times=2))  # the server hears of the call too late
            with pytest.raises(ResultLost):
                await session.call_tool("step")
            assert session.lost is None
            assert (await session.call_tool("step")).text == "2"

    with FaultProxy(forgetful.url) as proxy:
        anyio.run(main, proxy, backend=backend)


def test_server_that_restarts_within_a_call_loses_the_session() -> None:
    raised: list[Exception] = []
    with serve("ours", "--env", "slow") as server:
        port = server.url.rpartition(":")[2]
        client = Client(server.url, retry=FAST, keepalive=NO_PINGS).__enter__()
        session = client.environment().session(slow()).__enter__()
        session.get_prompt()

        def call() -> None:
            try:
                session.call_tool("wait", {"seconds": 60})
            except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
                raised.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: server.executions("wait") > 0, within=5, what="The call")
        stop(server.process)
        with serve("ours", "--env", "slow", "--port", port):
            thread.join(20)
            client.close()
    assert [type(error) for error in raised] == [SessionLost]
    assert session.lost
