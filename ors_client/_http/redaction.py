"""Values that are kept out of all that is shown: reprs, messages, logs, records.

A server may repeat a key or a secret, in any spelling, in what it says of a failure. This module finds them there. It
does not know where the values come from or whose they are.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

_MASK = "***"
# Values of sessions that one client hides: more than have sessions open at a time, few enough to look for in an error.
_MOST_HIDDEN = 4096
_SHORT = 4  # below it a value is too likely to be a part of ordinary words
# Runs are found first and searched then: one pattern for both is quadratic on a long run, such as an image.
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_ENCODED_JSON = "eyJ"  # how base64 of '{"' begins, and so the header's value
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_QUOTES = ('"', "'", "`", '\\"', '\\\\\\"', "&quot;", "&#x27;")


class Redactor:
    """The values that one client keeps out of all it shows; its transports share it, on several threads.

    A value is found as it is, escaped for JSON (also twice), for HTML, for a URL or for Python, line by line, in base64
    at any offset, within the value of an `X-Secrets` header, and where the text was cut off in the midst of it. A value
    of less than four characters is replaced only where it stands between quotes, as ordinary words would suffer
    otherwise.

    Args:
        values: Those that are hidden for good, as the client's key. Those of sessions come and go: the latest are kept.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._permanent = _patterns(values)
        self._recent: dict[str, _Pattern] = {}  # replaced and never changed, as another thread may be reading it
        self._lock = threading.Lock()  # guards that of two additions none is lost

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


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A hidden value, and what is looked for in a text on its account.

    Args:
        value: As the caller gave it.
        forms: Its spellings.
        cores: What base64 of any text around one of them holds; none for a short value.
    """

    value: str = field(repr=False)
    forms: frozenset[str] = field(repr=False)
    cores: frozenset[str] = field(repr=False)

    @classmethod
    def of(cls, value: str) -> _Pattern:
        forms = _forms(value)
        cores = (core for form in forms if len(value) >= _SHORT for core in _base64_cores(form))
        return cls(value, frozenset(forms), frozenset(cores))


def _patterns(values: Iterable[str]) -> dict[str, _Pattern]:
    return {value: _Pattern.of(value) for value in values if value.strip()}


def _masked(text: str, hidden: Collection[_Pattern]) -> str:
    spans = sorted(itertools.chain.from_iterable(_spans(text, pattern) for pattern in hidden))
    if not spans:
        return text
    pieces: list[str] = []
    done = 0  # `text` is dealt with up to here
    for start, end in spans:
        if start > done or not pieces:
            pieces += [text[done:start], _MASK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _spans(text: str, pattern: _Pattern) -> Iterator[tuple[int, int]]:
    """Yield where `text` shows a value, as start and end."""
    forms = pattern.forms
    if len(pattern.value) < _SHORT:
        for form, mark in itertools.product(forms, _QUOTES):
            for start in _occurrences(text, mark + form + mark):
                yield start + len(mark), start + len(mark) + len(form)
    else:
        for form in forms:
            for start in _occurrences(text, form):
                yield start, start + len(form)
            if cut := _cut_off(text, form):
                yield len(text) - cut, len(text)
    # The whole text is asked first: a long one has very many runs, nearly all of them words.
    cores = [core for core in pattern.cores if core in text]
    cut_off = any(_cut_off(text, core) for core in pattern.cores)
    if cores or cut_off or _ENCODED_JSON in text:
        for run in _BASE64_RUN.finditer(text):
            if _shows(run[0], forms, cores) or (cut_off and run.end() == len(text)):
                yield run.span()


def _shows(run: str, forms: Collection[str], cores: Collection[str]) -> bool:
    """Tell whether characters of base64 hold a value, given as its spellings and as their base64."""
    if any(core in run for core in cores):
        return True
    start = run.find(_ENCODED_JSON)
    if start < 0:
        return False
    content = run[start:].translate(_STANDARD_ALPHABET).rstrip("=")
    decoded = base64.b64decode(content[: len(content) // 4 * 4]).decode("latin-1")
    # A header that was cut short may hold half a value, so its shape is enough.
    return '": {"value": "' in decoded or any(f'"{form}' in decoded for form in forms)


def _occurrences(text: str, form: str, start: int = 0) -> Iterator[int]:
    """Yield every place of `form` from `start` on, overlapping ones too: two secrets may share a part."""
    start = text.find(form, start)
    while start >= 0:
        yield start
        start = text.find(form, start + 1)


def _cut_off(text: str, form: str) -> int:
    """Return how many characters of `form` begin at the end of `text`, or 0 where too few do to be told from words."""
    places = _occurrences(text, form[:_SHORT], max(0, len(text) - len(form)))
    return next((len(text) - start for start in places if form.startswith(text[start:])), 0)


def _forms(value: str) -> set[str]:
    """Return the spellings in which a server may repeat `value`."""
    forms = {value}
    # A stream's `error` shows every line break as "\n", and a traceback may show one line of a longer secret.
    forms |= {value.replace("\r\n", "\n").replace("\r", "\n")}
    forms |= {line for line in value.splitlines() if len(line) >= 2 * _SHORT}
    forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)}
    forms |= {json.dumps(form)[1:-1] for form in forms}  # JSON text within JSON text
    raw = value.encode("utf-8", "surrogatepass")
    forms |= {repr(value)[1:-1], repr(raw)[2:-1], html.escape(value), quote(raw, safe="")}
    return forms


def _base64_cores(form: str) -> Iterator[str]:
    """Yield the characters that base64 of any text around `form` has in common, for each of the three offsets."""
    raw = form.encode("utf-8", "surrogatepass")
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + raw).decode("ascii")
        first = -(-offset * 8 // 6)  # characters before it hold bits of what precedes
        core = encoded[first : (offset + len(raw)) * 8 // 6]  # the one after it may hold bits of what follows
        yield core
        yield core.replace("+", "-").replace("/", "_")
