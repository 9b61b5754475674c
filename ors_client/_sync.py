"""The blocking face: the same names and signatures without `await`.

Each method is one line over the async one, run on an event loop in a thread of the client's own, so pings and streams
go on while the caller thinks. Safe from many threads. Nothing is decided here.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from ._arguments import checked
from ._client import AsyncClient
from ._config import KeepalivePolicy, Limits, RetryPolicy, Timeouts
from ._environment import AsyncEnvironment
from ._errors import ClientStateError
from ._http.background import LoopThread
from ._http.credentials import Secrets
from ._http.pool import MakeTransport
from ._http.process import OwnProcess
from ._http.urls import CATALOGUE, Layout
from ._misuse import BlockingOnly, Unlike
from ._rollouts.rollout import Rollouts
from ._session import AsyncSession
from ._types import (
    Block,
    CallTimes,
    GroupCandidate,
    GroupScore,
    JSONValue,
    Message,
    Split,
    Task,
    TaskDifficulty,
    TaskRef,
    TerminalToolSpec,
    ToolList,
    ToolOutput,
    ToolSpec,
)

T = TypeVar("T")


class _Runner:
    """Runs coroutines on the thread of a client that is open, and cancels them when the caller is interrupted."""

    def __init__(self) -> None:
        self._process = OwnProcess()
        self._thread: LoopThread | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise ClientStateError("This client is open already; open another one beside it.")
        self._process = OwnProcess()
        self._thread = LoopThread("ors-client")

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None and self._process.is_current:
            thread.stop()

    def __call__(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        self._process.check()
        if self._thread is None:
            raise ClientStateError("The client is not open; use it inside `with Client(...) as client:`.")
        return self._thread.run(function(*args, **kwargs))


@checked
class Client(BlockingOnly, instead="AsyncClient"):
    """A blocking client of one ORS server, as a context manager; see `AsyncClient` for all that it takes and raises.

    It may be used from many threads; entering it starts a thread with an event loop, on which everything runs.

    Raises:
        ValueError: The URL, the key, a header or `max_sessions` can't be used.
    """

    def __init__(
        self,
        url: str | Layout = CATALOGUE,
        *,
        api_key: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        keepalive: KeepalivePolicy = KeepalivePolicy(),  # noqa: B008
        timeout: Timeouts = Timeouts(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        transport: MakeTransport | None = None,
        headers: Mapping[str, str] | None = None,
        max_sessions: int | None = None,
    ) -> None:
        self._client = AsyncClient(
            url,
            api_key=api_key,
            retry=retry,
            keepalive=keepalive,
            timeout=timeout,
            limits=limits,
            transport=transport,
            headers=headers,
            max_sessions=max_sessions,
        )
        self._run = _Runner()

    def __repr__(self) -> str:
        return repr(self._client).removeprefix("Async")

    def open(self) -> Self:
        """Open it without `with`, as a notebook may want; `close` ends it, and so does the interpreter's exit."""
        return self.__enter__()

    def __enter__(self) -> Self:
        self._run.start()
        try:
            self._run(self._client.__aenter__)
        except BaseException:
            self._run.stop()
            raise
        atexit.register(self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the sessions that are still open, and close the connections; see `AsyncClient.aclose`."""
        atexit.unregister(self.close)
        try:
            self._run(self._client.aclose)
        except ClientStateError:  # not open, or another process's
            return
        finally:
            self._run.stop()

    @property
    def layout(self) -> Layout:
        """Where requests go."""
        return self._client.layout

    @property
    def open_sessions(self) -> int:
        """How many sessions are open on the server, as far as this client knows."""
        return self._client.open_sessions

    @property
    def leaked_sessions(self) -> int:
        """How many sessions could not be confirmed deleted since the client was entered; each was logged once."""
        return self._client.leaked_sessions

    @property
    def rollouts(self) -> Rollouts:
        """The rollouts that are uploaded to the catalogue; see `AsyncClient.rollouts`.

        Raises:
            ClientStateError: The client was never open.
        """
        return self._client.rollouts

    def list_environments(self, deployment: str | None = None) -> list[str]:
        """Return the names of the server's environments; the first is its default.

        Args:
            deployment: "owner/name" of the catalogue, whose variants these are.
        """
        return self._run(self._client.list_environments, deployment)

    def server_version(self, deployment: str | None = None) -> str | None:
        """Return the server's version, or `None` where it has no such route.

        Args:
            deployment: "owner/name" of the catalogue.
        """
        return self._run(self._client.server_version, deployment)

    def environment(self, name: str | None = None, *, variant: str | None = None) -> Environment:
        """Return an environment; nothing is asked yet.

        Args:
            name: As the server lists it, in any case. May be left out where there is one only. "owner/name" is a
                deployment of the catalogue.
            variant: One environment of a deployment that has several.
        """
        return Environment(self._client.environment(name, variant=variant), self._run)


@checked
class Environment(Unlike):
    """An environment of a server; see `AsyncEnvironment`. Made by `Client.environment`."""

    def __init__(self, environment: AsyncEnvironment, run: _Runner) -> None:
        self._environment = environment
        self._run = run

    def __repr__(self) -> str:
        return repr(self._environment).removeprefix("Async")

    def name(self) -> str:
        """Return the name that the server lists the environment by.

        Raises:
            EnvironmentNotFound: There are several, and none or another was named.
        """
        return self._run(self._environment.name)

    def server_version(self) -> str | None:
        """Return the version of the environment's server, or `None` where it has no such route."""
        return self._run(self._environment.server_version)

    def list_splits(self) -> list[Split]:
        """Return the splits, in the server's order."""
        return self._run(self._environment.list_splits)

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split; see `AsyncEnvironment.num_tasks`."""
        return self._run(self._environment.num_tasks, split)

    def get_task(self, split: str, index: int) -> Task:
        """Return one task; a negative index counts from the end. See `AsyncEnvironment.get_task`."""
        return self._run(self._environment.get_task, split, index)

    def list_tasks(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        """Return the tasks of a split, or those of a range of it, resolved like a Python slice.

        See `AsyncEnvironment.list_tasks`.
        """
        return self._run(self._environment.list_tasks, split, start, stop)

    def list_tools(self) -> list[ToolSpec]:
        """Return the tools that every task has; some tasks have more, see `Session.list_tools`."""
        return self._run(self._environment.list_tools)

    def describe_tools(self) -> ToolList:
        """Return the tools, the terminal tool, and whether groups are scored; asked once."""
        return self._run(self._environment.describe_tools)

    def session(
        self,
        task: Task | TaskRef,
        *,
        secrets: Secrets | None = None,
        toolset: str | None = None,
        env_overrides: Mapping[str, JSONValue] | None = None,
    ) -> Session:
        """Return a session of a task, to be entered with `with`; see `AsyncEnvironment.session`."""
        session = self._environment.session(task, secrets=secrets, toolset=toolset, env_overrides=env_overrides)
        return Session(session, self._run)

    def required_secrets(self) -> list[str]:
        """Return the names of the secrets that a catalogue environment needs.

        Raises:
            ValueError: The environment was not named "owner/name".
        """
        return self._run(self._environment.required_secrets)

    def task_difficulty(
        self,
        *,
        split: str | None = None,
        model_name: str | None = None,
        min_model_params: float | None = None,
        max_model_params: float | None = None,
        training_stage: str | None = None,
    ) -> list[TaskDifficulty]:
        """Return what past rollouts of a catalogue environment's tasks scored.

        See `AsyncEnvironment.task_difficulty`.
        """
        return self._run(
            self._environment.task_difficulty,
            split=split,
            model_name=model_name,
            min_model_params=min_model_params,
            max_model_params=max_model_params,
            training_stage=training_stage,
        )


@checked
class Session(BlockingOnly, instead="a session of AsyncClient"):
    """One episode, as a context manager; see `AsyncSession`. Made by `Environment.session`."""

    def __init__(self, session: AsyncSession, run: _Runner) -> None:
        self._session = session
        self._run = run

    def __repr__(self) -> str:
        return repr(self._session).replace("<Async", "<", 1)

    def open(self) -> Self:
        """Begin the episode without `with`; `close` ends it, and so does closing the client."""
        return self.__enter__()

    def __enter__(self) -> Self:
        self._run(self._session.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the session on the server, within `Timeouts.close` seconds; see `AsyncSession.aclose`."""
        # A client that was closed has deleted it, and in a forked child it is the parent's.
        with suppress(ClientStateError):
            self._run(self._session.aclose)

    @property
    def session_id(self) -> str:
        """The id that the server knows the session by.

        Raises:
            ClientStateError: The session was not entered.
        """
        return self._session.session_id

    @property
    def lost(self) -> str | None:
        """Why the session is gone from the server, or `None`."""
        return self._session.lost

    @property
    def last_call(self) -> CallTimes | None:
        """Where the time of the latest call went, however it ended; `None` before the first."""
        return self._session.last_call

    @property
    def finished(self) -> bool:
        """Whether the episode is over."""
        return self._session.finished

    def get_prompt(self) -> list[Block]:
        """Return the task's prompt, once the environment is set up.

        Raises:
            SetupFailed: The environment's constructor or setup raised.
            DeadlineExceeded: It was not ready within `Timeouts.start_up`.
        """
        return self._run(self._session.get_prompt)

    def get_messages(self) -> list[Message]:
        """Return the conversation that the task begins with; see `AsyncSession.get_messages`."""
        return self._run(self._session.get_messages)

    def list_tools(self) -> list[ToolSpec]:
        """Return the tools of this task: the environment's shared ones and the task's own."""
        return self._run(self._session.list_tools)

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> ToolOutput:
        """Call a tool, which steps the episode; never sent twice.

        It raises what `AsyncSession.call_tool` raises.

        Args:
            name: The tool.
            arguments: A JSON object; sent as it is.
            timeout: Seconds for the whole call; `None` takes `Timeouts.call`.
        """
        return self._run(self._session.call_tool, name, arguments, timeout=timeout)

    def terminal_tool(self) -> TerminalToolSpec | None:
        """Return the tool that takes the assistant's final message, or `None`; see `AsyncSession.terminal_tool`."""
        return self._run(self._session.terminal_tool)

    def call_terminal_tool(self, message: str, *, timeout: float | None = None) -> ToolOutput:
        """Hand the assistant's final message to the terminal tool; see `AsyncSession.call_terminal_tool`."""
        return self._run(self._session.call_terminal_tool, message, timeout=timeout)

    def supports_score_group(self) -> bool:
        """Tell whether rollouts of this task can be scored beside each other.

        See `AsyncSession.supports_score_group`.
        """
        return self._run(self._session.supports_score_group)

    def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore]:
        """Score rollouts of this task beside each other, in their order; see `AsyncSession.score_group`."""
        return self._run(self._session.score_group, candidates)
