"""Tools arrive with the server's schemas, in shapes that the providers' own packages take."""

import copy
from pkgutil import resolve_name

import pytest
from conversations import SCHEMA, TOOLS
from pydantic import TypeAdapter

from ors_client import ToolSpec
from ors_client.formats import MCP, Anthropic, Google, OpenAIChat, OpenAIResponses

SCHEMAS = {
    OpenAIChat: lambda tools: [tool["function"]["parameters"] for tool in tools],
    OpenAIResponses: lambda tools: [tool["parameters"] for tool in tools],
    Anthropic: lambda tools: [tool["input_schema"] for tool in tools],
    Google: lambda tools: [tool["parameters_json_schema"] for tool in tools[0]["function_declarations"]],
    MCP: lambda tools: [tool["inputSchema"] for tool in tools],
}


def schema_of(format_class, spec):
    return SCHEMAS[format_class](format_class([spec]).tools)[0]


def test_openai_chat_tool_has_its_parameters_inside_the_function():
    assert OpenAIChat(TOOLS[:1]).tools == [
        {"type": "function", "function": {"name": "edit", "description": "Edit a file.", "parameters": SCHEMA}}
    ]


@pytest.mark.parametrize(
    ("format_class", "shape"),
    [
        (OpenAIChat, "openai.types.chat:ChatCompletionFunctionToolParam"),
        (OpenAIResponses, "openai.types.responses:FunctionToolParam"),
        (Anthropic, "anthropic.types:ToolParam"),
    ],
)
def test_tools_validate_against_the_providers_types(format_class, shape):
    strict = TypeAdapter(resolve_name(shape))
    for tool in format_class(TOOLS).tools:
        assert strict.validate_python(tool) == tool


def test_google_tools_validate_against_the_providers_types():
    tool = resolve_name("google.genai.types:Tool").model_validate(Google(TOOLS).tools[0])
    assert [declaration.name for declaration in tool.function_declarations][:3] == ["edit", "file_read_2", "file_read"]
    assert tool.function_declarations[0].parameters_json_schema == SCHEMA


def test_mcp_tools_validate_against_the_protocols_types():
    for tool in MCP(TOOLS).tools:
        assert resolve_name("mcp_types:Tool").model_validate(tool).model_dump(by_alias=True, exclude_none=True) == tool


@pytest.mark.parametrize("format_class", SCHEMAS)
def test_schema_travels_word_for_word_with_properties_named_like_keywords(format_class):
    schema = schema_of(format_class, TOOLS[0])
    assert schema == SCHEMA
    assert list(schema["properties"]) == ["title", "default", "not", "properties", "$ref"]


@pytest.mark.parametrize("format_class", SCHEMAS)
def test_tool_without_a_schema_takes_an_object_without_properties(format_class):
    assert schema_of(format_class, ToolSpec(name="plain")) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("format_class", SCHEMAS)
def test_schema_that_does_not_say_object_is_said_to_be_one(format_class):
    spec = ToolSpec(name="a", input_schema={"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}})
    assert schema_of(format_class, spec) == {"type": "object", **spec.input_schema, "properties": {}}


@pytest.mark.parametrize("format_class", SCHEMAS)
def test_change_to_a_shape_leaves_the_spec_alone(format_class):
    spec = TOOLS[0].model_copy(deep=True)
    schema_of(format_class, spec)["properties"].clear()
    assert spec.input_schema == copy.deepcopy(SCHEMA)


@pytest.mark.parametrize("format_class", SCHEMAS)
def test_schema_that_is_nested_too_deeply_is_refused_by_the_tools_name(format_class):
    schema = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="The schema of the tool 'deep' is nested too deeply"):
        _ = format_class([ToolSpec(name="deep", input_schema=schema)]).tools


@pytest.mark.parametrize("format_class", SCHEMAS)
def test_no_tools_leave_no_trace_in_a_request(format_class):
    request = format_class().request([])
    assert "tools" not in request
    assert "config" not in request
