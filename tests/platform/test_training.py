"""TRL's trainer with a catalogue environment, while the platform starts slowly, expires sessions and is full."""

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
def test_training_run_through_the_platform(tmp_path):
    conditions = ("--session-ttl", "1.5", "--starting-requests", "1", "--starting-retry-after", "0.05")
    with platform(*conditions, env="echo") as server:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("train.py")), str(tmp_path / "told")],
            cwd=ROOT,
            env={**os.environ, **variables(server)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads((tmp_path / "told").read_text())
        state = httpx.get(f"{server.urls[1]}/_platform", trust_env=False).json()
        rollouts = httpx.get(f"{server.urls[0]}/_rollouts", trust_env=False).json()["events"]
        # Two steps of four rollouts: every call ran once, whatever its session met, and every reward arrived.
        assert told == {"steps": 2, "rewards": [[1.0, 0.0, 1.0, 0.0]] * 2}
        assert server.executions("echo") == 8
        assert state["refused"]["503"] >= 8 * 5
        assert (state["open"], server.live()) == (0, [])
        assert {"api_key"} in [opening["secrets"].keys() for opening in state["openings"]]
        assert [event["eventType"] for event in rollouts].count("rollout") == 8
        results = [event for event in rollouts if event.get("type") == "tool_result"]
        assert sorted(event["reward"] for event in results) == [0.0] * 4 + [1.0] * 4
