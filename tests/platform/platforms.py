"""Starts the platform's double."""

import httpx
from servers import serve

KEY = "sk-Platform-4d21"
NAME = "owner/name"


def platform(*arguments, env="many,secrets"):
    """Run a deployment in the catalogue for the length of a block; `many` has the variants alpha, beta and more."""
    return serve("ours", "--env", env, "--platform", "--api-key", KEY, "--deployment", NAME, *arguments)


def forget_rollouts(server):
    """Have a platform forget what was uploaded, so that the next test finds only its own."""
    httpx.delete(f"{server.urls[0]}/_rollouts", trust_env=False).raise_for_status()


def variables(server, *, key=KEY):
    """Return what the environment of a process has to say so that the catalogue is this platform."""
    return {
        "OPENREWARD_API_URL": server.urls[0],
        "OPENREWARD_SESSION_URL": server.urls[1],
        "OPENREWARD_API_KEY": key,
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "*",
    }
