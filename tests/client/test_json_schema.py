"""References in a schema are followed within the document, and nothing in one is an error."""

import pytest

from ors_client._shared.json_schema import SchemaResolver

ROOT = {
    "$defs": {
        "A": {"type": "integer", "title": "a"},
        "B": {"$ref": "#/$defs/A", "title": "b"},
        "a/b ~c": {"type": "null"},
        "circle": {"$ref": "#/$defs/circle"},
        "text": "no schema",
    },
    "anyOf": [{"type": "string"}, {"type": "number"}],
}


@pytest.mark.parametrize(
    ("schema", "resolved"),
    [
        ({"type": "string"}, {"type": "string"}),
        ({"$ref": "#/$defs/A"}, {"type": "integer", "title": "a"}),
        ({"$ref": "#/$defs/B"}, {"type": "integer", "title": "b"}),
        ({"$ref": "#/$defs/A", "title": "own"}, {"type": "integer", "title": "own"}),
        ({"$ref": "#/$defs/a~1b%20~0c"}, {"type": "null"}),
        ({"$ref": "#/anyOf/1"}, {"type": "number"}),
        ({"$ref": "#"}, ROOT),
        ({"$ref": "#/anyOf/2"}, {}),
        ({"$ref": "#/anyOf/-1"}, {}),
        ({"$ref": "#/anyOf/" + "9" * 5000}, {}),
        ({"$ref": "#/$defs/circle"}, {}),
        ({"$ref": "#/$defs/gone", "title": "own"}, {"title": "own"}),
        ({"$ref": "#/$defs/text/0"}, {}),
        ({"$ref": "http://peer.test/schema"}, {}),
        ({"$ref": ["#"]}, {}),
        (True, {}),
        (None, {}),
    ],
)
def test_schema_is_what_its_references_say(schema, resolved):
    assert SchemaResolver(ROOT).resolve(schema) == resolved


def test_walk_of_a_document_has_an_end():
    resolver = SchemaResolver(ROOT)
    steps = iter(resolver.is_exhausted, True)
    assert sum(1 for _ in steps) == 2000
    assert resolver.is_exhausted()
