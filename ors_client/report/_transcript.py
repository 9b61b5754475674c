"""One episode as HTML: its prompt, what the model wrote and called, and the results."""

from __future__ import annotations

import json
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
    if episode.messages is not None:
        parts += [_message(message, budget) for message in episode.messages]
    elif episode.prompt:
        parts.append(_turn("prompt", _pre(episode.prompt, budget)))
    parts += [_call(call, budget, passing) for call in episode.calls[:_MOST_CALLS]]
    if len(episode.calls) > _MOST_CALLS:
        parts.append(f'<p class="note">… and {len(episode.calls) - _MOST_CALLS:,} more calls, in the record</p>')
    if episode.said:
        parts.append(_turn("model", _model_text(episode.said, budget), kind="model"))
    if episode.failure:
        parts.append(_turn("what broke it", _pre(episode.failure, budget), kind="error"))
    return "".join(parts)


def _call(call: CallRecord, budget: PageBudget, passing: float) -> str:
    said = _model_text(call.said, budget) if call.said else ""
    made = _turn("model calls " + call.tool[:200], said + _pre(_arguments(call.arguments), budget), kind="model")
    marks = [
        "" if call.reward is None else _reward(call.reward, passing),
        '<span class="pill plain">the episode is over</span>' if call.finished else "",
        f"<span>{duration(call.seconds)}</span>",
    ]
    if call.error is not None:
        kind = f" ({call.kind[:60]})" if call.kind else ""
        return made + _turn(f"error{kind}", _pre(call.error, budget), kind="error", marks="".join(marks))
    if call.blocks is not None:
        content = "".join(_block(block, budget) for block in call.blocks)
    else:
        content = _pre(call.output or "", budget) if call.output else '<p class="note">(no output)</p>'
    return made + _turn(call.tool[:200], content, marks="".join(marks))


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
