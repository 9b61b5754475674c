"""Where a client's requests go, for every row of the table, and where a redirect may lead."""

import ipaddress
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ors_client._errors import ProtocolError
from ors_client._http.urls import Layout, Target, follow, origin, resolve

CATALOGUE = Layout(api="https://api.openreward.ai", sessions="https://sessions.openreward.ai")

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9](\.[a-z][a-z0-9]{1,5}){0,2}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)
HOST_URLS = st.builds(
    lambda scheme, host, port: f"{scheme}://{host}{port}",
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}")),
)
PREFIXES = st.lists(st.from_regex(r"[a-z0-9_-]{1,6}", fullmatch=True), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)


@pytest.mark.parametrize(
    ("url", "normalised"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("https://x.hf.space/prefix/", "https://x.hf.space/prefix"),
        ("https://x.hf.space/a/b//", "https://x.hf.space/a/b"),
        ("HTTPS://X.Hf.Space:443", "https://x.hf.space"),
        ("http://localhost:80/", "http://localhost"),
        ("http://[0:0:0::1]/x", "http://[::1]/x"),
        ("http://bücher.example", "http://xn--bcher-kva.example"),
    ],
)
def test_layout_of_one_url_serves_both_parts_normalised(url, normalised):
    layout = Layout.single(url)
    assert (layout.api, layout.sessions) == (normalised, normalised)
    assert not layout.is_split


def test_layout_split_puts_both_parts_under_sub_domains():
    layout = Layout.split("https://env.example:8443/ors/")
    assert layout == Layout(api="https://api.env.example:8443/ors", sessions="https://sessions.env.example:8443/ors")
    assert layout.is_split


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://[::1]:8000"])
def test_layout_split_of_an_address_says_to_name_both_urls(url):
    with pytest.raises(ValueError, match=r"Layout\(api=\.\.\., sessions=\.\.\.\)"):
        Layout.split(url)


@pytest.mark.parametrize(
    ("url", "suggestion"),
    [
        ("localhost:8000", "'http://localhost:8000'"),
        ("127.0.0.1:8000/prefix", "'http://127.0.0.1:8000/prefix'"),
        ("env.example", "'http://env.example'"),
    ],
)
def test_url_without_scheme_is_refused_with_a_suggestion(url, suggestion):
    with pytest.raises(ValueError, match="did you mean") as caught:
        Layout.single(url)
    assert suggestion in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "ws://h",
        "https:/h",
        "http://",
        "http:///tools",
        "http://h:0",
        "http://h:65536",
        "http://h:port",
        "http://h\\evil.example/",
        "http://a b",
        "http://a..b",
        "http://.a",
        "http://h\n",
        "http://h?",
        "http://h/?x=1",
        "http://h/#top",
        "",
    ],
)
def test_url_that_no_request_can_go_to_is_a_value_error(url):
    with pytest.raises(ValueError, match="URL"):
        Layout.single(url)


@pytest.mark.parametrize("url", [None, 8000, b"http://h"])
def test_layout_of_something_else_than_a_string_is_a_type_error(url):
    with pytest.raises(TypeError, match="string"):
        Layout.single(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@h",
        "http://user:hun/hunter2@h",
        "http://user:hun@hunter2@h",
        "http://user:hun?hunter2@h",
        "http://user:hun#hunter2@h",
        "user:hunter2@h:8000",
        "http://h?token=hunter2",
        "http://h/#hunter2",
        "ftp://user:hunter2@h",
        "http://user:hunter2@h:0",
    ],
)
def test_rejected_url_is_named_without_its_password(url):
    with pytest.raises(ValueError, match="h") as caught:
        Layout.single(url)
    assert "hunter2" not in str(caught.value)


def test_layout_survives_pickling():
    layout = Layout.split("https://env.example")
    assert pickle.loads(pickle.dumps(layout)) == layout  # noqa: S301 - our own bytes


# resolve: every row of the table


@pytest.mark.parametrize("url", ["https://openreward.ai", "https://openreward.ai/", "HTTPS://OpenReward.ai:443"])
def test_catalogue_s_own_url_reaches_the_catalogue(url):
    assert resolve(url, {}) == Target(CATALOGUE, catalogue=True)


def test_catalogue_moves_with_the_url_variable():
    environ = {"OPENREWARD_URL": "https://stage.example:8443/"}
    layout = Layout(api="https://api.stage.example:8443", sessions="https://sessions.stage.example:8443")
    assert resolve("https://openreward.ai", environ) == Target(layout, catalogue=True)


def test_catalogue_part_named_by_its_variable_needs_no_other():
    environ = {
        "OPENREWARD_URL": "https://stage.example",
        "OPENREWARD_API_URL": "http://127.0.0.1:1/api",
        "OPENREWARD_SESSION_URL": "http://127.0.0.1:2",
    }
    layout = Layout(api="http://127.0.0.1:1/api", sessions="http://127.0.0.1:2")
    assert resolve("https://openreward.ai", environ) == Target(layout, catalogue=True)
    assert resolve("https://openreward.ai", {"OPENREWARD_SESSION_URL": "http://127.0.0.1:2"}).layout == Layout(
        api=CATALOGUE.api, sessions="http://127.0.0.1:2"
    )


def test_empty_variables_count_as_unset():
    environ = {"OPENREWARD_URL": "", "OPENREWARD_API_URL": " ", "OPENREWARD_SESSION_URL": ""}
    assert resolve("https://openreward.ai", environ) == Target(CATALOGUE, catalogue=True)


@pytest.mark.parametrize("variable", ["OPENREWARD_URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"])
def test_catalogue_variable_that_is_no_url_is_named(variable):
    with pytest.raises(ValueError, match=rf"{variable}\b.*'localhost:8000'"):
        resolve("https://openreward.ai", {variable: "localhost:8000"})


def test_url_variable_with_an_address_says_which_variables_to_set():
    with pytest.raises(ValueError, match=r"OPENREWARD_URL.*OPENREWARD_API_URL and OPENREWARD_SESSION_URL"):
        resolve("https://openreward.ai", {"OPENREWARD_URL": "http://127.0.0.1:8000"})


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "http://[::1]:8000",
        "https://x.hf.space/prefix",
        "http://openreward.ai",
        "https://openreward.ai:8443",
        "https://openreward.ai/prefix",
        "https://openreward.ai.evil.example",
        "https://sessions.openreward.ai",
    ],
)
def test_any_other_url_serves_both_parts_and_gets_no_key_from_the_environment(url):
    assert resolve(url, {}) == Target(Layout.single(url), catalogue=False)


@pytest.mark.parametrize(
    "unrelated",
    [
        "http://127.0.0.1:9000",
        "http://localhost:8000",
        "https://api.openreward.ai",
        "http://1.127.0.0.1:8000",
        "http://example",
        "no url at all",
    ],
)
def test_variable_of_an_unrelated_host_does_not_capture_a_given_url(unrelated):
    variables = ("OPENREWARD_URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL")
    environ = dict.fromkeys(variables, unrelated)
    url = "http://127.0.0.1:8000"
    assert resolve(url, environ) == Target(Layout.single(url), catalogue=False)


def test_variable_whose_host_only_ends_alike_does_not_capture_a_given_url():
    environ = {"OPENREWARD_API_URL": "https://evil-env.example", "OPENREWARD_SESSION_URL": "https://example"}
    assert resolve("https://env.example", environ).layout == Layout.single("https://env.example")


def test_variable_of_the_same_host_and_another_port_does_not_capture_a_given_url():
    environ = {"OPENREWARD_SESSION_URL": "https://env.example:8443"}
    assert resolve("https://env.example", environ).layout == Layout.single("https://env.example")


def test_variable_of_a_sub_domain_or_the_same_host_and_port_is_taken_for_its_part():
    environ = {
        "OPENREWARD_API_URL": "https://ENV.example:443/api",
        "OPENREWARD_SESSION_URL": "https://sessions.env.example:8443",
    }
    layout = Layout(api="https://env.example/api", sessions="https://sessions.env.example:8443")
    assert resolve("https://env.example/", environ) == Target(layout, catalogue=False)


def test_layout_is_taken_as_given_whatever_the_variables_say():
    layout = Layout(api="https://env.example/api", sessions="http://127.0.0.1:8000")
    environ = {"OPENREWARD_API_URL": "https://a.env.example", "OPENREWARD_SESSION_URL": "http://127.0.0.1:8000/x"}
    assert resolve(layout, environ) == Target(layout, catalogue=False)


@pytest.mark.parametrize("url", [None, ""])
def test_url_from_an_unset_variable_is_an_error_that_says_so(url):
    with pytest.raises(ValueError, match=r"may be unset.*catalogue"):
        resolve(url, {})


def test_resolve_of_something_else_is_a_type_error():
    with pytest.raises(TypeError, match="int"):
        resolve(8000, {})


# origins


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://H/x", ("http", "h", 80)),
        ("https://h/", ("https", "h", 443)),
        ("https://h:80/", ("https", "h", 80)),
        ("http://[::1]:8000/", ("http", "::1", 8000)),
        ("http://[0:0:0::1]/", ("http", "::1", 80)),
        ("http://BÜCHER.example", ("http", "xn--bcher-kva.example", 80)),
    ],
)
def test_origin_is_scheme_host_and_port(url, expected):
    assert origin(url) == expected


def test_origin_ignores_case_default_ports_and_paths():
    assert origin("http://H:80/a") == origin("http://h/b?c")
    assert origin("http://h/a") != origin("https://h/a")
    assert origin("http://h/a") != origin("http://h:8000/a")


@given(host_url=HOST_URLS, prefix=PREFIXES)
def test_layout_is_normalised_once_and_keeps_origin_and_prefix(host_url, prefix):
    url = Layout.single(f"{host_url}{prefix}/").api
    assert Layout.single(url).api == url
    assert origin(url) == origin(host_url)
    assert url.endswith(prefix)
    assert not url.endswith("/")


# redirects

HOME = Layout.single("http://env.example:8000")


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/alpha/call", "http://env.example:8000/alpha/call"),
        ("/alpha/task?x=1", "http://env.example:8000/alpha/task?x=1"),
        ("tools", "http://env.example:8000/echo/tools"),
        ("http://env.example:8000/alpha/tools", "http://env.example:8000/alpha/tools"),
        ("//ENV.example:8000/alpha", "http://env.example:8000/alpha"),
        ("/alpha/tools#part", "http://env.example:8000/alpha/tools"),
    ],
)
def test_redirect_within_the_origin_is_followed(location, target):
    assert follow("http://env.example:8000/echo/call", location, layout=HOME) == target


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.example:8000/call",
        "http://env.example/call",
        "http://env.example:8001/call",
        "//evil.example/call",
        "http://env.example.evil.example:8000/call",
        "http://sub.env.example:8000/call",
    ],
)
def test_redirect_to_another_origin_is_refused_and_names_both(location):
    with pytest.raises(ProtocolError) as caught:
        follow("http://env.example:8000/call", location, layout=HOME)
    assert "http://env.example:8000" in caught.value.problem
    scheme, host, port = origin(location if "http" in location else f"http:{location}")
    assert f"{scheme}://{host}" + ("" if port == 80 else f":{port}") in caught.value.problem


@pytest.mark.parametrize(
    "location",
    [
        "",
        " ",
        "ftp://env.example/x",
        "javascript:alert(1)",
        "http://[::1",
        "http://a\nb/",
        "http://user:pw@env.example:8000/x",
        "http://env.example:8000\\@evil.example/",
        "http://env.example:99999/",
    ],
)
def test_redirect_to_nowhere_is_a_protocol_error(location):
    with pytest.raises(ProtocolError):
        follow("http://env.example:8000/call", location, layout=HOME)


@pytest.mark.parametrize(
    ("home", "location", "secure"),
    [
        ("http://env.example", "https://env.example/echo/call", "https://env.example"),
        ("http://env.example/ors", "https://env.example/ors/echo/call", "https://env.example/ors"),
        ("http://env.example:8000", "https://env.example:8443/echo/call", "https://env.example:8443"),
        ("http://[::1]:8000", "https://[::1]:8443/echo/call", "https://[::1]:8443"),
    ],
)
def test_redirect_to_https_of_the_same_host_names_the_url_to_use(home, location, secure):
    with pytest.raises(ProtocolError) as caught:
        follow(f"{home}/echo/call", location, layout=Layout.single(home))
    assert f"use {secure!r}" in caught.value.problem


def test_redirect_from_https_to_http_is_refused_without_advice_to_do_so():
    with pytest.raises(ProtocolError) as caught:
        follow("https://env.example/call", "http://env.example/call", layout=Layout.single("https://env.example"))
    assert "use '" not in caught.value.problem


@pytest.mark.parametrize(
    "location", ["/bob/call", "/alice-2/call", "../../bob/call", "/alice/../bob", "/alice/%2e%2e/bob", "/"]
)
def test_redirect_out_of_the_layout_s_prefix_is_refused(location):
    layout = Layout.single("https://hub.example/alice")
    with pytest.raises(ProtocolError, match="outside"):
        follow("https://hub.example/alice/echo/call", location, layout=layout)


def test_redirect_between_the_two_parts_of_one_origin_is_followed():
    layout = Layout(api="https://env.example/api", sessions="https://env.example/sessions")
    assert follow("https://env.example/sessions/x", "/api/x", layout=layout) == "https://env.example/api/x"


@given(host_url=HOST_URLS, prefix=PREFIXES, location=st.one_of(st.text(max_size=40), HOST_URLS, PREFIXES))
def test_redirect_never_leaves_its_origin_and_prefix(host_url, prefix, location):
    layout = Layout.single(host_url + prefix)
    try:
        target = follow(f"{layout.sessions}/echo/call", location, layout=layout)
    except ProtocolError:
        return
    assert origin(target) == origin(host_url)
    assert target.startswith(layout.sessions)


@given(address=st.ip_addresses(v=6))
def test_origin_of_ipv6_does_not_depend_on_its_spelling(address: ipaddress.IPv6Address):
    assert origin(f"http://[{address.exploded}]/") == origin(f"http://[{address.compressed}]/")
