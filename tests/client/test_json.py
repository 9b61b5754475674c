"""JSON is strict in what is sent, bounded in what is taken, and silent about what an error body echoes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ors_client import LimitExceeded, Limits
from ors_client._protocol.json import decode, detail, encode, refuses_body_secrets

LIMITS = Limits()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_is_sent_is_ascii_and_comes_back_as_it_was(value):
    sent = encode(value)
    assert sent.isascii()
    assert json.loads(sent) == value


def test_lone_surrogate_is_sent_escaped():
    assert encode({"text": "half \ud83d"}) == b'{"text":"half \\ud83d"}'


@pytest.mark.parametrize(
    "value", [{1: "x"}, {"a": {None: 1}}, {"a": [{2: 1}]}, {"a": object()}, {"a": {1}}, {"a": b""}]
)
def test_value_that_is_no_json_is_refused(value):
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_number_that_is_not_finite_is_refused(number):
    with pytest.raises(ValueError, match=r"^a\[\] is .* write None"):
        encode({"a": [number]})


def test_value_that_contains_itself_is_refused():
    value = {}
    value["self"] = value
    with pytest.raises(ValueError, match="contains itself"):
        encode(value)


@given(VALUES)
def test_what_came_is_read_as_it_was_sent(value):
    assert decode(json.dumps(value), limits=LIMITS) == value


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"a":}', "[1,]"])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"Expecting|Illegal"):
        decode(text, limits=LIMITS)


@pytest.mark.parametrize("depth", [6, 40_000])  # of more, the items are too many before the depth is looked at
def test_nesting_past_the_limit_names_the_limit(depth):
    with pytest.raises(LimitExceeded) as caught:
        decode("[" * depth + "]" * depth, limits=Limits(schema_depth=5))
    assert (caught.value.limit, caught.value.maximum) == ("schema_depth", 5)


def test_limit_on_nesting_beyond_what_python_can_is_still_an_error_of_the_limit():
    depth = 100_000  # Python 3.12 and newer go deeper than their recursion limit of 1,000
    deep = "[" * depth + '"\\ud83d"' + "]" * depth
    with pytest.raises(LimitExceeded):
        decode(deep, limits=Limits(schema_depth=2 * depth, items=10 * depth))


def test_nesting_up_to_the_limit_and_any_width_are_read():
    assert decode("[[[[[1]]]]]", limits=Limits(schema_depth=5)) == [[[[[1]]]]]
    assert decode("[" + "[],{}," * 50 + "1]", limits=Limits(schema_depth=5))[-1] == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"a\ud83d"', "a\ufffd"),
        (r'"\uDE00b"', "\ufffdb"),
        (r'{"k\ud83d":["\ud83d"]}', {"k\ufffd": ["\ufffd"]}),
    ],
)
def test_surrogates_become_characters_that_text_may_hold(text, value):
    assert decode(text, limits=LIMITS) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d%s"', "\ufffd%s"),
        (r'{"a":{"k\ud83d":"%s"}}', {"a": {"k\ufffd": "%s"}}),
        (r'[["\ud83d"],"%s"]', [["\ufffd"], "%s"]),
    ],
)
def test_surrogates_of_a_long_text_become_characters_too(text, value):
    long = "x" * 2**17
    assert json.dumps(decode(text % long, limits=LIMITS)) == json.dumps(value).replace("%s", long)


def test_long_text_meets_the_limit_on_nesting():
    long = '"' + "x" * 2**17 + '"'
    assert decode("[[[[[" + long + "]]]]]", limits=Limits(schema_depth=5)) == [[[[["x" * 2**17]]]]]
    with pytest.raises(LimitExceeded):
        decode("[[[[[[" + long + "]]]]]]", limits=Limits(schema_depth=5))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"detail": "no such"}, "no such"),
        ({"error": "no such"}, "no such"),
        ({"message": "no such"}, "no such"),
        ({"detail": None}, ""),
        ({}, ""),
        ("plain", "plain"),
        ({"detail": {"a": 1}}, '{"a": 1}'),
        ({"detail": [{"loc": ["body", "x"], "msg": "Extra", "input": "s3cret"}]}, "body.x: Extra"),
        ({"detail": [{"msg": "Extra", "input": {"K": "s3cret"}}, "and more"]}, "Extra; and more"),
    ],
)
def test_error_body_says_what_is_wrong_and_echoes_no_input(body, told):
    assert detail(body) == told


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"detail": [{"loc": ["body", "secrets"], "msg": "Extra", "input": {"K": "v"}}]}, True),
        ({"detail": [{"loc": ["body", "x"]}, {"loc": ["body", "secrets"]}]}, True),
        ({"detail": [{"loc": ["body", "toolset_name"]}]}, False),
        ({"detail": [{"loc": ["body", "secrets", "K"]}]}, False),
        ({"detail": "secrets"}, False),
        ([], False),
        (None, False),
    ],
)
def test_refusal_of_secrets_in_the_body_is_recognised(body, refused):
    assert refuses_body_secrets(body) is refused
