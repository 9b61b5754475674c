"""What a notebook or a log prints of a value: two lines, what is short first, no blob and no key."""

import inspect
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

from ors_client import (
    Client,
    GroupCandidate,
    GroupScore,
    ImageBlock,
    Message,
    ReasoningBlock,
    Secret,
    Split,
    Task,
    TaskDifficulty,
    TaskRef,
    TerminalToolSpec,
    TextBlock,
    ToolCallBlock,
    ToolList,
    ToolOutput,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
)
from ors_client.evaluation import ChatModel, Reply
from ors_client.formats import ToolCall
from ors_client.record import AttemptKey, CallRecord, EpisodeRecord, Merged, RunRecord, ToolsRecord, WordsRecord

LONG = "blob " * 20_000
JSON = {"a": LONG, "b": [LONG] * 100}
IMAGE = ImageBlock(data=LONG, mimeType="image/png")
MESSAGE = Message(role="user", blocks=[TextBlock(text=LONG), IMAGE] * 50)
TOOL = ToolSpec(name="go", description=LONG, input_schema=JSON)

LARGE: list[Any] = [
    IMAGE,
    TextBlock(text=LONG),
    ReasoningBlock(text=LONG),
    ToolCallBlock(id="1", name="go", input=JSON),
    ToolResultBlock(tool_call_id="1", blocks=[IMAGE] * 50),
    UnknownBlock(type="new", raw=JSON),
    MESSAGE,
    ToolOutput(blocks=[TextBlock(text=LONG), IMAGE], metadata=JSON, reward=0.5, finished=True),
    Task(environment="e", spec=JSON, split="train", index=3),
    Split(name=LONG),
    TOOL,
    ToolList(tools=[TOOL] * 100),
    TerminalToolSpec(name="end", description=LONG),
    GroupCandidate(messages=[MESSAGE] * 10, metadata=JSON),
    GroupScore(reward=1.0, metadata=JSON),
    TaskDifficulty(task_index=1, split=LONG),
    EpisodeRecord(prompt=LONG, messages=[JSON] * 100, spec=JSON, status="scored", reward=0.5),
    CallRecord(tool="go", output=LONG, arguments=JSON),
    RunRecord(parameters=JSON),
    ToolsRecord(tools=[TOOL] * 10),
    WordsRecord(id="1", completion=[JSON] * 100),
    Reply(JSON, {}),
    ToolCall("go", JSON),
    Merged(1, {}, [AttemptKey("e", "m", "train", index, 0) for index in range(1000)], 0, [LONG] * 100),
]


@pytest.mark.parametrize("value", LARGE, ids=lambda value: type(value).__name__)
def test_repr_of_a_large_value_fits_in_two_lines(value):
    assert 0 < len(repr(value)) <= 200
    assert len(str(value)) <= 200


def test_repr_of_every_public_model_is_tried():
    public = {
        thing
        for package in ("ors_client", "ors_client.record")
        for thing in vars(import_module(package)).values()
        if inspect.isclass(thing) and issubclass(thing, BaseModel) and thing.__name__ != "ResponseChars"
    }
    assert public == {type(value) for value in LARGE if isinstance(value, BaseModel)}


def test_what_is_short_stands_before_what_is_clipped():
    output, task = (next(each for each in LARGE if isinstance(each, kind)) for kind in (ToolOutput, Task))
    assert repr(output).startswith("ToolOutput(reward=0.5, finished=True, blocks=[")
    assert repr(task).startswith("Task(environment='e', split='train', index=3, spec={")
    assert repr(ToolOutput(blocks=[TextBlock(text="hello")], reward=1.0)) == (
        "ToolOutput(reward=1.0, finished=False, blocks=[TextBlock(type='text', text='hello')])"
    )


def test_image_says_its_type_and_shows_no_data():
    assert repr(IMAGE) == "ImageBlock(type='image', mime_type='image/png')"


def test_nothing_shows_a_key():
    secret = "hidden-key"
    with Client("http://peer.test", api_key=secret, headers={"authorization": secret}) as client:
        environment = client.environment(LONG)
        session = environment.session(TaskRef("train", 0), secrets={"K": secret})
        model = ChatModel("m", "http://peer.test/v1", api_key=secret, parameters={"a": LONG})
        for value in (client, environment, session, model, Secret(secret), client.rollouts):
            assert secret not in repr(value) + str(value)
            assert len(repr(value)) <= 200
