"""Values that are kept out of all that is shown: reprs, messages, logs, records.

A server may repeat a key or a secret, in any spelling, in what it says of a failure. This module finds them there. It
does not know where the values come from or whose they are.

What is logged is the one thing that a caller does not hand on to someone who knows the values: names of tools and
sessions stand in it, which are a server's text. So loggers come from here, and each record passes all the values of the
process before any handler sees it.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import logging
import re
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from ors_client._errors import CUT, one_line

_MASK = "***"
# Values of sessions that one client hides: more than have sessions open at a time, few enough to look for in an error.
_MOST_HIDDEN = 4096
_SHORT = 4  # below it a value is too likely to be a part of ordinary words
_ANY_CASE = 8  # from here on it is found in any case: types and names are often written in small letters
# Runs are found first and searched then: one pattern for both is quadratic on a long run, such as an image.
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_ENCODED_JSON = "eyJ"  # how base64 of '{"' begins, and so the header's value
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_QUOTES = ('"', "'", "`", '\\"', '\\\\\\"', "&quot;", "&#x27;")


class Redactor:
    """The values that one client keeps out of all it shows; its transports share it, on several threads.

    A value is found as it is, escaped for JSON (also twice), for HTML, for a URL or for Python, line by line, folded to
    one line, in base64 at any offset, within the value of an `X-Secrets` header, and where the text was cut off in the
    midst of it; one of eight characters in any case. A value of less than four characters is replaced only where it
    stands between quotes, as ordinary words would suffer otherwise.

    Args:
        values: Those that are hidden for good, as the client's key. Those of sessions come and go: the latest are kept.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._permanent = _patterns(values)
        self._recent: dict[str, _Pattern] = {}  # replaced and never changed, as another thread may be reading it
        self._lock = threading.Lock()  # guards that of two additions none is lost
        _redactors[id(self)] = self

    def add(self, values: Iterable[str]) -> None:
        """Keep `values` out of all that is shown from now on."""
        new = set(values)
        with self._lock:
            known = self._recent
            added = {value: known[value] for value in new & known.keys()} | _patterns(new - known.keys())
            kept = {value: pattern for value, pattern in known.items() if value not in new} | added
            self._recent = dict(itertools.islice(kept.items(), max(0, len(kept) - _MOST_HIDDEN), None))

    def redact(self, text: str) -> str:
        """Return `text` with each of the values replaced by "***"."""
        return _masked(text, [*self._permanent.values(), *self._recent.values()])


# Those of this process: a log record may come from a place that knows of no client.
_redactors: weakref.WeakValueDictionary[int, Redactor] = weakref.WeakValueDictionary()


class _LogFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = shown = record.getMessage()
        for reference in _redactors.valuerefs():
            if (redactor := reference()) is not None:
                shown = redactor.redact(shown)
        if shown != text:
            record.msg, record.args = shown, None
        return True


_LOG_FILTER = _LogFilter()


def get_logger(name: str) -> logging.Logger:
    """Return a logger whose records show none of the values that any redactor hides."""
    logger = logging.getLogger(name)
    logger.addFilter(_LOG_FILTER)
    return logger


for _library in (
    "aiohttp.client",
    "httpx",
    *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
    "hpack.hpack",  # a caller's transport may speak HTTP/2
    "hpack.table",
):
    get_logger(_library)  # at DEBUG they show headers


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A hidden value, and what is looked for in a text on its account.

    Args:
        value: As the caller gave it.
        any_case: Whether it is long enough to be looked for in any case; what follows is then in small letters.
        forms: Its spellings.
        cores: What base64 of any text around one of them holds; none for a short value.
        heads: How these begin.
        longest: Characters of the longest of them.
    """

    value: str = field(repr=False)
    any_case: bool
    forms: frozenset[str] = field(repr=False)
    cores: frozenset[str] = field(repr=False)
    heads: frozenset[str] = field(repr=False)
    longest: int

    @classmethod
    def of(cls, value: str) -> _Pattern:
        any_case = len(value) >= _ANY_CASE
        written = _written(value)
        fold = _lower if any_case else str
        forms = frozenset(map(fold, _escaped(value, written)))
        cores = frozenset(fold(core) for form in written if len(value) >= _SHORT for core in _base64_cores(form))
        heads = frozenset(form[:_SHORT] for form in forms | cores)
        return cls(value, any_case, forms, cores, heads, max(map(len, forms | cores)))

    def may_begin_before(self, text: str, end: int) -> bool:
        """Tell whether one of them may have been cut off at `end`: nearly all texts are passed by with this."""
        start = max(0, end - self.longest)
        for head in self.heads:  # noqa: SIM110 - a generator would take twice as long
            if text.find(head, start, end) >= 0:
                return True
        return False


def _patterns(values: Iterable[str]) -> dict[str, _Pattern]:
    return {value: _Pattern.of(value) for value in values if value.strip()}


class _Text:
    """A text that is searched."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lower = _lower(text)
        self.ends = (*_occurrences(text, CUT), len(text))
        """Where it may have been cut off."""


def _lower(text: str) -> str:
    """Return `text` in small letters, each in its place: of a few letters the small one is two characters."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


def _masked(text: str, hidden: Collection[_Pattern]) -> str:
    if not hidden:
        return text
    sought = _Text(text)
    spans = sorted(itertools.chain.from_iterable(_spans(sought, pattern) for pattern in hidden))
    if not spans:
        return text
    pieces: list[str] = []
    done = 0  # `text` is dealt with up to here
    for start, end in spans:
        if start > done or not pieces:
            pieces += [text[done:start], _MASK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _spans(sought: _Text, pattern: _Pattern) -> Iterator[tuple[int, int]]:
    """Yield where a text shows a value, as start and end."""
    text = sought.lower if pattern.any_case else sought.text
    ends = [end for end in sought.ends if pattern.may_begin_before(text, end)]
    yield from _spans_of_forms(text, pattern, ends)
    # The whole text is asked first: a long one has very many runs, nearly all of them words.
    cores = [core for core in pattern.cores if core in text]
    cut_off = {end for end in ends for core in pattern.cores if _cut_off(text, core, end)}
    if cores or cut_off or _ENCODED_JSON in sought.text:
        for run in _BASE64_RUN.finditer(sought.text):
            start, end = run.span()
            if end in cut_off or any(core in text[start:end] for core in cores) or _holds_json(run[0], pattern):
                yield start, end


def _spans_of_forms(text: str, pattern: _Pattern, ends: Collection[int]) -> Iterator[tuple[int, int]]:
    if len(pattern.value) < _SHORT:
        for form, mark in itertools.product(pattern.forms, _QUOTES):
            for start in _occurrences(text, mark + form + mark):
                yield start + len(mark), start + len(mark) + len(form)
        return
    for form in pattern.forms:
        if form in text:
            yield from ((start, start + len(form)) for start in _occurrences(text, form))
        for end in ends:
            if cut := _cut_off(text, form, end):
                yield end - cut, end


def _holds_json(run: str, pattern: _Pattern) -> bool:
    """Tell whether characters of base64 hold a value within JSON, as the header of secrets does."""
    start = run.find(_ENCODED_JSON)
    if start < 0:
        return False
    content = run[start:].translate(_STANDARD_ALPHABET).rstrip("=")
    decoded = base64.b64decode(content[: len(content) // 4 * 4]).decode("latin-1")
    within = _lower(decoded) if pattern.any_case else decoded
    # A header that was cut short may hold half a value, so its shape is enough.
    return '": {"value": "' in decoded or any(f'"{form}' in within for form in pattern.forms)


def _occurrences(text: str, form: str) -> Iterator[int]:
    """Yield every place of `form`, overlapping ones too: two secrets may share a part."""
    start = text.find(form)
    while start >= 0:
        yield start
        start = text.find(form, start + 1)


def _cut_off(text: str, form: str, end: int) -> int:
    """Return how many characters of `form` begin before `end`, or 0 where too few do to be told from words."""
    start = text.find(form[:_SHORT], max(0, end - len(form)), end)
    while start >= 0 and not form.startswith(text[start:end]):
        start = text.find(form[:_SHORT], start + 1, end)
    return end - start if start >= 0 else 0


def _written(value: str) -> set[str]:
    """Return `value` as a server may write it, as text or as JSON."""
    forms = {value}
    # A stream's `error` shows every line break as "\n", and a traceback may show one line of a longer secret.
    forms |= {value.replace("\r\n", "\n").replace("\r", "\n")}
    lines = {*value.splitlines(), one_line(value, len(value))}  # the latter as in a message
    forms |= {line for line in lines if len(line) >= 2 * _SHORT}
    forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)}
    forms |= {json.dumps(form)[1:-1] for form in forms}  # JSON text within JSON text
    return forms


def _escaped(value: str, written: Collection[str]) -> set[str]:
    """Return these spellings, those for other places than text, and all of them as a message may quote them."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {*written, *(form.replace("/", "\\/") for form in written)}  # as PHP writes JSON
    for each in [form.encode("utf-8", "surrogatepass") for form in written]:
        forms |= {quote(each, safe=""), quote(each), quote_plus(each)}
    forms |= {html.escape(value), repr(raw)[2:-1]}
    for quotes in ("", "'\""):  # with both, Python escapes one
        forms |= {repr(form + quotes)[1:-1].removesuffix("\\'\"") for form in forms}
    return forms - {""}


def _base64_cores(form: str) -> Iterator[str]:
    """Yield the characters that base64 of any text around `form` has in common, for each of the three offsets."""
    raw = form.encode("utf-8", "surrogatepass")
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + raw).decode("ascii")
        first = -(-offset * 8 // 6)  # characters before it hold bits of what precedes
        core = encoded[first : (offset + len(raw)) * 8 // 6]  # the one after it may hold bits of what follows
        yield core
        yield core.replace("+", "-").replace("/", "_")
