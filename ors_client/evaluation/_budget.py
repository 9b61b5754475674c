"""What one episode may cost before it is cut; a cut episode keeps the score that it has."""

from __future__ import annotations

from dataclasses import dataclass

from ors_client._arguments import checked


@checked
@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one episode.

    Args:
        turns: Replies of the model.
        tokens: That the model wrote, as the endpoint counts them; where it does not, there is no such limit.
        seconds: From the first prompt to the end, waiting for the model included.
    """

    turns: int | None = 50
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Reject limits that leave room for nothing."""
        for name in ("turns", "tokens", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"An episode's budget of {name} is positive, not {value!r}.")

    def spent(self, *, turns: int, tokens: int) -> str | None:
        """Return the limit that leaves no room for another turn, if one does not."""
        if self.turns is not None and turns >= self.turns:
            return "turns"
        if self.tokens is not None and tokens >= self.tokens:
            return "tokens"
        return None
