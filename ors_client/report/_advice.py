"""What to try about episodes that ended badly, by their status. It contacts nothing.

A record may be of an evaluation or of training: options are those of `ors run`, and what ends in an equals sign is an
argument of `OpenRewardSpec`.
"""

from __future__ import annotations

_ENVIRONMENTS_CODE = "The server's log has the traceback."
_NETWORK = "Is the server up, and what is between here and there? See: ors check URL"
_ADVICE = {
    "failed: AuthenticationError": "Give the server's key: --api-key KEY, in training api_key=",
    "failed: CapacityError": "Open fewer sessions at a time: --concurrency N, in training a smaller batch",
    "failed: DeadlineExceeded": (
        "Give it longer (--wait SECONDS, in training call_timeout= or timeout=Timeouts(start_up=...)), or ask less of "
        "it at a time (--concurrency N, in training max_concurrency=)."
    ),
    "failed: ModelError": (
        "See the log of the model's server; it may bear fewer conversations at a time (--concurrency N)."
    ),
    "failed: OutcomeUnknown": _NETWORK,
    "failed: ResultLost": "Run the server with one worker: others do not know its calls.",
    "failed: SessionLost": "Does the server keep sessions? See: ors check URL --hold 60. Run it with one worker.",
    "failed: SetupFailed": f"{_ENVIRONMENTS_CODE} Does it need a secret (--secret NAME=VALUE, in training secrets=)?",
    "failed: StatusError": _ENVIRONMENTS_CODE,
    "failed: TransportError": _NETWORK,
    "cut: calls": "If episodes need more calls: max_calls=",
    "cut: characters": "If the model should see more of what the tools say: max_episode_chars=",
    "cut: turns": "If episodes need more replies of the model: --max-turns N",
    "cut: tokens": "If episodes need more of the model's tokens: --max-tokens N",
    "cut: length": (
        "Give a reply more room (--set max_tokens=N) or the model less to reason; --accept-truncated takes it as it is."
    ),
    "cut: context": (
        "Serve the model with a longer context, or send less: --reasoning-history none, or fewer turns (--max-turns N)."
    ),
    "cut: filter": "The filter of the model's endpoint stopped it; see its settings.",
    "cut: seconds": "If episodes need more time: --max-seconds SECONDS, in training episode_timeout=",
}


def advice(status: str) -> str | None:
    """Return what to try about episodes that ended with a status such as `failed: SessionLost`, where it is known."""
    return _ADVICE.get(status)
