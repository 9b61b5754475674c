"""The model server, run as a process for tests."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from servers import ROOT, _await_urls, stop

_START_SECONDS = 60


@dataclass(frozen=True)
class ModelServer:
    """A running model server."""

    host: str

    @property
    def url(self) -> str:
        return f"{self.host}/v1"

    def requests(self) -> list[dict[str, Any]]:
        """Return what it was asked since it was started."""
        return httpx.get(f"{self.host}/_requests", trust_env=False).json()


@contextmanager
def model_server() -> Iterator[ModelServer]:
    """Run the model server for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="ors-model-") as folder:
        output = Path(folder, "output")
        command = [sys.executable, "-m", "fixtures.model_server", "--port", "0"]
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield ModelServer(_await_urls(process, output, _START_SECONDS)[0])
        finally:
            stop(process)
