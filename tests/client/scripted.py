"""A peer that answers from a script: for answers that no released server gives."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

Answer = httpx.Response | Callable[[httpx.Request], Awaitable[httpx.Response]]


def stream(*events: tuple[str, str]) -> httpx.Response:
    """Return an event stream."""
    body = "".join(f"event: {name}\r\ndata: {data}\r\n\r\n" for name, data in events)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=body)


def result(value: Any) -> httpx.Response:
    """Return the stream of a call that ends in a JSON value."""
    return stream(("task_id", "t1"), ("end", json.dumps(value)))


def said(text: str, **more: Any) -> httpx.Response:
    """Return the stream of a call that came back with a text."""
    return result({"ok": True, "output": {"blocks": [{"type": "text", "text": text}], **more}})


class Peer:
    """One environment named "env"; an answer may be replaced by path, its environment left out.

    Args:
        answers: By method and path, as `{"GET /tools": httpx.Response(404)}`.
    """

    def __init__(self, answers: dict[str, Answer] | None = None) -> None:
        self.requests: list[httpx.Request] = []
        self.transports: list[httpx.MockTransport] = []
        self._answers: dict[str, Answer] = {
            "GET /list_environments": httpx.Response(200, json=["env"]),
            "GET /tools": httpx.Response(200, json={"tools": [{"name": "go", "description": "Go."}]}),
            "GET /prompt": httpx.Response(200, json=[{"type": "text", "text": "Go."}]),
            "POST /create_session": httpx.Response(200, json={"sid": "s1"}),
            "POST /create": httpx.Response(200, json={"sid": "s1"}),
            "POST /call": said("gone"),
            "POST /ping": httpx.Response(200, json={"status": "ok"}),
            "POST /delete": httpx.Response(200, json={"sid": "s1"}),
            "POST /delete_session": httpx.Response(200, json={"sid": "s1"}),
            **(answers or {}),
        }

    def transport(self) -> httpx.AsyncBaseTransport:
        """Make a transport, as a client asks for; pings have one of their own."""
        self.transports.append(httpx.MockTransport(self._answer))
        return self.transports[-1]

    def paths(self) -> list[str]:
        """Return the requests so far, pings aside."""
        return [route for route in map(_route, self.requests) if route != "POST /ping"]

    def bodies(self, route: str) -> list[Any]:
        """Return the JSON that was sent to a place."""
        return [json.loads(request.content) for request in self.requests if _route(request) == route]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.get(_route(request), httpx.Response(404, json={"detail": "Not Found"}))
        if not isinstance(answer, httpx.Response):
            return await answer(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def _route(request: httpx.Request) -> str:
    return f"{request.method} /{request.url.path.rsplit('/', 1)[-1]}"
