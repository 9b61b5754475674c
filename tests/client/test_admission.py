"""Many requests that are asked for at once begin a few in each turn of the event loop."""

import asyncio

import anyio
import httpx

from ors_client import AsyncClient, DeadlineExceeded, RetryPolicy, Timeouts
from ors_client._http.admission import Admission
from ors_client._http.deadline import Loop

_MOST = 32


class Answering(httpx.AsyncBaseTransport):
    """Answers a number of tasks in the third turn of the loop, and counts what is under way."""

    def __init__(self) -> None:
        self.under_way = self.most = self.answered = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self.answer(request.url.path)
        finally:
            self.under_way -= 1

    async def answer(self, path: str) -> httpx.Response:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.answered += 1
        return httpx.Response(200, json=["echo"] if path.endswith("list_environments") else {"num_tasks": 7})


async def ask(answering: Answering, requests: int, *, timeouts: Timeouts) -> list[int | BaseException]:
    once = RetryPolicy(attempts=1)
    async with AsyncClient("http://x.test", transport=lambda: answering, timeout=timeouts, retry=once) as client:
        environment = client.environment("echo")
        await environment.num_tasks("train")  # the environment is found
        answering.most = 0
        asked = (environment.num_tasks("train") for _ in range(requests))
        return await asyncio.gather(*asked, return_exceptions=True)


def test_a_thousand_requests_at_once_are_under_way_a_few_at_a_time():
    answering = Answering()
    assert asyncio.run(ask(answering, 1_000, timeouts=Timeouts())) == [7] * 1_000
    assert _MOST <= answering.most <= 5 * _MOST


def test_requests_that_are_not_answered_hold_up_no_other():
    class Silent(Answering):
        async def answer(self, path: str) -> httpx.Response:
            if self.answered >= 2:
                await anyio.sleep_forever()
            return await super().answer(path)

    answering = Silent()
    found = asyncio.run(ask(answering, 200, timeouts=Timeouts(response=0.5)))
    assert answering.most == 200
    assert {type(error) for error in found} == {DeadlineExceeded}


async def _begin(admission: Admission, number: int, begun: list[int]) -> None:
    await admission.wait()
    begun.append(number)


def test_requests_begin_in_the_order_in_which_they_were_asked_for():
    async def run() -> list[int]:
        begun: list[int] = []
        admission = Admission(Loop.running())
        await asyncio.gather(*(_begin(admission, number, begun) for number in range(500)))
        await _begin(admission, 500, begun)
        return begun

    assert asyncio.run(run()) == list(range(501))


def test_request_that_was_cancelled_while_it_waited_takes_nobodys_place():
    async def run() -> tuple[list[int], int]:
        begun: list[int] = []
        admission = Admission(Loop.running())
        tasks = [asyncio.create_task(_begin(admission, number, begun)) for number in range(10 * _MOST)]
        await asyncio.sleep(0)  # the first have begun, and the others wait
        for task in tasks[_MOST : 9 * _MOST]:
            task.cancel()
        turns = 0
        while len(begun) < 2 * _MOST:
            turns += 1
            await asyncio.sleep(0)
        return begun, turns

    begun, turns = asyncio.run(run())
    assert begun == [*range(_MOST), *range(9 * _MOST, 10 * _MOST)]
    assert turns <= 3
