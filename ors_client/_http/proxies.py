"""Which proxy the environment's variables name for a URL, as curl, Go and requests read them.

Knows `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` in both cases (on Windows and macOS also the system's
settings, where no variable is set). A variable's value may hold a password, so no error shows it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import re
import ssl
import urllib.request
from typing import Literal

import httpx

from ors_client._errors import ClientStateError

from .backends import IDLE_SECONDS

_PORTS = {"http": 80, "https": 443}
_SCHEMES = frozenset({"http", "https", "socks5", "socks5h"})


def proxy_for(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy on the way to `url`, or `None` where the way is direct.

    Raises:
        ClientStateError: The variable names none that can be used.
    """
    proxies = urllib.request.getproxies()  # which ignores HTTP_PROXY under CGI, where a request's header sets it
    kind = next((kind for kind in (url.scheme, "all") if proxies.get(kind)), None)
    if kind is None or _is_exempt(url, proxies.get("no", "")):
        return None
    value = proxies[kind].strip()  # other programs allow it without a scheme
    return _parse(value if "://" in value else f"http://{value}", _variable(kind, proxies[kind]))


def transport_for(url: httpx.URL) -> httpx.AsyncHTTPTransport:
    """Return an httpx transport for one origin: by way of its proxy, and without a limit on connections.

    Raises:
        ClientStateError: A variable names no proxy that can be used.
    """
    return httpx.AsyncHTTPTransport(
        verify=tls_for(url),
        proxy=proxy_for(url),
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS),
    )


def tls_for(url: httpx.URL) -> ssl.SSLContext | Literal[False]:
    """Return how a connection to `url` is secured: with the certificates that the environment's variables name."""
    # Reading the certificates of a whole web for a plain connection would cost 20 ms.
    return httpx.create_ssl_context() if url.scheme == "https" else False


def _parse(value: str, variable: str) -> httpx.Proxy:
    scheme, _, rest = value.partition("://")
    # An unescaped "/", "?" or "#" in a password ends the host too early, and the real host comes after it.
    problem = "is no URL of a proxy; in a password write / as %2F, @ as %40, ? as %3F and # as %23."
    if scheme.lower() not in _SCHEMES:
        problem = "names no proxy of a known kind: http://, https://, socks5:// or socks5h://."
    elif scheme.lower().startswith("socks") and importlib.util.find_spec("socksio") is None:
        problem = "names a SOCKS proxy, which needs a package: pip install 'httpx[socks]'."
    elif "@" not in "".join(re.split(r"[/?#]", rest, maxsplit=1)[1:]):
        with contextlib.suppress(httpx.InvalidURL):
            proxy = httpx.Proxy(value)
            if proxy.url.host:
                return proxy
    raise ClientStateError(f"{variable} {problem} A host that is listed in NO_PROXY is reached without a proxy.")


def _variable(kind: str, value: str) -> str:
    name = f"{kind}_proxy"
    found = (given for given in os.environ if given.lower() == name and os.environ[given] == value)
    return next(found, f"The system's setting for {kind}")


def _is_exempt(url: httpx.URL, listed: str) -> bool:
    host = url.host.lower().rstrip(".")
    port = str(url.port or _PORTS.get(url.scheme, ""))
    if any(_matches(entry, host, port) for entry in re.split(r"[,\s]+", listed.lower())):
        return True
    return bool(urllib.request.proxy_bypass(host))  # which knows the system's settings


def _matches(entry: str, host: str, port: str) -> bool:
    if entry == "*":
        return True
    # With a port: "a.test:80", "127.0.0.1:80", "[::1]:80". Without: "a.test", "10.0.0.0/8", "[::1]", "::1".
    written = re.fullmatch(r"\[(?P<v6>.*)\](?::(?P<p6>\d+))?|(?P<name>[^:]*):(?P<p>\d+)", entry)
    if written is not None:
        if (written["p6"] or written["p"] or port) != port:
            return False
        entry = written["v6"] or written["name"] or ""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        name = entry.removeprefix("*").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
