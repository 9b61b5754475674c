"""One episode on a server, from its creation to its deletion.

It knows the order of things: an id first, then the episode, then its setup, then calls one after another, until it is
finished, lost or closed. How requests travel, are repeated and are judged is decided below. Whatever ends a session, an
exception or a cancellation at any moment, its deletion is sent from here or, where that was interrupted, by the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, cast

import anyio
import anyio.lowlevel

from ._connections import Meter
from ._credentials import Secrets
from ._errors import (
    ClientStateError,
    DeadlineExceeded,
    EnvironmentNotFound,
    ORSError,
    OutcomeUnknown,
    ProtocolError,
    SessionLost,
    SetupFailed,
    StatusError,
    ToolError,
    ToolRejected,
    TransportError,
)
from ._keepalive import Entry, Keepalive, end
from ._operations import (
    Address,
    Episode,
    Operation,
    call,
    create,
    create_session,
    list_environments,
    messages,
    prompt,
    score_group,
    task_tools,
    tools,
)
from ._patience import Patience
from ._retry import backoff
from ._room import Seat
from ._server import Server, deployment_of
from ._shield import see_out
from ._transport import BodySecretsRefused
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

_logger = logging.getLogger("ors_client")

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_FINISHED = "episode_finished"


class AsyncSession:
    """One episode, as an async context manager.

    Entering it creates the episode, without waiting for the environment's setup; leaving it deletes it. It may be
    entered in one task and left in another. Made by `AsyncEnvironment.session`.
    """

    def __init__(
        self,
        server: Server,
        place: tuple[str | None, str | None],
        task: Task | TaskRef,
        *,
        secrets: Secrets | None = None,
        toolset: str | None = None,
        env_overrides: Mapping[str, JSONValue] | None = None,
    ) -> None:
        self._server = server
        self._seat = Seat(server.room)
        self._find = partial(server.address, *place)
        self._lends = partial(server.must_lend, *place)
        self._deployment = deployment_of(place[0])
        self._episode = _episode(task, toolset)
        self._secrets = secrets
        self._env_overrides = env_overrides
        self._entry: Entry | None = None
        self._address: Address | None = None
        self._id: str | None = None
        self._state = "new"
        self._lost: str | None = None
        self._setup_failed: SetupFailed | None = None
        self._ready = False
        self._finished = False
        self._last_call: CallTimes | None = None
        self._tools: ToolList | None = None
        self._turn = anyio.Lock(fast_acquire=True)  # guards that calls of one episode are sent one after another
        self._scopes: set[anyio.CancelScope] = set()  # of everything that is under way

    def __repr__(self) -> str:
        state = "lost" if self._lost is not None else "finished" if self._finished else self._state
        return f"<{type(self).__name__} {self._id or ''} {state}>"

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise ClientStateError("A session is one episode and was entered before; open another one.")
        self._state = "opening"
        try:
            await self._seat.take()
            await self._open()
        except BaseException:
            self._state = "closed"
            self._seat.give_back()
            if self._entry is not None:
                self._server.keepalive.abandon(self._entry)
                self._entry = None
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
        entry, self._entry = self._entry, None
        self._state = "closed"
        if entry is None:
            return
        self._forget()
        for scope in self._scopes:
            scope.cancel()
        confirmed: list[bool] = []
        try:
            await see_out(partial(self._delete, entry, confirmed), grace=self._server.transport.timeouts.close)
        finally:
            self._seat.give_back()
            if not confirmed:
                self._server.keepalive.abandon(entry)

    @property
    def session_id(self) -> str:
        """The id that the server knows the session by.

        Raises:
            ClientStateError: The session was not entered.
        """
        if self._id is None:
            raise ClientStateError("A session has an id once it is entered: `async with environment.session(...)`.")
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
        return await self._prepared(prompt(self._place, self.session_id))

    async def get_messages(self) -> list[Message]:
        """Return the conversation that the task begins with; where a server has none, the prompt as a user's turn.

        Raises:
            SetupFailed: The environment's constructor or setup raised.
            DeadlineExceeded: It was not ready within `Timeouts.start_up`.
        """

        async def prompted() -> list[Message]:
            return [Message(role="user", blocks=await self.get_prompt())]

        return await self._server.ask_optional(
            ("messages", self._place.deployment),
            lambda: self._prepared(messages(self._place, self.session_id)),
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
            TypeError: The arguments are not a JSON object.
            ValueError: A number in them is not finite, or `timeout` is no number of seconds.
        """
        given: Mapping[str, Any] = {} if arguments is None else arguments
        operation = call(self._place, self.session_id, name, given)
        if timeout is not None and not timeout >= 0:  # NaN is not, either
            raise ValueError(f"timeout is a number of seconds and not negative, unlike {timeout!r}.")
        self._refuse_when_finished(name)
        limit = "call" if timeout is None else "timeout"
        seconds = self._server.transport.timeouts.call if timeout is None else timeout
        return await self._under_way(
            self._step, operation, name, seconds=seconds, doing=f"the call of {name!r}", limit=limit
        )

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
            raise ToolRejected(
                "terminal tool",
                detail="This environment has no terminal tool.",
                reason="not_found",
                session_id=self.session_id,
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
        operation = score_group(self._place, self.session_id, candidates)

        async def score() -> list[GroupScore]:
            async with self._turn:
                await self._await_setup()
                return await self._server.transport.send(operation)

        return await self._under_way(score, seconds=self._server.transport.timeouts.call, doing="score_group")

    # --- Opening and deleting ----------------------------------------------------------------------------------------

    async def _open(self) -> None:
        server = self._server
        server.check()
        if not self._lends():
            self._address = await self._find()
        header, body = await server.secrets(self._secrets, self._deployment)
        attempts = server.transport.retry.attempts
        reason = ""
        for attempt in range(attempts):
            if attempt:
                await anyio.sleep(backoff(server.transport.retry, attempt))
            entry = await self._obtain(header)
            try:
                if self._address is None:
                    self._address = await self._find(session_id=entry.session_id)
                await self._create(entry, header, body)
            except SessionLost as error:
                # The catalogue ends a session that is not pinged, and a backend may take longer to start than that; an
                # id without an episode can't be pinged, and costs nothing.
                reason = error.reason
                server.keepalive.disown(entry)
                self._entry = None
            except OutcomeUnknown as error:
                # On openreward a second /create during a slow constructor runs a second constructor, and ends in 400:
                # this id is given up, and deleted once more when the constructor may have registered it.
                reason = error.reason
                server.keepalive.abandon(entry)
                self._entry = None
            except ORSError as error:
                await self.aclose()
                raise await self._as_failed_create(error) from error
            else:
                self._watch()
                return
        raise TransportError("opening a session", reason=reason, attempts=attempts, url=self._url)

    async def _obtain(self, secrets_header: str | None) -> Entry:
        """Get a session's id; from then on it is in the ledger."""
        entries: list[Entry] = []
        deployment = self._deployment

        def own(session_id: str) -> None:
            self._id = session_id
            self._entry = self._server.keepalive.own(session_id, deployment=deployment)
            entries.append(self._entry)

        operation = create_session(
            deployment=deployment,
            env_overrides=self._env_overrides,
            secrets_header=None if deployment is None else secrets_header,
        )
        await self._server.transport.send(operation, settled=own)
        return entries[0]

    async def _create(self, entry: Entry, header: str | None, body: Mapping[str, str] | None) -> None:
        def settle(_: None = None) -> None:
            entry.unsettled = False

        send = self._server.transport.send
        make = partial(create, self._place, entry.session_id, self._episode)
        entry.unsettled = entry.begun = True
        try:
            try:
                await send(make(secrets_header=header, secrets_body=body), settled=settle)
            except BodySecretsRefused:  # this server reads the header; a refused request left nothing behind
                self._server.refused_body_secrets()
                await send(make(secrets_header=header), settled=settle)
        except OutcomeUnknown:
            raise
        except ORSError as error:  # the server's answer, or the certainty that it saw no request
            settle()
            entry.refused = isinstance(error, StatusError)
            raise

    def _watch(self) -> None:
        if self._entry is None:
            return
        # The callback runs on another thread, and must not keep a forgotten session alive.
        forgotten = weakref.ref(self)
        post = _poster()

        def on_lost(reason: str) -> None:
            session = forgotten()
            if session is not None:
                session._lost = reason  # noqa: SLF001 - its own class
                post(session._stop)  # noqa: SLF001

        self._server.keepalive.watch(self._entry, on_lost, witness=self._witness(self._entry))
        self._finalizer = weakref.finalize(self, _let_go, self._server.keepalive, self._entry, self._seat, post)
        self._finalizer.atexit = False

    def _witness(self, entry: Entry) -> Operation[object]:
        """Return a request that only a server that is there answers, and cheaply."""
        place = self._place
        if ("list_environments", place.deployment) in self._server.missing:
            return prompt(place, entry.session_id)
        return list_environments(deployment=place.deployment, session_id=entry.session_id)

    def _forget(self) -> None:
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None:
            finalizer.detach()

    def _stop(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def _delete(self, entry: Entry, confirmed: list[bool]) -> None:
        transport = self._server.transport
        entry.on_lost = None
        with anyio.move_on_after(transport.timeouts.close):
            try:
                await end(entry, transport.send, split=transport.destination.layout.is_split)
            except ORSError as error:
                _logger.debug("A session was not deleted yet: %s", error)
                return
            self._server.keepalive.disown(entry)
            confirmed.append(True)

    async def _as_failed_create(self, error: ORSError) -> ORSError:
        if self._address is None or not isinstance(error, StatusError):
            return error
        if error.status == 404 and error.detail.startswith("unknown environment"):
            available: list[str] = []
            with suppress(ORSError):  # what was listed before is no longer so
                available = await self._server.list_anew(self._deployment)
            return EnvironmentNotFound(
                self._place.environment, available=available, url=error.url, session_id=error.session_id
            )
        if error.status == 500:
            return SetupFailed(error.detail, url=error.url, session_id=error.session_id)
        return error

    # --- Requests ----------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> Address:
        if self._address is None:
            raise ClientStateError("A session has to be entered first: `async with environment.session(...)`.")
        return self._address

    @property
    def _url(self) -> str:
        return self._server.transport.destination.layout.sessions

    async def _describe(self) -> ToolList:
        if self._tools is None:
            self._tools = await self._under_way(self._ask_tools)
        return self._tools

    async def _ask_tools(self) -> ToolList:
        transport = self._server.transport
        limits = transport.limits

        async def of_task() -> ToolList:
            try:
                return await transport.send(task_tools(self._place, self.session_id, limits=limits))
            except StatusError as error:
                if error.status == 500:
                    self._setup_failed = SetupFailed(error.detail, url=error.url, session_id=error.session_id)
                    raise self._setup_failed from error
                raise

        return await self._server.ask_optional(
            ("task_tools", self._place.deployment),
            of_task,
            instead=lambda: transport.send(tools(self._place, limits=limits, session_id=self.session_id)),
        )

    async def _prepared(self, operation: Operation[T]) -> T:
        """Send a request that is answered when the environment is set up."""

        async def send() -> T:
            try:
                value = await self._server.transport.send(operation)
            except StatusError as error:
                if error.status == 500:
                    await self._judge_setup(error)
                raise
            self._ready = True
            return value

        return await self._under_way(send)

    async def _judge_setup(self, error: StatusError) -> None:
        """Tell a setup that failed from a prompt that raised: after a failed one, everything else answers 500 too."""
        try:
            await self._probe()
        except StatusError as second:
            if second.status == 500:
                self._setup_failed = SetupFailed(error.detail, url=error.url, session_id=error.session_id)
                raise self._setup_failed from error
        self._ready = True

    async def _probe(self) -> None:
        """Ask for what an environment answers once it is set up, whatever its prompt does."""
        transport = self._server.transport

        async def ask_tools() -> None:
            await transport.send(task_tools(self._place, self.session_id, limits=transport.limits))

        async def call_nothing() -> None:
            # openreward 0.1.50 and the standard's pages have no such route. A call that names no tool runs none.
            with suppress(ToolError, ProtocolError, OutcomeUnknown):
                await transport.send(call(self._place, self.session_id, "", {}))

        await self._server.ask_optional(("task_tools", self._place.deployment), ask_tools, instead=call_nothing)

    async def _await_setup(self) -> None:
        """Wait for the setup with a request that is safe to repeat, so that a slow one never becomes a lost call."""
        if not self._ready:
            try:
                await self._server.transport.send(prompt(self._place, self.session_id))
            except StatusError as error:
                if error.status != 500:
                    raise
                await self._judge_setup(error)
            self._ready = True

    async def _step(self, operation: Operation[ToolOutput], name: str) -> ToolOutput:
        began = at_turn = ready = time.monotonic()
        times = Meter()
        try:
            async with self._turn:
                at_turn = ready = time.monotonic()
                self._refuse_when_finished(name)
                await self._await_setup()
                ready = time.monotonic()
                output = await self._server.transport.send(operation, times=times)
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
            raise ToolRejected(
                name, detail="The episode is over; open another session.", reason=_FINISHED, session_id=self._id
            )

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
        with Patience(seconds, loop=await self._server.transport.loop()) as patience:
            self._scopes.add(patience.scope)
            try:
                return await work(*arguments)
            except SessionLost as error:
                self._lost = self._lost or error.reason
                if self._entry is not None:
                    self._server.keepalive.disown(self._entry)
                raise
            finally:
                self._scopes.discard(patience.scope)
        self._refuse_when_gone()
        raise DeadlineExceeded(
            doing, limit=limit, seconds=math.inf if seconds is None else seconds, url=self._url, session_id=self._id
        )

    def _refuse_when_gone(self) -> None:
        self._server.check()
        if self._lost is not None:
            raise SessionLost(self._id or "", reason=self._lost, url=self._url)
        if self._state != "open":
            raise ClientStateError("The session is not open; use it inside its `with` block.", session_id=self._id)
        if self._setup_failed is not None:
            raise self._setup_failed


def _episode(task: Task | TaskRef, toolset: str | None) -> Episode:
    if isinstance(task, TaskRef):
        return Episode(split=task.split, index=task.index, toolset=toolset)
    if isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        return Episode(spec=task.spec, toolset=toolset)
    raise TypeError(f"A session is of a Task or a TaskRef(split, index), not of {task!r}.")


def _let_go(keepalive: Keepalive, entry: Entry, seat: Seat, post: Callable[[Callable[[], None]], None]) -> None:
    """Delete a session that nobody holds any more; called on any thread."""
    keepalive.abandon(entry)
    post(seat.give_back)


def _poster() -> Callable[[Callable[[], None]], None]:
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
