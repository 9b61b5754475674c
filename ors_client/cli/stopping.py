"""Leaving by the way of `with` blocks, which delete sessions, when a command is told to stop.

That is Ctrl-C, a closed terminal, or a stopped job. Python runs a signal's handler between two steps of the main
thread, and a signal that arrives just before the thread begins to wait for a line is not seen until the line comes. So
a second thread repeats a signal until its handler has run.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Generator

_REPEAT_SECONDS = 0.1
_ECHO_SECONDS = 0.5  # a repetition may arrive just after the handler ran; later ones are a person's


@contextlib.contextmanager
def leaving_when_told() -> Generator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C, and `SystemExit` when told to end, for the length of the block."""
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    leaving = _Leaving(ear)
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leaving.handle) for number in numbers}
    former = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    watch = threading.Thread(target=leaving.watch, name="ors-signals", daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        mouth.close()  # which ends the thread
        watch.join()
        ear.close()


class _Leaving:
    def __init__(self, ear: socket.socket) -> None:
        self._ear = ear
        self._main = threading.get_ident()
        self._handled = threading.Event()
        self._at = 0.0

    def handle(self, number: int, frame: object) -> None:
        """Leave; called by Python on the main thread."""
        del frame
        if self._handled.is_set() and time.monotonic() - self._at < _ECHO_SECONDS:
            return
        self._at = time.monotonic()
        self._handled.set()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def watch(self) -> None:
        """Repeat the first signal that arrives until it is handled."""
        heard = self._ear.recv(1)
        while heard and hasattr(signal, "pthread_kill") and not self._handled.wait(_REPEAT_SECONDS):
            signal.pthread_kill(self._main, heard[0])
