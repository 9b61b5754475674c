"""A server and a client of plain sockets: they show the bytes, and how a connection ended."""

import contextlib
import socket
import ssl
import threading
from dataclasses import dataclass, field

import httpx

LIMIT = 20.0
"""Seconds for every wait. Each takes milliseconds on an idle machine."""


@dataclass
class Upstream:
    """Answers every request with the script of its path and keeps a journal.

    A script holds bytes to send, events to wait for, and `None`, which closes the connection.
    """

    scripts: dict[str, list[bytes | threading.Event | None]] = field(default_factory=dict)
    journal: list[bytes] = field(default_factory=list)
    answered: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        connection.settimeout(LIMIT)
        with connection, contextlib.suppress(ConnectionError):
            request = read_request(connection)
            if not request:
                return
            self.journal.append(request)
            for step in self.scripts[request.split(b" ")[1].decode()]:
                if step is None:
                    return
                if isinstance(step, threading.Event):
                    assert step.wait(LIMIT)
                else:
                    connection.sendall(step)
            self.answered.set()
            while connection.recv(1024):
                pass
        self.left.set()


def read_request(connection):
    """Read one request whose body, if any, has a length or is chunked and ends in the last chunk."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        data = connection.recv(65536)
        if not data:
            return raw
        raw += data
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
    chunked = b"transfer-encoding: chunked" in lines
    while len(body) < length or (chunked and not body.endswith(b"0\r\n\r\n")):
        data = connection.recv(65536)
        raw, body = raw + data, body + data
    return raw


def connect(url):
    """Open a connection to a URL's host and port."""
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT)


def read_to_end(connection):
    """Read until the connection ends; give the bytes, and `fin` or `reset`."""
    received = b""
    while True:
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            return received, "reset"
        if not data:
            return received, "fin"
        received += data


def read_until(connection, mark):
    """Read until the bytes read end with a mark."""
    received = b""
    while not received.endswith(mark):
        data = connection.recv(65536)
        assert data, f"The connection ended after {received!r}."
        received += data
    return received


def ask(url, path="/env/call", *, method="POST", body=b"{}"):
    """Send one request and read until the connection ends, which the request asks for."""
    with connect(url) as connection:
        connection.sendall(request(path, method=method, body=body, close=True))
        return read_to_end(connection)


def request(path="/env/call", *, method="POST", body=b"{}", close=False):
    """Write one request."""
    closing = b"Connection: close\r\n" if close else b""
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        method.encode(),
        path.encode(),
        closing,
        len(body),
        body,
    )


def client(url, **more):
    """Give an HTTP client with a pool, without the certificates, which take long to load and are not needed."""
    return httpx.Client(base_url=url, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), **more)


def split(raw):
    """Give a response's first line, its headers by lower-case name, and the bytes behind its head."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return first, {name.lower(): value.strip() for name, _, value in pairs}, body


def chunks(body):
    """Give the chunks of a body in the chunked coding, which must be whole and well-formed."""
    found = []
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        data, end, body = body[:size], body[size : size + 2], body[size + 2 :]
        assert len(data) == size
        assert end == b"\r\n"
        if size == 0:
            assert body == b""
            return found
        found.append(data)
