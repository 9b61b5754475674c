"""What to try after an error: the mistakes that people make with servers, recognised by what came back.

It reads errors and the options, and contacts nothing. An error that it does not recognise has no hint here; its own
message says what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from ors_client import (
    AuthenticationError,
    CapacityError,
    DeadlineExceeded,
    EnvironmentNotFound,
    ORSError,
    OutcomeUnknown,
    ProtocolError,
    SessionLost,
    SetupFailed,
    StatusError,
    ToolRejected,
    TransportError,
)
from ors_client._errors import is_web_page
from ors_client._http.credentials import environment

from .options import ServerOptions

PIN_SESSIONS = (
    "Lead all requests of a session to one process. In nginx: hash $http_x_session_id consistent;",
    "In haproxy: balance hdr(X-Session-ID), and hash-type consistent",
    "Or run the server as one process: others do not know its sessions",
)
STREAM_AT_ONCE = "Let streams through as they come. In nginx: proxy_buffering off;"
RAISE_TIME_OUT = "Raise the proxy's read time-out. In nginx: proxy_read_timeout 650s; in haproxy: timeout server 650s"

_UNRESOLVED = ("name or service not known", "nodename nor servname", "gaierror", "name resolution", "no address")
_REFUSED = ("refused", "connect call failed", "all connection attempts failed")
_UNTRUSTED = ("certificate_verify_failed", "certificate verify failed")


def hints_for(error: ORSError, options: ServerOptions) -> list[str]:
    """Return what a person can try after `error`, the likeliest first."""
    known = next((advise for kind, advise in _ADVICE if isinstance(error, kind)), None)
    return [] if known is None else known(error, options)


def _choose(error: EnvironmentNotFound, options: ServerOptions) -> list[str]:
    if not error.available and error.name is not None and error.name == options.deployment:
        return [f"Is {error.name!r} spelt as in the catalogue, owner and name?"]
    if not error.available:
        return ["The server has no environments; was it started with any?"]
    # Within a deployment, environments are its variants.
    option = "--variant" if options.variant is not None or options.deployment is not None else "--env"
    near = difflib.get_close_matches((error.name or "").lower(), error.available, n=1)
    return [f"{option} {near[0]}" if near else f"Name one of them, as in {option} {error.available[0]}"]


def _authenticate(error: AuthenticationError, options: ServerOptions) -> list[str]:
    del error
    if options.api_key is not None:
        return ["The key that was given was refused: is it complete, not expired, and for this server?"]
    if options.is_catalogue:
        return [
            "The key in OPENREWARD_API_KEY was refused: is it complete and valid? Or pass another: --api-key KEY"
            if environment().get("OPENREWARD_API_KEY", "").strip()
            else "The catalogue wants a key: set OPENREWARD_API_KEY, or pass --api-key KEY"
        ]
    return [
        "Give the server's key: --api-key KEY. OPENREWARD_API_KEY is sent to the catalogue's own hosts only.",
        "If a proxy before the server asks for a login: --header 'Authorization: Bearer TOKEN'.",
    ]


def _status(error: StatusError, options: ServerOptions) -> list[str]:
    said = error.detail.lower()
    named = {
        "https port": f"This port speaks TLS: {options.url.replace('http://', 'https://', 1)}",  # what nginx says
        "invalid split": f"See which splits there are: ors splits {options.url}",
        "invalid index": f"See how many tasks each split has: ors splits {options.url}",
        "deployment": "The catalogue's hosts need a deployment: --env owner/name"
        if options.deployment is None
        else f"Is {options.deployment!r} spelt as in the catalogue, owner and name, and may the key's account use it?",
    }
    known = [hint for words, hint in named.items() if words in said]
    if known:
        return known
    if error.status in {404, 405}:
        return [
            "The server at this address is not an ORS server: is the port right, and is a path prefix missing?",
            "Where sessions are served by another host than this one: --sessions-url URL",
        ]
    return (
        ["The environment's own code raised this; the server's log has the traceback."] if error.status == 500 else []
    )


def _protocol(error: ProtocolError, options: ServerOptions) -> list[str]:
    if "redirect" in error.problem.lower():
        return [
            "If that place is the server, give its URL.",
            "If it is a login page: --api-key KEY or --header 'Authorization: Bearer TOKEN'.",
        ]
    if is_web_page(error.excerpt):
        return [
            "A web page answers there, perhaps a login: --api-key KEY or --header 'Authorization: Bearer TOKEN'.",
            f"Or this is another program's address: is the port right, and does the server live below {options.url}?",
        ]
    return ["The server at this address is not an ORS server: is the port right, and is a path prefix missing?"]


def _deadline(error: DeadlineExceeded, options: ServerOptions) -> list[str]:
    del options
    if error.limit == "start_up":
        return ["The server is still starting; give it longer: --wait 600"]
    return [
        "It accepts connections and does not answer: it is busy, or this is another program's port.",
        "Or a proxy before it holds answers back, or gives up too early.",
        STREAM_AT_ONCE,
        RAISE_TIME_OUT,
    ]


def _transport(error: TransportError, options: ServerOptions) -> list[str]:
    said = error.reason.lower()
    if any(word in said for word in _REFUSED):
        # Whether it runs, and where, is what the error's own message asks.
        return ["A server that is still starting opens its port late; wait for it: --wait 60"]
    if said.startswith("http 5"):
        # The error itself says what a gateway may lack.
        return [RAISE_TIME_OUT] if said.startswith("http 504") else []
    return connection_hints(said, options.url) or [
        "Is this an ORS server's port? A TLS port has to be given as https://."
    ]


def connection_hints(reason: str, url: str) -> list[str]:
    """Return what a person can try when no connection to `url` came about; nothing where `reason` is not known."""
    said = reason.lower()
    if any(word in said for word in _REFUSED):
        return ["Nothing listens there: is the server started, and is the port right?"]
    if any(word in said for word in _UNRESOLVED):
        return ["There is no host of that name: check the spelling, and the network."]
    if any(word in said for word in _UNTRUSTED):
        return ["For a certificate of your own authority: SSL_CERT_FILE=/path/to/ca.pem ors ..."]
    if "ssl" in said or "tls" in said:
        return [f"This port may speak plain HTTP: {url.replace('https://', 'http://', 1)}"]
    return []


def _setup(error: SetupFailed, options: ServerOptions) -> list[str]:
    del error, options
    return [
        "The environment's own code raised this; the server's log has the traceback.",
        "Does it need a secret (--secret NAME=VALUE), or does only this task fail (--task N)?",
    ]


def _rejected(error: ToolRejected, options: ServerOptions) -> list[str]:
    return [f"See what there is: ors tools {options.url}"] if error.reason == "not_found" else []


def _always(*hints: str) -> Callable[[Any, ServerOptions], list[str]]:
    def advise(error: ORSError, options: ServerOptions) -> list[str]:
        del error, options
        return list(hints)

    return advise


# The first kind that an error is of decides, so the narrower ones come first.
_ADVICE: tuple[tuple[type[ORSError], Callable[[Any, ServerOptions], list[str]]], ...] = (
    (EnvironmentNotFound, _choose),
    (AuthenticationError, _authenticate),
    (CapacityError, _always("Wait for sessions to end, or give the server longer: --wait SECONDS")),
    (StatusError, _status),
    (ProtocolError, _protocol),
    (DeadlineExceeded, _deadline),
    (OutcomeUnknown, _always(STREAM_AT_ONCE, RAISE_TIME_OUT)),
    (TransportError, _transport),
    (SetupFailed, _setup),
    (SessionLost, _always(*PIN_SESSIONS)),
    (ToolRejected, _rejected),
)
