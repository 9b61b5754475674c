"""Forks the tests' servers off processes that have imported them: an official SDK alone takes three seconds to import.

`python -m tests.forkserver DESCRIPTOR` is such a process; it takes a listening socket and ends with its standard input.
There is one for each kind of server, so that none waits for another's import before it tells that a server has ended.
Each connection asks for one server, and is answered with its process id and, when it has ended, its exit status.
"""

import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

VARIABLE = "ORS_TEST_FORKSERVER"
"""Names an environment variable: the folder with the sockets, one a kind, that serve all workers of a run."""

ROOT = Path(__file__).parent.parent
_MODULES = {"ours": "fixtures.server", "openreward": "fixtures.peers", "ors-sdk": "fixtures.peers"}
_PEERS = {"openreward": "fixtures.peers.openreward_server", "ors-sdk": "fixtures.peers.ors_sdk_server"}


class ForkedProcess:
    """A server's process; what `subprocess.Popen` has of these names, this has too."""

    def __init__(self, folder: str, arguments: Sequence[str], *, env: Mapping[str, str], output: Path) -> None:
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(Path(folder) / arguments[0]))
        self._answers = self._connection.makefile("rb")
        request = {"arguments": arguments, "env": dict(env), "output": str(output)}
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid: int = json.loads(self._answers.readline())

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It goes on.
        """
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0)
            self.returncode = json.loads(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Make it end."""
        self.send_signal(signal.SIGKILL)


@contextmanager
def forking() -> Iterator[None]:
    """Have the servers of this process and of its children forked, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="ors-fork-") as folder, ExitStack() as stack:
        for kind in _MODULES:
            stack.enter_context(_forkserver(Path(folder) / kind))
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[VARIABLE]


@contextmanager
def _forkserver(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", str(listener.fileno())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    try:
        yield
    finally:
        process.communicate()


class _Forkserver:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._servers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Fork servers until standard input ends; each goes on until it is told to stop."""
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, which then ends this
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(wake, selectors.EVENT_READ, lambda: self._reap(wake))
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with connection.makefile("rb") as lines:
            request = json.loads(lines.readline())
        main = _import_main(request["arguments"])
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._selector.close()
            for each in (connection, self._listener, *self._servers.values()):
                each.close()
            _run(main, request)
        self._servers[pid] = connection
        connection.sendall(b"%d\n" % pid)

    def _reap(self, wake: socket.socket) -> None:
        wake.recv(4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._servers.pop(ended[0]) as connection, suppress(OSError):  # who asked may be gone
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def _import_main(arguments: Sequence[str]) -> Callable[[], None]:
    """Import what a server needs, here, so that later ones find it imported."""
    kind = arguments[0]
    module = importlib.import_module(f"{_MODULES[kind]}.__main__")
    if kind in _PEERS:
        importlib.import_module(_PEERS[kind])
    gc.freeze()
    return module.main


def _run(main: Callable[[], None], request: Mapping[str, Any]) -> None:
    """Be the server in a process that was just forked, and end it."""
    status = 1
    try:
        output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.environ.clear()
        os.environ.update(request["env"])
        random.seed()
        kind, *arguments = request["arguments"]
        sys.argv = ["server", *([kind] if kind in _PEERS else []), *arguments]
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - the top of a process, whose stack goes on into the one that it was forked off
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    os.environ["LOG_LEVEL"] = "CRITICAL"  # read by the SDKs when they are imported
    _Forkserver(socket.socket(fileno=int(sys.argv[1]))).serve()
