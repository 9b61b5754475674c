"""What happened in an episode, in the form of a record."""

from __future__ import annotations

from dataclasses import asdict

from ors_client._types import CallTimes


def timing_parts(times: CallTimes | None, *, waited: float = 0.0) -> dict[str, float]:
    """Return where a call's seconds went, as a record holds it.

    Args:
        times: As its session reports them; `None` where the call never came to be sent.
        waited: Seconds before the session was asked, which count as `queued`.
    """
    known = {"queued": 0.0} if times is None else asdict(times)
    return {part: round(seconds, 6) for part, seconds in {**known, "queued": known["queued"] + waited}.items()}
