"""The queue of rollouts' events and its thread, against a scripted peer."""

import json

import httpx
import pytest
from scripted import Peer

from ors_client import Limits, RetryPolicy, Timeouts
from ors_client._layout import resolve
from ors_client._transport import Transport
from ors_client._uploader import Event, Uploader


def uploader_to(peer):
    def make():
        return Transport(
            resolve("http://peer.test", {}),
            api_key=None,
            timeouts=Timeouts(),
            retry=RetryPolicy(attempts=1),
            limits=Limits(),
            make=peer.transport,
        )

    return Uploader(make, close=5.0)


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
