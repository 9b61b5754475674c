"""A server of plain sockets that answers byte by byte what a test says: for answers that no HTTP server would send."""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import anyio.to_thread

Step = bytes | float | None
"""Bytes to send, seconds to pause, or the end of the connection."""
Script = Callable[[int], Iterable[Step]]
"""What one endpoint does for its first request (0), its second (1), and so on."""


def answer(value: object, *, status: int = 200, headers: str = "", kind: str = "application/json") -> bytes:
    """Return an honest answer; bytes are a body as they are, anything else becomes JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream(*events: tuple[str, str]) -> bytes:
    """Return an event stream."""
    body = "".join(f"event: {name}\r\ndata: {data}\r\n\r\n" for name, data in events).encode()
    return answer(body, kind="text/event-stream")


def result(text: str) -> bytes:
    """Return the stream of a call that came back with a text."""
    output = {"ok": True, "output": {"blocks": [{"type": "text", "text": text}], "reward": None, "finished": False}}
    return stream(("task_id", "t1"), ("end", json.dumps(output)))


def dripping(status: int = 200, *, every: float = 0.1) -> Iterator[Step]:
    """Send an answer's head at once, and its body byte by byte for ever."""
    yield f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n".encode()
    while True:
        yield b" "
        yield every


HONEST: dict[str, Step] = {
    "list_environments": answer(["env"]),
    "version": answer({"version": "0.1.167"}),
    "tools": answer({"tools": [{"name": "go", "description": "Go."}]}),
    "task_tools": answer({"tools": [{"name": "go", "description": "Go."}]}),
    "prompt": answer([{"type": "text", "text": "Go."}]),
    "create_session": answer({"sid": "s1"}),
    "create": answer({"sid": "s1"}),
    "call": result("gone"),
    "ping": answer({"status": "ok"}),
    "delete": answer({"sid": "s1"}),
    "delete_session": answer({"sid": "s1"}),
}

_MISSING = answer({"detail": "Not Found"}, status=404)


class HostileServer:
    """One environment named "env", on a thread.

    Args:
        greeting: Sent on each connection before anything was asked.
        tls: Speak TLS, with this.
        scripts: By the last segment of the path; the other endpoints are honest.
    """

    def __init__(self, *, greeting: bytes = b"", tls: ssl.SSLContext | None = None, **scripts: Script) -> None:
        self._greeting = greeting
        self._tls = tls
        self.requests: list[str] = []
        self.connections = 0
        self._scripts = scripts
        self._asked = threading.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls))
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def count(self, name: str) -> int:
        """Return how many requests an endpoint had."""
        return self.requests.count(name)

    async def wait_for(self, name: str, count: int = 1) -> None:
        """Wait until an endpoint had so many requests."""

        def wait() -> bool:
            with self._asked:
                return self._asked.wait_for(lambda: self.count(name) >= count, 15.0)

        if not await anyio.to_thread.run_sync(wait):
            raise TimeoutError(f"{name} had {self.count(name)} requests, not {count}.")

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        writer.write(self._greeting)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass
        writer.close()
        self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
        await reader.readexactly(length)
        name = head.split(b" ")[1].decode().rpartition("/")[2]
        nth = self.count(name)
        with self._asked:
            self.requests.append(name)
            self._asked.notify_all()
        steps = self._scripts[name](nth) if name in self._scripts else [HONEST.get(name, _MISSING)]
        for step in steps:
            if step is None:
                return False
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            else:
                await asyncio.sleep(step)
        return True
