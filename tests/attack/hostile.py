"""A peer between a client and an honest server that answers one endpoint with whatever an attack says, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

REPEATABLE = (b" 429 ", b" 307 ", b" 308 ", b"x-backend-state: starting")


@dataclass(frozen=True)
class Step:
    """One thing that a hostile peer does.

    Args:
        kind: `send` all at once, `drip` a byte at a time, `pause`, or `reset` the connection.
        data: What is sent.
        seconds: How long a pause is, or between two bytes.
    """

    kind: Literal["send", "drip", "pause", "reset"]
    data: bytes = b""
    seconds: float = 0.0


@dataclass(frozen=True)
class Attack:
    """What one endpoint answers.

    Args:
        endpoint: The last segment of its path.
        steps: What is done instead of an answer; the connection ends after them.
        times: How many requests meet it, before the honest server answers again; `None` for all.
        forwarded: Whether the honest server acts on the request first.
        stays: Whether the connection stays open after the steps, as if there were a next answer.
        busy: Whether the client's event loop is busy meanwhile, with turns of 60 ms.
    """

    endpoint: str
    steps: tuple[Step, ...]
    times: int | None = None
    forwarded: bool = False
    stays: bool = False
    busy: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether the answer says that nothing ran, so that even a call may be sent again."""
        return any(mark in self._text for mark in REPEATABLE)

    @property
    def says_gone(self) -> bool:
        """Whether the answer may say that there is no such session."""
        return b" 410 " in self._text or b" 404 " in self._text

    @property
    def never_ends(self) -> bool:
        """Whether the peer answers on and on, or not at all, so that whoever waits for its end waits for ever."""
        return any(step.kind in {"drip", "pause"} and step.seconds * max(1, len(step.data)) > 30 for step in self.steps)

    @property
    def _text(self) -> bytes:
        return b"".join(step.data[:20_000] for step in self.steps).lower()


@dataclass
class Request:
    """A request that was read whole."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: bytes


@dataclass
class Hostile:
    """The peer's address, and what it saw.

    Attributes:
        met: How many requests met the attack.
        pings: How many pings came.
        calls: Calls that may have run: sent without a `task_id`, and not answered with "nothing ran".
        confirmed: Ids of sessions that the client was given, in time or too late.
        used: Ids that it sent with a request, which it thus has.
        deleted: Ids that it asked to delete.
    """

    url: str
    attack: Attack
    met: int = 0
    pings: int = 0
    calls: int = 0
    confirmed: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


@contextmanager
def hostile(upstream: str, attack: Attack, *, replacing: dict[bytes, bytes]) -> Iterator[Hostile]:
    """Serve for the length of a block, on a thread of its own.

    Args:
        upstream: The honest server's URL.
        attack: Whom it hits, and how.
        replacing: What is put in the place of marks in an attack's bytes, as the key.
    """
    ready: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, Hostile]] = []
    started = threading.Event()

    async def main() -> None:
        seen = Hostile("", attack)
        peer = _Peer(seen, upstream, replacing)
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, limit=2**24)
        seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stop = asyncio.Event()
        ready.append((asyncio.get_running_loop(), stop, seen))
        started.set()
        await stop.wait()
        server.close()
        for task in peer.tasks:
            task.cancel()
        await asyncio.gather(*peer.tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    started.wait()
    loop, stop, seen = ready[0]
    try:
        yield seen
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


class _Peer:
    def __init__(self, seen: Hostile, upstream: str, replacing: dict[bytes, bytes]) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._seen = seen
        self._upstream = urlsplit(upstream)
        self._replacing = replacing

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._answer(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection may bring another."""
        seen, attack = self._seen, self._seen.attack
        endpoint = request.path.partition("?")[0].rpartition("/")[2]
        hit = endpoint == attack.endpoint and (attack.times is None or seen.met < attack.times)
        seen.used.add(request.headers.get("x-session-id", ""))
        if endpoint in {"delete", "delete_session"}:
            seen.deleted.add(request.headers.get("x-session-id", ""))
        seen.pings += endpoint == "ping"
        if endpoint == "call" and b'"task_id"' not in request.body and not (hit and attack.may_repeat):
            seen.calls += 1
        if not hit:
            answer = await self._forward(request)
            if endpoint == "create_session":
                seen.confirmed |= {line[6:].strip().decode() for line in answer.split(b"\n") if line[:6] == b"data: "}
            writer.write(answer)
            await writer.drain()
            return False  # the honest answer says that the connection ends
        seen.met += 1
        if attack.forwarded:
            await self._forward(request)
        return await self._strike(writer) and attack.stays

    async def _strike(self, writer: asyncio.StreamWriter) -> bool:
        for step in self._seen.attack.steps:
            data = step.data
            for mark, value in self._replacing.items():
                data = data.replace(mark, value)
            match step.kind:
                case "send":
                    writer.write(data)
                    await writer.drain()
                case "drip":
                    for position in range(len(data)):
                        writer.write(data[position : position + 1])
                        await writer.drain()
                        await asyncio.sleep(step.seconds)
                case "pause":
                    await asyncio.sleep(step.seconds)
                case "reset":
                    writer.transport.abort()
                    return False
        return True

    async def _forward(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        with contextlib.closing(writer):
            head, _, body = request.raw.partition(b"\r\n\r\n")
            kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            writer.write(b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n" + body)
            return await reader.read(-1)


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ", 2)
    return Request(method, path, headers, head + body, body)
