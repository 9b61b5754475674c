"""The platform's double is one to the openreward SDK: a whole visit of it succeeds there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from platforms import platform, variables

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_openreward_finds_its_platform_here():
    with platform() as server:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("sdk_episode.py"))],
            cwd=ROOT,
            env={**os.environ, **variables(server)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found == {
            "num_tasks": 10,
            "tools": ["ask", "beta_only"],
            "secrets": ["K"],
            "difficulty": 10,
            "prompt": 1,
            "text": "beta: beta-train-1",
        }
        told = httpx.get(f"{server.urls[0]}/_rollouts", trust_env=False).json()
        assert [event["eventType"] for event in told["events"]] == [
            "rollout",
            "message",
            "message",
            "rollout_update",
            "message",
        ]
        state = httpx.get(f"{server.urls[1]}/_platform", trust_env=False).json()
        assert state["refused"] == {}
        assert state["openings"][-1]["env"] == {"OPENAI_API_KEY": "token"}
        assert state["toolsets"] == ["codex"]
