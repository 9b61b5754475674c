"""One episode as HTML: its prompt, what the model wrote and called, and the results."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ors_client._shared.block_text import placeholder
from ors_client._types import UnknownBlock
from ors_client.record import CallRecord, EpisodeRecord

from ._figures import labels
from ._text import PageBudget, duration, escape, number

_MOST_CALLS = 100  # of one transcript: enough to see how a long episode went


def transcript(
    line: int,
    why: str,
    episode: EpisodeRecord,
    budget: PageBudget,
    *,
    passing: float = 1.0,
    differing: Sequence[str] = (),
) -> str:
    """Return an episode that the reader can open, without a script.

    Args:
        line: Its number in the record.
        why: Why it is shown.
        episode: The episode.
        budget: What is left of the page.
        passing: The reward from which an episode counts as passed.
        differing: Which of environment and model its heading names, as other episodes have others.
    """
    task = task_name(episode.split, episode.index)
    attempt = "" if episode.attempt is None else f", attempt {episode.attempt + 1}"
    calls = "1 call" if len(episode.calls) == 1 else f"{len(episode.calls)} calls"
    took = "" if episode.seconds is None else f", {duration(episode.seconds)}"
    names = " · ".join(name[:120] for name in labels(differing, model=episode.model, environment=episode.environment))
    head = (
        f'<span class="task">{escape(task)}</span>'
        + f'<span class="sub">{escape(names)}</span>' * bool(names)
        + f"{_pills(episode, passing)}"
        f'<span class="sub">{escape(calls)}{took}{escape(attempt)}</span>'
        + f'<span class="sub why">{escape(why)}</span>'
        * (why != episode.status)
    )
    data = {"model": episode.model or "", "status": episode.status, "task": task}
    attributes = "".join(f' data-{name}="{escape(value[:200])}"' for name, value in data.items())
    # A browser opens an episode itself where a link leads to what is inside of it, not to the whole.
    body = f'<div class="body" id="{anchor(line)}"{attributes}>{_body(line, episode, budget, passing)}</div>'
    return f"<details><summary>{head}</summary>{body}</details>"


def task_name(split: str | None, index: int | None) -> str:
    """Return a task's name in tables and headings."""
    return f"{split or '?'}/{'?' if index is None else index}"


def anchor(line: int) -> str:
    """Return what a link to the transcript of that line of the record names."""
    return f"line-{line}"


def _pills(episode: EpisodeRecord, passing: float) -> str:
    kind = "bad" if episode.status.startswith("failed") else "warn" if episode.status.startswith("cut") else "plain"
    status = "" if episode.status == "scored" else f'<span class="pill {kind}">{escape(episode.status[:80])}</span>'
    if episode.reward is None:
        return status
    return _reward(episode.reward, passing) + status


def _reward(reward: float, passing: float) -> str:
    return f'<span class="pill {"good" if reward >= passing else "warn"}">reward {number(reward)}</span>'


def _body(line: int, episode: EpisodeRecord, budget: PageBudget, passing: float) -> str:
    facts = [
        f"line {line}",
        episode.environment,
        episode.model,
        f"session {episode.session_id}" if episode.session_id else "no session",
        episode.started and episode.started.isoformat(sep=" ", timespec="seconds"),
        *(f"{value:,} {name.replace('_', ' ')}" for name, value in (episode.usage or {}).items()),
        *(f"{part}: {duration(seconds)}" for part, seconds in (episode.timing or {}).items()),
    ]
    parts = [f'<p class="sub">{escape(" · ".join(str(fact)[:200] for fact in facts if fact))}</p>']
    parts += _conversation(episode, budget, passing)
    if episode.failure:
        parts.append(_turn("what broke it", _pre(episode.failure, budget), kind="error"))
    return "".join(parts)


def _conversation(episode: EpisodeRecord, budget: PageBudget, passing: float) -> list[str]:
    """Return what was said and called, in the order in which the model saw it."""
    opening = len(episode.opening_messages)
    if episode.messages is None and episode.prompt:
        parts = [_turn("prompt", _pre(episode.prompt, budget))]
    else:
        parts = [_message(message, budget) for message in episode.opening_messages]
    calls = deque(episode.calls)
    made: dict[str, CallRecord] = {}
    shown = 0
    for message in episode.conversation[opening:]:
        blocks = _objects(message.get("blocks"))
        if message.get("role") != "assistant":
            parts += _results(blocks, made, budget, passing)
            continue
        asked = [block for block in blocks if block.get("type") == "tool_call"]
        shown += len(asked)
        if shown > _MOST_CALLS:
            break
        for block in asked:
            # What never reached the server, as a call of an unknown tool in training, is no call of the episode.
            if calls and (calls[0].tool, calls[0].arguments) == (block.get("name"), block.get("input") or {}):
                made[str(block.get("id"))] = calls.popleft()
        parts.append(_reply(blocks, asked, budget))
    for call in [*calls][: max(0, _MOST_CALLS - shown)]:  # of an episode that ended before the model saw the result
        parts += [_turn("call of " + call.tool[:200], _pre(_arguments(call.arguments), budget), kind="model")]
        parts += [_result(call, None, budget, passing)]
    more = max(shown, len(episode.calls)) - _MOST_CALLS
    return [*parts, f'<p class="note">… and {more:,} more calls, in the record</p>'] if more > 0 else parts


def _reply(blocks: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], budget: PageBudget) -> str:
    content = ""
    for block in blocks:
        text = str(block.get("text") or "")
        if block.get("type") == "tool_call":
            content += f'<p class="note">calls {escape(str(block.get("name"))[:200])}</p>' * (len(asked) > 1)
            content += _pre(_arguments(block.get("input")), budget)
        elif block.get("type") == "reasoning":
            content += f'<p class="note">reasoning</p>{_pre(text, budget)}' * bool(text)
        else:
            content += _model_text(text, budget) if block.get("type") == "text" else _block(block, budget)
    who = f"model calls {str(asked[0].get('name'))[:200]}" if len(asked) == 1 else "model"
    return _turn(who, content or '<p class="note">(nothing)</p>', kind="model")


def _results(
    blocks: Sequence[Mapping[str, Any]], made: Mapping[str, CallRecord], budget: PageBudget, passing: float
) -> list[str]:
    """Return what the model was told, with what only the record of a call knows of it."""
    parts: list[str] = []
    for block in blocks:
        call = made.get(str(block.get("tool_call_id")))
        if block.get("type") != "tool_result":
            parts.append(_turn("user", _block(block, budget)))
        elif call is not None:
            parts.append(_result(call, _objects(block.get("blocks")), budget, passing))
        else:
            parts.append(_turn("result", _block(block, budget), kind="error" if block.get("is_error") else ""))
    return parts


def _result(call: CallRecord, seen: Sequence[Mapping[str, Any]] | None, budget: PageBudget, passing: float) -> str:
    """Return the answer to a call: as it came, with images that the model may not have seen."""
    marks = [
        "" if call.reward is None else _reward(call.reward, passing),
        '<span class="pill plain">the episode is over</span>' if call.finished else "",
        f"<span>{duration(call.seconds)}</span>",
    ]
    if call.error is not None:
        kind = f" ({call.kind[:60]})" if call.kind else ""
        return _turn(f"error{kind}", _pre(call.error, budget), kind="error", marks="".join(marks))
    if seen is None or call.blocks is not None:
        seen = call.blocks if call.blocks is not None else [{"type": "text", "text": call.output or ""}]
    content = "".join(_block(block, budget) for block in seen if block.get("text") != "")
    return _turn(call.tool[:200], content or '<p class="note">(no output)</p>', marks="".join(marks))


def _message(message: Mapping[str, Any], budget: PageBudget) -> str:
    role = str(message.get("role"))[:60]
    content = "".join(_block(block, budget) for block in _objects(message.get("blocks")))
    return _turn(role, content, kind="model" if role == "assistant" else "")


def _block(block: Mapping[str, Any], budget: PageBudget) -> str:
    match block.get("type"):
        case "text" | "reasoning":
            return _pre(str(block.get("text") or ""), budget)
        case "image":
            return budget.image(block)
        case "tool_call":
            name, arguments = str(block.get("name"))[:200], _arguments(block.get("input"))
            return f'<p class="note">calls {escape(name)}</p>{_pre(arguments, budget)}'
        case "tool_result":
            return "".join(_block(inner, budget) for inner in _objects(block.get("blocks")))
        case kind:
            return f'<p class="note">{escape(placeholder(UnknownBlock(type=str(kind))))}</p>'


def _objects(value: object) -> list[Mapping[str, Any]]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in listed if isinstance(item, Mapping)]


def _arguments(value: object) -> str:
    """Write a call's arguments so that a text in them reads as a text."""
    if not isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    arguments = cast("Mapping[str, object]", value)
    lines: list[str] = []
    for name, argument in arguments.items():
        text = argument if isinstance(argument, str) else json.dumps(argument, ensure_ascii=False, indent=1)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines) or "(no arguments)"


def _pre(text: str, budget: PageBudget) -> str:
    return f"<pre>{budget.text(text)}</pre>"


def _model_text(text: str, budget: PageBudget) -> str:
    return f'<pre class="said">{budget.text(text)}</pre>'


def _turn(who: str, content: str, *, kind: str = "", marks: str = "") -> str:
    return f'<div class="turn {kind}"><div class="who"><span>{escape(who)}</span>{marks}</div>{content}</div>'
