"""The tracked sessions and their thread, against a scripted peer."""

import asyncio
import collections
import threading
import time

import httpx
import pytest
from scripted import Peer

from ors_client import ClientStateError, KeepalivePolicy, Limits, RetryPolicy, Timeouts
from ors_client._http.transport import Transport
from ors_client._http.urls import resolve
from ors_client._lifecycle.deletion import TrackedSession
from ors_client._lifecycle.keepalive import Keepalive
from ors_client._protocol.operations import Address, prompt


def keepalive_of(peer, *, policy=KeepalivePolicy(), timeouts=Timeouts(), close=5.0):  # noqa: B008 - frozen
    def make():
        return Transport(
            resolve("http://peer.test", {}),
            api_key=None,
            timeouts=timeouts,
            retry=RetryPolicy(),
            limits=Limits(),
            make=peer.transport,
        )

    return Keepalive(make, policy=policy, split=False, close=close)


def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Meddler(TrackedSession):
    """An entry that strikes another one when it is told that its session is not pinged any more."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "on_lost" and value is None and hasattr(self, "strike"):
            self.strike()


def test_session_that_is_struck_while_the_client_closes_hinders_nothing():
    peer = Peer()
    keepalive = keepalive_of(peer)
    other = keepalive.register("other")
    meddler = Meddler("s1", None)
    keepalive._open.add(meddler)
    keepalive.register("last")
    meddler.strike = lambda: keepalive.unregister(other)
    keepalive.close()
    assert sorted(peer.paths()) == ["POST /delete"] * 2 + ["POST /delete_session"] * 2
    assert len(keepalive) == 0


def test_session_that_is_owned_while_the_client_closes_is_deleted_or_refused():
    peer = Peer()
    keepalive = keepalive_of(peer)
    closing = threading.Thread(target=keepalive.close)

    class Id(str):
        __slots__ = ()

        def __hash__(self):  # called when it is registered
            if closing.ident is None:
                closing.start()
                closing.join(0.2)
            return super().__hash__()

    keepalive.register(Id("s1"))
    closing.join(30)
    assert peer.paths() == ["POST /delete", "POST /delete_session"]
    assert len(keepalive) == 0
    with pytest.raises(ClientStateError):
        keepalive.register("s2")


def test_deletion_in_the_background_may_take_longer_than_a_ping():
    deleted = threading.Event()

    async def slowly(_):
        await asyncio.sleep(0.3)
        deleted.set()
        return httpx.Response(200, json={"sid": "s1"})

    peer = Peer({"POST /delete": slowly})
    keepalive = keepalive_of(peer, timeouts=Timeouts(response=0.05, close=10.0))
    keepalive.delete_later(keepalive.register("s1"))
    assert deleted.wait(30)
    keepalive.close()
    assert peer.paths().count("POST /delete") <= 2  # the second where the first was answered, but not yet read
    assert keepalive.leaked == 0


def test_session_is_pinged_again_after_an_error_that_nobody_foresaw(caplog):
    twice = threading.Event()
    pings = []

    async def broken(request):
        pings.append(request)
        if len(pings) == 1:
            raise KeyError("surprise")
        twice.set()
        return httpx.Response(200, json={"status": "ok"})

    keepalive = keepalive_of(Peer({"POST /ping": broken}), policy=KeepalivePolicy(interval=0.01, tolerance=10.0))
    keepalive.watch(keepalive.register("s1"), print)
    assert twice.wait(30)
    keepalive.close()
    assert [record.getMessage() for record in caplog.records] == ["A ping failed: KeyError('surprise')"]


def test_sessions_that_were_pinged_late_together_keep_their_own_beats():
    interval, count = 0.5, 20
    stalled = threading.Event()
    pings = collections.Counter()

    async def answer(request):
        if not stalled.is_set():
            stalled.set()
            time.sleep(3 * interval)  # noqa: ASYNC251 - it holds up the thread, and all that is due meanwhile
        pings[request.headers["x-session-id"]] += 1
        return httpx.Response(200, json={"status": "ok"})

    keepalive = keepalive_of(Peer({"POST /ping": answer}), policy=KeepalivePolicy(interval=interval, tolerance=60.0))
    entries = [keepalive.register(f"s{number}") for number in range(count)]
    for entry in entries:
        keepalive.watch(entry, print)
    first = [entry.due for entry in entries]
    eventually(lambda: len(pings) == count and min(pings.values()) >= 2)
    keepalive.close()
    beats = [(entry.due - due) / interval for entry, due in zip(entries, first, strict=True)]
    assert beats == pytest.approx([round(each) for each in beats], abs=0.001)
    assert min(beats) >= 3


def test_ping_that_is_not_answered_costs_no_beat():
    pings = []
    again = threading.Event()

    async def swallow_the_first(_):
        pings.append(time.monotonic())
        if len(pings) == 1:
            await asyncio.sleep(60)
        again.set()
        return httpx.Response(200, json={"status": "ok"})

    # In a client, too, a ping may take as long as an interval.
    keepalive = keepalive_of(
        Peer({"POST /ping": swallow_the_first}),
        policy=KeepalivePolicy(interval=2.0, tolerance=60.0),
        timeouts=Timeouts(response=2.0),
    )
    keepalive.watch(keepalive.register("s1"), print)
    assert again.wait(30)
    keepalive.close()
    assert pings[1] - pings[0] < 3.6  # two intervals are four seconds


def test_server_that_is_full_after_a_failed_ping_is_not_asked_more_often():
    interval, pings = 0.5, []

    async def fail_then_be_full(_):
        pings.append(time.monotonic())
        return httpx.Response(500 if len(pings) == 1 else 429, json={"detail": "no"})

    keepalive = keepalive_of(
        Peer({"POST /ping": fail_then_be_full}), policy=KeepalivePolicy(interval=interval, tolerance=1.0)
    )
    keepalive.watch(keepalive.register("s1"), print)
    eventually(lambda: len(pings) >= 10)
    keepalive.close()
    assert pings[9] - pings[3] > 3 * interval  # six intervals, and less only after a stall


def test_three_pings_fail_within_a_tolerance_of_one_interval():
    lost = threading.Event()
    pings = []

    async def broken(_):
        pings.append(time.monotonic())
        return httpx.Response(500, json={"detail": "no"})

    keepalive = keepalive_of(Peer({"POST /ping": broken}), policy=KeepalivePolicy(interval=2.0, tolerance=2.0))
    keepalive.watch(keepalive.register("s1"), lambda _: lost.set())
    assert lost.wait(30)
    keepalive.close()
    assert len(pings) == 3
    assert pings[-1] - pings[0] < 3.0  # two intervals are four seconds


def test_pings_that_a_full_server_puts_off_lose_no_session():
    often = threading.Event()
    reasons = []
    pings = []

    async def full(_):
        pings.append(1)
        if len(pings) == 30:
            often.set()
        return httpx.Response(429, json={"detail": "slow down"})

    keepalive = keepalive_of(Peer({"POST /ping": full}), policy=KeepalivePolicy(interval=0.02, tolerance=0.02))
    keepalive.watch(keepalive.register("s1"), reasons.append)
    assert often.wait(30)
    keepalive.close()
    assert reasons == []


def test_session_whose_deletion_fails_in_a_way_that_nobody_foresaw_is_reported():
    async def broken(_):
        raise KeyError("surprise")

    peer = Peer({"POST /delete": broken})
    keepalive = keepalive_of(peer)
    keepalive.register("s1")
    keepalive.register("s2")
    keepalive.close()
    assert peer.paths() == ["POST /delete"] * 2
    assert keepalive.leaked == 2


def reset_first(answer=None):
    """Break the first connection of each session, and answer the next."""
    met = set()

    async def respond(request):
        session_id = request.headers["x-session-id"]
        if session_id not in met:
            met.add(session_id)
            raise httpx.ReadError("reset")
        return answer or httpx.Response(200, json={"sid": session_id})

    return respond


@pytest.mark.parametrize("path", ["/delete", "/delete_session"])
def test_deletion_that_a_fault_broke_while_the_client_closes_is_repeated(path):
    peer = Peer({f"POST {path}": reset_first()})
    keepalive = keepalive_of(peer)
    for name in ("s1", "s2"):
        keepalive.register(name)
    keepalive.close()
    assert peer.paths().count(f"POST {path}") == 4
    assert (len(keepalive), keepalive.leaked) == (0, 0)


def test_deletion_that_a_fault_broke_is_repeated_at_the_exit_of_the_interpreter():
    peer = Peer({"POST /delete": reset_first()})
    keepalive = keepalive_of(peer)
    keepalive.register("s1")
    keepalive._at_exit()
    assert peer.paths().count("POST /delete") == 2
    assert keepalive.leaked == 0


def test_deletion_that_always_breaks_is_repeated_until_the_limit_and_then_counted():
    async def reset(_):
        raise httpx.ReadError("reset")

    peer = Peer({"POST /delete": reset})
    keepalive = keepalive_of(peer)
    keepalive.register("s1")
    keepalive.close(0.2)
    assert peer.paths().count("POST /delete") >= 2
    assert keepalive.leaked == 1


def test_deletions_that_take_longer_than_the_limit_in_all_go_on_while_there_is_progress():
    deleted = []

    async def one_after_another(request):
        deleted.append(request)
        await asyncio.sleep(0.7 * len(deleted))
        return httpx.Response(200, json={"sid": ""})

    keepalive = keepalive_of(Peer({"POST /delete": one_after_another}), close=2.0)
    for number in range(4):
        keepalive.register(f"s{number}").create_sent = True
    keepalive.close()
    assert len(deleted) == 4
    assert (len(keepalive), keepalive.leaked) == (0, 0)


def test_first_of_many_deletions_is_answered_before_all_have_begun():
    begun = []

    async def delete(_):
        begun.append(len(asyncio.all_tasks()))
        return httpx.Response(200, json={"sid": ""})

    keepalive = keepalive_of(Peer({"POST /delete": delete}))
    for number in range(1_000):
        keepalive.register(f"s{number}").create_sent = True
    keepalive.close()
    assert len(begun) == 1_000
    assert begun[0] < 100
    assert (len(keepalive), keepalive.leaked) == (0, 0)


def test_session_that_was_deleted_before_the_client_closes_is_not_counted_where_the_last_try_is_cut():
    """Its `/create` was never answered, so it is deleted once more: the server is too slow for that."""
    deleted = []

    async def once(request):
        deleted.append(request)
        if len(deleted) > 1:
            await asyncio.Event().wait()
        return httpx.Response(200, json={"sid": "s1"})

    peer = Peer({"POST /delete": once, "POST /ping": httpx.Response(404, json={"detail": "Active environment"})})
    keepalive = keepalive_of(peer)
    tracked = keepalive.register("s1")
    tracked.create_pending = tracked.create_sent = True
    keepalive.delete_later(tracked)
    eventually(lambda: deleted and tracked.deleted)
    keepalive.close(0.2)
    assert len(deleted) == 2
    assert (len(keepalive), keepalive.leaked) == (0, 0)


def test_session_that_begins_after_its_deletion_is_counted_where_it_cannot_be_deleted_again():
    deleted, pinged = [], []

    async def delete(_):
        deleted.append(1)
        if len(deleted) > 1:
            raise httpx.ReadError("reset")
        return httpx.Response(200, json={"sid": "s1"})

    async def ping(_):
        pinged.append(1)
        there = len(pinged) > 1
        return httpx.Response(200 if there else 404, json={"detail": "Active environment not found"})

    keepalive = keepalive_of(Peer({"POST /delete": delete, "POST /ping": ping}))
    tracked = keepalive.register("s1")
    tracked.create_pending = tracked.create_sent = True
    keepalive.close(1.5)
    assert len(deleted) > 1
    assert keepalive.leaked == 1


async def never(_):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "answer", [httpx.Response(500, json={"detail": "boom"}), httpx.Response(403), httpx.Response(200, text="Hello.")]
)
def test_witness_that_answers_with_an_error_is_there(answer, caplog):
    peer = Peer({"POST /ping": httpx.Response(404), "GET /prompt": answer})
    keepalive = keepalive_of(peer, policy=KeepalivePolicy(interval=0.02, tolerance=0.02))
    reasons = []
    keepalive.watch(keepalive.register("s1"), reasons.append, liveness_check=prompt(Address("env"), "s1"))
    eventually(lambda: reasons or "no ping route" in caplog.text)
    keepalive.close()
    assert reasons == []


@pytest.mark.parametrize("status", [404, 502, 503, 504])
def test_witness_that_a_gateway_answers_for_is_not_there(status):
    peer = Peer({"POST /ping": httpx.Response(404), "GET /prompt": httpx.Response(status)})
    keepalive = keepalive_of(peer, policy=KeepalivePolicy(interval=0.02, tolerance=0.02))
    reasons = []
    keepalive.watch(keepalive.register("s1"), reasons.append, liveness_check=prompt(Address("env"), "s1"))
    eventually(lambda: reasons)
    keepalive.close()


def test_witness_that_waits_for_the_setup_loses_no_session():
    peer = Peer({"POST /ping": httpx.Response(404), "GET /prompt": never})
    policy, timeouts = KeepalivePolicy(interval=0.02, tolerance=0.02), Timeouts(response=0.02)
    keepalive = keepalive_of(peer, policy=policy, timeouts=timeouts)
    reasons = []
    keepalive.watch(keepalive.register("s1"), reasons.append, liveness_check=prompt(Address("env"), "s1"))
    eventually(lambda: reasons or peer.paths().count("GET /prompt") >= 8)
    keepalive.close()
    assert reasons == []


def test_proxy_that_finds_its_server_after_the_first_ping_is_pinged_on():
    pings = []

    async def found(_):
        pings.append(1)
        return httpx.Response(404) if len(pings) == 1 else httpx.Response(200, json={"status": "ok"})

    keepalive = keepalive_of(Peer({"POST /ping": found}), policy=KeepalivePolicy(interval=0.02, tolerance=10.0))
    keepalive.watch(keepalive.register("s1"), print, liveness_check=prompt(Address("env"), "s1"))
    eventually(lambda: len(pings) >= 5)
    keepalive.close()


@pytest.mark.parametrize("old", [0, 1])
def test_deployment_without_a_ping_route_leaves_the_others_pinged(old, caplog):
    names = ["a/env", "b/env"]
    pings = dict.fromkeys(names, 0)

    async def pinged(request):
        name = request.headers["x-deployment"]
        pings[name] += 1
        return httpx.Response(404) if name == names[old] else httpx.Response(200, json={"status": "ok"})

    keepalive = keepalive_of(Peer({"POST /ping": pinged}), policy=KeepalivePolicy(interval=0.02, tolerance=0.02))
    reasons = []
    for name in names:  # one after the other is known
        keepalive.watch(
            keepalive.register(name, deployment=name), reasons.append, liveness_check=prompt(Address("env"), "s1")
        )
        eventually(lambda name=name: pings[name] >= (2 if name == names[old] else 5))
    eventually(lambda: "no ping route" in caplog.text)
    before = pings[names[1 - old]]
    eventually(lambda: pings[names[1 - old]] >= before + 5)
    keepalive.close()
    assert pings[names[old]] == 2
    assert reasons == []
