"""An answer that nobody asked for is nobody's answer: its connection is not used again."""

import anyio
import pytest
from hostile_server import HONEST, HostileServer, answer, result

from ors_client import AsyncClient, KeepalivePolicy, TaskRef
from ors_client.evaluation import ChatModel

NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)


PARTS = pytest.mark.parametrize(
    ("pause", "part"),
    [(0.0, None), (0.1, None), (0.0, 20), (0.1, 20), (0.1, -5)],
    ids=["at_once", "while_idle", "half_at_once", "half_while_idle", "nearly_all_while_idle"],
)


@PARTS
def test_second_answer_to_a_plain_request_is_not_taken_for_the_next_one(
    backend: str, pause: float, part: int | None
) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url, keepalive=NO_PINGS) as client:
            assert await client.list_environments() == ["env"]
            await anyio.sleep(2 * pause)  # the surplus comes meanwhile
            tools = await client.environment("env").list_tools()
            assert [tool.name for tool in tools] == ["go"]

    wrong = answer({"tools": [{"name": "wrong", "description": ""}]})[:part]
    first = HONEST["list_environments"]
    assert isinstance(first, bytes)
    steps = [first, pause, wrong] if pause else [first + wrong]
    with HostileServer(list_environments=lambda _: steps) as server:
        anyio.run(main, server.url, backend=backend)


@PARTS
def test_second_answer_to_a_call_is_not_taken_for_the_next_one(backend, pause, part) -> None:
    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment("env").session(TaskRef("train", 0)) as session,
        ):
            await session.get_prompt()
            assert (await session.call_tool("go")).text == "0"
            await anyio.sleep(2 * pause)
            assert (await session.call_tool("go")).text == "1"

    def call(nth: int):
        right, wrong = result(str(nth)), result("wrong")[:part]
        return [right, pause, wrong] if pause else [right + wrong]

    with HostileServer(call=call) as server:
        anyio.run(main, server.url, backend=backend)


@PARTS
def test_second_reply_of_a_model_is_not_taken_for_the_next_conversation_s(
    backend: str, pause: float, part: int | None
) -> None:
    def reply(text: str) -> bytes:
        return answer({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})

    def steps(nth: int) -> list[bytes | float | None]:
        surplus = reply("wrong")[:part]
        return [reply(f"reply {nth}"), pause, surplus] if pause else [reply(f"reply {nth}") + surplus]

    async def main(url: str) -> None:
        async with ChatModel("m", f"{url}/v1", attempts=1) as model:
            for number in range(3):
                assert (await model.ask({"messages": []})).message["content"] == f"reply {number}"
                await anyio.sleep(2 * pause)

    with HostileServer(completions=steps) as server:
        anyio.run(main, server.url, backend=backend)
