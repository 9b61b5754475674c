"""What TRL holds: the environment of one rollout after another, with the server's tools as its methods.

TRL makes a model's tool out of every public function of the class, so the only ones are `reset`, the server's tools
and, where the spec asks for it, `get_reward`. Everything else is a property or starts with an underscore; the work is
the slot's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ors_client import ToolSpec
from ors_client.record import ToolsRecord
from trl_bridge._chat.tools import BoundTool, CallableTool, bind, method
from trl_bridge._runtime.runtime import RuntimeHandle

from .episode import Shown
from .slot import RolloutSlot


class RolloutEnvironment:
    """One rollout's episode on an ORS server; TRL resets it for the next.

    Made by `OpenRewardSpec.environment_factory`, of a subclass that has the tools as methods. Making one opens no
    session. A custom reward function may read its properties; TRL calls the rest.
    """

    _tools: tuple[BoundTool, ...] = ()
    _recorded_tools = ToolsRecord()

    def __init__(self, handle: RuntimeHandle) -> None:
        self._slot = RolloutSlot(handle, tools=self._recorded_tools)
        # Not at exit: the runtime deletes all sessions then, and waits for it.
        weakref.finalize(self, self._slot.state.release).atexit = False
        self._call = self._slot.call  # for the class's functions
        for tool in self._tools:
            # The instance's entry hides the class's function: chat templates take the server's schema from it.
            self.__dict__[tool.name] = CallableTool(tool, self._call, getattr(type(self), tool.name))

    def reset(self, /, **row: Any) -> Shown | None:
        """Open the episode of a dataset row and return its prompt, which TRL puts after the row's own.

        Args:
            row: The columns of the dataset; `task_index` and `split` name the task.

        Raises:
            ValueError: The row names no task.
            FailureRateExceeded: Too many resets failed for the run to go on.
        """
        return self._slot.reset(row)

    @property
    def reward(self) -> float | None:
        """What the rollout is worth: by default its last non-null reward.

        `None` if nothing was scored, or the infrastructure broke the episode.
        """
        return self._slot.reward

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each call, `None` where it was not scored."""
        return self._slot.log.rewards

    @property
    def metadata(self) -> list[dict[str, Any] | None]:
        """The metadata of each call's output, `None` where there was none."""
        return self._slot.log.metadata

    @property
    def finished(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._slot.log.finished

    @property
    def last_output(self) -> str:
        """What the model was shown last."""
        return self._slot.log.last_output

    @property
    def status(self) -> str:
        """One of `scored`, `unscored`, `failed: kind` and `cut: kind`.

        The kind of a failure is the name of its error, as `SessionLost`; that of a cut is `calls`, `seconds` or
        `characters`.
        """
        return self._slot.log.status

    def _close(self) -> None:
        """End the episode and wait until its session is deleted. The environment can be reset again."""
        self._slot.close()


class EnvironmentFactory:
    """Makes the environments of one spec when it is called; picklable. Made by `OpenRewardSpec.environment_factory`.

    Args:
        handle: What the environments share.
        tools: What the model may call.
        name: The environments' class's, by which TRL logs a reward that they own.
    """

    def __init__(
        self, handle: RuntimeHandle, tools: Sequence[ToolSpec], *, name: str = "OpenRewardEnvironment"
    ) -> None:
        self._handle = handle
        self._tools = tuple(tools)
        self._name = name

    def __call__(self) -> RolloutEnvironment:
        """Make an environment without an episode; `reset` opens one."""
        handle = self._handle
        made = handle.environment_classes.get(self._name)
        if made is None:
            made = _make_class(self._name, self._tools, owns_reward=handle.settings.owns_reward)
            # Two threads may have made one each; TRL compares exact types.
            made = handle.environment_classes.setdefault(self._name, made)
        return made(handle)

    @property
    def aliases(self) -> dict[str, str]:
        """The name that the model calls a tool by, for each of the server's names.

        Characters outside `[A-Za-z0-9_]` become `_`; a name that is then empty, reserved, or starts with a digit or `_`
        gets the prefix `tool_`, and one that is taken gets `_2`, `_3`, in the server's order.
        """
        return {tool.spec.name: tool.name for tool in _bind(self._tools)}

    def named(self, name: str) -> EnvironmentFactory:
        """Return a factory of the same environments, whose class has another name."""
        return EnvironmentFactory(self._handle, self._tools, name=name)


def slot_of(environment: object) -> RolloutSlot | None:
    """Return the slot behind what a trainer holds, or `None` if that is somebody else's environment."""
    # Public names would become tools.
    return environment._slot if isinstance(environment, RolloutEnvironment) else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def tool_names(environment: object) -> dict[str, str]:
    """Return the server's name of every tool, by the name that the model calls it by."""
    tools = environment._tools if isinstance(environment, RolloutEnvironment) else ()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return {tool.name: tool.spec.name for tool in tools}


def bound_tool(environment: object, function: object) -> BoundTool | None:
    """Return the tool that a function of an environment stands for, or `None` if it is somebody else's."""
    if not isinstance(environment, RolloutEnvironment):
        return None
    tools = environment._tools  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - see `slot_of`
    return next((tool for tool in tools if environment.__dict__[tool.name] is function), None)


def owns_reward(environment: object) -> bool:
    """Tell whether TRL takes the reward from the environment itself."""
    return isinstance(environment, RolloutEnvironment) and hasattr(type(environment), "get_reward")


def _make_class(name: str, specs: Sequence[ToolSpec], *, owns_reward: bool) -> type[RolloutEnvironment]:
    """Make a class with one function for every tool."""
    tools = _bind(specs)
    members: dict[str, Any] = {tool.name: method(tool, "_call") for tool in tools}
    if owns_reward:
        members["get_reward"] = _get_reward
    return type(
        name,
        (RolloutEnvironment,),
        {
            **members,
            "_tools": tools,
            "_recorded_tools": _recorded(tools),
            "__module__": __name__,
            "__doc__": RolloutEnvironment.__doc__,
        },
    )


def _recorded(tools: Sequence[BoundTool]) -> ToolsRecord:
    ordered = sorted(tools, key=lambda tool: tool.name)  # as TRL finds them, and puts them before the model
    return ToolsRecord(
        tools=[tool.spec for tool in ordered],
        names={tool.spec.name: tool.name for tool in ordered if tool.name != tool.spec.name},
    )


def _bind(specs: Sequence[ToolSpec]) -> tuple[BoundTool, ...]:
    reserved = {name for name in dir(RolloutEnvironment) if not name.startswith("_")} | {"get_reward"}
    return bind(specs, reserved=reserved)


def _get_reward(self: RolloutEnvironment) -> float | None:
    """Return what the rollout is worth, and end its episode: TRL asks when nothing more will be called."""
    reward = self.reward
    self._slot.warn_unless_attached()  # pyright: ignore[reportPrivateUsage] - becomes a method of the class
    self._slot.warn_unless_stopped()  # pyright: ignore[reportPrivateUsage] - becomes a method of the class
    self._slot.release()  # pyright: ignore[reportPrivateUsage] - becomes a method of the class
    return reward
