"""A model's endpoint can neither hang nor flood its caller, and its key is in no error."""

import gzip
import random
from typing import Any

import anyio
import pytest
from hostile_server import HostileServer, answer, dripping

from ors_client import AsyncClient, RetryPolicy, TransportError
from ors_client._protocol.retry import backoff
from ors_client.evaluation import ChatModel, ModelError, Reply

KEY = "sk-secret123"

# Generators of httpx and httpcore, where an answer is left in the middle; trio alone complains.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")


def ask(url: str, backend: str, **options: Any) -> ModelError:
    """Ask once, and return what it raised."""

    async def main() -> ModelError:
        async with ChatModel("m", f"{url}/v1", **{"attempts": 1, **options}) as model:
            with anyio.fail_after(15), pytest.raises(ModelError) as caught:
                await model.ask({"messages": []})
        return caught.value

    return anyio.run(main, backend=backend)


@pytest.mark.parametrize("status", [200, 400])
def test_reply_that_drips_is_due_as_a_whole(backend: str, status: int) -> None:
    with HostileServer(completions=lambda _: dripping(status)) as server:
        assert ask(server.url, backend, timeout=0.5).status == (None if status == 200 else 400)


def test_packed_reply_is_refused_before_it_is_unpacked(backend: str) -> None:
    packed = b" " * 2**26
    for _ in range(3):
        packed = gzip.compress(packed)
    reply = answer(packed, headers="Content-Encoding: gzip, gzip, gzip\r\n")
    with HostileServer(completions=lambda _: [reply]) as server:
        assert "gzip, gzip, gzip" in str(ask(server.url, backend))


def test_reply_of_too_many_items_is_refused(backend: str) -> None:
    with HostileServer(completions=lambda _: [answer(b"[" + b"0," * 2**20 + b"0]")]) as server:
        assert "too many items" in str(ask(server.url, backend))


def test_wait_that_an_endpoint_asks_for_is_kept_and_one_without_end_is_none(backend: str) -> None:
    asked: list[object] = []

    def busy(request: object) -> list[bytes]:
        asked.append(request)
        return [answer({"error": "busy"}, status=429, headers="Retry-After: 3600\r\n")]

    with HostileServer(completions=busy) as server:
        error = ask(server.url, backend, attempts=5)
    assert len(asked) == 1
    assert "with a Retry-After of 3600 seconds" in error.message


def test_first_request_alone_holds_the_others_back(backend: str) -> None:
    """An endpoint that is busy at first is asked by all together from its first answer on."""

    def busy_and_then_silent(nth: int) -> list[bytes | float]:
        return [30.0] if nth else [answer({"error": "busy"}, status=503)]

    async def main(server: HostileServer) -> None:
        async with (
            ChatModel("m", f"{server.url}/v1", attempts=2, first_delay=0.01) as model,
            anyio.create_task_group() as group,
        ):
            for _ in range(3):
                group.start_soon(model.ask, {"messages": []})
            await server.wait_for("completions", 4)  # the first, its repetition, and the two others, none answered
            group.cancel_scope.cancel()

    with HostileServer(completions=busy_and_then_silent) as server:
        anyio.run(main, server, backend=backend)


@pytest.mark.parametrize("reason", [None, ["stop"], 3])
def test_end_of_a_reply_that_is_no_word_is_none(backend: str, reason: object) -> None:
    reply = {"choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": reason}]}

    async def main(url: str) -> Reply:
        async with ChatModel("m", f"{url}/v1") as model:
            return await model.ask({"messages": []})

    with HostileServer(completions=lambda _: [answer(reply)]) as server:
        assert anyio.run(main, server.url, backend=backend).finish_reason is None


@pytest.mark.parametrize("written", [KEY, f"{KEY} ", f"\t{KEY}\r\n"])
def test_blanks_around_a_key_are_no_part_of_it(backend: str, written: str) -> None:
    assert ChatModel("m", "http://a.test", api_key=written).secrets == [KEY]
    with HostileServer(completions=lambda _: [answer({"error": f"no {KEY} here"}, status=400)]) as server:
        assert KEY not in str(ask(server.url, backend, api_key=written))


@pytest.mark.parametrize("key", [f"sk {KEY}", f"sk\n{KEY}", f"{KEY}\x00x", f"{KEY}é"])
def test_key_that_no_header_can_carry_is_refused_unshown(key: str) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        ChatModel("m", "http://a.test", api_key=key)
    assert KEY not in str(caught.value)


def test_tls_to_a_plain_port_is_told_at_once(backend: str) -> None:
    async def main(url: str) -> TransportError:
        async with AsyncClient(url, retry=RetryPolicy(attempts=3, first_delay=0.01)) as client:
            with pytest.raises(TransportError) as caught:
                await client.list_environments()
        return caught.value

    with HostileServer(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        url = server.url.replace("http:", "https:")
        error = anyio.run(main, url, backend=backend)
        of_model = ask(url, backend)
    assert error.attempts == 1
    assert "use http://" in error.message
    assert "use http://" in of_model.message


def test_waits_between_attempts_leave_the_global_generator_alone() -> None:
    before = random.getstate()
    backoff(RetryPolicy(), 1)
    assert random.getstate() == before
