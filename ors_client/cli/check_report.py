"""What a check finds, as values: it neither asks nor shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from ors_client import ToolSpec


@dataclass(frozen=True)
class SessionDemand:
    """What a run of TRL's GRPO trainer asks of a server.

    Args:
        batch_size: `per_device_train_batch_size`, which counts rollouts.
        generations: `num_generations`, the rollouts of one prompt.
        accumulation: `gradient_accumulation_steps`, which is also how many batches are generated at a time.
        processes: On how many devices.
    """

    batch_size: int
    generations: int
    accumulation: int
    processes: int

    @property
    def sessions(self) -> int:
        """How many sessions are open together: TRL generates all rollouts of an optimizer step in one go."""
        return self.batch_size * self.accumulation * self.processes

    @property
    def prompts(self) -> int:
        """How many different tasks they are of."""
        return self.sessions // self.generations


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to try."""

    what: str
    hints: list[str]


@dataclass(frozen=True)
class Wait:
    """What a check waits for.

    Args:
        doing: In words.
        began: When, on the loop's clock.
        most: After how many seconds it ends, whatever comes.
        fixed: Whether it takes just so long.
    """

    doing: str
    began: float
    most: float
    fixed: bool = False

    def describe(self, now: float) -> str:
        """Return it in words, with how long it has taken and how long it may."""
        return f"{self.doing}: {now - self.began:.0f} of {'' if self.fixed else 'at most '}{self.most:g} s"


@dataclass(frozen=True)
class HeldCall:
    """A call of a tool that takes its time, as its stream showed it.

    Args:
        tool: Which.
        seconds: From its request to its result, or to its end.
        first: Seconds until the first event; `None` where none came.
        gap: The longest time without a sign of life, in seconds.
        cuts: How often its connection broke, and it was taken up again.
        cut_after: Seconds until the first time.
    """

    tool: str
    seconds: float
    first: float | None
    gap: float
    cuts: int
    cut_after: float | None = None


@dataclass
class EnvironmentDescription:
    """An environment: its splits as name, type and number of tasks, and its tools."""

    name: str
    splits: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    tools: list[ToolSpec] = field(default_factory=list[ToolSpec])
    terminal_tool: str | None = None
    group_scoring: bool = False


@dataclass
class CheckReport:
    """All that was found. What stays `None` could not be asked."""

    kind: str | None = None
    version: str | None = None
    environments: list[EnvironmentDescription] = field(default_factory=list[EnvironmentDescription])
    opened: tuple[str, str, int] | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    tools: list[str] | None = None
    ping_answered: bool | None = None
    held: float | None = None
    """For how many seconds a session was held, pinged as in training."""
    kept: bool | None = None
    """Whether it was still there then."""
    affinity: bool | None = None
    """Whether sessions whose requests went on connections of their own were found each time."""
    call: HeldCall | None = None
    messages: bool | None = None
    ranges: bool | None = None
    task_tools: bool | None = None
    """Whether the server tells a task's tools; not whether any task has tools of its own."""
    own_tools: list[str] = field(default_factory=list[str])
    """Those of the opened task that the environment does not list."""
    terminal_tool: str | None = None
    group_scoring: bool | None = None
    secrets: str | None = None
    resume: bool | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[str] = field(default_factory=list[str])
