"""An index of a record, as a server needs it: environments, splits, tasks, and the recorded episodes of each task.

The answer to a call depends on the calls before it. So a session keeps all recorded episodes that began with the same
calls. Sessions of one task that make the same calls take its episodes in turn: so a group of rollouts gets the rewards
that were recorded. No I/O, no clock.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ors_client._arguments import checked
from ors_client._config import Limits
from ors_client._errors import LimitExceeded
from ors_client._protocol.json import decode
from ors_client._types import JSONObject, ToolList, ToolSpec
from ors_client.record import CallRecord, EpisodeRecord, ToolsRecord

NOT_RECORDED = "not_recorded"
"""The reason with which a call is refused that the record does not hold."""

_DEFAULT_ENVIRONMENT, _DEFAULT_SPLIT = "replay", "train"  # for records that name neither
_CALLS_SHOWN, _CHARS_SHOWN = 3, 200

SplitIndex = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One recorded episode, without a last call that the infrastructure broke: its answer is not known."""

    prompt: list[JSONObject]
    messages: list[JSONObject]
    calls: tuple[CallRecord, ...]


@dataclass(slots=True)
class RecordedEnvironment:
    """An environment of the record.

    Its tasks are listed without gaps, since clients open tasks by their position in the list. A task whose index is
    below the number of tasks stands at its index; the others, those counted from the end among them, fill the positions
    that are left. So each recorded index
    still opens its task.
    """

    episodes: dict[SplitIndex, list[RecordedEpisode]] = field(default_factory=dict[SplitIndex, list[RecordedEpisode]])
    specs: dict[SplitIndex, JSONObject] = field(default_factory=dict[SplitIndex, JSONObject])
    tools: ToolList = field(default_factory=ToolList)
    started: Counter[SplitIndex] = field(default_factory=Counter[SplitIndex])

    @property
    def splits(self) -> list[str]:
        """In the order of the record."""
        return list(dict.fromkeys(split for split, _ in self.episodes))

    def indices(self, split: str) -> list[int]:
        """Return the recorded index of the task at each position."""
        recorded = sorted(index for name, index in self.episodes if name == split)
        known = set(recorded)
        beyond = iter(index for index in recorded if not 0 <= index < len(recorded))
        return [index if index in known else next(beyond) for index in range(len(recorded))]

    def find(self, split: str, index: int) -> SplitIndex | None:
        """Return the task that an index opens, if there is one; a negative index counts from the end of the list."""
        if (split, index) in self.episodes:
            return split, index
        indices = self.indices(split)
        return (split, indices[index]) if -len(indices) <= index < len(indices) else None

    def find_spec(self, spec: JSONObject) -> SplitIndex | None:
        """Return the task of a specification, if there is one."""
        split, index = spec.get("split"), spec.get("index")
        known = next((task for task, recorded in self.specs.items() if recorded == spec), None)
        if known is not None or not isinstance(split, str) or not isinstance(index, int):
            return known
        return self.find(split, index)

    def spec(self, task: SplitIndex) -> JSONObject:
        """Return a task's specification: the recorded one, or else its split and index."""
        return self.specs.get(task) or {"split": task[0], "index": task[1]}

    def start_session(self, task: SplitIndex) -> ReplaySession:
        """Start a session of a task.

        Raises:
            KeyError: The record holds no episode of it.
        """
        episodes = self.episodes[task]
        first = self.started[task] % len(episodes)
        self.started[task] += 1
        return ReplaySession(task, episodes[first:] + episodes[:first])


@checked
class Script:
    """All environments of a record, in memory.

    Args:
        episodes: As `ors_client.record.read` yields them.
        tools: As `ors tools URL --json` writes them, for one environment. By default they are those of the record, or
            else derived from the calls, which show names and types of arguments, but no descriptions.
    """

    def __init__(self, episodes: Iterable[EpisodeRecord], *, tools: ToolList | None = None) -> None:
        self.environments: dict[str, RecordedEnvironment] = {}
        self.episodes = 0
        self.left_out = 0
        """Episodes that name no task, or ended before there was a prompt."""
        calls: defaultdict[str, list[CallRecord]] = defaultdict(list)
        recorded_tools: dict[str, ToolList] = {}
        for episode in episodes:
            if episode.index is None or (episode.session_id is None and not episode.prompt and not episode.calls):
                self.left_out += 1
                continue
            self.episodes += 1
            name = (episode.environment or _DEFAULT_ENVIRONMENT).rpartition("/")[2].lower()
            recorded = _recorded_episode(episode)
            environment = self.environments.setdefault(name, RecordedEnvironment())
            task = (episode.split or _DEFAULT_SPLIT, episode.index)
            of_task = environment.episodes.setdefault(task, [])
            if of_task and (of_task[0].prompt, of_task[0].messages) == (recorded.prompt, recorded.messages):
                # Thousands of episodes of a training begin with the same few images.
                recorded = replace(recorded, prompt=of_task[0].prompt, messages=of_task[0].messages)
            of_task.append(recorded)
            if episode.spec is not None:
                environment.specs[task] = episode.spec
            calls[name] += recorded.calls
            if episode.tools is not None:
                recorded_tools[name] = _with_tools(recorded_tools.get(name, ToolList()), episode.tools)
        for name, environment in self.environments.items():
            derived = recorded_tools.get(name) or ToolList(tools=_tools_from_calls(calls[name]))
            environment.tools = derived if tools is None else tools

    @property
    def num_tasks(self) -> int:
        """How many tasks have a recorded episode."""
        return sum(len(environment.episodes) for environment in self.environments.values())


class ReplaySession:
    """A session: its task, and the recorded episodes that begin with its calls."""

    def __init__(self, task: SplitIndex, episodes: list[RecordedEpisode]) -> None:
        self.task = task
        self.finished = False
        self._episodes = episodes
        self._num_calls = 0

    @property
    def episode(self) -> RecordedEpisode:
        """The first of the episodes that the session still matches."""
        return self._episodes[0]

    def call(self, tool: str, arguments: Mapping[str, Any]) -> CallRecord | str:
        """Return the recorded call, or a message that says why there is none."""
        number = self._num_calls
        wanted = _call_key(tool, arguments)
        longer = [episode for episode in self._episodes if len(episode.calls) > number]
        matching = [
            episode
            for episode in longer
            if _call_key(episode.calls[number].tool, episode.calls[number].arguments) == wanted
        ]
        if not matching:
            return self._not_recorded(tool, arguments, [episode.calls[number] for episode in longer])
        self._episodes = matching
        self._num_calls += 1
        call = matching[0].calls[number]
        self.finished = call.finished
        return call

    def _not_recorded(self, tool: str, arguments: Mapping[str, Any], recorded: list[CallRecord]) -> str:
        split, index = self.task
        shown = list(dict.fromkeys(_call_text(call.tool, call.arguments) for call in recorded))
        there = " or ".join(shown[:_CALLS_SHOWN]) if shown else "the end of the episode"
        more = f" or {len(shown) - _CALLS_SHOWN} others" if len(shown) > _CALLS_SHOWN else ""
        return (
            f"Not in the record: call {self._num_calls + 1} of task {index} in {split!r} is {there}{more} there, "
            f"not {_call_text(tool, arguments)}."
        )


@checked
def read_tools(text: str) -> ToolList:
    """Read a list of tools from JSON: that of `ors tools URL --json`, or of a server.

    Raises:
        ValueError: The text is no list of tools.
    """
    try:
        value = decode(text, limits=Limits())
    except LimitExceeded as error:
        raise ValueError(f"The tools are nested more than {error.maximum} levels deep.") from None
    return ToolList.model_validate({"tools": value} if isinstance(value, list) else value)


def tool_list_json(tools: ToolList) -> JSONObject:
    """Return a list of tools as a server sends it; the terminal tool stands in a field of its own."""
    return tools.model_dump(mode="json") | {"supports_score_group": False}


def _recorded_episode(episode: EpisodeRecord) -> RecordedEpisode:
    calls = list(episode.calls)
    if episode.status.startswith(("failed", "cut: seconds")) and calls and calls[-1].error is not None:
        calls.pop()
    text: list[JSONObject] = [{"type": "text", "text": episode.prompt, "detail": None}]
    messages: list[JSONObject] = episode.opening_messages if episode.messages else [{"role": "user", "blocks": text}]
    # A conversation of several turns has the prompt beside it; a single turn is the prompt, images included.
    prompt = messages[0].get("blocks") if len(messages) == 1 else text
    # A broken call of the model's never reached the server, and will not reach this one.
    sent = tuple(call for call in calls if call.kind not in {"ValueError", "TypeError"})
    return RecordedEpisode(prompt or text, messages, sent)


def _call_key(tool: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool} {json.dumps(_normalize_numbers(arguments), sort_keys=True)}"


def _normalize_numbers(value: Any) -> Any:
    """Write 1.0 as 1: in JSON both are one number, and writers differ."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {str(key): _normalize_numbers(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON of any shape
        case list():
            return [_normalize_numbers(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _call_text(tool: str, arguments: Mapping[str, Any]) -> str:
    text = f"{tool}({json.dumps(arguments, ensure_ascii=False)})"
    return text if len(text) <= _CHARS_SHOWN else f"{text[:_CHARS_SHOWN]}..."


def _with_tools(known: ToolList, recorded: ToolsRecord) -> ToolList:
    """Return the tools that are known, and those that a task has beside them."""
    names = {spec.name for spec in known.tools}
    more = [spec for spec in recorded.tools if spec.name not in names]
    terminal = known.terminal_tool or recorded.terminal_tool
    return known.model_copy(update={"tools": [*known.tools, *more], "terminal_tool": terminal})


# --- Tools derived from calls ----------------------------------------------------------------------------------------


def _tools_from_calls(calls: list[CallRecord]) -> list[ToolSpec]:
    by_name: defaultdict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        if call.kind != "ToolRejected":  # an unknown tool, or arguments of the wrong types
            by_name[call.tool].append(call)
    return [ToolSpec(name=name, input_schema=_input_schema(made)) for name, made in by_name.items()]


def _input_schema(calls: list[CallRecord]) -> JSONObject:
    types: defaultdict[str, dict[str, None]] = defaultdict(dict)
    counts: Counter[str] = Counter()
    for call in calls:
        for name, value in call.arguments.items():
            types[name].setdefault(_json_type(value))
            counts[name] += 1
    properties = {name: {"type": found[0] if len(found := list(seen)) == 1 else found} for name, seen in types.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, count in counts.items() if count == len(calls)],
    }


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "object")


_JSON_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}
