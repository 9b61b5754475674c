"""How much of a server's tool schema reaches the model, ours against `trl.experimental.openreward`.

Each tool of the corpus is found and rendered the way TRL does it, with the chat templates of TRL that print tools as
JSON. The JSON is then cut out of the prompt and compared with what the server said, key order included. Run it as a
script for the table; it needs no server, no model and no network.
"""

# ruff: noqa: T201 - a script that prints a table

import inspect
import json
import sys
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bridge.schemas import CORPUS  # noqa: E402 - found through the path above

from trl_bridge._chat.tools import CallableTool, bind, method  # noqa: E402

TEMPLATES = Path(find_spec("trl").origin).parent / "chat_templates"
JSON_TEMPLATES = (
    *("glm4moe", "lfm2", "lfm2_2_5", "lfm2_2_5_vl", "lfm2_v2", "llama3_1", "llama3_2", "qwen2_5", "qwen3"),
    *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_instruct_2507", "qwen3_vl"),
)
NO_ARGUMENTS = {"type": "object", "properties": {}}
RESERVED = {"reset", "get_reward", "reward", "rewards", "metadata", "finished", "last_output", "status"}
PROMPT = [{"role": "user", "content": "Go."}]


class OurEnvironment:
    """The two faces of a tool, on a class and on its instance, as the adapter has them."""

    @classmethod
    def of(cls, spec):
        (tool,) = bind([spec], reserved=RESERVED)
        function = method(tool)
        environment = type("Environment", (cls,), {tool.name: function})()
        setattr(environment, tool.name, CallableTool(tool, environment._call, function))
        return environment

    def reset(self, /, **row):
        """Start."""

    def _call(self, tool, kwargs):
        return tool.arguments(kwargs)


def incumbent(spec):
    """The adapter of `trl.experimental.openreward`, told what its client would have fetched."""
    told = {"name": spec.name, "description": spec.description, "input_schema": spec.input_schema or {}}
    with warnings.catch_warnings(action="ignore"):  # that it is experimental
        from trl.experimental.openreward.environment import _RolloutEnvironment
    cls = type("Environment", (_RolloutEnvironment,), {})
    return cls(base_url="http://127.0.0.1", _client=object(), _env=object(), _tool_specs=[told])


def tools_of(environment):
    """Find an environment's tools as TRL's trainers do."""
    return [
        getattr(environment, name)
        for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    ]


def tokenizer_with(template):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")), unk_token="[UNK]", bos_token="<s>"
    )
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return tokenizer


def render(tokenizer, tools):
    return tokenizer.apply_chat_template(PROMPT, tools=tools, tokenize=False, add_generation_prompt=True)


def shown_tool(prompt):
    """Return the first JSON object in the prompt that describes a function."""
    decoder = json.JSONDecoder()
    start = prompt.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(prompt, start)
        except json.JSONDecodeError:
            value = None
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            return value["function"]
        start = prompt.find("{", start + 1)
    return None


def outcome(make, spec, tokenizer):
    """Say what became of a tool.

    `equal` to the letter, `reworded` (descriptions, titles or the order of keys differ, what may be sent does not),
    `changed`, `dropped`, or the name of the error that would have ended the run.
    """
    try:
        tools = tools_of(make(spec))
        if not tools:
            return "dropped"
        shown = shown_tool(render(tokenizer, tools))
    except Exception as error:  # noqa: BLE001 - which errors the incumbent raises is what is measured
        return type(error).__name__
    served = {"description": spec.description, "parameters": spec.input_schema}
    if served["parameters"] is None:
        served["parameters"] = NO_ARGUMENTS
    seen = {key: shown.get(key) for key in served}
    if json.dumps(seen) == json.dumps(served):
        return "equal"
    return "reworded" if meaning(seen["parameters"]) == meaning(served["parameters"]) else "changed"


def meaning(schema):
    """Leave out of a schema what only describes."""
    if isinstance(schema, dict):
        return {
            key: meaning(value)
            for key, value in schema.items()
            # A property of that name has a schema, not a text.
            if not (key in ("description", "title") and isinstance(value, str)) and (key, value) != ("required", [])
        }
    return [meaning(value) for value in schema] if isinstance(schema, list) else schema


def measure(make, template):
    """Count what became of the corpus under one chat template."""
    tokenizer = tokenizer_with(template)
    return Counter(outcome(make, spec, tokenizer) for spec in CORPUS)


def row(cells):
    return f"| {' | '.join(cells)} |"


def main():
    print(f"{len(CORPUS)} schemas as the model sees them, ours / trl.experimental.openreward:\n")
    print(row(["chat template", "equal to the letter", "same meaning", "what became of the incumbent's others"]))
    print(row(["---"] * 4))
    for template in JSON_TEMPLATES:
        counts = measure(OurEnvironment.of, template), measure(incumbent, template)
        equal = " / ".join(f"{count['equal'] / len(CORPUS):.0%}" for count in counts)
        same = " / ".join(f"{(count['equal'] + count['reworded']) / len(CORPUS):.0%}" for count in counts)
        others = (f"{n} {kind}" for kind, n in counts[1].most_common() if kind not in ("equal", "reworded"))
        print(row([template, equal, same, ", ".join(others)]))


if __name__ == "__main__":
    main()
