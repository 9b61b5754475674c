"""What the libraries read when they are imported, and a server of a person's own."""

import os

import pytest
from servers import serve

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture(scope="session")
def two_words():
    """Our server with as few tasks as the demo can do with."""
    with serve("ours", "--env", "echo", "--words", "red,blue") as server:
        yield server
