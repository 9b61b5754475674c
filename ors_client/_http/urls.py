"""Where requests go, and which hosts may see credentials.

A server is one URL; the catalogue is two hosts, one for its API and one for sessions. This module turns what a caller
wrote, and what the environment's variables say, into a `Layout`, and keeps redirects inside it. It is handed the
variables and never reads them, sends nothing, and knows keys only as something that a `Target` may be allowed.

| url | API host | session host | key from the environment |
| --- | --- | --- | --- |
| left out | OPENREWARD_API_URL, else `api.` + OPENREWARD_URL | OPENREWARD_SESSION_URL, else `sessions.` + it | yes |
| the catalogue's own | as above | as above | yes |
| any other | the URL, or a variable that names the same host and port or a sub-domain | likewise | no |
| a `Layout` | as given | as given | no |

URLs are read by httpx's parser alone, so that the host which is compared is the host which is connected to.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from ors_client._arguments import checked_names
from ors_client._errors import ProtocolError, one_line

CATALOGUE = "https://openreward.ai"

_DEFAULT_PORTS = {"http": 80, "https": 443}
# The characters of host names as resolvers take them. httpx also passes a backslash, which other parsers read as "/".
_HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_USER_INFO = re.compile(r"^(.*?//)?.*@", re.DOTALL)


@checked_names
@dataclass(frozen=True, slots=True)
class Layout:
    """The URLs of a server: one for its API, one for sessions; often the same.

    Both are normalised on construction: lower-case host, no default port, no trailing slash. Ports, path prefixes and
    IPv6 addresses are kept.

    Args:
        api: Where catalogue-wide requests go.
        sessions: Where environments are listed and episodes run.

    Raises:
        ValueError: A URL is not plain http or https, or carries user-info, a query or a fragment.
    """

    api: str
    sessions: str
    _parsed: tuple[httpx.URL, httpx.URL] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Normalise both URLs, so that those of one address compare equal, and keep them as they were parsed."""
        api, sessions = _normalise(self.api), _normalise(self.sessions)
        object.__setattr__(self, "api", str(api))
        object.__setattr__(self, "sessions", str(sessions))
        object.__setattr__(self, "_parsed", (api, sessions))

    def base(self, url: httpx.URL) -> httpx.URL | None:
        """Return which of the two URLs `url` lies under, or `None`."""
        if ".." in url.path.split("/"):  # `path` is percent-decoded, as some servers decode before they resolve dots
            return None
        for base in reversed(self._parsed):
            prefix = base.path.rstrip("/")
            if _origin(base) == _origin(url) and (url.path == prefix or url.path.startswith(f"{prefix}/")):
                return base
        return None

    @classmethod
    def single(cls, url: str) -> Layout:
        """Return the layout of a server that answers everything at `url`."""
        return cls(api=url, sessions=url)

    @classmethod
    def split(cls, url: str) -> Layout:
        """Return the layout of a server at `api.` and `sessions.` before the host of `url`, as the catalogue's is."""
        return cls(api=_sub_domain("api", url), sessions=_sub_domain("sessions", url))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of its hosts, in ASCII."""
        return tuple(dict.fromkeys(url.raw_host.decode("ascii") for url in self._parsed))

    @property
    def is_split(self) -> bool:
        """Whether the API and the sessions have different URLs."""
        return self.api != self.sessions


@dataclass(frozen=True, slots=True)
class Target:
    """What a client was pointed at.

    Args:
        layout: Its URLs.
        catalogue: Whether these are the catalogue's own hosts: they may get the key that the environment holds, and a
            secret sent to them says which domains it is for.
    """

    layout: Layout
    catalogue: bool

    def deployment(self, name: str | None) -> str | None:
        """Return the deployment that a name stands for, or `None` where it is an environment's own.

        Only two hosts serve deployments; on one URL a slash is a character like others.
        """
        two_hosts = self.catalogue or self.layout.is_split
        return name if name is not None and "/" in name and two_hosts else None

    def is_catalogue(self, deployment: str | None) -> bool:
        """Tell whether a request reaches the catalogue, or one like it: two hosts that serve named deployments.

        Two URLs alone say nothing: they may be one server's, by two of its names.
        """
        return self.catalogue or (self.layout.is_split and deployment is not None)


def resolve(url: str | Layout, environ: Mapping[str, str]) -> Target:
    """Decide where a client's requests go.

    Args:
        url: What the caller gave; the default is `CATALOGUE`.
        environ: The environment's variables.

    Raises:
        ValueError: The URL, or a variable that is needed, is not a URL to send requests to.
    """
    if isinstance(url, Layout):
        return Target(url, catalogue=False)
    if url is None or url == "":  # pyright: ignore[reportUnnecessaryComparison] - callers without a type checker
        raise ValueError(
            f"The server's URL is {url!r}; a variable that should hold it may be unset. Leave it out for the catalogue."
        )
    given = Layout.single(url)
    variables = {
        "api": environ.get("OPENREWARD_API_URL", "").strip(),
        "sessions": environ.get("OPENREWARD_SESSION_URL", "").strip(),
    }
    if given.sessions != CATALOGUE:
        chosen = {
            part: value if value and _belongs_to(given, value) else given.sessions for part, value in variables.items()
        }
        return Target(Layout(**chosen), catalogue=False)

    base = environ.get("OPENREWARD_URL", "").strip()

    def part_url(part: str, variable: str) -> str:
        try:
            return str(_normalise(variables[part])) if variables[part] else _sub_domain(part, base or CATALOGUE)
        except ValueError as error:
            name = variable if variables[part] else "OPENREWARD_URL"
            raise ValueError(f"The variable {name} can't be used. {error}") from None

    layout = Layout(api=part_url("api", "OPENREWARD_API_URL"), sessions=part_url("sessions", "OPENREWARD_SESSION_URL"))
    return Target(layout, catalogue=True)


def origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, the host (lower case, IDNA-encoded, IPv6 compressed) and the port of `url`."""
    return _origin(_parse(url))


def origin_url(url: str) -> str:
    """Return the origin of a URL that requests are sent to: "http://127.0.0.1:8000"."""
    return url[: (url + "/").index("/", url.index("://") + 3)]


def follow(current: str, location: str, *, layout: Layout) -> str:
    """Return the URL that a redirect leads to, which is one of the same origin and within the layout.

    Args:
        current: The URL that answered with the redirect.
        location: Its `Location` header, relative or absolute.
        layout: The URLs that the client was pointed at.

    Raises:
        ProtocolError: The redirect leads elsewhere, or nowhere.
    """
    here = _parse(current)
    try:
        there = here.join(location.strip()).copy_with(fragment=None)
        target = _origin(there)
    except (httpx.InvalidURL, ValueError):
        raise ProtocolError("A redirect's location is not a URL of http or https", url=current) from None
    if not location.strip():
        raise ProtocolError("A redirect has no location", url=current)
    if there.userinfo:
        raise ProtocolError("A redirect's location carries a user name", url=current)
    if target != _origin(here):
        problem = f"A redirect leads from {_show(_origin(here))} to another origin, {_show(target)}"
        if _is_upgrade(_origin(here), target):
            base = layout.base(here) or here
            secure = _show(target) + base.path.rstrip("/")
            raise ProtocolError(f"{problem}; use {secure!r} as the client's URL", url=current)
        raise ProtocolError(f"{problem}, and was not followed", url=current)
    if layout.base(there) is None:
        raise ProtocolError(
            f"A redirect leads to {one_line(there.path)!r}, outside of the URLs that the client was given", url=current
        )
    return str(there)


def _normalise(url: str) -> httpx.URL:
    """Return `url` without trailing slash and default port, or say why no client can be pointed at it."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"A server's URL is a string, not {type(url).__name__}.")
    parsed = _parse(url)
    for mark, name in (("?", "a query"), ("#", "a fragment")):
        if mark in url:
            raise ValueError(f"A server's URL has no place for {name}: {_safe(url)!r}.")
    if parsed.userinfo:
        raise ValueError(
            f"A server's URL has no place for a user name or password: {_safe(url)!r}; "
            "a server's key goes into api_key=..., a proxy's login into headers={'Authorization': 'Basic ...'}, with "
            "the base64 of 'user:password'."
        )
    # Made from the parts: httpx keeps a default port after a scheme in capitals.
    return httpx.URL(_show(_origin(parsed)) + parsed.raw_path.decode("ascii").rstrip("/"))


def _parse(url: str) -> httpx.URL:
    """Parse an absolute http or https URL.

    Raises:
        ValueError: It is not one.
    """
    if "://" not in url:
        guess = "" if re.match(r"https?:", url) else f"; did you mean {'http://' + _safe(url)!r}?"
        raise ValueError(f"A server's URL starts with http:// or https://, unlike {_safe(url)!r}{guess}")
    try:
        parsed = httpx.URL(url)
        _origin(parsed)
    except (httpx.InvalidURL, ValueError) as error:
        # httpx quotes the part that it could not read, which may be a password with a slash in it.
        reason = f": {error}" if type(error) is ValueError else ""
        raise ValueError(f"Not a URL that a server can be reached at: {_safe(url)!r}{reason}") from None
    return parsed


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    if url.scheme not in _DEFAULT_PORTS:
        raise ValueError("only http and https are spoken here")
    host = url.raw_host.decode("ascii").lower()
    address = _address(host)
    if address is not None:
        host = address.compressed
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError("its host is missing or not a host name")
    port = _DEFAULT_PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 2**16:
        raise ValueError("its port is not between 1 and 65535")
    return url.scheme, host, port


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _sub_domain(label: str, url: str) -> str:
    parsed = _normalise(url)
    host = parsed.raw_host.decode("ascii")
    if _address(host) is not None:
        raise ValueError(
            f"{_safe(url)!r} is an address and has no sub-domain {label!r}; name both URLs, "
            "with Layout(api=..., sessions=...) or in OPENREWARD_API_URL and OPENREWARD_SESSION_URL."
        )
    return str(parsed.copy_with(host=f"{label}.{host}"))


def _belongs_to(given: Layout, variable: str) -> bool:
    """Tell whether a variable names the host and port of the URL that was given, or a sub-domain of that host."""
    _, host, port = origin(given.sessions)
    try:
        _, other, other_port = _origin(_normalise(variable))
    except ValueError:  # a variable that names nothing does not concern a client whose URL was given
        return False
    if other == host:
        return other_port == port
    return _address(host) is None and other.endswith(f".{host}")


def _is_upgrade(here: tuple[str, str, int], there: tuple[str, str, int]) -> bool:
    return (here[0], there[0]) == ("http", "https") and here[1] == there[1]


def _show(parts: tuple[str, str, int]) -> str:
    scheme, host, port = parts
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + ("" if port == _DEFAULT_PORTS[scheme] else f":{port}")


def _safe(url: str) -> str:
    """Return `url` for an error message, without what may be a password or a token."""
    # The last "@" counts: a password may hold an unescaped "/" or "@".
    hidden = _USER_INFO.sub(lambda found: f"{found[1] or ''}***@", url)
    return one_line(re.sub(r"(?s)([?#]).+", r"\1***", hidden))
