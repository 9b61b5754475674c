"""What was wrong with a model's calls, read from an episode in which none of them did anything.

A status alone does not tell: a model that answers in words, one whose endpoint leaves its calls in the text, and one
that calls a tool which is not there all end without a score. Each has another cure. Knows episodes; contacts nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ors_client.record import CallRecord, EpisodeRecord


@dataclass(frozen=True, slots=True)
class Symptom:
    """What was wrong, and what to try.

    Args:
        words: What happened, to stand behind a status.
        cure: What to try.
    """

    words: str
    cure: str


WORDS = Symptom(
    "the model answered in words and called no tool",
    "Does the prompt say that a tool has to be called, and can the model do it? Some endpoints make it: "
    "--set tool_choice=required",
)
TEXT_CALLS = Symptom(
    "the model wrote its calls as text, and the endpoint did not read them",
    "Start the model's server with its parser of calls: vLLM with --enable-auto-tool-choice --tool-call-parser NAME, "
    "SGLang with --tool-call-parser NAME, llama.cpp with --jinja",
)
NOTHING = Symptom(
    "the model's reply was empty",
    "Is all of it taken for reasoning? See the reasoning parser of the model's server; more room is --set max_tokens=N",
)
UNKNOWN_TOOL = Symptom(
    "the model called tools that are not there",
    "See what there is: ors tools URL. Does the prompt name other tools? Another set of them is --toolset NAME",
)
ARGUMENTS = Symptom(
    "the model's calls had wrong arguments",
    "See what the tools take: ors tools URL. Arguments that are no JSON may come of the server's parser of calls",
)

# How models write a call where nothing turns it into one: Hermes and Qwen, Llama, Mistral, DeepSeek, Gemma, GLM, Kimi.
_MARKED = re.compile(
    r"(?:<tool_calls?>|<function=|<function_calls?>|<\|python_tag\|>|\[TOOL_CALLS\]|<\uff5ctool\u2581calls\u2581begin\uff5c>"
    r"|<\|tool_calls?(?:_section)?(?:_begin)?\|?>|```tool_(?:code|call))"
)
_FENCE = re.compile(r"\A```(?:json)?\s*(.*?)\s*```\Z", re.DOTALL)
_MOST_CHARS = 100_000  # of a text that is looked through for a call


def symptom(episode: EpisodeRecord) -> Symptom | None:
    """Return what was wrong with the model's calls, or `None` where some of them did something."""
    if episode.status.startswith("failed"):
        return None
    if any(map(_holds_call, _last_words(episode))):
        return TEXT_CALLS
    if not episode.calls:
        if episode.status != "unscored":  # what cut it off says what was wrong
            return None
        known = episode.finish_reasons is not None
        return WORDS if episode.said else NOTHING if known else None
    refused = [_refusal(call) for call in episode.calls]
    for kind in (UNKNOWN_TOOL, ARGUMENTS):
        if None not in refused and 2 * refused.count(kind) >= len(refused):
            return kind
    return None


def ending(episode: EpisodeRecord) -> str:
    """Return an episode's status, with what was wrong with the model's calls where that is known."""
    found = symptom(episode)
    return episode.status if found is None else f"{episode.status}: {found.words}"


def _refusal(call: CallRecord) -> Symptom | str | None:
    """Return why a call did nothing, or `None` where it did something."""
    if call.error is None:
        return None
    if call.reason == "not_found":
        return UNKNOWN_TOOL
    return ARGUMENTS if call.reason == "input_validation" or call.kind in {"ValueError", "TypeError"} else "other"


def _last_words(episode: EpisodeRecord) -> Iterator[str]:
    """Yield what the model said last, and what was handed in as its final message."""
    if episode.said:
        yield episode.said
    elif episode.calls:
        yield from (value for value in episode.calls[-1].arguments.values() if isinstance(value, str))


def _holds_call(text: str) -> bool:
    text = text[:_MOST_CHARS].rpartition("</think>")[2].strip()
    if _MARKED.search(text):
        return True
    fenced = _FENCE.match(text)
    return _is_call(fenced[1] if fenced else text)


def _is_call(text: str) -> bool:
    try:
        written = cast("object", json.loads(text)) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(written, dict) and "name" in written and ("arguments" in written or "parameters" in written)
