"""Against a real server: what a model calls by an alias reaches the tool, and what came back fits the next request."""

import json

import pytest
from conversations import FORMATS, assistant, call, strings_in, user
from test_format_messages import check

import ors_client
from ors_client.formats import tool_calls, tool_result

REFUSED = {"file.read": "file_read", "2fast": "tool_2fast"}
"""Tools of the server by names that some provider refuses, and their aliases."""


@pytest.fixture
def session(ours):
    with ors_client.Client(ours.url) as client:
        environment = client.environment("schemasenvironment")
        with environment.session(ors_client.TaskRef("train", 0)) as session:
            yield session


@pytest.mark.parametrize("format_class", FORMATS)
def test_call_by_alias_reaches_the_tool_and_its_result_the_model(session, format_class):
    tools = [tool for tool in session.list_tools() if tool.name in REFUSED]
    shape = format_class(tools)
    aliases = [REFUSED[tool.name] for tool in tools]
    # A format without tools changes no names: it writes what a model would say.
    said = format_class().request([assistant(*(call(f"c_{alias}", alias, text=alias) for alias in aliases))])
    (reply,) = shape.messages(said)
    calls = tool_calls(reply)
    assert [made.tool for made in calls] == [tool.name for tool in tools]
    assert len(calls) == len(REFUSED)
    outputs = [session.call_tool(made.tool, made.arguments) for made in calls]
    request = shape.request([user(*session.get_prompt()), reply, user(*map(tool_result, calls, outputs))])
    check(format_class, request)
    for alias in aliases:
        assert list(strings_in(request)).count(json.dumps({"text": alias})) >= 1


@pytest.mark.parametrize("format_class", FORMATS)
def test_every_tool_of_a_demanding_server_has_a_shape(session, format_class):
    tools = session.list_tools()
    shape = format_class(tools)
    written = list(strings_in(shape.tools))
    assert len(tools) == len({shape.names.alias(tool.name) for tool in tools})
    assert all(shape.names.alias(tool.name) in written for tool in tools)
