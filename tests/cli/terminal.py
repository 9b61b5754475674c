"""A terminal for a command that talks to a person: type, and wait for what it says. Every wait has a bound."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from types import TracebackType
from typing import Self

_SECONDS = 30.0
_CHECK_EVERY = 0.02


class Terminal:
    """A command in a terminal of its own.

    Args:
        arguments: Of `ors`.
        columns: The terminal's width.
        environ: Variables besides this process's.
    """

    def __init__(self, *arguments: str, columns: int = 100, environ: dict[str, str] | None = None) -> None:
        self.said = ""
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ.pop("TMUX", None)  # the terminal is ours, wherever the tests run
            # The width is told, as readline, which pytest loads, has left another one there.
            os.environ.update({"TERM": "xterm", "COLUMNS": str(columns), **(environ or {})})
            os.execv(sys.executable, [sys.executable, "-m", "ors_client.cli", *arguments])  # noqa: S606 - our own command
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._file)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._file, text.encode())

    def expect(self, text: str) -> None:
        """Wait until the command says `text`, after what was expected before."""
        deadline = time.monotonic() + _SECONDS
        while (found := self.said.find(text, self._read)) < 0:
            if not self._receive(deadline):
                raise AssertionError(f"{text!r} was not said; this was:\n{self.said[self._read :]}")
        self._read = found + len(text)

    def status(self) -> int:
        """Wait for the end of the command and return its exit status, negative for a signal."""
        deadline = time.monotonic() + _SECONDS
        while self._receive(deadline):
            pass
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                raise AssertionError(f"the command did not end; it said:\n{self.said[self._read :]}")
            time.sleep(_CHECK_EVERY)

    def _receive(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._file], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            received = os.read(self._file, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.said += received.decode(errors="replace").replace("\r\n", "\n")
        return bool(received)
