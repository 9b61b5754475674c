"""An ORS server that costs as little as Python allows, so that what is measured is the client.

It answers what clients ask on their way, at once, and what an environment would compute after a set delay. It holds one
environment with one tool, checks nothing, and knows of a session only when it was last kept alive. Like the official
servers it redirects a path without an environment's name to that of the first environment. Start it with
`python -m tests.benchmarks.light_server`; it prints `listening on` and its address.
"""

# ruff: noqa: T201 - its caller reads the address

import argparse
import asyncio
import gc
import json
import os
import re
import time
from typing import Any

ENVIRONMENT = "benchmark"
PING_SECONDS = 10.0  # the interval of all three clients
LATE_SECONDS = 2.0

_CHUNK = 4096  # characters in which official servers cut a result
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"
_SESSION = re.compile(rb"x-session-id: *([^\r]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TOOL = {
    "name": "echo",
    "description": "Say it again.",
    "input_schema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What to say."}},
        "required": ["text"],
    },
}


def _json(value: object) -> bytes:
    body = json.dumps(value).encode()
    return _JSON % (len(body), body)


def _chunk(text: str) -> bytes:
    body = text.encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


def _event(kind: str, data: str) -> bytes:
    return _chunk(f"event: {kind}\r\ndata: {data}\r\n\r\n")


def _result(text: str) -> bytes:
    output = {"blocks": [{"type": "text", "text": text, "detail": None}], "reward": 0.0, "finished": False}
    whole = json.dumps({"ok": True, "output": output | {"metadata": None}}, separators=(",", ":"))
    pieces = [whole[start : start + _CHUNK] for start in range(0, len(whole), _CHUNK)]
    return b"".join(_event("chunk", piece) for piece in pieces[:-1]) + _event("end", pieces[-1]) + _END


_STARTED = _STREAM + _event("task_id", "0123456789abcdef" * 2)
_PROMPT = _json([{"type": "text", "text": "Call the tool.", "detail": None}])
_MESSAGES = _json([{"role": "user", "blocks": [{"type": "text", "text": "Call the tool.", "detail": None}]}])
_TOOLS = _json({"tools": [_TOOL], "terminal_tool": None, "supports_score_group": False, "message_block_types": []})
_FOUND = {
    b"/list_environments": _json([ENVIRONMENT]),
    b"/messages": _MESSAGES,
    b"/version": _json({"version": "0.1.167", "build_sha": None}),
    b"/tools": _TOOLS,
    b"/task_tools": _TOOLS,
    b"/splits": _json([{"name": "train", "type": "train"}]),
    b"/create": _json({"sid": ""}),
    b"/delete": _json({"sid": ""}),
    b"/delete_session": _json({"sid": ""}),
    b"/ping": _json({"status": "ok"}),
}


_OF_AN_ENVIRONMENT = frozenset(
    {b"/call", b"/prompt", b"/tools", b"/task_tools", b"/splits", b"/tasks", b"/num_tasks", b"/task", b"/task_range"}
)
_REDIRECT = b"HTTP/1.1 308 Permanent Redirect\r\nlocation: /%s%s\r\ncontent-length: 0\r\n\r\n"


class Site:
    """What the server holds.

    Args:
        delay: Seconds until a call's result.
        setup: Seconds from a session's creation to its prompt.
        tasks: How many there are.
        result: Bytes of a result's text.
    """

    def __init__(self, *, delay: float, setup: float, tasks: int, result: int) -> None:
        self.delay = delay
        self.setup = setup
        self.result = _result("no match" if not result else ("0123456789abcde\n" * (result // 16 + 1))[:result])
        self._tasks = [
            {"id": f"task-{index}", "text": f"word {index % 97}", "level": index % 5} for index in range(tasks)
        ]
        self._all_tasks = _json({"tasks": self._tasks, "env_name": ENVIRONMENT})
        self.requests = 0
        self._created = 0
        self._alive: dict[bytes, float] = {}
        self._journal: list[tuple[float, str, str]] = []
        self.forget()

    def forget(self) -> None:
        """Start counting anew."""
        self._pings = self._late = 0
        self._longest = 0.0

    def find(self, endpoint: bytes, asked: dict[str, Any]) -> bytes:
        match endpoint:
            case b"/tasks":
                return self._all_tasks
            case b"/num_tasks":
                return _json({"num_tasks": len(self._tasks)})
            case b"/task":
                return _json({"task": self._tasks[asked["index"]], "env_name": ENVIRONMENT})
            case b"/task_range":
                return _json({"tasks": self._tasks[asked.get("start") : asked.get("stop")], "env_name": ENVIRONMENT})
        raise ValueError(f"{endpoint!r} is not served.")

    def create_session(self) -> bytes:
        self._created += 1
        # Of this process alone: several may share a port.
        session = f"{os.getpid():08x}{self._created:024x}"
        return _STREAM + _event("task_id", session) + _event("end", "") + _END

    def note(self, path: bytes, session: bytes) -> None:
        """Write down that a request of a session came."""
        self._journal.append((time.monotonic(), path[1:].decode(), session.decode()))

    def journal(self) -> bytes:
        """Tell what came since the last time."""
        told, self._journal = self._journal, []
        return _json(told)

    def create(self, session: bytes) -> None:
        self._alive[session] = time.monotonic()

    def setup_left(self, session: bytes) -> float:
        return self._alive.get(session, 0.0) + self.setup - time.monotonic() if self.setup else 0.0

    def ping(self, session: bytes) -> None:
        now = time.monotonic()
        self._note(now - self._alive.get(session, now))
        self._pings += 1
        self._alive[session] = now

    def delete(self, session: bytes) -> None:
        now = time.monotonic()
        self._note(now - self._alive.pop(session, now))

    def report(self) -> bytes:
        """Tell how long sessions went without a ping, and start anew."""
        told = {"open": len(self._alive), "pings": self._pings, "late": self._late, "longest": self._longest}
        self.forget()
        return _json(told | {"requests": self.requests, "cpu": time.process_time()})

    def _note(self, gap: float) -> None:
        self._longest = max(self._longest, gap)
        self._late += gap > PING_SECONDS + LATE_SECONDS


class Connection(asyncio.Protocol):
    """Reads requests, one after another, and answers each."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._received = b""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (split := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:split]
            length = _LENGTH.search(head)
            end = split + 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            body, self._received = self._received[split + 4 : end], self._received[end:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        site, write = self._site, self._write
        site.requests += 1
        path = head.split(b" ", 2)[1]
        last = path[path.rindex(b"/") :]
        if path == last and last in _OF_AN_ENVIRONMENT:
            write(_REDIRECT % (ENVIRONMENT.encode(), path))
            return
        match last:
            case b"/call":
                site.note(last, _session(head))
                write(_STARTED)
                self._loop.call_later(site.delay, write, site.result)
            case b"/create_session":
                write(site.create_session())
            case b"/prompt" if (wait := site.setup_left(_session(head))) > 0:
                self._loop.call_later(wait, write, _PROMPT)
            case b"/prompt":
                write(_PROMPT)
            case b"/create" | b"/ping" | b"/delete":
                getattr(site, last[1:].decode())(_session(head))
                site.note(last, _session(head))
                write(_FOUND[last])
            case b"/_journal":
                write(site.journal())
            case b"/_report":
                write(site.report())
            case _:
                write(_FOUND.get(last) or site.find(last, json.loads(body)))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _session(head: bytes) -> bytes:
    found = _SESSION.search(head)
    return found[1] if found else b""


async def serve(site: Site, shared: int | None) -> None:
    """Serve until the process is ended, also on a port that is shared with other processes."""
    loop = asyncio.get_running_loop()
    # A thousand clients may connect in one turn of the loop.
    server = await loop.create_server(lambda: Connection(site), "127.0.0.1", 0, backlog=4096)
    if shared is not None:
        await loop.create_server(lambda: Connection(site), "127.0.0.1", shared, backlog=4096, reuse_port=True)
    host, port = server.sockets[0].getsockname()
    gc.freeze()
    print(f"listening on http://{host}:{port}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--delay", type=float, default=0.05, help="seconds until a call's result (%(default)s)")
    parser.add_argument("--setup", type=float, default=0.0, help="seconds until a session's prompt (%(default)s)")
    parser.add_argument("--tasks", type=int, default=64, help="how many there are (%(default)s)")
    parser.add_argument("--result", type=int, default=0, help="bytes of a result's text")
    parser.add_argument("--shared", type=int, help="a port to serve on besides, with other processes")
    options = parser.parse_args()
    site = Site(delay=options.delay, setup=options.setup, tasks=options.tasks, result=options.result)
    asyncio.run(serve(site, options.shared))


if __name__ == "__main__":
    main()
