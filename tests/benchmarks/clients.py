"""The clients that are measured, behind one face: open a session, call its tool, close it.

Each does what its users are told to do, and what the work needs. Every client lives in a process of its own, since the
official SDKs read their address from variables of the process.
"""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol

from .light_server import ENVIRONMENT

ARGUMENTS = {"text": "hello"}


class Client(Protocol):
    """What is measured of a client."""

    async def open(self) -> Any:
        """Return a session whose environment is set up."""

    async def call(self, session: Any) -> int:
        """Call the tool; return the length of its text."""

    async def close(self, session: Any) -> None:
        """Delete the session."""


class Ours:
    """`ors_client.AsyncClient`."""

    def __init__(self, environment: Any, task: Any) -> None:
        self._environment = environment
        self._task = task

    async def open(self) -> Any:
        session = await self._environment.session(self._task).__aenter__()
        await session.get_prompt()
        return session

    async def call(self, session: Any) -> int:
        return len((await session.call_tool("echo", ARGUMENTS)).text)

    async def close(self, session: Any) -> None:
        await session.aclose()


class Sdk:
    """The asynchronous client of `openreward` or of `ors-sdk`, which are alike."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    async def open(self) -> Any:
        session = await self._environment.session(split="train", index=0).__aenter__()
        await session.get_prompt()
        return session

    async def call(self, session: Any) -> int:
        return len((await session.call_tool("echo", ARGUMENTS)).blocks[0].text)

    async def close(self, session: Any) -> None:
        await session.__aexit__(None, None, None)


class Bare:
    """aiohttp alone, with the least that gets a result: the floor. It keeps no session alive."""

    def __init__(self, http: Any, url: str) -> None:
        self._http = http
        self._url = url

    async def open(self) -> Any:
        text = await self._post("/create_session", {}, "")
        session = text.partition("data: ")[2].partition("\r\n")[0]
        await self._post("/create", {"env_name": ENVIRONMENT, "split": "train", "index": 0}, session)
        async with self._http.get(f"{self._url}/{ENVIRONMENT}/prompt", headers={"X-Session-ID": session}) as answer:
            await answer.json()
        return session

    async def call(self, session: Any) -> int:
        text = await self._post(f"/{ENVIRONMENT}/call", {"name": "echo", "input": ARGUMENTS}, session)
        pieces = [line[6:] for line in text.split("\r\n") if line.startswith("data: ")]
        return len(json.loads("".join(pieces[1:]))["output"]["blocks"][0]["text"])

    async def close(self, session: Any) -> None:
        await self._post("/delete", {}, session)

    async def _post(self, path: str, body: object, session: str) -> str:
        async with self._http.post(self._url + path, json=body, headers={"X-Session-ID": session}) as answer:
            return await answer.text()


@asynccontextmanager
async def _ours(url: str) -> AsyncIterator[Client]:
    import ors_client

    async with ors_client.AsyncClient(url) as client:
        yield Ours(client.environment(ENVIRONMENT), ors_client.TaskRef("train", 0))


@asynccontextmanager
async def _openreward(url: str, variant: str | None = None) -> AsyncIterator[Client]:
    os.environ |= {"OPENREWARD_API_URL": url, "OPENREWARD_SESSION_URL": url}
    import openreward

    client = openreward.AsyncOpenReward(api_key="not-a-key")
    try:
        yield Sdk(client.environments.get(ENVIRONMENT, variant=variant))
    finally:
        await client.environments.aclose()


@asynccontextmanager
async def _ors_sdk(url: str) -> AsyncIterator[Client]:
    import ors.client

    client = ors.client.AsyncORS(base_url=url)
    environment = client.environments.get(ENVIRONMENT)
    try:
        yield Sdk(environment)
    finally:
        await environment.client.close()


@asynccontextmanager
async def _aiohttp(url: str) -> AsyncIterator[Client]:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        yield Bare(http, url)


CLIENTS: dict[str, Callable[[str], AbstractAsyncContextManager[Client]]] = {
    "ours": _ours,
    "openreward": _openreward,
    # Told the environment's name a second time, it asks by the full path and is not redirected.
    "openreward variant": partial(_openreward, variant=ENVIRONMENT),
    "ors-sdk": _ors_sdk,
    "aiohttp": _aiohttp,
}
