"""Connections go through the proxy that the environment's variables name."""

import httpx
import pytest

from ors_client._http.pool import _proxy

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def proxies(monkeypatch):
    """Set the proxies of this process to exactly these."""

    def name(**variables):
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
            monkeypatch.delenv(variable.upper(), raising=False)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)

    return name


@pytest.mark.parametrize("written", ["me:pass@proxy.test:3128", "http://me:pass@proxy.test:3128"])
def test_proxy_may_be_written_without_its_scheme(proxies, written):
    proxies(https_proxy=written)
    found = _proxy(httpx.URL("https://a.test"))
    assert found is not None
    assert (str(found.url), found.auth) == ("http://proxy.test:3128", ("me", "pass"))


def test_host_without_a_proxy_gets_none(proxies):
    proxies(https_proxy="proxy.test:3128", no_proxy="a.test")
    assert _proxy(httpx.URL("https://a.test")) is None
    assert _proxy(httpx.URL("http://b.test")) is None
