"""The command, run in this process: what it prints, and how it ends."""

from collections.abc import Callable, Iterator

import pytest
from servers import Server, serve
from typer.testing import CliRunner, Result

from fixtures.proxy import FaultProxy
from ors_client.cli.app import app
from ors_client.record import RecordWriter

Run = Callable[..., Result]


@pytest.fixture
def ors() -> Run:
    """Run `ors` with arguments; stdin is `input`."""

    def run(*arguments: object, **settings: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], **settings)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception  # a person would have seen a traceback
        return result

    return run


@pytest.fixture
def proxy(echo_server: Server) -> Iterator[FaultProxy]:
    """A proxy before the echo server; it breaks nothing unless it is told to."""
    with FaultProxy(echo_server.url) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def split_server() -> Iterator[Server]:
    """The catalogue's layout: an API host, and a sessions host that demands a key and a deployment."""
    with serve("ours", "--env", "echo", "--split") as server:
        yield server


@pytest.fixture
def record(tmp_path):
    """Write episodes to a record of that name, and return its path."""

    def write(name, *episodes):
        writer = RecordWriter(tmp_path / name)
        for one in episodes:
            writer.append(one)
        return tmp_path / name

    return write
