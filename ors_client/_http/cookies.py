"""The cookies of one session, which a balancer that pins by cookie sends it to its server by.

What the answers to a session's requests set goes with its later requests, and with those of no other session. Calls and
pings are sent from two threads. The rules of cookies are those of `http.cookiejar`, with two additions: a cookie
without a path is for the whole origin, as the balancer means it, and the port counts, so that two servers on one
machine are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from email.message import Message
from http.client import HTTPResponse
from http.cookiejar import CookieJar
from typing import cast
from urllib.request import Request

from .urls import origin_url

# Of one origin, as RFC 6265, 6.1, asks of a browser: what is beyond is not kept, as a server could fill the memory.
_COOKIES, _COOKIE_BYTES = 50, 4096


class SessionCookies:
    """What one session's answers have set, by origin. Safe from several threads."""

    __slots__ = ("_jars",)

    def __init__(self) -> None:
        self._jars: dict[str, CookieJar] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a cookie may be a credential

    def clear(self) -> None:
        """Forget all."""
        self._jars.clear()

    def header(self, url: str) -> str | None:
        """Return the value of `Cookie` for a request to `url`, or `None` where there is nothing to send."""
        if not self._jars:
            return None
        jar = self._jars.get(origin_url(url))
        if jar is None:
            return None
        request = Request(url)  # noqa: S310 - never opened; its URL is one that the client sends to
        jar.add_cookie_header(request)
        return request.get_header("Cookie")

    def store(self, url: str, lines: Sequence[str]) -> None:
        """Keep what an answer from `url` sets.

        Args:
            url: Where it came from.
            lines: The values of its `Set-Cookie` headers.
        """
        origin = origin_url(url)
        head = Message()
        for line in lines:
            if len(line) <= _COOKIE_BYTES and line.isascii() and line.isprintable():
                head["Set-Cookie"] = line
        jar = self._jars.setdefault(origin, CookieJar())
        request = Request(f"{origin}/")  # noqa: S310 - never opened
        for cookie in jar.make_cookies(cast("HTTPResponse", _Answer(head)), request):
            jar.set_cookie_if_ok(cookie, request)
            if len(jar) > _COOKIES:
                jar.clear(cookie.domain, cookie.path, cookie.name)


class _Answer:
    """An answer as `http.cookiejar` reads it."""

    def __init__(self, head: Message) -> None:
        self._head = head

    def info(self) -> Message:
        return self._head
