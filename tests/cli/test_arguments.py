"""Schemas as questions, and answers as values."""

import re

import pytest

from ors_client import ToolSpec
from ors_client.cli.arguments import read_arguments, signature

_DEEP = "[" * 100_000


def _argument(schema, *, required=True, **root):
    specification = {"type": "object", "properties": {"x": schema}, "required": ["x"] if required else [], **root}
    (argument,) = read_arguments(ToolSpec(name="tool", input_schema=specification))
    return argument


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "string"}, "  7 ", "  7 "),
        ({"type": "string"}, "", ""),
        ({"type": "string"}, '"two\\nlines"', "two\nlines"),
        ({"type": "string"}, '"unclosed', '"unclosed'),
        ({"type": "string"}, "{}", "{}"),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "number"}, "7.5", 7.5),
        ({"type": ["number", "string"]}, "NaN", "NaN"),
        ({"type": "boolean"}, "no", False),
        ({"type": "array"}, "[1]", [1]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({}, '"text"', "text"),
        ({"enum": ["a", 1, None]}, "a", "a"),
        ({"enum": ["a", 1, None]}, "null", None),
        ({"enum": ["red", "green"]}, "2", "green"),
        ({"enum": [2, 1]}, "2", 2),
        ({"const": "fixed"}, "1", "fixed"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text", "text"),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"type": ["integer", "string"]}, "seven", "seven"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1", "[1"),
        pytest.param({"anyOf": [{"type": "string"}, {"type": "array"}]}, _DEEP, _DEEP, id="deep"),
        ({"$ref": "#/$defs/A"}, "7", 7),
        ({"allOf": [{"$ref": "#/$defs/A"}]}, "7", 7),
    ],
)
def test_answer_becomes_the_value_that_the_schema_means(schema, typed, value):
    read = _argument(schema, **{"$defs": {"A": {"type": "integer"}}}).read(typed)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "typed"),
    [
        ({"type": "integer"}, "7.5"),
        ({"type": "integer"}, ""),
        ({"type": "number"}, "many"),
        ({"type": "number"}, "NaN"),
        ({"type": "number"}, "1e999"),
        ({"type": "boolean"}, "perhaps"),
        ({"type": "array"}, "one"),
        ({"type": "array"}, "[NaN]"),
        ({"type": "array"}, "[-1e999]"),
        pytest.param({"type": "array"}, "[" * 600 + "]" * 600, id="deeper than is sent"),
        pytest.param({"type": "array"}, _DEEP, id="deeper than Python reads"),
        ({"enum": ["red"]}, "2"),
        ({"enum": ["red"]}, ""),
    ],
)
def test_answer_that_does_not_fit_is_refused_with_what_does(schema, typed):
    argument = _argument(schema)
    with pytest.raises(ValueError, match=re.escape(argument.label)):
        argument.read(typed)


def test_signature_shows_type_option_and_default():
    assert _argument({"type": "integer", "default": 3}, required=False).summary() == "x?: integer = 3"
    assert _argument({"type": "array", "items": {"type": "string"}}).summary() == "x: list of string"
    assert _argument({"enum": ["a", None]}, required=False).summary() == 'x?: "a" | null'


def test_required_arguments_are_asked_first():
    schema = {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["c", "b"]}
    assert [argument.name for argument in read_arguments(ToolSpec(name="t", input_schema=schema))] == ["b", "c", "a"]


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"properties": []},
        {"$ref": "#"},
        {"$ref": "#/anyOf/" + "9" * 5000, "anyOf": []},
        {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}] * 100}}},
        {"properties": {"x": {"items": {"anyOf": [{"$ref": "#/properties/x"}] * 100}, "type": "array"}}},
        {"properties": {"x": {"type": ["array"] * 2000, "items": {"$ref": "#/properties/x"}}}},
        {"properties": {"x": {"allOf": [{"$ref": "#/properties/x"}]}}},
        {"$ref": "#/$defs/Gone"},
        {"properties": {"x": {"$ref": "#/properties/x"}}, "required": "x"},
        {"properties": {"x": True, "y": {"anyOf": [None, 1]}, "z": {"items": [1], "type": "array"}}},
    ],
)
def test_strange_schema_is_no_reason_to_fail(schema):
    signature(ToolSpec(name="t", input_schema=schema))


@pytest.mark.parametrize(
    ("schema", "bounds"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "at least 1, at most 9"),
        ({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5}, "more than 0, a multiple of 0.5"),
        ({"type": "string", "minLength": 2, "maxLength": 5}, "at least 2 characters, at most 5 characters"),
        ({"type": "string", "pattern": "^a+$"}, "matches ^a+$"),
        ({"type": "array", "maxItems": 3}, "at most 3 items"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "at least 1"),
        ({"$ref": "#/$defs/A"}, "at most 7"),
        ({"type": "string"}, ""),
    ],
)
def test_bounds_of_an_argument_are_told_in_words(schema, bounds):
    argument = _argument(schema, **{"$defs": {"A": {"type": "integer", "maximum": 7}}})
    assert argument.bounds == bounds
    assert (f"({bounds})" in argument.summary()) == bool(bounds)
