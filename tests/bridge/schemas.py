"""Tools as real servers describe them, and as hostile ones might.

`CORPUS` holds the shapes that schema generators (pydantic, zod, FastMCP, hand-written OpenAI functions) put out and the
names and descriptions that people write; every one is valid JSON Schema. `HOSTILE` holds what no server should send.
"""

from ors_client import ToolSpec

STR = {"type": "string"}
INT = {"type": "integer"}


def params(properties, required=(), **more):
    return {"type": "object", "properties": properties, "required": list(required), **more}


def described(kind, description, **more):
    return {"type": kind, "description": description, **more}


_LINE = {
    "type": "object",
    "title": "Line",
    "properties": {"line": {"type": "integer", "minimum": 1, "title": "Line"}, "text": {"type": "string"}},
    "required": ["line", "text"],
}
_NODE = {
    "type": "object",
    "properties": {
        "name": STR,
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
    },
    "required": ["name"],
}
_LONG = (
    "Runs a query against the warehouse. Quote identifiers with \"double quotes\" and strings with 'single' ones; use\n"
    "{placeholders} for values, e.g. {'id': 3}.\n\n"
) * 64

_ENTRIES = {
    # name: (description, input schema)
    # --- no arguments
    "submit": ("Submit the current state for grading.", None),
    "noop": ("", None),
    "get_time": ("The time.", {"type": "object", "properties": {}}),
    "list_files": ("", {"type": "object", "properties": {}, "additionalProperties": False}),
    "ping": ("Ping.", {}),
    "refresh": ("Reload the page.", {"type": "object"}),
    # --- scalars
    "echo": ("Repeat the text.", params({"text": STR}, ["text"])),
    "add": ("Add two integers.", params({"a": INT, "b": INT}, ["a", "b"])),
    "divide": (
        "Divide.",
        params({"x": {"type": "number"}, "y": {"type": "number", "exclusiveMinimum": 0}}, ["x", "y"]),
    ),
    "toggle": ("Switch.", params({"on": {"type": "boolean", "default": False}})),
    "sleep": (
        "Wait.",
        params({"seconds": {"type": "number", "minimum": 0, "maximum": 60, "default": 1.5, "title": "Seconds"}}),
    ),
    "answer": ("Give the answer.", params({"answer": {"title": "Answer"}}, ["answer"])),
    "seed": ("Seed the generator.", params({"seed": {"type": "integer", "maximum": 2**70}}, ["seed"])),
    # --- enums and constants
    "move": (
        "Move one step.",
        params({"direction": {"type": "string", "enum": ["up", "down", "left", "right"]}}, ["direction"]),
    ),
    "set_level": ("Set the level.", params({"level": {"enum": [1, 2, 3], "type": "integer", "default": 2}})),
    "choose": ("Choose.", params({"option": {"enum": ["a", 1, True, None, 0.5]}}, ["option"])),
    "kind": (
        "Fixed kind.",
        params({"kind": {"const": "circle", "type": "string"}, "radius": {"type": "number"}}, ["kind"]),
    ),
    "version": ("Fixed number.", params({"version": {"const": 2}})),
    "pick_point": ("One of the points.", params({"point": {"enum": [[0, 0], [1, 1]]}}, ["point"])),
    "nullable_enum": (
        "Sort.",
        params({"order": {"anyOf": [{"enum": ["asc", "desc"], "type": "string"}, {"type": "null"}], "default": None}}),
    ),
    # --- null, unions, type lists
    "search": ("Search.", params({"q": STR, "page": {"anyOf": [INT, {"type": "null"}], "default": None}}, ["q"])),
    "page": ("Turn to a page.", params({"page": {"type": ["integer", "null"]}}, ["page"])),
    "openapi_page": ("Turn to a page.", params({"page": {"type": "integer", "nullable": True}})),
    "assign": (
        "Assign.",
        params({"value": {"anyOf": [INT, STR, {"type": "array", "items": INT}, {"type": "null"}]}}, ["value"]),
    ),
    "scale": (
        "Scale.",
        params({"by": {"oneOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+%$"}]}}, ["by"]),
    ),
    "loose": ("Anything of four types.", params({"x": {"type": ["string", "number", "boolean", "null"]}})),
    "only_null": ("Null.", params({"x": {"type": "null"}})),
    # --- arrays
    "tag": (
        "Tag.",
        params({"tags": {"type": "array", "items": STR, "minItems": 1, "maxItems": 5, "uniqueItems": True}}, ["tags"]),
    ),
    "matrix": (
        "Multiply.",
        params({"rows": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}}, ["rows"]),
    ),
    "any_list": ("Any list.", params({"items": {"type": "array"}})),
    "click": (
        "Click at a position.",
        params(
            {"at": {"type": "array", "prefixItems": [INT, INT], "minItems": 2, "maxItems": 2, "items": False}}, ["at"]
        ),
    ),
    "enum_list": ("Flags.", params({"flags": {"type": "array", "items": {"enum": ["r", "w", "x"], "type": "string"}}})),
    "apply_edits": ("Edit lines.", params({"edits": {"type": "array", "items": _LINE}}, ["edits"])),
    # --- objects
    "headers": ("Set headers.", params({"headers": {"type": "object", "additionalProperties": STR}}, ["headers"])),
    "free_form": ("Store.", params({"value": {"type": "object"}}, ["value"])),
    "counts": ("Count.", params({"by": {"type": "object", "additionalProperties": {"type": "array", "items": INT}}})),
    "book_flight": (
        "Book a flight.",
        params(
            {
                "passenger": params(
                    {
                        "name": STR,
                        "address": params({"street": STR, "zip": {"type": "string", "pattern": "^\\d{5}$"}}, ["zip"]),
                    },
                    ["name"],
                    additionalProperties=False,
                ),
                "date": {"type": "string", "format": "date"},
            },
            ["passenger", "date"],
            additionalProperties=False,
        ),
    ),
    "http": (
        "Make a request.",
        params(
            {
                "method": {"type": "string", "enum": ["GET", "POST"], "default": "GET"},
                "url": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2048},
                "body": {"type": ["object", "array", "string", "null"], "default": None},
                "timeout_s": {"type": "number", "default": 30, "minimum": 0.1, "maximum": 300},
            },
            ["url"],
        ),
    ),
    "pattern_properties": (
        "Env variables.",
        {"type": "object", "properties": {}, "patternProperties": {"^[A-Z_]+$": STR}, "additionalProperties": False},
    ),
    "open_ended": ("Any arguments.", {"type": "object", "additionalProperties": True}),
    "dependent": (
        "Card.",
        params({"card": STR, "cvv": STR}, dependentRequired={"card": ["cvv"]}),
    ),
    # --- references
    "edit": (
        "Edit a file.",
        params(
            {
                "path": {"type": "string", "title": "Path", "description": "The file."},
                "mode": {"$ref": "#/$defs/Mode", "default": "fast"},
                "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "title": "Lines"},
                "note": {"anyOf": [STR, {"type": "null"}], "default": None, "title": "Note"},
            },
            ["path", "lines"],
            **{"$defs": {"Mode": {"enum": ["fast", "exact"], "title": "Mode", "type": "string"}, "Line": _LINE}},
        ),
    ),
    "insert_node": (
        "Insert a tree.",
        params({"tree": {"$ref": "#/$defs/Node"}}, ["tree"], **{"$defs": {"Node": _NODE}}),
    ),
    "root_ref": ("A recursive root.", {"$defs": {"Node": _NODE}, "$ref": "#/$defs/Node"}),
    "draft4": (
        "Definitions of draft 4.",
        params({"who": {"$ref": "#/definitions/a~1b"}}, definitions={"a/b": {"type": "integer"}}),
    ),
    "pydantic_v1": (
        "An enum of pydantic 1.",
        params({"m": {"allOf": [{"$ref": "#/$defs/M"}], "default": "x"}}, **{"$defs": {"M": {"enum": ["x", "y"]}}}),
    ),
    "union_of_refs": (
        "A line or a node.",
        params(
            {
                "where": {
                    "anyOf": [{"$ref": "#/$defs/Line"}, {"$ref": "#/$defs/Node"}],
                    "description": "A line or a node.",
                }
            },
            ["where"],
            **{"$defs": {"Line": _LINE, "Node": _NODE}},
        ),
    ),
    "discriminated": (
        "Draw a shape.",
        params(
            {
                "shape": {
                    "discriminator": {"mapping": {"c": "#/$defs/C", "s": "#/$defs/S"}, "propertyName": "kind"},
                    "oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/S"}],
                }
            },
            ["shape"],
            **{
                "$defs": {
                    "C": params({"kind": {"const": "c"}, "r": {"type": "number"}}, ["kind", "r"]),
                    "S": params({"kind": {"const": "s"}, "side": {"type": "number"}}, ["kind", "side"]),
                }
            },
        ),
    ),
    "all_of_root": (
        "Two parts.",
        {"type": "object", "allOf": [params({"a": STR}, ["a"]), params({"b": INT})]},
    ),
    "any_of_root": (
        "By id or by name.",
        {"type": "object", "anyOf": [params({"id": INT}, ["id"]), params({"name": STR}, ["name"])]},
    ),
    # --- names
    "read-file": ("Read.", params({"file-path": STR, "x.y": INT, "$top": INT}, ["file-path"])),
    "fs.read": ("Read.", params({"from": INT, "to": INT, "self": STR, "class": STR}, ["from"])),
    "reset": ("Reset the board.", params({"dict": STR, "kwargs": STR, "return": STR})),
    "get_reward": ("Peek at the reward.", None),
    "_submit": ("Submit.", params({"_private": STR, "__dunder__": STR, "2nd": STR})),
    "class": ("Show a class.", params({"name": STR, "type": STR, "function": STR, "properties": INT}, ["name"])),
    "搜索": (
        "在知识库中搜索。",
        params({"查询": described("string", "要搜索的内容, 例如天气。"), "límite": INT}, ["查询"]),
    ),
    "Read": ("Differs by case.", params({"Path": STR, "path": STR})),
    "read": ("Differs by case.", params({"path": STR})),
    # --- descriptions
    "google_style": (
        "Compute.\n\nArgs:\n    x: the number\n\nReturns:\n    The result.\n\nRaises:\n    ValueError: never",
        params({"x": described("integer", "The number.\nArgs:\n  none\nReturns: nothing")}, ["x"]),
    ),
    "choices": (
        "Paint (choices: of many).",
        params(
            {
                "color": described("string", "The color (choices: red, green)"),
                "n": described("integer", '(Choices: ["1"])'),
            }
        ),
    ),
    "multi_line": (
        "Does\n   this:\n\n\n- and that\n",
        params({"t": described("string", "First line\nnote: a line like a parameter\n  t: another\n")}, ["t"]),
    ),
    "quotes": (
        'Say "hi" \'there\' """now""" \\ {braces} {{x}} {% raw %} <b>&amp;</b>',
        params({"q": described("string", "\"'`\\n\\")}),
    ),
    "no_descriptions": ("", params({"a": {"type": "string", "description": ""}, "b": {"type": "string", "title": ""}})),
    "emoji": (
        "Send 👍🏽 — “quoted” …\u2028next",
        params({"text": described("string", "Text with \u00a0blanks\tand\r\nbreaks")}),
    ),
    "sections_in_names": (
        "Names that end sections.",
        params({"maxReturns": INT, "Args": INT, "Raises": INT, "Returns": INT}, ["Args"]),
    ),
    "long_description": (_LONG, params({"sql": described("string", _LONG)}, ["sql"])),
    "blanks": ("a" + " " * 3000 + "b", params({"x": described("string", "\n" * 3000 + "x" + "\t" * 3000)})),
    # --- size and the rest
    "forty": (
        "Forty parameters.",
        params(
            {
                f"field_{n}": described(["string", "integer", "number", "boolean"][n % 4], f"Field {n}.")
                for n in range(40)
            },
            [f"field_{n}" for n in range(0, 40, 3)],
        ),
    ),
    "optional_first": ("Required ones come last.", params({"a": {"type": "string", "default": "x"}, "b": STR}, ["b"])),
    "required_unknown": ("Requires what it does not describe.", params({"a": STR}, ["a", "token"])),
    "defaults": (
        "Defaults of every type.",
        params(
            {
                "s": {"type": "string", "default": ""},
                "l": {"type": "array", "items": INT, "default": [1, 2]},
                "o": {"type": "object", "default": {"a": {"b": None}}},
                "u": {"default": 3},
            }
        ),
    ),
    "extensions": (
        "Unknown keywords.",
        params(
            {"city": {"type": "string", "x-widget": {"kind": "map"}, "examples": ["Rome", "Oslo"], "deprecated": True}},
            **{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Args", "x-order": 1},
        ),
    ),
    "boolean_schemas": ("True allows anything.", params({"anything": True, "list": {"type": "array", "items": True}})),
    "conditional": (
        "If and else.",
        params(
            {"country": {"type": "string"}, "zip": {"type": "string"}},
            **{
                "if": {"properties": {"country": {"const": "US"}}},
                "then": {"required": ["zip"]},
                "else": {"not": {"required": ["zip"]}},
            },
        ),
    ),
}

CORPUS = [
    ToolSpec(name=name, description=description, input_schema=schema)
    for name, (description, schema) in _ENTRIES.items()
]


def nested(depth, key="items", leaf=None):
    value = leaf if leaf is not None else {"type": "string"}
    for _ in range(depth):
        value = {"type": "array", key: value}
    return value


def fan_out(levels, width):
    """References that multiply at every level: width ** levels steps for whoever follows them all."""
    defs = {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}] * width} for n in range(levels)}
    return params({"x": {"$ref": "#/$defs/L0"}}, **{"$defs": defs | {f"L{levels}": STR}})


_ODD_NAMES = ["", " ", "\n", "a\x00b", "\ud800", "\ud801", "-", "_", "é", "x" * 500, "a:b", "(x)", "self", "None"]

HOSTILE = {
    "not_an_object": {"type": "array", "items": STR},
    "a_string": {"type": "string"},
    "wrapped_list": {"value": [1, 2]},
    "properties_list": {"type": "object", "properties": ["a", "b"]},
    "properties_null": {"type": "object", "properties": None, "required": None},
    "required_string": params({"a": STR}) | {"required": "a"},
    "required_mixed": params({"a": STR}) | {"required": ["a", 1, None, {"x": 1}, ["a"]]},
    "property_values": params({"a": None, "b": "string", "c": 3, "d": [STR], "e": False}, ["c"]),
    "unknown_types": params(
        {"a": {"type": "file"}, "b": {"type": 3}, "c": {"type": [[], {}, "tuple"]}, "d": {"type": []}}
    ),
    "odd_keywords": params(
        {"a": {"enum": "abc"}, "b": {"enum": []}, "c": {"anyOf": "x"}, "d": {"items": 3}, "e": {"allOf": [3]}}
    ),
    "odd_descriptions": params({"a": {"type": "string", "description": ["x"], "title": 3}, "b": {"description": None}}),
    "dangling_ref": params({"a": {"$ref": "#/$defs/Nope"}, "b": {"$ref": "http://127.0.0.1:9/x"}, "c": {"$ref": 3}}),
    "ref_to_itself": params({"a": {"$ref": "#/properties/a"}, "b": {"$ref": "#"}}),
    "root_ref_to_itself": {"$ref": "#"},
    "refs_in_a_ring": params(
        {"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
    ),
    "endless_list": params(
        {"a": {"$ref": "#/$defs/L"}}, **{"$defs": {"L": {"type": "array", "items": {"$ref": "#/$defs/L"}}}}
    ),
    "endless_all_of": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "fan_out": fan_out(10, 100),
    "ten_thousand_deep": params({"a": nested(10_000)}, ["a"]),
    "ten_thousand_deep_objects": params({"a": nested(10_000, "additionalProperties")}),
    "five_thousand_properties": params({f"p{n}": {"type": "integer"} for n in range(5_000)}),
    "huge_enum": params({"a": {"enum": [f"v{n}" for n in range(50_000)]}}),
    "odd_names": params(dict.fromkeys(_ODD_NAMES, STR)),
    "surrogates": params({"a": described("string", "half \ud83d", enum=["\udc00"])}),
    "regex_bait": params(
        {"a": described("string", "(choices:" * 3_000), "b": described("string", "Returns:" * 3_000 + " " * 20_000)}
    ),
}
