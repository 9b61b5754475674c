"""The API key and the secrets: who may have them, and how they travel.

The one reader of `os.environ`. It sends nothing, and takes from `urls` which target is the catalogue's.

Two shapes of secrets are in use: openreward since 0.1.70 reads the header `X-Secrets` and answers 422 to a body with
them (and echoes them in that answer); ors-sdk 0.1.0, openreward 0.1.50 and the standard read them from the body. Both
are made here; which one a server gets is decided where servers are told apart.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from .urls import Target

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


def api_key(explicit: str | None, target: Target, environ: Mapping[str, str]) -> str | None:
    """Return the key that a client sends to `target`, if any.

    Args:
        explicit: What the caller passed; it wins, and an empty string means that no key is sent.
        target: What the client was pointed at. Only the catalogue's hosts get a key from the environment.
        environ: The environment's variables.

    Raises:
        TypeError: The key is not a string.
        ValueError: The key holds a character that no header can carry.
    """
    if explicit is None:
        key = environ.get("OPENREWARD_API_KEY", "").strip() if target.catalogue else ""
    elif isinstance(explicit, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        key = explicit
    else:
        raise TypeError(f"An api_key is a string, not {type(explicit).__name__}.")
    if not fits_header(key):
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
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"headers takes a mapping of names to values, not {type(headers).__name__}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise TypeError(f"The header {name!r} is not a string with a string.")
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"A header can't be called {name!r}.")
        if not fits_header(value):
            raise ValueError(
                f"The value of the header {name!r} can't be sent: it has a blank at an end, a line break, a control "
                "character or one outside of Latin-1."
            )
    return {name.lower(): value for name, value in headers.items()}


def credentials_in(headers: Mapping[str, str]) -> set[str]:
    """Return the values of headers that authenticate, whole and without the scheme before them ("Bearer ...")."""
    values = [value for name, value in headers.items() if _AUTHENTICATES.search(name.lower())]
    return {*values, *(value.split()[-1] for value in values if value)}


def fits_header(value: str) -> bool:
    """Tell whether a header can carry a value as it is."""
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


def secret_values(secrets: Secrets | None) -> list[str]:
    """Return the values alone, which nothing may show.

    Raises:
        TypeError: A name, value or domain is not a string. The message names the secret, never its value.
    """
    return [] if secrets is None else list(encode_body(secrets).values())


def _read(secrets: Secrets) -> dict[str, Secret]:
    if not isinstance(secrets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"secrets takes a mapping of names to values, not {type(secrets).__name__}.")
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
