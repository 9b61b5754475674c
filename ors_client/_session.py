"""One episode, as a program has it: entered, asked, called until it is finished, lost or closed.

It knows the order of things: the episode first, then its setup, then calls one after another. How a session comes to be
and ends on the server, and when its environment is ready, is known below, as is how requests travel, are repeated and
are judged.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, cast

import anyio
import anyio.lowlevel

from ._arguments import checked
from ._errors import (
    ClientStateError,
    DeadlineExceeded,
    ORSError,
    SessionLost,
    ToolRejected,
)
from ._http.backends import Timing
from ._http.credentials import Secrets
from ._http.deadline import Deadline
from ._http.redaction import get_logger
from ._lifecycle.creation import SessionCreation, TaskSource, remove
from ._lifecycle.deletion import TrackedSession
from ._lifecycle.keepalive import Keepalive
from ._lifecycle.limiter import SessionPermit
from ._lifecycle.server import EnvironmentKey, Server
from ._lifecycle.setup import EnvironmentSetup
from ._misuse import AsyncOnly
from ._protocol.operations import (
    Address,
    Episode,
    Operation,
    call,
    list_environments,
    messages,
    prompt,
    score_group,
)
from ._types import (
    Block,
    CallTimes,
    GroupCandidate,
    GroupScore,
    JSONValue,
    Message,
    Task,
    TaskRef,
    TerminalToolSpec,
    ToolList,
    ToolOutput,
    ToolSpec,
)

_logger = get_logger("ors_client")

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_FINISHED = "episode_finished"
_NOT_ENTERED = (
    "A session has to be entered first: write `async with environment.session(...) as session:`, without `async` in "
    "blocking code."
)


@checked
class AsyncSession(AsyncOnly, instead="a session of Client"):
    """One episode, as an async context manager.

    Entering it creates the episode, without waiting for the environment's setup; leaving it deletes it. It may be
    entered in one task and left in another. Made by `AsyncEnvironment.session`.
    """

    def __init__(
        self,
        server: Server,
        key: EnvironmentKey,
        task: Task | TaskRef,
        *,
        source: TaskSource | None = None,
        secrets: Secrets | None = None,
        toolset: str | None = None,
        env_overrides: Mapping[str, JSONValue] | None = None,
    ) -> None:
        self._server = server
        self._permit: SessionPermit | None = None
        self._creation = SessionCreation(
            server, key, _episode(task, toolset), source=source, secrets=secrets, env_overrides=env_overrides
        )
        self._setup: EnvironmentSetup | None = None
        self._state = "new"
        self._lost: str | None = None
        self._finished = False
        self._last_call: CallTimes | None = None
        self._tools: ToolList | None = None
        self._scopes: set[anyio.CancelScope] = set()  # of everything that is under way

    def __repr__(self) -> str:
        state = "lost" if self._lost is not None else "finished" if self._finished else self._state
        return self._server.transport.show(f"<{type(self).__name__} {self._id or ''} {state}>")

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise ClientStateError("A session is one episode and was entered before; open another one.")
        self._state = "opening"
        try:
            if self._server.limiter is not None:
                self._permit = await self._server.limiter.acquire()
            await self._creation.run()
            self._watch()
        except BaseException:
            self._state = "closed"
            if self._permit is not None:
                self._permit.release()
            tracked, self._creation.tracked = self._creation.tracked, None
            if tracked is not None:
                self._server.keepalive.delete_later(tracked)
            raise
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Delete the session on the server, within `Timeouts.close` seconds.

        What fails is tried again in the background. Never raises for a server's sake; closing twice does nothing.
        """
        tracked, self._creation.tracked = self._creation.tracked, None
        self._state = "closed"
        if tracked is None:
            return
        self._forget()
        for scope in self._scopes:
            scope.cancel()
        try:
            await remove(self._server, tracked)
        finally:
            if self._permit is not None:
                self._permit.release()

    @property
    def session_id(self) -> str:
        """The id that the server knows the session by.

        Raises:
            ClientStateError: The session was not entered.
        """
        if self._id is None:
            raise ClientStateError(_NOT_ENTERED)
        return self._id

    @property
    def lost(self) -> str | None:
        """Why the session is gone from the server, or `None`."""
        return self._lost

    @property
    def last_call(self) -> CallTimes | None:
        """Where the time of the latest call went, however it ended; `None` before the first."""
        return self._last_call

    @property
    def finished(self) -> bool:
        """Whether the episode is over."""
        return self._finished

    async def get_prompt(self) -> list[Block]:
        """Return the task's prompt, once the environment is set up.

        Raises:
            SetupFailed: The environment's constructor or setup raised.
            DeadlineExceeded: It was not ready within `Timeouts.start_up`.
        """
        return await self._prepared(prompt(self._address, self.session_id))

    async def get_messages(self) -> list[Message]:
        """Return the conversation that the task begins with; where a server has none, the prompt as a user's turn.

        Raises:
            SetupFailed: The environment's constructor or setup raised.
            DeadlineExceeded: It was not ready within `Timeouts.start_up`.
        """

        async def prompted() -> list[Message]:
            return [Message(role="user", blocks=await self.get_prompt())]

        return await self._server.ask_optional(
            ("messages", self._address.deployment),
            lambda: self._prepared(messages(self._address, self.session_id)),
            instead=prompted,
        )

    async def list_tools(self) -> list[ToolSpec]:
        """Return the tools of this task: the environment's shared ones and the task's own.

        The terminal tool is not among them; see `terminal_tool`.
        """
        listed = await self._describe()
        terminal = listed.terminal_tool
        return [tool for tool in listed.tools if terminal is None or tool.name != terminal.name]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - also bounds the wait for earlier calls; raises our own error
    ) -> ToolOutput:
        """Call a tool, which steps the episode; never sent twice.

        Calls of one session are sent one after another. The first waits for the environment's setup.

        Args:
            name: The tool.
            arguments: A JSON object; sent as it is.
            timeout: Seconds for the whole call; `None` takes `Timeouts.call`.

        Raises:
            ToolRejected: The server refused the call, or the episode is over; the session goes on.
            ToolFailed: The tool raised; the session goes on.
            OutcomeUnknown: The call may have run; it was not repeated.
            ResultLost: The call ran, and its result is gone.
            SessionLost: The server no longer has the session.
            DeadlineExceeded: It took longer than the limit.
            TypeError: The arguments are not a JSON object, or `timeout` is no number.
            ValueError: A number in them is not finite, or `timeout` is negative.
        """
        given: Mapping[str, Any] = {} if arguments is None else arguments
        operation = call(self._address, self.session_id, name, given)
        if timeout is not None and not timeout >= 0:  # NaN is not, either
            raise ValueError(f"timeout is a number of seconds and not negative, unlike {timeout!r}.")
        self._refuse_when_finished(name)
        limit = "call" if timeout is None else "timeout"
        seconds = self._server.transport.timeouts.call if timeout is None else timeout
        try:
            return await self._under_way(
                self._step, operation, name, seconds=seconds, doing=f"the call of {name!r}", limit=limit
            )
        except ToolRejected as error:
            if error.reason != "not_found":
                raise
            raise await self._with_names(error) from error.__cause__

    async def terminal_tool(self) -> TerminalToolSpec | None:
        """Return the tool that takes the assistant's final message, or `None`. Since openreward 0.1.141."""
        return (await self._describe()).terminal_tool

    async def call_terminal_tool(
        self,
        message: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> ToolOutput:
        """Hand the assistant's final message to the terminal tool.

        Args:
            message: The text; left out where the tool takes none.
            timeout: As for `call_tool`.

        Raises:
            ToolRejected: There is no terminal tool (`not_found`), the episode is over, or as for `call_tool`.
        """
        self._refuse_when_finished("terminal tool")
        tool = await self.terminal_tool()
        if tool is None:
            none = "This environment has no terminal tool."
            raise self._server.shown(
                ToolRejected("terminal tool", detail=none, reason="not_found", session_id=self.session_id)
            )
        return await self.call_tool(tool.name, {} if tool.arg is None else {tool.arg: message}, timeout=timeout)

    async def supports_score_group(self) -> bool:
        """Tell whether rollouts of this task can be scored beside each other. Since openreward 0.1.157."""
        return (await self._describe()).supports_score_group

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore]:
        """Score rollouts of this task beside each other, in their order.

        Raises:
            StatusError: The environment does not score groups (404).
            ToolFailed: Scoring raised on the server.
        """
        operation = score_group(self._address, self.session_id, candidates)

        async def score() -> list[GroupScore]:
            async with self._turn:
                await self._entered.wait()
                return await self._server.transport.send(self._entered.session.own(operation))

        return await self._under_way(score, seconds=self._server.transport.timeouts.call, doing="score_group")

    @cached_property
    def _turn(self) -> anyio.Lock:
        """Guards that calls are sent one after another; made at the first, as it is a tenth of an idle session."""
        return anyio.Lock(fast_acquire=True)

    # --- Being kept alive --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        tracked = self._creation.tracked
        if tracked is None:
            return
        self._setup = EnvironmentSetup(self._server, self._address, tracked)
        # The callback runs on another thread, and must not keep a forgotten session alive.
        forgotten = weakref.ref(self)
        post = _loop_callback()

        def on_lost(reason: str) -> None:
            session = forgotten()
            if session is not None:
                session._lost = reason  # noqa: SLF001 - its own class
                post(session._stop)  # noqa: SLF001

        self._server.keepalive.watch(tracked, on_lost, liveness_check=self._liveness_check(tracked))
        self._finalizer = weakref.finalize(self, _finalize, self._server.keepalive, tracked, self._permit, post)
        self._finalizer.atexit = False

    def _liveness_check(self, tracked: TrackedSession) -> Operation[object]:
        """Return a request that only a server that is there answers, and cheaply."""
        address = self._address
        if ("list_environments", address.deployment) in self._server.missing:
            return tracked.own(prompt(address, tracked.session_id))
        return tracked.own(list_environments(deployment=address.deployment, session_id=tracked.session_id))

    def _forget(self) -> None:
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None:
            finalizer.detach()

    def _stop(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    # --- Requests ----------------------------------------------------------------------------------------------------

    @property
    def _address(self) -> Address:
        if self._creation.address is None:
            raise ClientStateError(_NOT_ENTERED)
        return self._creation.address

    @property
    def _id(self) -> str | None:
        return self._creation.session_id

    @property
    def _entered(self) -> EnvironmentSetup:
        if self._setup is None:
            raise ClientStateError(_NOT_ENTERED)
        return self._setup

    @property
    def _url(self) -> str:
        return self._server.transport.target.layout.sessions

    async def _describe(self) -> ToolList:
        if self._tools is None:
            self._refuse_when_gone()
            self._tools = await self._under_way(self._entered.list_tools)
        return self._tools

    async def _prepared(self, operation: Operation[T]) -> T:
        return await self._under_way(lambda: self._entered.ask(operation))

    async def _with_names(self, error: ToolRejected) -> ToolRejected:
        """Return the rejection of a tool that is not there with those that are."""
        try:
            names = [tool.name for tool in await self.list_tools()]
        except ORSError:  # what was asked for was the call
            return error
        return self._server.shown(
            ToolRejected(
                error.tool,
                detail=error.detail,
                reason=error.reason,
                available=names,
                url=error.url,
                session_id=error.session_id,
            )
        )

    async def _step(self, operation: Operation[ToolOutput], name: str) -> ToolOutput:
        began = at_turn = ready = time.monotonic()
        times = Timing()
        try:
            async with self._turn:
                at_turn = ready = time.monotonic()
                self._refuse_when_finished(name)
                await self._entered.wait()
                ready = time.monotonic()
                output = await self._server.transport.send(self._entered.session.own(operation), times=times)
                self._finished = output.finished
                return output
        except ToolRejected as error:
            self._finished = self._finished or error.reason == _FINISHED
            raise
        finally:
            self._last_call = CallTimes(
                queued=at_turn - began + times.queued,
                setup=ready - at_turn,
                connecting=times.connecting,
                server=max(0.0, time.monotonic() - ready - times.queued - times.connecting),
            )

    def _refuse_when_finished(self, name: str) -> None:
        if self._finished:
            over = "The episode is over; open another session."
            raise self._server.shown(ToolRejected(name, detail=over, reason=_FINISHED, session_id=self._id))

    async def _under_way(
        self,
        work: Callable[[*Arguments], Awaitable[T]],
        *arguments: *Arguments,
        seconds: float | None = None,
        doing: str = "the request",
        limit: str = "call",
    ) -> T:
        """Do `work` until it is done, the session is lost or closed, or `seconds` are over."""
        self._refuse_when_gone()
        with Deadline(seconds, loop=await self._server.transport.loop()) as deadline:
            self._scopes.add(deadline.scope)
            try:
                return await work(*arguments)
            except SessionLost as error:
                self._lost = self._lost or error.reason
                if self._creation.tracked is not None:
                    self._server.keepalive.unregister(self._creation.tracked)
                raise
            finally:
                self._scopes.discard(deadline.scope)
        self._refuse_when_gone()
        most = math.inf if seconds is None else seconds
        raise self._server.shown(DeadlineExceeded(doing, limit=limit, seconds=most, url=self._url, session_id=self._id))

    def _refuse_when_gone(self) -> None:
        self._server.check()
        if self._lost is not None:
            raise self._server.shown(SessionLost(self._id or "", reason=self._lost, url=self._url))
        if self._state != "open":
            not_open = "The session is not open; use it inside its `with` block."
            raise self._server.shown(ClientStateError(not_open, session_id=self._id))
        if self._entered.failed is not None:
            raise self._entered.failed


def _episode(task: Task | TaskRef, toolset: str | None) -> Episode:
    if isinstance(task, TaskRef):
        return Episode(split=task.split, index=task.index, toolset=toolset)
    if isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        return Episode(spec=task.spec, toolset=toolset)
    raise TypeError(f"session() takes a Task or a TaskRef(split, index), not {task!r}.")


def _finalize(
    keepalive: Keepalive,
    tracked: TrackedSession,
    permit: SessionPermit | None,
    post: Callable[[Callable[[], None]], None],
) -> None:
    """Delete a session that nobody holds any more; called on any thread."""
    keepalive.delete_later(tracked)
    if permit is not None:
        post(permit.release)


def _loop_callback() -> Callable[[Callable[[], None]], None]:
    """Return a function that runs another on this event loop, from any thread, without waiting for it.

    anyio's own ways wait, and would block the keepalive thread while this loop is blocked.
    """
    token = anyio.lowlevel.current_token().native_token
    post = (
        token.call_soon_threadsafe if isinstance(token, asyncio.AbstractEventLoop) else cast("Any", token).run_sync_soon
    )

    def on_loop(function: Callable[[], None]) -> None:
        try:
            post(function)
        except RuntimeError:  # the loop is closed, and nobody waits there; trio raises a subclass
            _logger.debug("A session was lost after its event loop had ended.")

    return on_loop
