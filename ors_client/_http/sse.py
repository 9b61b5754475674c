"""The bytes of an event stream become events.

No I/O. A push parser, since a stream of generators around each other costs more than all else that a call does here. It
is strict where text would be altered: invalid UTF-8 is an error, one space after a field's colon is dropped and no
more, lines end at CR, LF or CRLF and at no other character. It does not know what events mean.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6. Deviation: an event without a
data line is delivered with empty data, as a hand-written server's `end` may be.
"""

from __future__ import annotations

import codecs

from ors_client._errors import ProtocolError


class EventParser:
    """Takes the bytes of one connection, in any pieces."""

    def __init__(self) -> None:
        self._begun = False
        self._undecoded = b""  # the beginning of a character whose end has not come
        self._line: list[str] = []  # the pieces of a line whose end has not come; joined once, as it may be long
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """Take more bytes; return the events that they complete, as name and data.

        Raises:
            ProtocolError: The bytes are not UTF-8.
        """
        text = self._decode(data)
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix("\n")  # the second half of a line's end
        lines = text.split("\n")
        if "\r" in text:
            self._after_cr = text[-1] == "\r"
            lines = _without_cr(lines)
        if len(lines) > 1 and self._line:
            self._line.append(lines[0])
            lines[0] = "".join(self._line)
            self._line = []
        if rest := lines.pop():
            self._line.append(rest)
        return self._events(lines)

    def finish(self) -> None:
        """Note that no more bytes come. An event without its final blank line was cut short, and is none.

        Raises:
            ProtocolError: They ended within a character.
        """
        self._decode(b"", final=True)

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        # Servers announce UTF-8, and some of them something else by mistake. The codec's own incremental decoder is
        # written in Python, and costs twice as much; making one, twice that again.
        data = self._undecoded + data
        try:
            text, used = codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            raise ProtocolError(f"A stream is not UTF-8: {error.reason}") from None
        self._undecoded = data[used:]
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix("\ufeff")  # a byte order mark is no part of the text
        return text

    def _events(self, lines: list[str]) -> list[tuple[str, str]]:
        events: list[tuple[str, str]] = []
        for line in lines:
            if line.startswith("data: "):  # nearly every line is, and a long one is copied once
                self._data.append(line[6:])
                continue
            if not line:
                if self._event or self._data:
                    events.append((self._event or "message", "\n".join(self._data)))
                    self._event, self._data = "", []
                continue
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            elif field == "event":
                self._event = value.removeprefix(" ")
            # A comment has an empty field. The standard's other fields serve to resume, which ORS does by `task_id`.
        return events


def _without_cr(lines: list[str]) -> list[str]:
    """Split lines at CR as well, and take it off where it was half of CRLF. The last one has no end yet."""
    # Replacing every CRLF in the whole text first takes several times as long.
    whole: list[str] = []
    for line in lines[:-1]:
        stripped = line[:-1] if line[-1:] == "\r" else line
        if "\r" in stripped:
            whole.extend(stripped.split("\r"))
        else:
            whole.append(stripped)
    return whole + lines[-1].split("\r")
