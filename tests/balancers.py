"""Runs nginx, haproxy or Envoy before servers of ours; where one is not installed, a test is skipped.

The first two are the system's. Envoy comes with a package, where there is one for the platform.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NGINX = """
daemon off;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    log_format sessions '$http_x_session_id|$upstream_addr|$uri|-';
    access_log access.log sessions;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    {snippet}
}}
"""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def balancer(program: str, configuration: str, port: int, folder: Path) -> Iterator[Path]:
    """Run a program until it listens on `port`; yield the file of what it says."""
    packages = Path(sys.executable).parent
    path = shutil.which(program, path=f"/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:{packages}")
    if path is None:
        pytest.skip(f"{program} is not installed")
    file, log = folder / "balancer.yaml", folder / "log"
    file.write_text(configuration)
    command = [path, "-f", str(file)]
    if program == "nginx":
        command = [path, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
    if program == "envoy":
        command = [path, "-c", str(file), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
        command += ["--file-flush-interval-msec", "100"]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_for(port, process, log)
            yield log
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(f"the balancer does not listen: {log.read_text()}")
