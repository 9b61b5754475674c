"""A generation server as an asynchronous trainer asks it: the endpoints of vLLM that TRL uses, answered by a policy.

Token ids come in and go out, as there; what stands between is a function from text to text. Every token is said to have
had the same probability.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONGEST = 4096


class Generation:
    """A running server.

    Attributes:
        url: Where it listens.
        prompts: The texts that it was asked to continue.
    """

    def __init__(self, url: str, prompts: list[str]) -> None:
        self.url = url
        self.prompts = prompts


@contextmanager
def generating(tokenizer: Any, policy: Callable[[str], str]) -> Iterator[Generation]:
    """Serve the policy for the length of a block."""
    prompts: list[str] = []
    lock = threading.Lock()  # tokenizers of the fast kind are not for several threads at once

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self._answer({"data": [{"id": "policy", "max_model_len": LONGEST}]} if self.path == "/v1/models" else {})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                text = tokenizer.decode(request["prompt"])
                prompts.append(text)
                tokens = tokenizer.encode(policy(text), add_special_tokens=False)[: request["max_tokens"]]
            self._answer({"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": [-1.0] * len(tokens)}}]})

        def _answer(self, content):
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield Generation(f"http://127.0.0.1:{server.server_port}", prompts)
        finally:
            server.shutdown()
            thread.join(30)
