"""What to try about episodes that ended badly, by their status. It contacts nothing."""

from __future__ import annotations

_ENVIRONMENTS_CODE = "The server's log has the traceback."
_NETWORK = "Is the server up, and what is between here and there? See: ors check URL"
_ADVICE = {
    "failed: AuthenticationError": "Give the server's key: --api-key KEY",
    "failed: CapacityError": "Open fewer sessions at a time: --concurrency N",
    "failed: DeadlineExceeded": "Give it longer (--wait SECONDS), or ask less of it at a time (--concurrency N).",
    "failed: ModelError": (
        "See the log of the model's server; it may bear fewer conversations at a time (--concurrency N)."
    ),
    "failed: OutcomeUnknown": _NETWORK,
    "failed: ResultLost": "Run the server with one worker: others do not know its calls.",
    "failed: SessionLost": "Does the server keep sessions? See: ors check URL --hold 60. Run it with one worker.",
    "failed: SetupFailed": f"{_ENVIRONMENTS_CODE} Does it need a secret (--secret NAME=VALUE)?",
    "failed: StatusError": _ENVIRONMENTS_CODE,
    "failed: TransportError": _NETWORK,
    "cut: turns": "If episodes need more replies of the model: --max-turns N",
    "cut: tokens": "If episodes need more of the model's tokens: --max-tokens N",
    "cut: seconds": "If episodes need more time: --max-seconds SECONDS",
}


def advice(status: str) -> str | None:
    """Return what to try about episodes that ended with a status such as `failed: SessionLost`, where it is known."""
    return _ADVICE.get(status)
