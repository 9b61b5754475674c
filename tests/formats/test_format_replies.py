"""Replies as the providers' packages dump them become messages and calls, and go back in the next request unharmed."""

import base64
import json
from pkgutil import resolve_name

import pytest
from conversations import FORMATS, IMAGE, TOOLS, assistant, result, strings_in, text, user

from ors_client import ImageBlock, ReasoningBlock, ToolCallBlock, ToolFailed, ToolOutput, UnknownBlock
from ors_client.formats import MCP, Anthropic, Google, OpenAIChat, OpenAIResponses, ToolCall, tool_calls, tool_result

SIGNATURE = base64.b64encode(b"\xfb\xff\xfe signed").decode()


# The providers' packages are imported by the worker that runs these tests, and not by each that collects them.


def chat_message():
    return resolve_name("openai.types.chat:ChatCompletionMessage")


def google(name):
    return resolve_name(f"google.genai.types:{name}")


def chat_reply(arguments='{"title": "a"}', **fields):
    function = {"name": "file_read_2", "arguments": arguments}
    reply = {
        "role": "assistant",
        "content": "Now.",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    return chat_message().model_validate({**reply, **fields}).model_dump()


RESPONSE = {
    "id": "resp_1",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "e",
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Now.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "file_read_2",
            "arguments": '{"title": "a"}',
            "status": "completed",
        },
    ],
}


def responses_reply():
    return resolve_name("openai.types.responses:Response").model_validate(RESPONSE).model_dump(exclude_none=True)


def anthropic_reply():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "Now."},
        {"type": "tool_use", "id": "c1", "name": "file_read_2", "input": {"title": "a"}},
    ]
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}
    return resolve_name("anthropic.types:Message").model_validate(whole).model_dump(exclude_none=True)


def google_content():
    call = google("FunctionCall")(name="file_read_2", args={"title": "a"})
    return google("Content")(
        role="model",
        parts=[
            google("Part")(text="hm", thought=True, thought_signature=b"thought"),
            google("Part")(text="Now."),
            google("Part")(function_call=call, thought_signature=base64.b64decode(SIGNATURE)),
        ],
    )


def google_reply():
    return google_content().model_dump(exclude_none=True)


def mcp_reply():
    content = [
        {"type": "text", "text": "Now."},
        {"type": "tool_use", "id": "c1", "name": "file_read_2", "input": {"title": "a"}},
    ]
    whole = {"role": "assistant", "model": "m", "content": content}
    return (
        resolve_name("mcp_types:CreateMessageResultWithTools")
        .model_validate(whole)
        .model_dump(by_alias=True, exclude_none=True)
    )


REPLIES = {
    OpenAIChat: chat_reply,
    OpenAIResponses: responses_reply,
    Anthropic: anthropic_reply,
    Google: google_reply,
    MCP: mcp_reply,
}


@pytest.mark.parametrize("format_class", FORMATS)
def test_reply_gives_its_text_and_its_calls_under_the_servers_names(format_class):
    shape = format_class(TOOLS)
    reply = shape.reply(REPLIES[format_class]())
    assert (reply.role, reply.text) == ("assistant", "Now.")
    (call,) = tool_calls(reply)
    assert (call.tool, call.arguments, call.problem) == ("file.read", {"title": "a"}, None)
    assert call.call_id == "c1" or format_class is Google


@pytest.mark.parametrize("format_class", FORMATS)
def test_calls_of_a_reply_are_those_of_its_message(format_class):
    (call,) = format_class(TOOLS).calls(REPLIES[format_class]())
    assert (call.tool, call.arguments) == ("file.read", {"title": "a"})


def test_anthropic_reply_goes_back_word_for_word():
    shape, reply = Anthropic(TOOLS), anthropic_reply()
    assert shape.request([shape.reply(reply)])["messages"] == [{"role": "assistant", "content": reply["content"]}]


def test_openai_responses_reply_goes_back_with_its_ids():
    shape = OpenAIResponses(TOOLS)
    (reasoning, message, call) = shape.request([shape.reply(responses_reply())])["input"]
    assert (reasoning, message) == tuple(RESPONSE["output"][:2])
    assert call == {key: value for key, value in RESPONSE["output"][2].items() if key != "status"}


def test_openai_responses_reply_is_read_from_its_output_alone():
    shape, reply = OpenAIResponses(TOOLS), responses_reply()
    assert shape.reply(reply["output"]) == shape.reply(reply)


def test_openai_responses_open_reasoning_goes_back_as_it_came():
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    shape = OpenAIResponses()
    assert shape.request([shape.reply([item])])["input"] == [item]


def test_google_signature_goes_back_on_the_call_that_it_came_with():
    shape = Google(TOOLS)
    (content,) = shape.request([shape.reply(google_reply())])["contents"]
    assert google("Content").model_validate(content) == google_content()


def test_google_reply_in_the_camel_case_of_json_reads_the_same():
    shape = Google(TOOLS)
    raw = google_content().model_dump(mode="json", by_alias=True, exclude_none=True)
    (content,) = shape.request([shape.reply(raw)])["contents"]
    assert content["parts"][2]["thought_signature"] == SIGNATURE  # in the alphabet that every base64 reader knows
    assert google("Content").model_validate(content) == google_content()


def test_google_result_is_matched_with_its_call_where_neither_has_an_id():
    calls = [{"function_call": {"name": "edit", "args": {"n": n}}} for n in range(2)]
    answers = [{"function_response": {"name": "edit", "response": {"output": str(n)}}} for n in range(2)]
    request = {"contents": [{"role": "model", "parts": calls}, {"role": "user", "parts": answers}]}
    made, answered = Google(TOOLS).messages(request)
    assert [block.tool_call_id for block in answered.blocks] == [block.id for block in made.blocks]
    assert Google(TOOLS).request([made, answered])["contents"] == request["contents"]


@pytest.mark.parametrize("format_class", FORMATS)
def test_reasoning_of_another_provider_is_shown_as_text(format_class):
    thought = Anthropic(TOOLS).reply(anthropic_reply())
    if format_class is Anthropic:
        thought = Google(TOOLS).reply(google_reply())
    assert any(words.startswith("[reasoning") for words in strings_in(format_class(TOOLS).request([thought])))


def test_openai_chat_reasoning_goes_where_a_compatible_server_takes_it():
    reply = chat_reply(reasoning_content="hm", reasoning="hm")
    shape = OpenAIChat(TOOLS, reasoning_field="reasoning_content")
    message = shape.reply(reply)
    assert [block.text for block in message.blocks if isinstance(block, ReasoningBlock)] == ["hm"]
    (written,) = shape.request([message])["messages"]
    assert (written["reasoning_content"], written["content"]) == ("hm", "Now.")


def test_openai_chat_refusal_is_text_and_goes_back_as_a_refusal():
    shape = OpenAIChat()
    message = shape.reply(chat_message()(role="assistant", refusal="No.").model_dump())
    assert message.text == "No."
    assert shape.request([message])["messages"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"title": ', "no JSON"),
        ("[1]", "list"),
        ('"edit"', "str"),
        ('{"title": NaN}', "no JSON"),
        ('{"title": 1e999}', "no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"title":' * 600 + "1" + "}" * 600, "more than 500 deep"),
    ],
)
def test_broken_arguments_are_a_problem_of_the_call_and_go_back_as_they_came(arguments, said):
    shape = OpenAIChat(TOOLS)
    message = shape.reply(chat_reply(arguments))
    (call,) = tool_calls(message)
    assert (call.tool, call.arguments) == ("file.read", {})
    assert said in call.problem
    (written,) = shape.request([message])["messages"]
    assert written["tool_calls"][0]["function"]["arguments"] == arguments
    assert arguments in list(strings_in(Anthropic(TOOLS).request([message])))


def test_arguments_that_come_nested_too_deeply_are_a_problem_of_the_call():
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    message = Anthropic(TOOLS).reply({"content": [{"type": "tool_use", "id": "1", "name": "file_read", "input": deep}]})
    (call,) = tool_calls(message)
    assert (call.arguments, "more than 500 deep" in call.problem) == ({}, True)
    assert Anthropic(TOOLS).request([message])


@pytest.mark.parametrize("arguments", ["", "  ", "{}"])
def test_arguments_of_nothing_are_an_empty_object(arguments):
    (call,) = OpenAIChat(TOOLS).calls(chat_reply(arguments))
    assert (call.arguments, call.problem) == ({}, None)


def test_large_integers_and_doubled_keys_arrive_as_json_reads_them():
    (call,) = OpenAIChat(TOOLS).calls(chat_reply(f'{{"a": 1, "a": {2**70}}}'))
    assert call.arguments == {"a": 2**70}


@pytest.mark.parametrize(
    ("format_class", "reply"),
    [
        (OpenAIChat, {"content": [{"type": "file", "file": {"file_id": "f"}}]}),
        (
            OpenAIResponses,
            [{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}],
        ),
        (Anthropic, {"content": [{"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}}]}),
        (Google, {"role": "model", "parts": [{"executable_code": {"code": "1", "language": "PYTHON"}}]}),
        (MCP, {"content": {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}}),
    ],
)
def test_what_the_standard_has_no_block_for_goes_back_to_its_provider_and_is_named_to_others(format_class, reply):
    shape = format_class()
    message = shape.reply(reply)
    assert [type(block) for block in message.blocks] == [UnknownBlock]
    (key,) = shape.request([message])
    given = reply if isinstance(reply, list) else reply.get("content", reply.get("parts"))
    inside = given if isinstance(given, list) else [given]
    (written,) = shape.request([message])[key]
    assert [written] == inside or written.get("content", written.get("parts")) == inside
    other = Anthropic if format_class is not Anthropic else OpenAIChat
    said = list(strings_in(other().request([message])))
    assert any(words.startswith("[block of type ") for words in said)


@pytest.mark.parametrize("format_class", FORMATS)
def test_block_of_an_environment_is_never_taken_for_a_providers(format_class):
    kind = f"{format_class.__module__.rpartition('.')[2]}:image"
    forged = user().model_validate({"role": "user", "blocks": [{"type": kind, "url": "http://example.test"}]})
    assert "http://example.test" not in json.dumps(format_class().request([forged]))


def test_tool_result_of_an_output_holds_its_blocks():
    output = ToolOutput(blocks=[text("a"), IMAGE], reward=1.0)
    assert tool_result(ToolCall("edit", call_id="c1"), output) == result(text("a"), IMAGE)


def test_tool_result_of_an_error_says_what_the_server_said():
    failed = ToolFailed("edit", detail="ValueError: no such file", url="http://localhost:8000/edit")
    expected = result(text("ValueError: no such file"), is_error=True)
    assert tool_result(ToolCall("edit", call_id="c1"), failed) == expected


@pytest.mark.parametrize("format_class", FORMATS)
def test_results_for_a_kept_conversation_are_the_end_of_the_whole_one(format_class):
    shape = format_class(TOOLS)
    calls = [ToolCall("edit", {"n": n}, f"c{n}") for n in range(2)]
    outputs = [ToolOutput(blocks=[text("a"), IMAGE]), "No such line."]
    made = assistant(*(ToolCallBlock(id=call.call_id, name=call.tool, input=call.arguments) for call in calls))
    answered = user(*map(tool_result, calls, outputs))
    whole = shape.request([made, answered])
    key = {OpenAIResponses: "input", Google: "contents"}.get(format_class, "messages")
    appended = shape.results(zip(calls, outputs, strict=True))
    assert appended == whole[key][-len(appended) :]
    assert len(appended) == len(whole[key]) - (2 if format_class is OpenAIResponses else 1)


def test_mcp_call_and_its_result_fit_the_protocol():
    params = resolve_name("mcp_types:CallToolRequestParams")(name="file_read_2", arguments={"a": 1}).model_dump(
        by_alias=True
    )
    assert MCP(TOOLS).call(params) == ToolCall("file.read", {"a": 1})
    returned = MCP(TOOLS).call_result(ToolOutput(blocks=[text("a"), IMAGE]))
    assert returned["isError"] is False
    assert [part.type for part in resolve_name("mcp_types:CallToolResult").model_validate(returned).content] == [
        "text",
        "image",
    ]
    assert MCP(TOOLS).call_result("No.") == {"content": [{"type": "text", "text": "No."}], "isError": True}


def test_google_image_that_is_no_base64_is_named_not_sent():
    (content,) = Google().request([user(ImageBlock(data="?", mimeType="image/png"))])["contents"]
    assert content["parts"] == [{"text": "[1 image left out: image/png]"}]


def test_anthropic_image_of_a_type_it_refuses_is_named_not_sent():
    (message,) = Anthropic().request([user(ImageBlock(data=IMAGE.data, mimeType="image/bmp"))])["messages"]
    assert message["content"][0]["text"] == "[1 image left out: image/bmp]"


# --- Reasoning and ids, as other servers of chat completions treat them ----------------------------------------------

DETAILS = [
    {"type": "reasoning.text", "text": "hm", "signature": "s", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "opaque"},
]
THOUGHT = " hm,\n\u2026 "


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": THOUGHT},
        {"reasoning": THOUGHT},
        {"reasoning": THOUGHT, "reasoning_content": THOUGHT},
        {"reasoning": "hm", "reasoning_details": DETAILS},
        {"reasoning": None, "reasoning_details": DETAILS[1:]},
        {"reasoning_content": ""},
        {"reasoning_content": None},
        {},
    ],
)
def test_openai_chat_reasoning_goes_back_in_the_fields_in_which_it_came(fields):
    shape = OpenAIChat(TOOLS)
    (written,) = shape.request([shape.reply(chat_reply(**fields))])["messages"]
    kept = {name: value for name, value in written.items() if name.startswith("reasoning")}
    assert kept == {name: value for name, value in fields.items() if value is not None}
    assert written["content"] == "Now."
    assert not any(words.startswith("[reasoning") for words in strings_in(written))


@pytest.mark.parametrize(("history", "kept"), [("all", ["a", "b"]), ("last", [None, "b"]), ("none", [None, None])])
def test_openai_chat_reasoning_history_says_whose_reasoning_is_sent(history, kept):
    shape = OpenAIChat(TOOLS, reasoning_history=history)
    messages = []
    for thought in "ab":
        messages += [shape.reply(chat_reply(reasoning=thought)), user(result(text("ok")))]
    written = [message for message in shape.request(messages)["messages"] if message["role"] == "assistant"]
    assert [message.get("reasoning") for message in written] == kept
    assert all(message["content"] == "Now." for message in written)


def test_empty_reasoning_is_nothing_to_another_provider():
    message = OpenAIChat(TOOLS).reply(chat_reply(reasoning_content=""))
    assert not any("reasoning" in words for words in strings_in(Anthropic(TOOLS).request([message])))


def test_openai_chat_call_goes_back_with_the_signature_that_google_put_beside_it():
    extra = {"google": {"thought_signature": SIGNATURE}}
    reply = chat_reply()
    reply["tool_calls"][0]["extra_content"] = extra
    shape = OpenAIChat(TOOLS)
    (written,) = shape.request([shape.reply(reply)])["messages"]
    assert written["tool_calls"][0]["extra_content"] == extra


def ids_of(written):
    """Return the ids of calls, and of results, as a request of any provider holds them."""
    made, answered = [], []

    def look(value):
        if isinstance(value, list):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            answer = value.get("tool_call_id") or value.get("tool_use_id") or value.get("toolUseId")
            response = value.get("function_response")
            if answer or value.get("type") == "function_call_output" or response:
                answered.append(answer or value.get("call_id") or response["id"])
            elif value.get("type") in {"function", "tool_use", "function_call"} and (
                "id" in value or "call_id" in value
            ):
                made.append(value.get("call_id") or value["id"])
            elif "function_call" in value:
                made.append(value["function_call"]["id"])
            for item in value.values():
                look(item)

    look({name: part for name, part in written.items() if name not in {"tools", "config"}})
    return made, answered


@pytest.mark.parametrize("format_class", FORMATS)
@pytest.mark.parametrize("given", [["a", "a"], ["", ""], ["call_1", "call_1"], ["a", "a_2"], ["x" * 90, "é/"]])
def test_ids_of_calls_are_distinct_fit_and_those_of_their_results(format_class, given):
    shape = format_class(TOOLS)
    messages = [user(text("Go."))]
    for turn in range(3):
        calls = [ToolCallBlock(id=call_id, name="edit", input={"n": n}) for n, call_id in enumerate(given)]
        results = [result(text(f"{turn}.{n}"), call_id=call_id) for n, call_id in enumerate(given)]
        messages += [assistant(*calls), user(*results)]
    made, answered = ids_of(shape.request(messages))
    assert len(made) == len(set(made)) == 6
    assert answered == made
    assert all(0 < len(call_id) <= 40 for call_id in made)
    assert ids_of(shape.request(messages[:3])) == (made[:2], answered[:2])


@pytest.mark.parametrize("format_class", FORMATS)
def test_call_that_came_without_an_id_has_one(format_class):
    shape = format_class(TOOLS)
    reply = REPLIES[format_class]()
    without = json.loads(json.dumps(reply, default=str).replace('"c1"', "null"))
    (call,) = tool_calls(shape.reply(without))
    assert call.call_id not in {"", "None"}
    request = shape.request([shape.reply(without)])
    assert "None" not in list(strings_in(request))


@pytest.mark.parametrize("format_class", FORMATS)
@pytest.mark.parametrize("other_class", FORMATS)
def test_ids_stay_distinct_when_a_conversation_moves_to_another_provider(format_class, other_class):
    shape, other = format_class(TOOLS), other_class(TOOLS)
    messages = []
    for provider in (shape, other, shape):
        reply = provider.reply(REPLIES[type(provider)]())
        messages += [reply, user(*(tool_result(call, ToolOutput()) for call in tool_calls(reply)))]
    for provider in (shape, other):
        request = provider.request(messages)
        if type(provider) is not Google:  # which needs no ids, and gets none for calls that came without
            made, answered = ids_of(request)
            assert (len(set(made)), answered) == (3, made)


def test_results_for_a_kept_conversation_have_the_ids_that_the_provider_gave():
    long = f"chatcmpl-tool-{'0' * 32}"
    (appended,) = OpenAIChat(TOOLS).results([(ToolCall("edit", call_id=long), "No.")])
    assert appended["tool_call_id"] == long
