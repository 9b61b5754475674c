"""Who may have the key and the secrets, how they travel, and that nothing shows them."""

import base64
import copy
import html
import json
import pickle
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ors_client._http.credentials import Secret, api_key, encode_body, encode_header, environment
from ors_client._http.redaction import Redactor
from ors_client._http.urls import Layout, Target

CATALOGUE = Target(Layout.split("https://openreward.ai"), catalogue=True)
ELSEWHERE = Target(Layout.single("http://127.0.0.1:8000"), catalogue=False)
ENVIRON = {"OPENREWARD_API_KEY": "key-of-the-environment"}


def decoded(header):
    return json.loads(base64.b64decode(header, validate=True))


# the key


def test_environment_holds_this_process_s_openreward_variables_only(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "k")
    monkeypatch.setenv("ANOTHER_API_KEY", "x")
    snapshot = environment()
    monkeypatch.setenv("OPENREWARD_API_KEY", "changed")
    assert snapshot["OPENREWARD_API_KEY"] == "k"
    assert all(name.startswith("OPENREWARD_") for name in snapshot)


def test_key_from_the_environment_goes_to_the_catalogue():
    assert api_key(None, CATALOGUE, ENVIRON) == "key-of-the-environment"


def test_key_from_the_environment_never_goes_to_another_server():
    assert api_key(None, ELSEWHERE, ENVIRON) is None


@pytest.mark.parametrize("target", [CATALOGUE, ELSEWHERE])
def test_explicit_key_wins(target):
    assert api_key("mine", target, ENVIRON) == "mine"


def test_empty_explicit_key_means_that_none_is_sent():
    assert api_key("", CATALOGUE, ENVIRON) is None


@pytest.mark.parametrize("environ", [{}, {"OPENREWARD_API_KEY": ""}, {"OPENREWARD_API_KEY": " \n"}])
def test_unset_or_blank_key_in_the_environment_is_none(environ):
    assert api_key(None, CATALOGUE, environ) is None


def test_key_in_the_environment_is_taken_without_its_newline():
    assert api_key(None, CATALOGUE, {"OPENREWARD_API_KEY": "k\n"}) == "k"


@pytest.mark.parametrize(
    "key",
    [
        "hunter2\n",
        "hunter2\r\nX-Evil: 1",
        "hunter2\x00",
        "hunter2€",
        " hunter2",
        "hunter2\x85",
        "hunter2\x7f",
        "hunter2\x80.",
    ],
)
def test_key_that_no_header_can_carry_is_refused_without_showing_it(key):
    with pytest.raises(ValueError, match="header") as caught:
        api_key(key, ELSEWHERE, {})
    assert "hunter2" not in str(caught.value)


def test_key_of_another_type_is_refused_without_showing_it():
    with pytest.raises(TypeError, match="bytes") as caught:
        api_key(b"hunter2", ELSEWHERE, {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])  # noqa: S301 - our own bytes
@pytest.mark.parametrize("value", [Secret("hunter2", ("a.example",))])
def test_secret_travels_in_pickles(duplicate, value):
    assert duplicate(value) == value
    assert duplicate(value).value == "hunter2"


# encodings


def test_secret_shows_its_domains_and_not_its_value():
    assert "hunter2" not in repr(Secret("hunter2", ("a.example",)))
    assert "a.example" in repr(Secret("hunter2", ("a.example",)))


def test_header_is_base64_of_values_with_domains():
    secrets = {"plain": "v1", "pair": ("v2", ["a.example", "b.example"]), "whole": Secret("v3", ("c.example",))}
    assert decoded(encode_header(secrets, catalogue=False)) == {
        "plain": {"value": "v1", "allowed_domains": []},
        "pair": {"value": "v2", "allowed_domains": ["a.example", "b.example"]},
        "whole": {"value": "v3", "allowed_domains": ["c.example"]},
    }


def test_body_is_names_and_values():
    assert encode_body({"plain": "v1", "pair": ("v2", ["a.example"]), "whole": Secret("v3")}) == {
        "plain": "v1",
        "pair": "v2",
        "whole": "v3",
    }


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_any_secret_survives_both_encodings(secrets):
    header = encode_header(secrets, catalogue=False)
    assert header.isascii()
    assert {name: entry["value"] for name, entry in decoded(header).items()} == secrets
    assert encode_body(secrets) == secrets


def test_secret_for_the_catalogue_without_domains_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"'my_db_password'.*\[domain") as caught:
        encode_header({"my_db_password": "hunter2", "bound": ("hunter3", ["a.example"])}, catalogue=True)
    assert "'bound'" not in str(caught.value)
    assert "hunter" not in str(caught.value)


def test_secret_for_no_host_at_all_says_so_with_an_empty_list():
    assert decoded(encode_header({"K": ("v", [])}, catalogue=True)) == {"K": {"value": "v", "allowed_domains": []}}


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "openai_api_key"])
def test_secret_with_a_known_name_is_bound_to_its_owners_host(name):
    sent = decoded(encode_header({name: "v"}, catalogue=True))
    assert sent == {name: {"value": "v", "allowed_domains": ["api.openai.com"]}}


def test_secret_without_domains_is_taken_by_any_other_server():
    sent = decoded(encode_header({"my_db_password": "hunter2", "OPENAI_API_KEY": "v"}, catalogue=False))
    assert [entry["allowed_domains"] for entry in sent.values()] == [[], []]


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        b"hunter2",
        {"value": "hunter2"},
        ("hunter2",),
        ("hunter2", "a.example"),
        ("hunter2", 5),
        ("hunter2", [5]),
        ("hunter2", ["a.example"], "x"),
        (b"hunter2", ["a.example"]),
    ],
)
@pytest.mark.parametrize("encode", [encode_body, lambda secrets: encode_header(secrets, catalogue=False)])
def test_malformed_secret_is_a_type_error_that_names_it_and_not_its_value(encode, value):
    with pytest.raises(TypeError, match="'the_name'") as caught:
        encode({"the_name": value})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("secrets", [[("k", "hunter2")], "hunter2", {5: "hunter2"}])
def test_secrets_that_are_no_mapping_of_strings_are_a_type_error(secrets):
    with pytest.raises(TypeError) as caught:
        encode_body(secrets)
    assert "hunter2" not in str(caught.value)


def test_secret_without_a_name_is_a_value_error():
    with pytest.raises(ValueError, match="name"):
        encode_body({"": "v"})


# redaction


def redact(text, values):
    return Redactor(values).redact(text)


def test_redact_without_hidden_values_changes_nothing():
    assert redact("a 'b' c", []) == "a 'b' c"
    assert redact("a 'b' c", ["", "   "]) == "a 'b' c"


def test_redact_replaces_every_occurrence_and_nothing_else():
    assert redact("a hunter2, b hunter2.", ["hunter2"]) == "a ***, b ***."


def test_redact_hides_a_secret_in_a_422_that_echoes_the_body():
    body = json.dumps({"detail": [{"loc": ["body", "secrets"], "input": {"K": 'pa"ss\nword'}}]})
    assert redact(body, ['pa"ss\nword']) == body.replace('pa\\"ss\\nword', "***")


SPELLINGS = {
    "as it is": lambda value: value,
    "as JSON": lambda value: json.dumps(value)[1:-1],
    "as JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "as JSON within JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "as Python": lambda value: repr(value)[1:-1],
    "as Python's bytes": lambda value: repr(value.encode())[2:-1],
    "in HTML": html.escape,
    "in a URL": lambda value: quote(value, safe=""),
    "in base64": lambda value: base64.b64encode(value.encode()).decode(),
    "in URL-safe base64": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "in base64 after one byte": lambda value: base64.b64encode(f"x{value}y".encode()).decode(),
    "in base64 after two bytes": lambda value: base64.b64encode(f"x:{value}yz".encode()).decode(),
    "in X-Secrets": lambda value: encode_header({"a": "other", "name": value}, catalogue=False),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
@given(value=st.text(st.characters(exclude_characters="*", exclude_categories=["Cs"]), min_size=4, max_size=40))
def test_redact_hides_a_value_however_it_is_written(spelling, value):
    assume(value.strip() and value not in "said ()")
    # What is cut off at a text's end is found, too, so the text goes on with what no value begins with.
    assert redact(f"said ({spelling(value)}) to all", [value]) == "said (***) to all"


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_redact_hides_a_value_that_the_end_of_the_text_cuts_off(spelling):
    value = "hunter2-hunter2"
    written = spelling(value)
    redacted = [redact(f"said {written[:size]}", [value]) for size in range(len(written))]
    # Less than four characters of it can't be told from words; in base64 they may be five or six.
    assert not any("hunt" in text for text in redacted)
    assert not any(base64.b64encode(b"hunter").decode()[:7] in text for text in redacted)
    assert redacted[-1] == "said ***"


@pytest.mark.parametrize("value", ["ab", 'a"', "é"])
def test_redact_hides_the_secrets_header_of_a_short_value(value):
    header = encode_header({"name": value}, catalogue=False)
    assert redact(f"X-Secrets: {header}", [value]) == "X-Secrets: ***"


def test_redact_hides_the_secrets_header_in_the_url_safe_alphabet():
    header = encode_header({"name>>>???": "ab"}, catalogue=False)
    assert "+" in header
    assert redact(f"X-Secrets: {header.replace('+', '-').replace('/', '_')}", ["ab"]) == "X-Secrets: ***"


@pytest.mark.parametrize("length", range(32, 44))
def test_redact_hides_a_secrets_header_that_was_cut_short(length):
    header = encode_header({"name": "hunter2"}, catalogue=False)
    assert redact(f"X-Secrets: {header[:length]}...", ["hunter2"]) == "X-Secrets: ***..."


@pytest.mark.parametrize("quoted", ['"ab"', "'ab'", '\\"ab\\"', "`ab`", "&quot;ab&quot;"])
def test_redact_hides_a_short_value_between_quotes_only(quoted):
    assert redact(f"able to grab {quoted}", ["ab"]) == f"able to grab {quoted.replace('ab', '***')}"


def test_redact_leaves_no_rest_of_values_that_overlap():
    assert redact("x abcdef y", ["abcd", "cdef"]) == "x *** y"
    assert redact("x abcdef y", ["abcdef", "bcde"]) == "x *** y"
    assert redact("x ababab y", ["abab"]) == "x *** y"


def test_redact_hides_each_line_of_a_long_secret():
    key = "-----BEGIN KEY-----\r\nc2VjcmV0c2VjcmV0\r\n-----END KEY-----"
    assert redact("bad line: c2VjcmV0c2VjcmV0", [key]) == "bad line: ***"
    assert redact(key.replace("\r\n", "\n"), [key]) == "***"


@given(
    values=st.lists(st.text("abc", min_size=4, max_size=6), min_size=1, max_size=3),
    text=st.text("abc ", max_size=60),
)
def test_redacted_text_holds_none_of_the_values(values, text):
    redacted = redact(text, values)
    assert not any(value in redacted for value in values)


def test_redact_of_a_long_text_that_resembles_base64_is_linear():
    # Three million characters take hours when the search is quadratic; the suite's own limit ends it then.
    text = "A" * 3_000_000
    assert redact(text, ["hunter2"]) == text


def test_redactor_keeps_its_own_values_for_good_and_the_latest_of_the_others():
    redactor = Redactor(["the-key"])
    for number in range(0, 5000, 100):
        redactor.add([f"secret-{each:04}-" for each in range(number, number + 100)])
    redactor.add(["secret-4999-"])
    assert redactor.redact("the-key, secret-4999-, secret-1000-") == "***, ***, ***"
    assert len(redactor._recent) < 5000
