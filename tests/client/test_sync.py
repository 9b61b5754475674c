"""The blocking face has the names and signatures of the asynchronous one, and a thread that ends."""

import inspect
import threading

import anyio
import pytest
from scripted import Peer

import ors_client
from ors_client import AsyncClient, AsyncEnvironment, AsyncSession, Client, ClientStateError, DeadlineExceeded, TaskRef

TASK = TaskRef("train", 0)
PAIRS = [(AsyncClient, Client), (AsyncEnvironment, ors_client.Environment), (AsyncSession, ors_client.Session)]


def public(kind):
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def spelt(member):
    """Return a member's parameters and result as they are written, without what makes them asynchronous."""
    if isinstance(member, property):
        return "property", inspect.signature(member.fget).return_annotation
    signature = inspect.signature(member)
    parameters = [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values()]
    return parameters, str(signature.return_annotation).replace("Async", "")


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_members_have_the_same_names_signatures_and_docstrings(asynchronous, blocking):
    theirs = {name.removeprefix("a") if name == "aclose" else name: m for name, m in public(asynchronous).items()}
    ours = public(blocking)
    ours.pop("open", None)  # for a notebook's cells, through which no `with` block reaches
    assert ours.keys() == theirs.keys()
    assert {name: spelt(member) for name, member in ours.items()} == {n: spelt(m) for n, m in theirs.items()}
    assert all(inspect.getdoc(member) for member in ours.values())


def test_clients_take_the_same_arguments():
    assert spelt(Client.__init__) == spelt(AsyncClient.__init__)


def connected(peer, **more):
    return Client("http://peer.test", transport=peer.transport, **more)


def thread_is_gone():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("ors-client")]


def test_client_outside_of_its_block_is_an_error():
    client = connected(Peer())
    with pytest.raises(ClientStateError, match="with"):
        client.list_environments()
    client.close()
    with client:
        with pytest.raises(ClientStateError, match="open already"):
            client.__enter__()
        assert client.list_environments() == ["env"]
        environment = client.environment()
    for ask in (client.list_environments, environment.list_tools):
        with pytest.raises(ClientStateError):
            ask()
    client.close()
    assert thread_is_gone()


def test_client_may_be_entered_again():
    client = connected(Peer())
    for _ in range(2):
        with client, client.environment().session(TASK) as session:
            assert session.call_tool("go").text == "gone"
        assert thread_is_gone()


def test_client_and_session_work_without_a_with_block():
    client = connected(Peer()).open()
    session = client.environment().session(TASK).open()
    assert session.call_tool("go").text == "gone"
    session.close()
    client.close()
    assert repr(session) == "<Session s1 closed>"
    assert thread_is_gone()


def test_reprs_name_the_blocking_classes():
    with connected(Peer()) as client:
        environment = client.environment("env")
        with environment.session(TASK) as session:
            assert repr(client) == "Client('http://peer.test')"
            assert repr(environment) == "Environment('env')"
            assert repr(session) == "<Session s1 open>"
        assert repr(session) == "<Session s1 closed>"


def test_limit_of_a_call_is_kept():
    async def forever(_):
        await anyio.sleep_forever()

    with connected(Peer({"POST /call": forever})) as client, client.environment().session(TASK) as session:
        with pytest.raises(DeadlineExceeded):
            session.call_tool("go", timeout=0.05)
        assert session.get_prompt()


def test_closing_the_client_ends_the_calls_of_other_threads():
    started = threading.Event()

    async def forever(_):
        started.set()
        await anyio.sleep_forever()

    peer = Peer({"POST /call": forever})
    client = connected(peer)
    raised = []

    def call():
        try:
            with client.environment().session(TASK) as session:
                session.call_tool("go")
        except ClientStateError as error:
            raised.append(error)

    with client:
        thread = threading.Thread(target=call)
        thread.start()
        assert started.wait(30)
    thread.join(30)
    assert not thread.is_alive()
    assert len(raised) == 1
    assert peer.paths().count("POST /delete") == 1
    assert thread_is_gone()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_used_inside_an_event_loop_it_blocks_but_works(backend):
    async def main():
        with connected(Peer()) as client:
            return client.list_environments()

    assert anyio.run(main, backend=backend) == ["env"]
