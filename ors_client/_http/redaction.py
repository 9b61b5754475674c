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


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value that travels in pickles but shows in no repr, message or log line."""

    value: str = field(repr=False)

    def __repr__(self) -> str:
        return f"Hidden({_MASK!r})"

    def __str__(self) -> str:
        return _MASK


class Veil:
    """The values that one client keeps out of all it shows; its transports share it, on several threads.

    Args:
        values: Those that are hidden for good, as the client's key. Those of sessions come and go: the latest are kept.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lasting = _sought(values)
        self._passing: dict[str, _Sought] = {}  # replaced and never changed, as another thread may be reading it
        self._lock = threading.Lock()  # guards that of two additions none is lost

    def hide(self, values: Iterable[str]) -> None:
        """Keep `values` out of all that is shown from now on."""
        new = set(values)
        with self._lock:
            known = self._passing
            added = {value: known[value] for value in new & known.keys()} | _sought(new - known.keys())
            kept = {value: sought for value, sought in known.items() if value not in new} | added
            self._passing = dict(itertools.islice(kept.items(), max(0, len(kept) - _MOST_HIDDEN), None))

    def show(self, text: str) -> str:
        """Return `text` without the values, however a server may have written them."""
        return _without(text, [*self._lasting.values(), *self._passing.values()])


def redact(text: str, hidden: Iterable[str]) -> str:
    """Return `text` with every value of `hidden` replaced by "***", however a server may have written it.

    A value is found as it is, escaped for JSON (also twice), for HTML, for a URL or for Python, line by line, in base64
    at any offset, within the value of an `X-Secrets` header, and where the text was cut off in the midst of it. A value
    of less than four characters is replaced only where it stands between quotes, as ordinary words would suffer
    otherwise.

    Args:
        text: What a server said.
        hidden: Keys, values of secrets, encoded headers.
    """
    return _without(text, _sought(hidden).values())


@dataclass(frozen=True, slots=True)
class _Sought:
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
    def of(cls, value: str) -> _Sought:
        forms = _forms(value)
        cores = (core for form in forms if len(value) >= _SHORT for core in _base64_cores(form))
        return cls(value, frozenset(forms), frozenset(cores))


def _sought(values: Iterable[str]) -> dict[str, _Sought]:
    return {value: _Sought.of(value) for value in values if value.strip()}


def _without(text: str, hidden: Collection[_Sought]) -> str:
    spans = sorted(itertools.chain.from_iterable(_spans(text, sought) for sought in hidden))
    if not spans:
        return text
    pieces: list[str] = []
    done = 0  # `text` is dealt with up to here
    for start, end in spans:
        if start > done or not pieces:
            pieces += [text[done:start], _MASK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _spans(text: str, sought: _Sought) -> Iterator[tuple[int, int]]:
    """Yield where `text` shows a value, as start and end."""
    forms = sought.forms
    if len(sought.value) < _SHORT:
        for form, mark in itertools.product(forms, _QUOTES):
            for start in _places(text, mark + form + mark):
                yield start + len(mark), start + len(mark) + len(form)
    else:
        for form in forms:
            for start in _places(text, form):
                yield start, start + len(form)
            if cut := _cut_off(text, form):
                yield len(text) - cut, len(text)
    # The whole text is asked first: a long one has very many runs, nearly all of them words.
    cores = [core for core in sought.cores if core in text]
    cut_off = any(_cut_off(text, core) for core in sought.cores)
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


def _places(text: str, form: str, start: int = 0) -> Iterator[int]:
    """Yield every place of `form` from `start` on, overlapping ones too: two secrets may share a part."""
    start = text.find(form, start)
    while start >= 0:
        yield start
        start = text.find(form, start + 1)


def _cut_off(text: str, form: str) -> int:
    """Return how many characters of `form` begin at the end of `text`, or 0 where too few do to be told from words."""
    places = _places(text, form[:_SHORT], max(0, len(text) - len(form)))
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
