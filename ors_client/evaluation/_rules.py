"""How episodes are played: what the model is shown again, which of its replies count, and what an episode may cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from ors_client._arguments import checked
from ors_client.formats import ReasoningHistory

from ._budget import Budget


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of all episodes of a run.

    Args:
        budget: When an episode is cut.
        reasoning_history: Whether the model is sent the reasoning of `all` its replies, of the `last`, or of `none`.
        accept_truncated: Whether a reply that was cut off counts as if it were whole: its calls are made, and its words
            are handed in.
        toolset: The tools of the session, where the environment has several sets.
    """

    budget: Budget = field(default_factory=Budget)
    reasoning_history: ReasoningHistory = "all"
    accept_truncated: bool = False
    toolset: str | None = None

    def __post_init__(self) -> None:
        """Reject what is no rule."""
        if self.reasoning_history not in {"all", "last", "none"}:
            raise ValueError(f"The history of reasoning is 'all', 'last' or 'none', not {self.reasoning_history!r}.")
