"""What a record holds, arranged as a server needs it: environments, splits, tasks, and the takes of each task.

A take is one recorded episode. What a call is answered with follows from the calls before it, so a session keeps all
takes that went the same way until now. Two sessions of a task that make the same calls may get different takes, in
turn: that is how a group of rollouts gets the rewards that were recorded. No I/O beyond reading the record, no clock.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ors_client._errors import LimitExceeded
from ors_client._json import decode
from ors_client._settings import Limits
from ors_client._types import JSONObject, ToolList, ToolSpec
from ors_client.record import CallRecord, EpisodeRecord

NOT_RECORDED = "not_recorded"
"""The reason with which a call is refused that the record does not hold."""

_UNNAMED, _SPLIT = "replay", "train"  # for records that name neither
_ALTERNATIVES, _SHOWN = 3, 200

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Take:
    """One recorded episode, without what the infrastructure broke: a lost answer can't be given again."""

    prompt: list[JSONObject]
    messages: list[JSONObject]
    calls: tuple[CallRecord, ...]


@dataclass(slots=True)
class Scene:
    """An environment of the record.

    Its tasks are listed without gaps, since clients open whatever is listed, by its place: a task whose index is below
    the number of tasks has the place of its index, and those beyond fill the places that are left. So each index of the
    record still opens the task that it opened then.
    """

    takes: dict[Place, list[Take]] = field(default_factory=dict[Place, list[Take]])
    specs: dict[Place, JSONObject] = field(default_factory=dict[Place, JSONObject])
    tools: ToolList = field(default_factory=ToolList)
    begun: Counter[Place] = field(default_factory=Counter[Place])

    @property
    def splits(self) -> list[str]:
        """In the order in which they come up."""
        return list(dict.fromkeys(split for split, _ in self.takes))

    def indices(self, split: str) -> list[int]:
        """Return the recorded index of the task at each place."""
        recorded = sorted(index for name, index in self.takes if name == split)
        known = set(recorded)
        beyond = iter(index for index in recorded if index >= len(recorded))
        return [place if place in known else next(beyond) for place in range(len(recorded))]

    def find(self, split: str, index: int) -> Place | None:
        """Return the task that an index opens, if there is one; a negative index counts from the end of the list."""
        if (split, index) in self.takes:
            return split, index
        listed = self.indices(split)
        return (split, listed[index]) if -len(listed) <= index < len(listed) else None

    def find_spec(self, spec: JSONObject) -> Place | None:
        """Return the task of a specification, if there is one."""
        split, index = spec.get("split"), spec.get("index")
        known = next((place for place, recorded in self.specs.items() if recorded == spec), None)
        if known is not None or not isinstance(split, str) or not isinstance(index, int):
            return known
        return self.find(split, index)

    def spec(self, place: Place) -> JSONObject:
        """Return a task's specification: the recorded one, or else its place in the record."""
        return self.specs.get(place) or {"split": place[0], "index": place[1]}

    def begin(self, place: Place) -> Rehearsal:
        """Start a session of a task.

        Raises:
            KeyError: The record holds no episode of it.
        """
        takes = self.takes[place]
        first = self.begun[place] % len(takes)
        self.begun[place] += 1
        return Rehearsal(place, takes[first:] + takes[:first])


class Script:
    """All scenes of a record, in memory.

    Args:
        episodes: As `ors_client.record.read` yields them.
        tools: As `ors tools URL --json` writes them, for one environment; left out, they are made from the calls, which
            show names and types of arguments, and no descriptions.
    """

    def __init__(self, episodes: Iterable[EpisodeRecord], *, tools: ToolList | None = None) -> None:
        self.scenes: dict[str, Scene] = {}
        self.episodes = 0
        self.left_out = 0
        """Episodes that name no task, or were over before there was a prompt."""
        called: defaultdict[str, list[CallRecord]] = defaultdict(list)
        for episode in episodes:
            if episode.index is None or (episode.session_id is None and not episode.prompt and not episode.calls):
                self.left_out += 1
                continue
            self.episodes += 1
            name = (episode.environment or _UNNAMED).rpartition("/")[2].lower()
            take = _take(episode)
            scene = self.scenes.setdefault(name, Scene())
            place = (episode.split or _SPLIT, episode.index)
            takes = scene.takes.setdefault(place, [])
            if takes and (takes[0].prompt, takes[0].messages) == (take.prompt, take.messages):
                # Thousands of episodes of a training begin with the same few images.
                take = replace(take, prompt=takes[0].prompt, messages=takes[0].messages)
            takes.append(take)
            if episode.spec is not None:
                scene.specs[place] = episode.spec
            called[name] += take.calls
        for name, scene in self.scenes.items():
            scene.tools = tools if tools is not None else ToolList(tools=_tools(called[name]))

    @property
    def num_tasks(self) -> int:
        """How many tasks have a take."""
        return sum(len(scene.takes) for scene in self.scenes.values())


class Rehearsal:
    """A session: the takes that its calls have followed so far."""

    def __init__(self, place: Place, takes: list[Take]) -> None:
        self.place = place
        self.finished = False
        self._takes = takes
        self._made = 0

    @property
    def take(self) -> Take:
        """The take that the session is on."""
        return self._takes[0]

    def call(self, tool: str, arguments: Mapping[str, Any]) -> CallRecord | str:
        """Return what the call came back with in the record, or why there is nothing to return."""
        wanted = _key(tool, arguments)
        following = [take.calls[self._made] for take in self._takes if len(take.calls) > self._made]
        takes = [
            take
            for take in self._takes
            if len(take.calls) > self._made
            and _key(take.calls[self._made].tool, take.calls[self._made].arguments) == wanted
        ]
        if not takes:
            return self._refusal(tool, arguments, following)
        self._takes = takes
        call = takes[0].calls[self._made]
        self._made += 1
        self.finished = call.finished
        return call

    def _refusal(self, tool: str, arguments: Mapping[str, Any], following: list[CallRecord]) -> str:
        split, index = self.place
        shown = list(dict.fromkeys(_spelt(call.tool, call.arguments) for call in following))
        there = " or ".join(shown[:_ALTERNATIVES]) if shown else "the end of the episode"
        more = f" or {len(shown) - _ALTERNATIVES} others" if len(shown) > _ALTERNATIVES else ""
        return (
            f"Not in the record: call {self._made + 1} of task {index} in {split!r} is {there}{more} there, "
            f"not {_spelt(tool, arguments)}."
        )


def read_tools(text: str) -> ToolList:
    """Read a list of tools from JSON: that of `ors tools URL --json`, or of a server.

    Raises:
        ValueError: It is none.
    """
    try:
        value = decode(text, limits=Limits())
    except LimitExceeded as error:
        raise ValueError(f"They are nested more than {error.maximum} levels deep.") from None
    return ToolList.model_validate({"tools": value} if isinstance(value, list) else value)


def listed(tools: ToolList) -> JSONObject:
    """Return a list of tools as a server answers with it; the terminal tool has a place of its own."""
    return tools.model_dump(mode="json") | {"supports_score_group": False}


def _take(episode: EpisodeRecord) -> Take:
    calls = list(episode.calls)
    if episode.status.startswith(("failed", "cut: seconds")) and calls and calls[-1].error is not None:
        calls.pop()
    text: list[JSONObject] = [{"type": "text", "text": episode.prompt, "detail": None}]
    messages = episode.messages or [{"role": "user", "blocks": text}]
    # A conversation of several turns has the prompt beside it; a single turn is the prompt, images included.
    prompt = messages[0].get("blocks") if len(messages) == 1 else text
    # A broken call of the model's never reached the server, and will not reach this one.
    sent = tuple(call for call in calls if call.kind not in {"ValueError", "TypeError"})
    return Take(prompt or text, messages, sent)


def _key(tool: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool} {json.dumps(_plain(arguments), sort_keys=True)}"


def _plain(value: Any) -> Any:
    """Write 1.0 as 1: JSON does not tell them apart, and writers differ."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON of any shape
        case list():
            return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _spelt(tool: str, arguments: Mapping[str, Any]) -> str:
    text = f"{tool}({json.dumps(arguments, ensure_ascii=False)})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- Tools made from calls -------------------------------------------------------------------------------------------


def _tools(calls: list[CallRecord]) -> list[ToolSpec]:
    by_name: defaultdict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        if call.kind != "ToolRejected":  # an unknown tool, or arguments of the wrong types
            by_name[call.tool].append(call)
    return [ToolSpec(name=name, input_schema=_schema(made)) for name, made in by_name.items()]


def _schema(calls: list[CallRecord]) -> JSONObject:
    kinds: defaultdict[str, dict[str, None]] = defaultdict(dict)
    times: Counter[str] = Counter()
    for call in calls:
        for name, value in call.arguments.items():
            kinds[name].setdefault(_kind(value))
            times[name] += 1
    properties = {name: {"type": found[0] if len(found := list(seen)) == 1 else found} for name, seen in kinds.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, count in times.items() if count == len(calls)],
    }


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "object")


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}
