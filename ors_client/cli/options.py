"""The options that commands share: which server, split, task and secrets are meant, and a client for that server.

What a user got wrong before any server was asked is `Misuse`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

import ors_client
from ors_client._http.credentials import Secrets, credentials_in, encode_header, environment
from ors_client._http.credentials import api_key as choose_key
from ors_client._http.urls import CATALOGUE, Target, resolve

# Seconds that a server and a setup may take to start, unless `--wait` says otherwise: for an answer about what there
# is, for a check, which may meet a slow setup, and for an episode that is to be played.
LISTING_TIMEOUT, CHECK_TIMEOUT, EPISODE_TIMEOUT = 20.0, 120.0, 600.0


# Hosts have a dot or a port, but for localhost.
_DEPLOYMENT = re.compile(r"[\w-]+/[\w.-]+")


class Misuse(Exception):
    """Raised when what was asked makes no sense, before or without a server."""


SplitOption = Annotated[str | None, typer.Option("--split", metavar="NAME", help="The split; left out, the first.")]
TaskOption = Annotated[int, typer.Option("--task", metavar="N", help="The task's index; -1 is the last.")]
ToolsetOption = Annotated[
    str | None,
    typer.Option("--toolset", metavar="NAME", help="Of the environment's sets of tools, where it has several."),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret", metavar="NAME[=VALUE]", help="For the environment; without a value, from the variable. Repeatable."
    ),
]
SecretHostsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret-hosts",
        metavar="NAME=HOST,...",
        help="Which hosts the catalogue may send a secret to; NAME= is for none. Repeatable.",
    ),
]


@dataclass(frozen=True, repr=False)  # it holds a key
class ServerOptions:
    """Which server and environment a command is about, as options say it, and in which form it answers."""

    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The server; owner/name is of the catalogue, which is https://openreward.ai."
        ),
    ]
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="NAME",
            help="The environment; owner/name in the catalogue. Needed where there are several.",
        ),
    ] = None
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="NAME", help="One environment of a catalogue deployment that has several."),
    ] = None
    sessions_url: Annotated[
        str | None, typer.Option("--sessions-url", metavar="URL", help="Where sessions are served, if elsewhere.")
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help="Sent to this server. OPENREWARD_API_KEY is for the catalogue."),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="'NAME: VALUE'", help="Sent with every request. Repeatable."),
    ] = None
    wait: Annotated[
        float | None,
        typer.Option("--wait", metavar="SECONDS", min=1, help="How long a server and a setup may take to start."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False

    def __post_init__(self) -> None:
        if self.env is None and _DEPLOYMENT.fullmatch(self.url) and not self.url.startswith("localhost/"):
            object.__setattr__(self, "env", self.url)
            object.__setattr__(self, "url", CATALOGUE)

    def client(self, start_up: float = LISTING_TIMEOUT) -> ors_client.Client:
        """Return a client of the server; nothing is contacted yet.

        Args:
            start_up: Seconds to wait for what is starting, unless an option says how long.

        Raises:
            Misuse: A URL, key or header can't be used.
        """
        with _misuse():
            return ors_client.Client(self._address, **self._settings(start_up))

    def async_client(self, start_up: float = LISTING_TIMEOUT, **settings: Any) -> ors_client.AsyncClient:
        """Return the same for asyncio, with `settings` of `AsyncClient` besides."""
        with _misuse():
            return self.client_factory(start_up)(**settings)

    def client_factory(self, start_up: float) -> Callable[..., ors_client.AsyncClient]:
        """Return what makes that client in any process: it can be pickled, and holds the key that this one has."""
        settings = self._settings(start_up)
        settings["api_key"] = choose_key(self.api_key, self._target, environment()) or ""
        return partial(ors_client.AsyncClient, self._address, **settings)

    @property
    def credentials(self) -> list[str]:
        """What the options say to authenticate with."""
        return [*([self.api_key] if self.api_key else ()), *credentials_in(self._headers)]

    async def exact_name(self, client: ors_client.AsyncClient) -> str:
        """Return the name of the environment, which has to be the one that the options say.

        Where there is one only, a program reaches it by any name; to measure another one than was meant is wrong.

        Raises:
            EnvironmentNotFound: There is none of that name.
        """
        deployment = self.deployment
        wanted = self.variant or (self.env if deployment is None else None)
        if wanted is not None:
            with contextlib.suppress(ors_client.StatusError):  # a server without a list is told by its routes
                names = await client.list_environments(deployment)
                if names and wanted.lower() not in map(str.lower, names):
                    raise ors_client.EnvironmentNotFound(wanted, available=names, url=client.layout.sessions)
        return await client.environment(self.env, variant=self.variant).name()

    @property
    def deployment(self) -> str | None:
        """The catalogue's deployment that is meant, if one is."""
        return self._target.deployment(self.env)

    @property
    def is_catalogue(self) -> bool:
        """Whether the catalogue itself is meant, whose hosts get the key of the environment.

        Raises:
            Misuse: The URL can't be used.
        """
        return self._target.catalogue

    @property
    def _target(self) -> Target:
        with _misuse():
            return resolve(self._address, environment())

    @property
    def _address(self) -> str | ors_client.Layout:
        return self.url if self.sessions_url is None else ors_client.Layout(self.url, self.sessions_url)

    @property
    def _headers(self) -> dict[str, str]:
        return dict(_split(header, ":", "--header 'Name: value'") for header in self.header or ())

    def _settings(self, start_up: float) -> dict[str, Any]:
        # Asked to wait, it also waits for a port that nobody listens on yet: about one attempt a second.
        retry = (
            ors_client.RetryPolicy(attempts=2)
            if self.wait is None
            else ors_client.RetryPolicy(attempts=int(self.wait) + 1, first_delay=1.0, max_delay=1.0, jitter=0.0)
        )
        return {
            "api_key": self.api_key,
            "headers": self._headers,
            "timeout": ors_client.Timeouts(response=min(start_up, 60.0), start_up=self.wait or start_up),
            "retry": retry,
        }


@contextlib.contextmanager
def _misuse() -> Generator[None]:
    try:
        yield
    except ValueError as error:
        raise Misuse(str(error)) from None


def _split(text: str, mark: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise Misuse(f"That option is written {form}.")  # its text may be a secret
    return name.strip(), value.strip()


def read_secrets(options: ServerOptions, given: list[str] | None, hosts: list[str] | None) -> Secrets | None:
    """Read `--secret` and `--secret-hosts` options.

    Raises:
        Misuse: A secret has no value, and there is no variable of its name; hosts are for no secret that is given; or
            the catalogue is not told a secret's hosts.
    """
    secrets: dict[str, str] = {}
    for text in given or ():
        name, found, value = text.partition("=")
        if not name:
            raise Misuse("A secret is written --secret NAME=VALUE.")
        if not found and name not in os.environ:
            raise Misuse(f"The secret {name!r} has no value: write {name}=VALUE, or set the variable {name}.")
        secrets[name] = value if found else os.environ[name]
    allowed: dict[str, list[str]] = {}
    for text in hosts or ():
        name, listed = _split(text, "=", "--secret-hosts NAME=HOST,HOST")
        if name not in secrets:
            raise Misuse(f"Hosts are given for a secret {name!r} that is not; give it as --secret {name}=VALUE.")
        allowed.setdefault(name, []).extend(host.strip() for host in listed.split(",") if host.strip())
    bound: dict[str, str | tuple[str, list[str]]] = {
        name: (value, allowed[name]) if name in allowed else value for name, value in secrets.items()
    }
    for name in bound if bound and options.is_catalogue else ():
        try:
            encode_header({name: bound[name]}, catalogue=True)
        except ValueError:
            raise Misuse(
                f"The catalogue has to know which hosts the secret {name!r} may be sent to: --secret-hosts "
                f"{name}=api.example.com,db.example.com, or --secret-hosts {name}= for none."
            ) from None
    return bound or None


def choose_split(environment: ors_client.Environment, wanted: str | None) -> str:
    """Return the split that is wanted, or the environment's first.

    Raises:
        Misuse: It has none.
    """
    if wanted is not None:
        return wanted
    splits = environment.list_splits()
    if not splits:
        raise Misuse("The environment lists no splits; name one with --split.")
    return splits[0].name
