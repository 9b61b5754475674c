"""A server that repeats the client's key, in every field and spelling that it can, makes nobody show it."""

import base64
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote

import anyio
import anyio.lowlevel
import pytest
from hostile_server import HostileServer, answer, stream

from ors_client import (
    AsyncClient,
    KeepalivePolicy,
    Layout,
    Limits,
    ORSError,
    RetryPolicy,
    TaskRef,
    Timeouts,
)
from ors_client._http.redaction import Redactor, get_logger
from ors_client.evaluation import ChatModel, ModelError
from ors_client.formats import OpenAIChat

KEY = 'sk-Te"st/+%77\\x-4321'
SECRET = "Hunter2/+secret"
MODEL_KEY = "sk-Test/+%77x-4321"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "percent": lambda value: quote(value, safe=""),
    "json": lambda value: json.dumps(value)[1:-1],
    "base64": lambda value: base64.b64encode(f"{value}".encode()).decode(),
}
SOON = RetryPolicy(attempts=2, first_delay=0.01)
BRIEF = Timeouts(connect=2.0, response=2.0, silence=2.0, start_up=0.05, call=5.0, close=0.1)
PINGS = KeepalivePolicy(interval=0.1, tolerance=0.3)


# httpx and httpcore leave generators to the garbage collector, where an answer is left in the middle.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Every record of our loggers."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("ors_client", "trl_bridge")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield records
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def shows(text: str) -> bool:
    """Tell whether a text has a third of the key or of the secret in it, in any spelling and case."""
    return any(
        spell(value)[start : start + 10].lower() in text.lower()
        for value in (KEY, SECRET, MODEL_KEY)
        for spell in SPELLINGS.values()
        for start in range(len(spell(value)) - 10)
    )


def told(error: BaseException) -> list[str]:
    """Return everything that a person may see of an error."""
    cause = error.__cause__
    facts = [str(error), repr(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
    return facts if cause is None else facts + told(cause)


def echoes(word: str) -> dict[str, list[bytes]]:
    """Return what each endpoint may answer to show `word`, as text, name, id, type, event, and within long texts."""
    failures = [
        *(answer({"detail": word}, status=status) for status in (400, 401, 402, 403, 404, 410, 422, 429, 500, 503)),
        answer({"detail": "x" * 190 + word}, status=400),
        answer({"detail": [{"loc": ["body", word], "msg": word, "input": word}]}, status=422),
        answer({"error": {"message": word}}, status=418),
        answer(f"<!doctype html>{word}".encode(), status=500, kind="text/html"),
        answer({"detail": f"Active environment not found {word}"}, status=404),
        answer({}, status=307, headers=f"Location: http://elsewhere.test/{quote(word)}\r\n"),
        answer({}, status=307, headers=f"Location: /{word}\r\n"),
        answer({}, status=308, headers=f"Location: https://{quote(word)}@elsewhere.test/\r\n"),
    ]
    odd = [
        answer(b"[]", kind=f"application/{word}"),
        answer(b"[]", kind=word.lower()),
        answer(b"[]", kind=word.upper()),
        answer(b"[]", headers=f"Content-Encoding: {word}\r\n"),
        answer(b"[]", headers=f"Content-Encoding: {'x' * 30}{word}\r\n"),
        answer(word.encode()),
        answer(word),
        answer({word: word}),
        answer([word]),
        answer(b"\xff" + word.encode()),
        f"HTTP/1.1 200 {word}\r\n{word}\r\n\r\n".encode(),
        f"{word}\r\n\r\n".encode(),
        f"HTTP/1.1 {word} X\r\n\r\n".encode(),
        answer(b"", headers=f"Transfer-Encoding: chunked\r\n\r\n{word}"),
    ]
    calls = [
        stream(("error", word)),
        stream(("error", "x" * 190 + word)),
        stream(("task_id", word)),
        stream(("task_id", "1"), ("end", word)),
        stream(("task_id", word), ("task_id", f"{word}1")),
        stream((word, word)),
        stream(("end", json.dumps({"ok": False, "error": word, "reason": word}))),
        stream(("end", json.dumps({"ok": False, "error": "x" * 190 + word}))),
        stream(("end", json.dumps({"ok": True, "output": word}))),
        stream(("task_id", "1"), ("error", "unknown task_id")),
    ]
    names = [answer([word]), answer([word, f"{word}2"]), answer([f"{'x' * 995}{word}", "a"])]
    tools = [answer({"tools": [{"name": word, "description": word}] * 2, "terminal_tool": {"name": word}})]
    created = [answer({"sid": word}), answer({"sid": f"{word}\n"}), stream(("task_id", word), ("end", ""))]
    return {
        "list_environments": [*names, *failures, *odd],
        "splits": [answer([{"name": word, "type": word}]), *failures],
        "num_tasks": [answer({"num_tasks": word}), answer({"num_tasks": 10**9}), *odd],
        "task_range": failures,
        "tasks": [answer({"detail": word}, status=400)],
        "tools": [*tools, *odd],
        "create_session": [*created, *failures, *odd],
        "create": [*failures, *odd],
        "prompt": [answer([{"type": word, "text": word}]), *failures],
        "task_tools": [*tools, *odd],
        "call": [*calls, *failures, *odd],
        "ping": failures,
        "delete": [*odd, *failures],
    }


# What is asked one after the other, whatever the answers: such endpoints can be attacked together.
TOGETHER = (
    ("list_environments",),
    ("splits", "num_tasks", "task_range", "tasks", "tools"),
    ("create_session",),
    ("create", "delete"),
    ("prompt", "task_tools"),
    ("call", "ping"),
)


def attacks(spell: Callable[[str], str]) -> Iterator[dict[str, bytes]]:
    """Yield what the endpoints answer in one use of a client; a server knows a secret once a session has sent it."""
    key, secret = echoes(spell(KEY)), echoes(spell(SECRET))
    for endpoints in TOGETHER:
        for number in range(max(len(key[endpoint]) for endpoint in endpoints)):
            words = secret if number % 2 and "create" in endpoints[0] + endpoints[-1] else key
            yield {endpoint: words[endpoint][number % len(words[endpoint])] for endpoint in endpoints}


async def use(client: AsyncClient, shown: list[str], *, secrets: dict[str, str] | None) -> None:
    """Do what a program does with a server, and note all that it may see."""

    async def ask(question: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await question()
        except (ORSError, ValueError) as error:
            shown.extend(told(error))
            return None

    names = await ask(client.list_environments)
    environment = client.environment(names[0] if names and len(names) == 1 else "missing")
    shown.append(repr(environment))
    for question in (
        environment.name,
        environment.list_splits,
        lambda: environment.num_tasks("train"),
        lambda: environment.list_tasks("train", 0, 2),
        environment.list_tools,
    ):
        await ask(question)
    session = environment.session(TaskRef("train", 0), secrets=secrets)
    if await ask(session.__aenter__) is None:
        shown.append(repr(session))
        return
    shown.append(repr(session))
    await ask(session.get_prompt)
    tools = await ask(session.list_tools) or []
    OpenAIChat(tools)
    await ask(lambda: session.call_terminal_tool("done"))
    for name in ("go", *(tool.name for tool in tools)):
        await ask(lambda name=name: session.call_tool(name, {}))
        await ask(lambda name=name: session.call_tool(name, {}, timeout=0))
    await anyio.lowlevel.checkpoint()
    session._lost = session._lost or "it is gone"  # as after a ping
    await ask(session.get_prompt)
    await ask(session.aclose)
    session._lost = None
    await ask(session.get_prompt)
    shown.append(repr(session))


def every_fourth(first: int) -> Iterator[dict[str, bytes]]:
    """Yield every fourth attack, in each spelling in turn."""
    for number, each in enumerate(zip(*map(attacks, SPELLINGS.values()), strict=True)):
        if number % 4 == first:
            yield each[(number // 4 + first) % len(each)]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_key_that_a_model_s_endpoint_echoes_is_shown_nowhere(backend: str, spelling: str, logged) -> None:
    shown: list[str] = []

    async def main(url: str) -> None:
        async with ChatModel("m", f"{url}/v1", api_key=MODEL_KEY, attempts=2, first_delay=0.01) as model:
            shown.append(repr(model))
            with pytest.raises(ModelError) as caught:
                await model.ask({"messages": []})
        shown.extend(told(caught.value))

    for reply in echoes(SPELLINGS[spelling](MODEL_KEY))["call"]:
        with HostileServer(completions=lambda _, reply=reply: [reply, None]) as server:
            anyio.run(main, server.url, backend=backend)
    shown += [record.getMessage() for record in logged]
    found = [text for text in dict.fromkeys(shown) if shows(text)]
    assert found == []


# What hides them knows no event loop: trio, whose transport words its errors otherwise, takes a fourth of the cases.
@pytest.mark.parametrize(
    ("backend", "part"),
    [
        ("asyncio", 0),
        ("trio", 0),
        *(pytest.param("asyncio", part, marks=pytest.mark.slow) for part in (1, 2, 3)),
    ],
)
def test_key_that_a_server_echoes_is_shown_nowhere(backend: str, part: int, logged) -> None:
    shown: list[str] = []

    async def main(url: str | Layout) -> None:
        client = AsyncClient(url, api_key=KEY, retry=SOON, timeout=BRIEF, keepalive=PINGS, limits=Limits(tasks=100))
        async with client:
            await use(client, shown, secrets={"token": SECRET})
        shown.append(repr(client))

    for number, replies in enumerate(every_fourth(part)):
        scripts = {name: lambda _, reply=reply: [reply, None] for name, reply in replies.items()}
        with HostileServer(**scripts) as server:
            url = Layout(api=server.url, sessions=server.url) if number % 5 == 4 else server.url
            anyio.run(main, url, backend=backend)
    shown += [record.getMessage() for record in logged]
    assert len(shown) > 500
    found = [text for text in dict.fromkeys(shown) if shows(text)]
    assert found == []


def test_logger_hides_what_any_client_hides(logged) -> None:
    hidden, logger = Redactor([KEY]), get_logger("trl_bridge.anything")
    logger.warning("The server lists the tool %r twice.", KEY)
    logger.warning("The server lists the tool %r twice.", "go")
    assert [record.getMessage() for record in logged] == [
        f"The server lists the tool {name!r} twice." for name in ("***", "go")
    ]
    del hidden
