"""What TLS changes: whose certificate is trusted, and when an idle connection can be used again."""

import ipaddress
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hostile_server import HONEST, HostileServer, result

from ors_client import AsyncClient, KeepalivePolicy, RetryPolicy, TaskRef, TransportError
from ors_client.evaluation import ChatModel, ModelError

NO_PINGS = KeepalivePolicy(interval=60.0, tolerance=60.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate for 127.0.0.1 that nobody has signed, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(pem))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def test_untrusted_certificate_is_told_at_once_with_the_remedy(backend: str, tls: ssl.SSLContext) -> None:
    async def main(url: str) -> tuple[TransportError, ModelError]:
        async with AsyncClient(url, retry=RetryPolicy(attempts=3, first_delay=0.01)) as client:
            with pytest.raises(TransportError, match="certificate") as caught:
                await client.list_environments()
        async with ChatModel("m", url) as model:
            with pytest.raises(ModelError) as of_model:
                await model.ask({"messages": []})
        return caught.value, of_model.value

    with HostileServer(tls=tls) as server:
        error, of_model = anyio.run(main, server.url, backend=backend)
    assert error.attempts == 1
    assert "set SSL_CERT_FILE" in error.message
    assert "set SSL_CERT_FILE" in of_model.message
    assert server.requests == []


def test_connection_that_was_closed_while_the_loop_was_blocked_loses_no_call(
    backend: str, tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def main(url: str) -> None:
        async with (
            AsyncClient(url, keepalive=NO_PINGS) as client,
            client.environment("env").session(TaskRef("train", 0)) as session,
        ):
            await session.get_prompt()
            for nth in range(3):
                assert (await session.call_tool("go")).text == str(nth)
                time.sleep(0.3)  # noqa: ASYNC251 - a model that generates in the same thread

    # The server ends a connection after each call, a moment later.
    with HostileServer(tls=tls, call=lambda nth: [result(str(nth)), 0.1, None]) as server:
        anyio.run(main, server.url, backend=backend)
    assert server.count("call") == 3


def test_connection_is_used_again_though_tls_has_messages_of_its_own(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def main(url: str) -> None:
        async with AsyncClient(url, keepalive=NO_PINGS) as client:
            for _ in range(3):
                assert await client.list_environments() == ["env"]

    with HostileServer(tls=tls, list_environments=lambda _: [HONEST["list_environments"]]) as server:
        anyio.run(main, server.url)
    assert server.connections == 1
