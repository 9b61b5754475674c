"""Echo environments and tools without a server."""

from fixtures.demo._echo import EchoEnvironment, EchoTask, as_function
from ors_client import ToolSpec

WORDS = ("hello", "world", "trl", "openreward")


def echo_tool(name: str = "echo", **properties: str) -> ToolSpec:
    """Make a tool that requires each of the given properties, of the given types."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return ToolSpec(name=name, description="Say a word.", input_schema=schema)


def echo_environment(*words: str) -> EchoEnvironment:
    """Make an echo environment as `read_environment` would describe it."""
    return EchoEnvironment(
        name="echoenvironment",
        split="train",
        tool="echo",
        parameter="text",
        tools=(as_function(echo_tool(text="string")),),
        tasks=tuple(
            EchoTask(index, f"Call the `echo` tool with text='{word}' to win.", word, "match")
            for index, word in enumerate(words)
        ),
        wrong_word=words[1],
        wrong_reply=f"no match (got {words[1]!r})",
        scores=(0.0, 1.0),
    )
