"""The queue of rollouts' events and its thread, against a scripted peer."""

import asyncio
import json

import httpx
import pytest
from scripted import Peer

from ors_client import Limits, RetryPolicy, Timeouts
from ors_client._http.transport import Transport
from ors_client._http.urls import resolve
from ors_client._rollouts.uploader import Event, Uploader


def uploader_to(peer, *, close=5.0, **bounds):
    def make():
        return Transport(
            resolve("http://peer.test", {}),
            api_key=None,
            timeouts=Timeouts(),
            retry=RetryPolicy(attempts=1),
            limits=Limits(),
            make=peer.transport,
        )

    return Uploader(make, close=close, **bounds)


def beginning(name):
    return Event("rollout", name, json.dumps({"eventId": name}).encode(), ("owner/env", None))


def test_upload_that_fails_in_a_way_that_nobody_foresaw_is_counted_and_the_next_is_made(caplog):
    async def take(request):
        if b'"first"' in request.content:
            raise KeyError("surprise")
        return httpx.Response(200, json={})

    uploader = uploader_to(Peer({"POST /rollouts": take}))
    for name in ("first", "second"):
        uploader.put(beginning(name))
        assert uploader.flush(10)
    uploader.close()
    assert (uploader.failed, uploader.uploaded) == (1, 1)
    assert "KeyError('surprise')" in caplog.text


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (httpx.Response(503), 2),
        (httpx.Response(404, json={"detail": "Not Found"}), 1),
        (httpx.Response(200, json={"id": "e1"}), 1),
    ],
)
def test_ids_that_could_not_be_had_are_asked_for_again_and_a_refusal_is_believed(answer, asked):
    peer = Peer({"GET /env": answer, "POST /rollouts": httpx.Response(200, json={})})
    uploader = uploader_to(peer)
    for name in ("first", "second"):
        uploader.put(beginning(name))
        assert uploader.flush(10)
    uploader.close()
    assert peer.paths().count("GET /env") == asked
    assert uploader.uploaded == 2


def test_rollouts_without_a_beginning_whose_last_event_was_dropped_do_not_pile_up():
    uploader = uploader_to(
        Peer({"GET /env": httpx.Response(404), "POST /rollouts": httpx.Response(400)}),
        queue_bytes=1000,
        most_unknown=10,
    )
    for number in range(30):
        name = str(number)
        uploader.put(beginning(name))
        uploader.put(Event("rollout_update", name, b" " * 1001, ("owner/env", None), ends=True))
        if number % 10 == 9:
            assert uploader.flush(10)
    uploader.close()
    assert (uploader.failed, uploader.dropped) == (30, 30)
    assert set(uploader._unknown) == {str(number) for number in range(20, 30)}


def test_beginnings_that_found_no_room_do_not_pile_up_without_an_end():
    uploader = uploader_to(Peer({}), queue_events=0, most_unknown=10)
    for number in range(30):
        uploader.put(beginning(str(number)))
    assert list(uploader._unknown) == [str(number) for number in range(20, 30)]


def message(name, number):
    body = {"eventType": "message", "rolloutEventId": name, "index": number}
    return Event("message", name, json.dumps(body).encode(), (None, None))


class Host:
    """An API host that answers no upload before as many are on their way as the test waits for.

    Args:
        together: How many.
        seconds: What each upload takes besides.
    """

    def __init__(self, *, together=1, seconds=0.0):
        self.requests = []
        self.most = 0
        self._seconds = seconds
        self._together = together
        self._open = 0
        self._enough = asyncio.Event()

    async def take(self, request):
        self.requests.append(json.loads(request.content)["events"])
        self._open += 1
        self.most = max(self.most, self._open)
        if self._open >= self._together:
            self._enough.set()
        await asyncio.wait_for(self._enough.wait(), 20)
        await asyncio.sleep(self._seconds)
        self._open -= 1
        return httpx.Response(200, json={})

    @property
    def peer(self):
        return Peer({"POST /rollouts": self.take})


def test_beginnings_of_many_rollouts_are_on_their_way_together_within_a_bound():
    host = Host(together=64)
    uploader = uploader_to(host.peer, close=30.0)
    for number in range(150):
        uploader.put(Event("rollout", f"r{number}", b'{"eventType":"rollout"}', (None, None)))
    uploader.close()
    assert (uploader.uploaded, uploader.failed, host.most) == (150, 0, 64)


def test_batches_of_different_rollouts_are_on_their_way_together_within_a_bound():
    host = Host(seconds=0.2)
    uploader = uploader_to(host.peer, close=30.0)
    for number in range(100):
        for name in range(20):
            uploader.put(message(f"r{name}", number))
    uploader.close()
    assert (uploader.uploaded, uploader.failed) == (2000, 0)
    assert 4 < host.most <= 16


def test_events_of_one_rollout_arrive_in_their_order_one_request_after_another():
    host = Host(seconds=0.01)
    uploader = uploader_to(host.peer, close=30.0)
    for number in range(400):
        for name in ("long", "short"):
            if name == "long" or number < 50:
                uploader.put(message(name, number))
    uploader.close()
    assert uploader.uploaded == 450
    for name, count in (("long", 400), ("short", 50)):
        told = [event["index"] for events in host.requests for event in events if event["rolloutEventId"] == name]
        assert told == list(range(count))
    assert max(map(len, host.requests)) <= 128


def test_few_events_of_many_rollouts_are_one_batch():
    host = Host()
    uploader = uploader_to(host.peer)
    for number in range(100):
        uploader.put(message(f"r{number}", 0))
    uploader.close()
    assert [len(events) for events in host.requests] == [100]


def test_closing_goes_on_while_events_arrive_and_says_so(caplog):
    host = Host(seconds=0.7)  # for each of four requests of one rollout, one after another
    uploader = uploader_to(host.peer, close=2.0)
    for number in range(4 * 128):
        uploader.put(message("r", number))
    uploader.close()
    assert (uploader.uploaded, uploader.failed) == (4 * 128, 0)
    [record] = caplog.records
    assert "still to be uploaded" in record.getMessage()


def test_closing_at_exit_keeps_to_its_limit_and_counts_each_event_once(caplog):
    host = Host(seconds=0.3)
    uploader = uploader_to(host.peer)
    for number in range(100 * 128):
        uploader.put(message("r", number))
    uploader.close(within=0.5)
    assert uploader.uploaded + uploader.failed == 100 * 128
    assert uploader.failed > 90 * 128
    assert f"{uploader.failed} events" in caplog.text


def ending(name):
    return Event("rollout_update", name, json.dumps({"eventId": name}).encode(), (None, None), ends=True)


def test_rollout_that_never_began_is_forgotten_with_its_last_event():
    peer = Peer({"POST /rollouts": httpx.Response(503)})
    uploader = uploader_to(peer)
    for name in ("a", "b", "c"):
        uploader.put(beginning(name))
        if name == "b":  # the others end when their beginning has failed
            uploader.put(message(name, 0))
            uploader.put(ending(name))
        assert uploader.flush(30)
        if name != "b":
            uploader.put(message(name, 0))
            uploader.put(ending(name))
    uploader.close()
    assert uploader._unknown == {}
    assert peer.paths().count("POST /rollouts") == 3  # of the beginnings alone
    assert (uploader.uploaded, uploader.failed + uploader.dropped) == (0, 9)


def test_rollout_whose_beginning_found_no_room_is_forgotten_with_its_last_event():
    uploader = Uploader(uploader_to(Peer())._make_transport, close=5.0, queue_events=0)
    uploader.put(beginning("a"))
    uploader.put(message("a", 0))
    assert uploader._unknown == {"a": None}
    uploader.put(ending("a"))
    assert uploader._unknown == {}
    uploader.close()
    assert uploader.dropped == 3


def test_last_event_of_a_rollout_that_never_began_goes_after_what_waits():
    uploader = uploader_to(Peer({"POST /rollouts": httpx.Response(200, json={})}))
    uploader.put(beginning("a"))
    uploader._unknown["b"] = None
    uploader.put(message("b", 0))
    uploader.put(ending("b"))
    assert "b" in uploader._unknown
    uploader.close()
    assert uploader._unknown == {}
