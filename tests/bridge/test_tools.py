"""How a server's tools look to TRL, to transformers and to a model, and what a call of theirs becomes."""

import copy
import functools
import inspect
import json
import keyword
import pickle
import re
from typing import Any, Literal, get_type_hints

import pytest
from benchmarks.fidelity import TEMPLATES, render, tokenizer_with
from bridge.schemas import CORPUS, HOSTILE, params
from hypothesis import given
from hypothesis import strategies as st

from ors_client import ToolSpec
from trl_bridge._chat.tools import CallableTool, bind, method

RESERVED = {"reset", "get_reward", "reward", "finished"}
ALL = [*CORPUS, *(ToolSpec(name=name, description="d", input_schema=schema) for name, schema in HOSTILE.items())]
every_tool = pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)


class Adapter:
    """What the tools are put on, as small as can be: it answers with what it was called with."""

    def _call(self, tool, kwargs):
        return tool.spec.name, tool.arguments(kwargs)


def adapter(*specs):
    tools = bind(specs, reserved=RESERVED)
    functions = {tool.name: method(tool) for tool in tools}
    instance = type("Environment", (Adapter,), dict(functions))()
    for tool in tools:
        setattr(instance, tool.name, CallableTool(tool, instance._call, functions[tool.name]))
    return instance


def bound(schema, name="tool"):
    (tool,) = bind([ToolSpec(name=name, input_schema=schema)], reserved=RESERVED)
    return tool


def names(*wire):
    return [tool.name for tool in bind([ToolSpec(name=name) for name in wire], reserved=RESERVED)]


@functools.cache
def callable_tools():
    tools = vars(adapter(*ALL)).values()
    return {spec.name: tool for spec, tool in zip(ALL, tools, strict=True)}


@functools.cache
def schemas():
    """What transformers makes of each tool, before a template renders it; once, as templates are many."""
    return {name: json_schema(tool) for name, tool in callable_tools().items()}


def copy_by_pickle(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - written right here


def of(*parameters):
    return params({name: {"type": "string"} for name in parameters})


def read_back(tool):
    return json_schema(method(tool))["function"]


def json_schema(function):
    from transformers.utils import get_json_schema  # which every worker would import, and two seconds with it

    return get_json_schema(function)


def hint(schema, **more):
    return method(bound(params({"x": schema}, **more))).__annotations__["x"]


# --- names


@pytest.mark.parametrize(
    ("wire", "alias"),
    [
        ("echo", "echo"),
        ("file-read", "file_read"),
        ("fs.read", "fs_read"),
        ("reset", "tool_reset"),
        ("get_reward", "tool_get_reward"),
        ("reward", "tool_reward"),
        ("_x", "tool__x"),
        ("class", "tool_class"),
        ("None", "tool_None"),
        ("2d", "tool_2d"),
        ("", "tool_"),
        ("搜索", "tool___"),
        ("read\n", "read_"),
        ("match", "match"),
    ],
)
def test_alias_is_a_public_name_by_a_stable_rule(wire, alias):
    assert names(wire) == [alias]


def test_colliding_aliases_are_numbered_in_the_servers_order():
    assert names("a-b", "a.b", "a_b", "a_b_2", "reset", "tool_reset") == [
        *("a_b_3", "a_b_4", "a_b", "a_b_2", "tool_reset_2", "tool_reset")
    ]


def test_name_that_needs_no_change_means_itself_and_the_others_go_round_it():
    assert names("files.read", "files_read", "files-read") == ["files_read_2", "files_read", "files_read_3"]
    assert names("read", "read") == ["read", "read_2"]


def test_tools_of_two_environments_differ_though_their_schemas_are_equal():
    first, second = (adapter(ToolSpec(name="echo", input_schema=of("text"))).echo for _ in range(2))
    assert dict(first) == dict(second)
    assert first == first  # noqa: PLR0124 - what is compared is the comparison
    assert first != second
    assert not first == second  # noqa: SIM201 - likewise
    assert [first, second].index(second) == 1
    assert len({first, second}) == 2


def test_arguments_without_keywords_are_those_of_the_signature_in_order():
    environment = adapter(ToolSpec(name="t", input_schema=of("a", "from")))
    for call in (environment.t, functools.partial(type(environment).t, environment)):
        assert call("x", "y") == call("x", arg_from="y") == ("t", {"a": "x", "from": "y"})
        with pytest.raises(TypeError, match=r"^t\(\) takes 2 arguments, but 3 were given"):
            call("x", "y", "z")
        with pytest.raises(TypeError, match=r"^t\(\) got multiple values for argument 'a'"):
            call("x", a="y")


def test_aliases_that_differ_by_case_stay():
    assert names("Read", "read", "READ") == ["Read", "read", "READ"]


@given(st.lists(st.text(max_size=6) | st.sampled_from(["reset", "_x", "class", "a-b", "a_b", "a_b_2"]), max_size=12))
def test_no_tool_is_dropped_hidden_or_shadows_the_adapter(wire):
    tools = bind([ToolSpec(name=name) for name in wire], reserved=RESERVED)
    aliases = [tool.name for tool in tools]
    assert [tool.spec.name for tool in tools] == wire
    assert len(set(aliases)) == len(wire)
    for alias in aliases:
        assert re.fullmatch("[A-Za-z][A-Za-z0-9_]*", alias)
        assert not keyword.iskeyword(alias)
        assert alias not in RESERVED


# --- arguments


@pytest.mark.parametrize("name", ["from", "self", "class", "x-y", "_x", "$top", "", "return", "kwargs", "tool", "é"])
def test_parameter_of_any_name_goes_out_under_the_servers_name(name):
    environment = adapter(ToolSpec(name="t", input_schema=params({name: {"type": "string"}}, [name])))
    (spelling,) = environment.t.__signature__.parameters
    assert spelling.isidentifier()
    assert environment.t(**{name: "v"}) == ("t", {name: "v"})
    assert environment.t(**{spelling: "v"}) == ("t", {name: "v"})
    assert type(environment).t(environment, **{name: "v"}) == ("t", {name: "v"})


def test_parameter_spellings_follow_the_rule_of_names():
    wire = ["from", "x-y", "_x", "2nd", "", "self", "ok"]
    tool = bound(of(*wire))
    spelt = {server: python for python, server in tool.parameters.items()}
    assert spelt == {"from": "arg_from", "x-y": "x_y", "_x": "arg__x", "2nd": "arg_2nd", "": "arg_", "self": "arg_self"}


def test_name_of_the_server_always_means_itself():
    tool = bound(of("from", "arg_from", "x-y", "x_y"))
    assert tool.arguments({"arg_from": 1, "x_y": 2}) == {"arg_from": 1, "x_y": 2}
    assert tool.arguments({"arg_from_2": 1, "x_y_2": 2}) == {"from": 1, "x-y": 2}


def test_arguments_left_out_are_not_sent_and_unknown_ones_are():
    tool = bound(params({"q": {"type": "string"}, "page": {"type": "integer", "default": 1}}, ["q"]))
    assert tool.arguments({"q": "x", "other": None}) == {"q": "x", "other": None}


def test_argument_in_both_spellings_is_not_dropped():
    tool = bound(params({"from": {"type": "string"}}))
    assert tool.arguments({"from": 1, "arg_from": 2}) == {"from": 1, "arg_from": 2}
    assert tool.arguments({"arg_from": 2, "from": 1}) == {"arg_from": 2, "from": 1}


@given(st.lists(st.text(max_size=5) | st.sampled_from(["from", "arg_from", "x-y", "x_y"]), max_size=8, unique=True))
def test_both_spellings_of_all_parameters_reach_the_server(wire):
    tool = bound(of(*wire))
    python = list(method(tool).__annotations__)
    assert len(python) == len(wire)
    assert tool.arguments({name: n for n, name in enumerate(wire)}) == {name: n for n, name in enumerate(wire)}
    assert tool.arguments({name: n for n, name in enumerate(python)}) == {name: n for n, name in enumerate(wire)}


# --- the schema


@pytest.mark.parametrize("spec", CORPUS, ids=lambda spec: spec.name)
def test_schema_is_the_servers_word_for_word(spec):
    (tool,) = bind([spec], reserved=RESERVED)
    expected = {"type": "object", "properties": {}} if spec.input_schema is None else spec.input_schema
    assert json.dumps(tool.schema) == json.dumps(
        {
            "type": "function",
            "function": {"name": tool.name, "description": spec.description, "parameters": expected},
        }
    )


def test_schema_keeps_what_only_looks_like_a_keyword():
    schema = params(
        {
            "properties": {"type": "string"},
            "description": {"type": "string", "default": {"description": 3, "properties": [1]}},
        },
        additionalProperties={"const": {"properties": 1}},
    )
    assert json.dumps(bound(schema).schema["function"]["parameters"]) == json.dumps(schema)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "template", sorted(path.stem for path in TEMPLATES.glob("*.jinja") if "tools" in path.read_text())
)
def test_every_template_with_tools_renders_every_tool_as_text_that_can_be_tokenized(template):
    # gptoss 1.16 adds the default of an enum to a string; that this one is a number is no mistake of the schema's.
    known = {"set_level"} if template.startswith("gptoss") else set()
    tokenizer = tokenizer_with(template)
    failed = {}
    for name, schema in schemas().items():
        try:
            tokenizer(render(tokenizer, [schema]))
        except Exception as error:  # noqa: BLE001 - whatever a template raises would end a run
            failed[name] = repr(error)
    assert failed.keys() <= known, failed


# --- the function on the class


@every_tool
def test_function_is_readable_by_transformers(spec):
    (tool,) = bind([spec], reserved=RESERVED)
    shown = read_back(tool)
    assert shown["name"] == tool.name
    signature = inspect.signature(method(tool))
    assert list(shown["parameters"]["properties"]) == list(signature.parameters)[1:]
    assert all(described["description"] for described in shown["parameters"]["properties"].values())


@pytest.mark.parametrize("spec", CORPUS, ids=lambda spec: spec.name)
def test_function_tells_transformers_which_parameters_there_are_and_which_are_required(spec):
    (tool,) = bind([spec], reserved=RESERVED)
    schema = spec.input_schema or {}
    shown = read_back(tool)["parameters"]
    spelt = {tool.parameters.get(name, name) for name in shown["properties"]}
    required = {tool.parameters.get(name, name) for name in shown.get("required", ())}
    if "$ref" not in schema and "allOf" not in schema and "anyOf" not in schema:
        assert spelt == {*schema.get("properties", ()), *schema.get("required", ())}
        assert required == set(schema.get("required", ()))


def test_function_describes_itself_in_googles_style():
    schema = params({"b": {"type": "string", "description": "What  to\nsay."}, "n": {"type": "integer"}}, ["b"])
    (tool,) = bind([ToolSpec(name="say", description="Say it.\n\nLoudly.", input_schema=schema)], reserved=())
    assert method(tool).__doc__ == "Say it.\n\nLoudly.\n\nArgs:\n    b: What to say.\n    n: n"
    assert get_type_hints(method(tool)) == {"b": str, "n": int}


@pytest.mark.parametrize("word", ["Args:", "Returns:", "Raises:", "kwArgs:", "\nArgs:\n    x: y\n"])
def test_section_words_in_descriptions_cut_nothing_off(word):
    schema = params({"a": {"type": "string", "description": f"before {word} after"}, "b": {"type": "string"}})
    (tool,) = bind([ToolSpec(name="t", description=f"before {word} after", input_schema=schema)], reserved=())
    shown = read_back(tool)
    assert shown["description"].endswith("after")
    assert shown["parameters"]["properties"]["a"]["description"].endswith("after")
    assert list(shown["parameters"]["properties"]) == ["a", "b"]


@given(description=st.text(), parameter=st.text(), name=st.text(max_size=8))
def test_function_is_readable_by_transformers_whatever_the_texts(description, parameter, name):
    schema = params({name: {"type": "string", "description": parameter}, "z": {"type": "integer"}})
    (tool,) = bind([ToolSpec(name=name, description=description, input_schema=schema)], reserved=())
    assert [value["type"] for value in read_back(tool)["parameters"]["properties"].values()][-1] == "integer"


@pytest.mark.timeout(30)  # the patterns of transformers would take hours over what is not tidied up for them
@pytest.mark.parametrize("filler", [" ", "\n", " \n", "\t\u2028", "Args:", "(choices: ", "x: "])
def test_long_texts_keep_nobody_busy(filler):
    text = f"a{filler * 200_000}b"
    schema = params({"x": {"type": "string", "description": text}, "y": {"type": "string"}})
    (tool,) = bind([ToolSpec(name="t", description=text, input_schema=schema)], reserved=())
    assert list(read_back(tool)["parameters"]["properties"]) == ["x", "y"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["object", "array", "#", "#/x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "type",
                        "properties",
                        "required",
                        "items",
                        "prefixItems",
                        "anyOf",
                        "oneOf",
                        "allOf",
                        "enum",
                        "const",
                    ),
                    *("$ref", "$defs", "additionalProperties", "description", "title", "default", "nullable", "x"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(schema=st.dictionaries(st.sampled_from(["type", "properties", "required", "allOf", "$ref", "$defs"]), JUNK))
def test_no_schema_raises(schema):
    tool = bound(schema)
    read_back(tool)
    assert copy_by_pickle(tool) == tool


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, str),
        ({"type": "number"}, float),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "object"}, dict),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, dict[str, int]),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, dict),
        ({"properties": {"a": {}}}, dict),
        ({"type": "array"}, list),
        ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, list[list[float]]),
        ({"items": {"type": "string"}}, list[str]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, tuple[int, str]),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, list),
        ({"enum": ["a", "b"], "type": "string"}, Literal["a", "b"]),
        ({"enum": ["a", 1, None]}, Literal["a", 1, None]),  # noqa: PYI061 - the form that transformers reads as an enum
        ({"enum": [[1], "a"]}, list | str),
        ({"const": 2}, Literal[2]),
        ({"type": ["integer", "null"]}, int | None),
        ({"type": "integer", "nullable": True}, int | None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, int | None),
        ({"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}, int | list[str]),
        ({"anyOf": [{"type": "integer"}, {}]}, Any),
        ({"allOf": [{"description": "x"}, {"type": "integer"}]}, int),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, dict),
        ({}, Any),
        (True, Any),
        ({"type": "tuple"}, Any),
        ({"$ref": "#/$defs/Mode"}, Literal["r", "w"]),
        ({"$ref": "#/$defs/Modes"}, list[Literal["r", "w"]]),
        ({"$ref": "#/$defs/Nope"}, Any),
        ({"$ref": "https://example.org/schema"}, Any),
        ({"$ref": "#"}, dict),
    ],
)
def test_hint_says_what_a_hint_can(schema, expected):
    mode = {"enum": ["r", "w"]}
    assert (
        hint(schema, **{"$defs": {"Mode": mode, "Modes": {"type": "array", "items": {"$ref": "#/$defs/Mode"}}}})
        == expected
    )


def test_recursive_schema_gives_a_bounded_hint():
    assert (
        repr(hint({"$ref": "#/$defs/L"}, **{"$defs": {"L": {"type": "array", "items": {"$ref": "#/$defs/L"}}}})).count(
            "list"
        )
        < 10
    )


def test_parameters_of_all_parts_are_known():
    tool = bound({"allOf": [params({"a": {}}, ["a"]), {"$ref": "#/$defs/B"}], "$defs": {"B": params({"b": {}})}})
    assert {name: p.default for name, p in list(inspect.signature(method(tool)).parameters.items())[1:]} == {
        "a": inspect.Parameter.empty,
        "b": None,
    }


def test_alternatives_require_what_all_of_them_require():
    tool = bound({"oneOf": [params({"a": {}, "b": {}}, ["a", "b"]), params({"a": {}, "c": {}}, ["a"])]})
    assert read_back(tool)["parameters"]["required"] == ["a"]


def test_signature_shows_the_servers_defaults():
    tool = bound(params({"k": {"type": "integer", "default": 3}, "q": {"type": "string"}}, ["q"]))
    assert str(inspect.signature(method(tool))) == "(self, /, *, k: int = 3, q: str)"


# --- the dict on the instance


def test_trl_finds_the_function_and_gets_the_dict():
    environment = adapter(*ALL)
    found = dict(inspect.getmembers(type(environment), predicate=inspect.isfunction))
    tools = [getattr(environment, name) for name in found if not name.startswith("_")]
    assert len(tools) == len(ALL)
    assert all(isinstance(tool, dict) for tool in tools)
    assert {tool.__name__ for tool in tools} == {name for name in found if not name.startswith("_")}
    assert not any(inspect.iscoroutinefunction(tool) for tool in tools)


def test_callable_tool_answers_like_the_bound_function():
    environment = adapter(ToolSpec(name="t", description="Do.", input_schema=params({"from": {"type": "integer"}})))
    function = type(environment).t.__get__(environment)
    for attribute in ("__name__", "__doc__"):
        assert getattr(environment.t, attribute) == getattr(function, attribute)
    # transformers would put a return type of the function before the model; scripts read it from the instance's.
    assert environment.t.__annotations__ == {**function.__annotations__, "return": str}
    assert inspect.signature(environment.t) == inspect.signature(function)
    shown = json_schema(environment.t)
    assert shown["function"].pop("return") == {"type": "string"}
    assert shown == json_schema(function)


def test_callable_tools_are_told_apart_by_identity():
    first, second = adapter(ToolSpec(name="t")), adapter(ToolSpec(name="t"))
    assert first.t == first.t
    assert first.t != second.t
    assert dict(first.t) == dict(second.t)
    assert first.t != dict(first.t)
    assert len({first.t, second.t}) == 2


def test_error_about_bad_arguments_names_the_tool_and_nothing_of_ours():
    with pytest.raises(TypeError, match=r"^t\(\) argument after \*\* must be a mapping, not list$"):
        adapter(ToolSpec(name="t")).t(**["x"])


def test_copied_environment_calls_itself():
    environment = adapter(ToolSpec(name="t"))
    twin = copy.deepcopy(environment)
    assert twin.t._call.__self__ is twin
    assert twin.t(x=1) == ("t", {"x": 1})


# --- what a stranger may send


def test_bound_tools_survive_pickling():
    tools = bind(ALL, reserved=RESERVED)
    again = copy_by_pickle(tools)
    assert [tool.schema for tool in again] == [tool.schema for tool in tools]


def test_too_deep_schema_is_passed_on_down_to_a_depth(caplog):
    tool = bound(HOSTILE["ten_thousand_deep"])
    assert "nested too deeply" in caplog.text
    assert tool.schema["function"]["parameters"]["properties"]["a"]["items"]["items"]["type"] == "array"
    assert json.dumps(tool.schema).count("items") < 100


def test_nothing_of_a_spec_is_evaluated():
    bait = "x: __import__('os').abort()"
    tool = bound(params({bait: {"type": bait, "description": bait, "default": bait}}, [bait]), name=bait)
    assert re.fullmatch(r"\w+", tool.name)
    assert get_type_hints(method(tool)).keys() == method(tool).__annotations__.keys()


def test_lone_surrogates_are_spelt_out_and_still_reach_the_server():
    tool = bound(HOSTILE["odd_names"])
    shown = tool.schema["function"]["parameters"]["properties"]
    json.dumps(shown, ensure_ascii=False).encode()
    assert tool.arguments({r"\ud800": 1}) == {"\ud800": 1}
