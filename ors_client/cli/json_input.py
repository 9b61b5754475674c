"""JSON that a person wrote, as values that a server can be sent."""

from __future__ import annotations

import json
from typing import cast

from ors_client import JSONValue
from ors_client._protocol.json import encode


def read_json(text: str) -> JSONValue:
    """Return the value that `text` is as JSON.

    Raises:
        ValueError: It is not JSON, or Python's alone: NaN, an infinity, or nested deeper than what is sent.
    """
    try:
        value = cast("JSONValue", json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    encode({"input": {"argument": value}}, "it")  # at least as deep as a call is
    return value
