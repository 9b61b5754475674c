"""Conversations and tools for the tests of the formats, and the strategies that make more of them."""

import base64

from hypothesis import strategies as st

from ors_client import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
)
from ors_client.formats import MCP, Anthropic, Google, OpenAIChat, OpenAIResponses

FORMATS = [OpenAIChat, OpenAIResponses, Anthropic, Google, MCP]

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
IMAGE = ImageBlock(data=PIXEL, mimeType="image/png")

SCHEMA = {
    "title": "Edit",
    "type": "object",
    "$defs": {"Line": {"type": "object", "properties": {"not": {"type": "boolean"}}}},
    "properties": {
        "title": {"type": ["string", "null"], "title": "Title"},
        "default": {"const": "fixed", "default": "fixed"},
        "not": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/Line"}]},
        "properties": {"type": "object", "properties": {"required": {"enum": ["a", 1, None]}}},
        "$ref": {"type": "array", "prefixItems": [{"type": "number"}], "items": False},
    },
    "required": ["title", "not"],
    "additionalProperties": False,
}
TOOLS = [
    ToolSpec(name="edit", description="Edit a file.", input_schema=SCHEMA),
    ToolSpec(name="file.read", description="Read a file."),
    ToolSpec(name="file_read"),
    ToolSpec(name="2fast", input_schema={"properties": {"type": {"type": "string"}}}),
    ToolSpec(name="x" * 80, description="Bear a long name."),
    ToolSpec(name="löschen"),
    ToolSpec(name=""),
]


def user(*blocks):
    return Message(role="user", blocks=list(blocks))


def assistant(*blocks):
    return Message(role="assistant", blocks=list(blocks))


def system(*blocks):
    return Message(role="system", blocks=list(blocks))


def call(call_id="c1", name="edit", **arguments):
    return ToolCallBlock(id=call_id, name=name, input=arguments)


def result(*blocks, call_id="c1", is_error=False):
    return ToolResultBlock(tool_call_id=call_id, blocks=list(blocks), is_error=is_error)


def text(words):
    return TextBlock(text=words)


def strings_in(value):
    """Yield every string in a JSON value, keys apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_in(inner)


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
texts = st.builds(TextBlock, text=words)
images = st.builds(
    lambda data, kind: ImageBlock(data=base64.b64encode(data).decode(), mimeType=f"image/{kind}"),
    st.binary(min_size=1, max_size=12),
    st.sampled_from(["png", "jpeg", "webp", "gif"]),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(words, values, max_size=3)
names = st.sampled_from([tool.name for tool in TOOLS])


@st.composite
def conversations(draw):
    """Draw a conversation that every provider can hold as it is: the least common shape."""
    messages = [system(draw(texts))] if draw(st.booleans()) else []
    count = 0
    for _ in range(draw(st.integers(1, 4))):
        messages.append(user(*draw(st.lists(texts | images, min_size=1, max_size=3))))
        calls = draw(st.lists(st.tuples(names, arguments), max_size=2))
        spoken = draw(st.lists(texts, min_size=0 if calls else 1, max_size=2))
        made = [call(f"call_{count + index}", name) for index, (name, _) in enumerate(calls)]
        made = [block.model_copy(update={"input": given}) for block, (_, given) in zip(made, calls, strict=True)]
        count += len(made)
        messages.append(assistant(*spoken, *made))
        if made:
            answers = [result(*draw(st.lists(texts, max_size=2)), call_id=block.id) for block in made]
            messages += [user(*answers), assistant(draw(texts))]
    return messages


any_text = st.builds(TextBlock, text=st.text(max_size=8))
any_result = st.builds(
    ToolResultBlock,
    tool_call_id=st.text(max_size=70),
    blocks=st.lists(any_text | images, max_size=3),
    is_error=st.booleans(),
)
any_call = st.builds(ToolCallBlock, id=st.text(max_size=70), name=st.text(max_size=70), input=arguments)
any_reasoning = st.builds(ReasoningBlock, text=st.text(max_size=8), signature=st.none() | words)
any_unknown = st.just(UnknownBlock(type="video", raw={"type": "video", "data": "..."}))
any_block = any_text | images | any_result | any_call | any_reasoning | any_unknown
any_message = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant"]),
    blocks=st.lists(any_block, max_size=4),
)
"""Anything at all, in any place: what a model, an environment or a caller may make of a conversation."""
