"""The API key and the secrets: who may have them, how they travel, and how they are kept out of what is shown.

The one reader of `os.environ`. It sends nothing, and takes from `_layout` which destination is the catalogue's.

Two shapes of secrets are in use: openreward since 0.1.70 reads the header `X-Secrets` and answers 422 to a body with
them (and echoes them in that answer); ors-sdk 0.1.0, openreward 0.1.50 and the standard read them from the body. Both
are made here; which one a server gets is decided where servers are told apart.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import quote

from ._layout import Destination

_MASK = "***"
# Values of sessions that one client hides: more than have sessions open at a time, few enough to look for in an error.
_MOST_HIDDEN = 4096
_SHORT = 4  # below it a value is too likely to be a part of ordinary words
# Runs are found first and searched then: one pattern for both is quadratic on a long run, such as an image.
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_ENCODED_JSON = "eyJ"  # how base64 of '{"' begins, and so the header's value
_STANDARD_ALPHABET = str.maketrans("-_", "+/")

# Hosts of secrets whose names say whose they are, so that a plain value will do; openreward 0.1.167 knows them too.
_GOOGLE = ("generativelanguage.googleapis.com",)
_HUB = ("huggingface.co", "api-inference.huggingface.co")
_KNOWN_DOMAINS: Mapping[str, tuple[str, ...]] = {
    "OPENAI_API_KEY": ("api.openai.com",),
    "ANTHROPIC_API_KEY": ("api.anthropic.com",),
    "GEMINI_API_KEY": _GOOGLE,
    "GOOGLE_API_KEY": _GOOGLE,
    "TAVILY_API_KEY": ("api.tavily.com",),
    "COHERE_API_KEY": ("api.cohere.com",),
    "MISTRAL_API_KEY": ("api.mistral.ai",),
    "GROQ_API_KEY": ("api.groq.com",),
    "TOGETHER_API_KEY": ("api.together.xyz",),
    "PERPLEXITY_API_KEY": ("api.perplexity.ai",),
    "FIREWORKS_API_KEY": ("api.fireworks.ai",),
    "DEEPSEEK_API_KEY": ("api.deepseek.com",),
    "HUGGINGFACE_API_KEY": _HUB,
    "HUGGING_FACE_HUB_TOKEN": _HUB,
    "HF_TOKEN": _HUB,
}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110, 5.6.2
_AUTHENTICATES = re.compile(r"auth|cookie|key|secret|token")
_QUOTES = ('"', "'", "`", '\\"', '\\\\\\"', "&quot;", "&#x27;")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value that travels in pickles but shows in no repr, message or log line."""

    value: str = field(repr=False)

    def __repr__(self) -> str:
        return f"Hidden({_MASK!r})"

    def __str__(self) -> str:
        return _MASK


class Veil:
    """The values that one client keeps out of all it shows; its transports share it, on several threads.

    Args:
        values: Those that are hidden for good, as the client's key. Those of sessions come and go: the latest are kept.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lasting = _sought(values)
        self._passing: dict[str, _Sought] = {}  # replaced and never changed, as another thread may be reading it
        self._lock = threading.Lock()  # guards that of two additions none is lost

    def hide(self, values: Iterable[str]) -> None:
        """Keep `values` out of all that is shown from now on."""
        new = set(values)
        with self._lock:
            known = self._passing
            added = {value: known[value] for value in new & known.keys()} | _sought(new - known.keys())
            kept = {value: sought for value, sought in known.items() if value not in new} | added
            self._passing = dict(itertools.islice(kept.items(), max(0, len(kept) - _MOST_HIDDEN), None))

    def show(self, text: str) -> str:
        """Return `text` without the values, however a server may have written them."""
        return _without(text, [*self._lasting.values(), *self._passing.values()])


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret's value and the hosts it may be sent to.

    Args:
        value: What the environment gets. It shows in no repr.
        allowed_domains: The hosts that the catalogue lets the environment send it to. Other servers ignore them.

    Raises:
        TypeError: The value is not a string, or the domains are not several strings.
    """

    value: str = field(repr=False)
    allowed_domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject what no server takes, without showing it."""
        if not isinstance(self.value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise TypeError(f"A secret's value is a string, not {type(self.value).__name__}.")
        domains = cast("object", self.allowed_domains)
        if isinstance(domains, str) or not isinstance(domains, Sequence):
            raise TypeError(f"A secret's domains are a list of host names, not {type(domains).__name__}.")
        for domain in cast("Sequence[object]", domains):
            if not isinstance(domain, str):
                raise TypeError(f"A secret's domains are host names, not {type(domain).__name__}.")
        object.__setattr__(self, "allowed_domains", tuple(self.allowed_domains))


Secrets = Mapping[str, str | Secret | tuple[str, Sequence[str]]]


def environment() -> Mapping[str, str]:
    """Return the variables of this process that concern the client, as they are now."""
    return {name: value for name, value in os.environ.items() if name.startswith("OPENREWARD_")}


def api_key(explicit: str | None, destination: Destination, environ: Mapping[str, str]) -> str | None:
    """Return the key that a client sends to `destination`, if any.

    Args:
        explicit: What the caller passed; it wins, and an empty string means that no key is sent.
        destination: What the client was pointed at. Only the catalogue's hosts get a key from the environment.
        environ: The environment's variables.

    Raises:
        TypeError: The key is not a string.
        ValueError: The key holds a character that no header can carry.
    """
    if explicit is None:
        key = environ.get("OPENREWARD_API_KEY", "").strip() if destination.catalogue else ""
    elif isinstance(explicit, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        key = explicit
    else:
        raise TypeError(f"An api_key is a string, not {type(explicit).__name__}.")
    if not _fits_header(key):
        raise ValueError(
            "The API key can't be sent as a header: it holds a blank at its end, a line break, a control character or "
            "one outside of Latin-1. Was it read from a file with its newline?"
        )
    return key or None


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a caller wants on every request, with names in lower case.

    Raises:
        TypeError: A name or a value is not a string.
        ValueError: A name or a value can't stand in a header. The message never shows the value.
    """
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise TypeError(f"The header {name!r} is not a string with a string.")
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"A header can't be called {name!r}.")
        if not _fits_header(value):
            raise ValueError(
                f"The value of the header {name!r} can't be sent: it has a blank at an end, a line break, a control "
                "character or one outside of Latin-1."
            )
    return {name.lower(): value for name, value in headers.items()}


def credentials_in(headers: Mapping[str, str]) -> set[str]:
    """Return the values of headers that authenticate, whole and without the scheme before them ("Bearer ...")."""
    values = [value for name, value in headers.items() if _AUTHENTICATES.search(name.lower())]
    return {*values, *(value.split()[-1] for value in values if value)}


def _fits_header(value: str) -> bool:
    # HTTP strips blanks around a header's value, so a key with one would arrive as another key.
    return value == value.strip() and all(" " <= c <= "\xff" and not "\x7f" <= c <= "\x9f" for c in value)


def encode_header(secrets: Secrets, *, catalogue: bool) -> str:
    """Return the value of `X-Secrets`: base64 of `{name: {"value": ..., "allowed_domains": [...]}}`.

    Args:
        secrets: Of any names.
        catalogue: Whether they go to the catalogue, which lets a secret through to the hosts that it names and to no
            other: a plain value is then refused unless its name says whose it is. `(value, [])` is for no host.

    Raises:
        TypeError: A name, value or domain is not a string. The message names the secret, never its value.
        ValueError: A secret for the catalogue does not say where it may be sent.
    """
    read = _read(secrets)
    if catalogue:
        read = {name: secret if _is_pair(secrets[name]) else _bound(name, secret) for name, secret in read.items()}
        unbound = [name for name, secret in read.items() if not secret.allowed_domains and not _is_pair(secrets[name])]
        if unbound:
            raise ValueError(
                f"The catalogue has to know which hosts these secrets may be sent to: {', '.join(map(repr, unbound))}. "
                "Pass each as (value, [domain, ...])."
            )
    content = {
        name: {"value": secret.value, "allowed_domains": list(secret.allowed_domains)} for name, secret in read.items()
    }
    return base64.b64encode(json.dumps(content).encode("ascii")).decode("ascii")


def encode_body(secrets: Secrets) -> dict[str, str]:
    """Return `{name: value}`, as servers that read secrets from the body take them.

    Raises:
        TypeError: A name, value or domain is not a string. The message names the secret, never its value.
    """
    return {name: secret.value for name, secret in _read(secrets).items()}


def redact(text: str, hidden: Iterable[str]) -> str:
    """Return `text` with every value of `hidden` replaced by "***", however a server may have written it.

    A value is found as it is, escaped for JSON (also twice), for HTML, for a URL or for Python, line by line, in base64
    at any offset, within the value of an `X-Secrets` header, and where the text was cut off in the midst of it. A value
    of less than four characters is replaced only where it stands between quotes, as ordinary words would suffer
    otherwise.

    Args:
        text: What a server said.
        hidden: Keys, values of secrets, encoded headers.
    """
    return _without(text, _sought(hidden).values())


@dataclass(frozen=True, slots=True)
class _Sought:
    """A hidden value, and what is looked for in a text on its account.

    Args:
        value: As the caller gave it.
        forms: Its spellings.
        cores: What base64 of any text around one of them holds; none for a short value.
    """

    value: str = field(repr=False)
    forms: frozenset[str] = field(repr=False)
    cores: frozenset[str] = field(repr=False)

    @classmethod
    def of(cls, value: str) -> _Sought:
        forms = _forms(value)
        cores = (core for form in forms if len(value) >= _SHORT for core in _base64_cores(form))
        return cls(value, frozenset(forms), frozenset(cores))


def _sought(values: Iterable[str]) -> dict[str, _Sought]:
    return {value: _Sought.of(value) for value in values if value.strip()}


def _without(text: str, hidden: Collection[_Sought]) -> str:
    spans = sorted(itertools.chain.from_iterable(_spans(text, sought) for sought in hidden))
    if not spans:
        return text
    pieces: list[str] = []
    done = 0  # `text` is dealt with up to here
    for start, end in spans:
        if start > done or not pieces:
            pieces += [text[done:start], _MASK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _read(secrets: Secrets) -> dict[str, Secret]:
    if not isinstance(secrets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"Secrets are a mapping of names to values, not {type(secrets).__name__}.")
    return {_name(name): _secret(name, given) for name, given in secrets.items()}


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"A secret's name is a string, not {name!r}.")
    if not name:
        raise ValueError("A secret has an empty name.")
    return name


def _secret(name: str, given: object) -> Secret:
    if isinstance(given, Secret):
        return given
    try:
        if isinstance(given, tuple | list):
            value, domains = cast("tuple[str, tuple[str, ...]]", given)
            return Secret(value, domains)
        return Secret(cast("str", given))
    except ValueError:
        raise TypeError(f"The secret {name!r} is neither a value nor a pair (value, [domain, ...]).") from None
    except TypeError as error:
        raise TypeError(f"The secret {name!r} can't be sent. {error}") from None


def _is_pair(given: object) -> bool:
    return isinstance(given, tuple | list)


def _bound(name: str, secret: Secret) -> Secret:
    return secret if secret.allowed_domains else Secret(secret.value, _KNOWN_DOMAINS.get(name.upper(), ()))


def _spans(text: str, sought: _Sought) -> Iterator[tuple[int, int]]:
    """Yield where `text` shows a value, as start and end."""
    forms = sought.forms
    if len(sought.value) < _SHORT:
        for form, mark in itertools.product(forms, _QUOTES):
            for start in _places(text, mark + form + mark):
                yield start + len(mark), start + len(mark) + len(form)
    else:
        for form in forms:
            for start in _places(text, form):
                yield start, start + len(form)
            if cut := _cut_off(text, form):
                yield len(text) - cut, len(text)
    # The whole text is asked first: a long one has very many runs, nearly all of them words.
    cores = [core for core in sought.cores if core in text]
    cut_off = any(_cut_off(text, core) for core in sought.cores)
    if cores or cut_off or _ENCODED_JSON in text:
        for run in _BASE64_RUN.finditer(text):
            if _shows(run[0], forms, cores) or (cut_off and run.end() == len(text)):
                yield run.span()


def _shows(run: str, forms: Collection[str], cores: Collection[str]) -> bool:
    """Tell whether characters of base64 hold a value, given as its spellings and as their base64."""
    if any(core in run for core in cores):
        return True
    start = run.find(_ENCODED_JSON)
    if start < 0:
        return False
    content = run[start:].translate(_STANDARD_ALPHABET).rstrip("=")
    decoded = base64.b64decode(content[: len(content) // 4 * 4]).decode("latin-1")
    # A header that was cut short may hold half a value, so its shape is enough.
    return '": {"value": "' in decoded or any(f'"{form}' in decoded for form in forms)


def _places(text: str, form: str, start: int = 0) -> Iterator[int]:
    """Yield every place of `form` from `start` on, overlapping ones too: two secrets may share a part."""
    start = text.find(form, start)
    while start >= 0:
        yield start
        start = text.find(form, start + 1)


def _cut_off(text: str, form: str) -> int:
    """Return how many characters of `form` begin at the end of `text`, or 0 where too few do to be told from words."""
    places = _places(text, form[:_SHORT], max(0, len(text) - len(form)))
    return next((len(text) - start for start in places if form.startswith(text[start:])), 0)


def _forms(value: str) -> set[str]:
    """Return the spellings in which a server may repeat `value`."""
    forms = {value}
    # A stream's `error` shows every line break as "\n", and a traceback may show one line of a longer secret.
    forms |= {value.replace("\r\n", "\n").replace("\r", "\n")}
    forms |= {line for line in value.splitlines() if len(line) >= 2 * _SHORT}
    forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)}
    forms |= {json.dumps(form)[1:-1] for form in forms}  # JSON text within JSON text
    raw = value.encode("utf-8", "surrogatepass")
    forms |= {repr(value)[1:-1], repr(raw)[2:-1], html.escape(value), quote(raw, safe="")}
    return forms


def _base64_cores(form: str) -> Iterator[str]:
    """Yield the characters that base64 of any text around `form` has in common, for each of the three offsets."""
    raw = form.encode("utf-8", "surrogatepass")
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + raw).decode("ascii")
        first = -(-offset * 8 // 6)  # characters before it hold bits of what precedes
        core = encoded[first : (offset + len(raw)) * 8 // 6]  # the one after it may hold bits of what follows
        yield core
        yield core.replace("+", "-").replace("/", "_")
