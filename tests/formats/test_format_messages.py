"""Conversations go to every provider and come back, whatever is in them."""

import json
from functools import cache
from pkgutil import resolve_name

import pytest
from conversations import (
    FORMATS,
    IMAGE,
    TOOLS,
    any_message,
    assistant,
    call,
    conversations,
    result,
    strings_in,
    system,
    text,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ors_client import ImageBlock, Message, TextBlock, ToolCallBlock, ToolResultBlock, UnknownBlock
from ors_client.formats import MCP, Anthropic, Google, OpenAIChat, OpenAIResponses

fewer = settings(max_examples=min(40, settings().max_examples))  # an example here is long


@cache
def list_of(name):
    """Return what validates a list of a provider's type; its package is imported by the worker that needs it."""
    return TypeAdapter(list[resolve_name(name)])


def check(format_class, request):
    """Validate a conversation against the provider's own types; raise if it does not fit."""
    if format_class is OpenAIChat:
        list_of("openai.types.chat:ChatCompletionMessageParam").validate_python(request["messages"])
    elif format_class is OpenAIResponses:
        list_of("openai.types.responses:ResponseInputItemParam").validate_python(request["input"])
    elif format_class is Anthropic:
        list_of("anthropic.types:MessageParam").validate_python(request["messages"])
        list_of("anthropic.types:TextBlockParam").validate_python(request.get("system", []))
    elif format_class is Google:
        list_of("google.genai.types:Content").validate_python(request["contents"])
        resolve_name("google.genai.types:GenerateContentConfig").model_validate(request.get("config", {}))
    else:
        list_of("mcp_types:SamplingMessage").validate_python(request["messages"])


def turns(format_class, request):
    """Return the roles of what was written, in order."""
    key = {OpenAIResponses: "input", Google: "contents"}.get(format_class, "messages")
    return [turn.get("role", turn.get("type")) for turn in request[key]]


@pytest.mark.parametrize("format_class", FORMATS)
@fewer
@given(messages=conversations())
def test_conversation_comes_back_as_it_was(format_class, messages):
    written = format_class(TOOLS).request(messages)
    check(format_class, written)
    assert format_class(TOOLS).messages(json.loads(json.dumps(written))) == messages


@pytest.mark.parametrize("format_class", FORMATS)
@fewer
@given(messages=st.lists(any_message, max_size=4))
def test_any_conversation_is_written_in_the_providers_types_with_no_text_or_image_lost(format_class, messages):
    written = format_class(TOOLS).request(messages)
    check(format_class, written)
    sent = "\n".join(strings_in(written))
    for message in messages:
        for block in message.blocks:
            for inner in block.blocks if isinstance(block, ToolResultBlock) else [block]:
                if isinstance(inner, TextBlock):
                    assert inner.text in sent or inner.text.isspace()
                elif isinstance(inner, ImageBlock):
                    assert inner.data in sent or inner.mime_type in sent
                elif isinstance(inner, ToolCallBlock):
                    assert format_class(TOOLS).names.alias(inner.name) in sent or inner.name in sent
                elif isinstance(inner, UnknownBlock):
                    assert "[block of type 'video' left out]" in sent


@pytest.mark.parametrize("format_class", FORMATS)
@fewer
@given(messages=st.lists(any_message, max_size=4))
def test_what_was_read_is_written_the_same_again(format_class, messages):
    shape = format_class(TOOLS)
    written = shape.request(shape.messages(shape.request(messages)))
    assert shape.request(shape.messages(written)) == written


@pytest.mark.parametrize("format_class", FORMATS)
def test_longer_conversation_starts_with_the_shorter_one(format_class):
    messages = [system(text("S")), user(text("Go."), IMAGE)]
    for turn in range(3):
        messages += [assistant(call(f"c{turn}")), user(result(text("a"), IMAGE, call_id=f"c{turn}"))]
    key = {OpenAIResponses: "input", Google: "contents"}.get(format_class, "messages")
    whole = format_class(TOOLS).request(messages)[key]
    for length in range(len(messages)):
        part = format_class(TOOLS).request(messages[:length])[key]
        assert whole[: len(part)] == part


@pytest.mark.parametrize("format_class", FORMATS)
def test_results_of_several_messages_stand_together_and_first(format_class):
    messages = [
        assistant(call("c1"), call("c2")),
        user(text("Wait.")),
        user(text("There."), result(text("one"), call_id="c1")),
        user(result(text("two"), call_id="c2")),
    ]
    sent = list(strings_in(format_class(TOOLS).request(messages)))
    positions = [next(i for i, said in enumerate(sent) if said == word) for word in ("one", "two", "There.", "Wait.")]
    assert positions[0] < positions[1] < min(positions[2:])


@pytest.mark.parametrize(
    ("format_class", "expected"),
    [
        (OpenAIChat, ["user", "assistant", "tool", "user", "assistant"]),
        (OpenAIResponses, ["user", "function_call", "function_call_output", "assistant"]),
        (Anthropic, ["user", "assistant", "user", "assistant"]),
        (Google, ["user", "model", "user", "user", "model"]),
        (MCP, ["user", "assistant", "user", "assistant"]),
    ],
)
def test_image_of_a_result_stays_or_follows_in_a_user_message(format_class, expected):
    request = format_class(TOOLS).request(
        [user(text("Go.")), assistant(call()), user(result(text("Here:"), IMAGE)), assistant(text("A pixel."))]
    )
    assert turns(format_class, request) == expected
    said = list(strings_in(request))
    moved = "user" in expected[2:4] and format_class in {OpenAIChat, Google}
    assert ("[image 1, shown in the next user message]" in said) is moved
    assert ("[image 1, from above]" in said) is moved


@pytest.mark.parametrize("format_class", [OpenAIChat, Anthropic, Google, MCP])
def test_image_of_a_system_message_is_shown_before_the_user_speaks(format_class):
    sent = list(strings_in(format_class().request([system(text("See:"), IMAGE), user(text("Go."))])))
    (position,) = [position for position, words in enumerate(sent) if IMAGE.data in words]
    assert position < sent.index("Go.")


@pytest.mark.parametrize("format_class", [Anthropic, Google, MCP])
def test_later_system_message_becomes_a_user_message_that_says_so(format_class):
    request = format_class().request([system(text("First.")), user(text("Go.")), system(text("Then."))])
    assert turns(format_class, request) == ["user", "user"]
    assert list(strings_in(request)).count("[system message]") == 1


@pytest.mark.parametrize("format_class", [OpenAIChat, OpenAIResponses])
def test_later_system_message_stays_where_the_provider_takes_it(format_class):
    request = format_class().request([user(text("Go.")), system(text("Then."))])
    assert turns(format_class, request) == ["user", "system"]


@pytest.mark.parametrize("format_class", FORMATS)
def test_unknown_role_is_refused_by_name(format_class):
    with pytest.raises(ValueError, match="'narrator'"):
        format_class().request([Message(role="narrator", blocks=[text("Meanwhile.")])])


@pytest.mark.parametrize("format_class", [OpenAIChat, OpenAIResponses])
def test_error_is_said_where_there_is_no_field_for_it(format_class):
    request = format_class(TOOLS).request([assistant(call()), user(result(text("No."), is_error=True))])
    assert "[error]" in list(strings_in(request))


@pytest.mark.parametrize("format_class", [Anthropic, Google, MCP])
def test_error_is_read_back_where_there_is_a_field_for_it(format_class):
    messages = [assistant(call()), user(result(text("No."), is_error=True))]
    assert format_class(TOOLS).messages(format_class(TOOLS).request(messages)) == messages


@pytest.mark.parametrize("format_class", [Anthropic, Google])
def test_message_of_nothing_is_not_sent_empty(format_class):
    request = format_class().request([user(), assistant(text(" \n"), text(""))])
    check(format_class, request)
    said = [words for words in strings_in(request) if words not in {"user", "assistant", "model", "text"}]
    assert said[0] == "[empty message]"
    if format_class is Anthropic:
        assert said[1:] == [r'[white space: " \n"]']


@pytest.mark.parametrize("format_class", [OpenAIChat, OpenAIResponses, Anthropic])
def test_id_that_the_provider_refuses_is_replaced_alike_in_call_and_result(format_class):
    call_id = "call/1 é" + "x" * 80
    request = format_class(TOOLS).request([assistant(call(call_id)), user(result(text("a"), call_id=call_id))])
    ids = [words for words in strings_in(request) if words.startswith("call_1__x")]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert len(ids[0]) <= 64


@pytest.mark.parametrize("format_class", FORMATS)
def test_content_shows_text_and_images(format_class):
    content = format_class().content([text("Look:"), IMAGE, UnknownBlock(type="video", raw={"type": "video"})])
    assert len(content) == 3
    assert any(IMAGE.data in words for words in strings_in(content[1]))
    assert "[block of type 'video' left out]" in list(strings_in(content[2]))


@pytest.mark.parametrize("format_class", FORMATS)
def test_detail_of_an_environment_is_not_sent(format_class):
    kept = {"secret": "s3cret", "google": {"file_data": "s3cret"}, "openai_responses": {"content": "s3cret"}}
    told = TextBlock(text="Go.", detail=kept)
    request = format_class(TOOLS).request([user(told), assistant(told, call().model_copy(update={"detail": kept}))])
    assert "s3cret" not in json.dumps(request)
