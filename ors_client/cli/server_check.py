"""What a check asks of a server, in order, and what the answers mean.

It calls no tool unless it is told one: the one call it makes else names a tool that does not exist. Every step that
fails becomes a problem with its hints, and the steps that do not depend on it still happen. How a report looks is
not decided here.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import re
from collections.abc import Generator
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from ors_client import (
    AsyncClient,
    AsyncEnvironment,
    AsyncSession,
    JSONValue,
    KeepalivePolicy,
    ORSError,
    OutcomeUnknown,
    ProtocolError,
    ResultLost,
    SessionLost,
    StatusError,
    TaskRef,
    Timeouts,
    ToolError,
    ToolList,
)
from ors_client._http.credentials import Secrets

from .balancer_check import SESSIONS, SESSIONS_SECONDS, find_stray_sessions, hold_call
from .check_report import CheckReport, EnvironmentDescription, Problem, Wait
from .hints import PIN_SESSIONS, hints_for
from .options import CHECK_TIMEOUT, ServerOptions
from .recording_transport import ExchangeRecorder

# Training pings every ten seconds; a check need not wait for so long to see one answered.
_PINGS = KeepalivePolicy(interval=0.5)
_PING_SECONDS = 5.0
_HOLD_POLL_SECONDS = 0.5  # between checks of a session that is held

_CONCURRENCY = 8  # environments asked about at a time
_NO_TOOL = "ors-check-calls-no-tool"
_CALLABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")  # names that every model's template can write
_CALL_SECONDS = 3600.0  # that a held call may take
_SLOW_SETUP = 30.0  # beyond it, the steps of training are mostly waiting


class ServerCheck:
    """Examines one server.

    Args:
        options: Which server, and how it is asked.
        split: Of the task to open; `None` is the first with tasks.
        task: Its index.
        secrets: For the environment.
        toolset: Of the environment's sets of tools.
        hold: For how many seconds a session is held, as one is in training, to see whether the server keeps it.
        call: A tool of that session to call, and its arguments.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        split: str | None,
        task: int,
        secrets: Secrets | None,
        toolset: str | None = None,
        hold: float | None = None,
        call: tuple[str, dict[str, JSONValue]] | None = None,
    ) -> None:
        self.report = CheckReport()
        self.wait: Wait | None = None
        """What it waits for now."""
        self._options = options
        self._split = split
        self._task = task
        self._secrets = secrets
        self._toolset = toolset
        self._hold = hold
        self._call = call
        self._most = options.wait or CHECK_TIMEOUT
        self._recorder = ExchangeRecorder()

    async def examine(self) -> None:
        """Ask everything, and put what was learnt into `report`.

        Raises:
            Misuse: The options make no sense.
        """
        client = self._options.async_client(CHECK_TIMEOUT, transport=self._recorder.transport, keepalive=_PINGS)
        self._warn_of_unencrypted_key(client.layout.sessions)
        async with client:
            with self._problem():
                with self._waiting("asking what there is", self._most):
                    names = await self._names(client)
                    await self._learn_kind(client)
                with self._waiting("asking for splits and tools", self._most):
                    await self._describe_all(client, names)
                    chosen = client.environment(names[0], variant=self._options.variant)
                    name = await chosen.name()
                split = self._choose_split(name)
                if split is not None and await self._finds_sessions(names[0], split):
                    await self._open_session(chosen, name, split)
                    if self._hold is not None or self._call is not None:
                        await self._hold_session(names[0], split)
        if client.leaked_sessions:
            self._add_problem(
                "The session could not be deleted.", "See the server's log: its teardown may raise or hang."
            )

    # --- The server --------------------------------------------------------------------------------------------------

    async def _names(self, client: AsyncClient) -> list[str]:
        wanted = self._options.env
        if wanted is not None:
            found = await self._options.exact_name(client)
            return [found if self._options.deployment is None else wanted]
        names = await client.list_environments()
        if not names:
            raise _NoEnvironments
        return names

    async def _learn_kind(self, client: AsyncClient) -> None:
        if self._options.deployment is not None:
            self.report.kind = "a deployment of the catalogue, or like one"
            self.report.secrets = "header"
            return
        self.report.version = await client.server_version()
        self.report.secrets = "body" if self.report.version is None else "header"
        if self.report.version is not None:
            self.report.kind = f"openreward {self.report.version}"

    def _guess_kind(self) -> None:
        """Tell servers without a version by how they give session ids."""
        created = self._recorder.last("create_session")
        if self.report.kind is not None or created is None:
            return
        streamed = created.kind == "text/event-stream"
        self.report.kind = "ors-sdk, or like it" if streamed else "written to the standard, or openreward before 0.1.70"

    async def _describe_all(self, client: AsyncClient, names: list[str]) -> None:
        found = {name: EnvironmentDescription(name) for name in names}
        limiter = anyio.CapacityLimiter(_CONCURRENCY)

        async def describe(name: str) -> None:
            async with limiter:
                with self._problem(f"Environment {name!r}: "):
                    await self._describe(client.environment(name, variant=self._options.variant), found[name])

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(describe, name)
        self.report.environments = list(found.values())

    async def _describe(self, environment: AsyncEnvironment, described: EnvironmentDescription) -> None:
        described.name = await environment.name()
        for split in await environment.list_splits():
            described.splits.append((split.name, split.type, await environment.num_tasks(split.name)))
        if not any(count for _, _, count in described.splits):
            self._add_problem(f"Environment {described.name!r} has no tasks in any split.", "Look at its list_tasks().")
        listed = await environment.describe_tools()
        described.tools = listed.tools
        described.terminal_tool = None if listed.terminal_tool is None else listed.terminal_tool.name
        described.group_scoring = listed.supports_score_group
        self._judge_tools(described.name, listed)

    def _judge_tools(self, environment: str, listed: ToolList) -> None:
        silent = [tool.name for tool in listed.tools if not tool.description.strip()]
        if silent:
            self._add_note(f"{environment}: the model is told nothing about what these tools do: {', '.join(silent)}")
        odd = [tool.name for tool in listed.tools if not _CALLABLE.fullmatch(tool.name)]
        if odd:
            self._add_note(f"{environment}: trl_bridge gives tools that models can't name an alias: {', '.join(odd)}")
        names = [tool.name for tool in listed.tools]
        for name in {name for name in names if names.count(name) > 1}:
            self._add_problem(f"Environment {environment!r} lists the tool {name!r} twice.", "Rename one of them.")
        for tool in listed.tools:
            if tool.input_schema is not None and tool.input_schema.get("type", "object") != "object":
                self._add_problem(
                    f"The schema of tool {tool.name!r} of {environment!r} is no object's: arguments go by name.",
                    "Declare its arguments as one model.",
                )

    # --- One session -------------------------------------------------------------------------------------------------

    def _described(self, name: str) -> EnvironmentDescription:
        return next((one for one in self.report.environments if one.name == name), EnvironmentDescription(name))

    def _choose_split(self, name: str) -> str | None:
        """Return the split that was asked for, or the first with tasks; `None` is a problem that was told."""
        described = self._described(name)
        split = self._split or next((split for split, _, count in described.splits if count), None)
        there = [known for known, _, _ in described.splits]
        if split is not None and there and split not in there:
            near = difflib.get_close_matches(split, there, n=1) or there[:1]
            self._add_problem(
                f"Environment {name!r} has no split {split!r}; it has: {', '.join(map(repr, there))}.",
                f"--split {near[0]}",
            )
            return None
        return split

    def _session(self, environment: AsyncEnvironment, split: str) -> AsyncSession:
        return environment.session(TaskRef(split, self._task), secrets=self._secrets, toolset=self._toolset)

    async def _finds_sessions(self, environment: str, split: str) -> bool:
        """Tell whether sessions are found by their requests; where they are not, nothing else can be learnt of one."""

        def open_session(client: AsyncClient) -> AsyncSession:
            return self._session(client.environment(environment, variant=self._options.variant), split)

        with self._waiting(f"pinging {SESSIONS} sessions on fresh connections", SESSIONS_SECONDS):
            found = await find_stray_sessions(self._options, open_session)
        if isinstance(found, Problem):
            self.report.affinity = False
            self.report.problems.append(found)
            return False
        self.report.affinity = found
        return True

    async def _open_session(self, environment: AsyncEnvironment, name: str, split: str) -> None:
        self.report.opened = (name, split, self._task)
        with self._problem():
            await environment.list_tasks(split, 0, 1)
            self.report.ranges = self._is_answered("task_range")
        session = self._session(environment, split)
        try:
            with self._timed("create"), self._waiting("opening a session", self._most):
                await session.__aenter__()
            self._guess_kind()
            with self._problem():
                await self._examine_session(session, self._described(name))
            with self._timed("delete"), self._waiting("deleting the session", Timeouts().close):
                await session.aclose()
        finally:
            await session.aclose()

    async def _examine_session(self, session: AsyncSession, described: EnvironmentDescription) -> None:
        with self._timed("prompt"), self._waiting("waiting for setup and prompt", self._most):
            blocks = await session.get_prompt()
        if not blocks:
            self._add_problem(
                "The prompt is empty: the model is told nothing.", "Look at the environment's get_prompt()."
            )
        if self.report.seconds["prompt"] > _SLOW_SETUP:
            self._add_note(
                "Setup takes long; the sessions of a batch are set up together, so the server has to bear it."
            )
        tools = await session.list_tools()
        final = await session.terminal_tool()
        self.report.tools = [tool.name for tool in tools]
        self.report.task_tools = self._is_answered("task_tools")
        shared = {tool.name for tool in described.tools}
        self.report.own_tools = [tool.name for tool in tools if tool.name not in shared]
        self.report.terminal_tool = None if final is None else final.name
        self.report.group_scoring = await session.supports_score_group()
        if not tools and final is None:
            self._add_problem(
                "The task has no tools and no terminal tool: nothing can be done in it.", "Declare a tool."
            )
        await session.get_messages()
        self.report.messages = self._is_answered("messages")
        with self._waiting("waiting for a ping's answer", _PING_SECONDS):
            await self._await_ping()
        with self._waiting("breaking a call of no tool", self._most):
            await self._try_to_resume(session)

    async def _await_ping(self) -> None:
        answered = self._recorder.ping_answered
        self.report.ping_answered = await anyio.to_thread.run_sync(answered.wait, _PING_SECONDS)
        ping = self._recorder.last("ping")
        if self.report.ping_answered and ping is not None:
            self.report.seconds["ping"] = ping.seconds
            return
        if ping is not None and ping.status in {404, 405}:
            self._add_problem(
                "The server has no ping route: sessions end in the midst of long calls and training steps.",
                "Update the server, or raise its session timeout beyond your longest step.",
            )
            return
        self._add_problem(
            f"No ping was answered within {_PING_SECONDS:g} seconds: sessions would not be kept alive.",
            "Does the environment block the server's event loop, with time.sleep or heavy work in async code?",
        )

    async def _hold_session(self, environment: str, split: str) -> None:
        """Open a session that is pinged as in training, call its tool, wait, and see whether it is still there."""
        recorder = ExchangeRecorder()
        async with self._options.async_client(CHECK_TIMEOUT, transport=recorder.transport) as client:
            chosen = client.environment(environment, variant=self._options.variant)
            async with self._session(chosen, split) as session:
                with self._waiting("waiting for setup and prompt", self._most):
                    await session.get_prompt()
                began, held = anyio.current_time(), 0.0
                if self._call is not None:
                    tool, arguments = self._call
                    with self._waiting(f"calling {tool}", _CALL_SECONDS):
                        self.report.call, problems = await hold_call(session, tool, arguments, recorder, _CALL_SECONDS)
                    self.report.problems += problems
                if self._hold is None:
                    return
                with self._waiting("holding a session", self._hold, fixed=True):
                    while held < self._hold and session.lost is None:
                        await anyio.sleep(min(_HOLD_POLL_SECONDS, self._hold - held))
                        held = anyio.current_time() - began
                self.report.held = round(held, 3)
                await self._see_whether_kept(session, held)

    async def _see_whether_kept(self, session: AsyncSession, held: float) -> None:
        self.report.kept = True
        try:
            await session.call_tool(_NO_TOOL)
        except SessionLost as error:
            self.report.kept = False
            often = f"{KeepalivePolicy().interval:g} s"
            self._add_problem(
                f"A session that was pinged every {often} was lost within {held:.0f} s: {error.reason}",
                "Ping well within the time that the server keeps a session: "
                "KeepalivePolicy(interval=2), as AsyncClient(keepalive=...) or OpenRewardSpec(keepalive=...).",
                "Or raise the server's session timeout.",
            )
        except ToolError:  # it was asked, and has no such tool
            pass

    async def _try_to_resume(self, session: AsyncSession) -> None:
        """Break a call of a tool that does not exist when it has its id, and see whether its result still comes."""
        self._recorder.cut_next_call()
        try:
            await session.call_tool(_NO_TOOL)
        except ToolError:
            self.report.resume = self._recorder.cut
        except (OutcomeUnknown, StatusError):  # no id came, or the call was refused before a stream began
            self.report.resume = False
        except ProtocolError:
            if not self._recorder.cut:
                raise
            self.report.resume = False
            self._add_note(
                "The server ran a call again when it was asked to go on with it: the step of a call whose connection "
                "breaks is taken twice, and its episode fails."
            )
            return
        except ResultLost:
            self.report.resume = False
            self._add_problem(
                "A call whose connection broke could not be resumed: the server no longer knew it.",
                *PIN_SESSIONS,
            )
            return
        except SessionLost as error:
            self._add_problem(f"The session was lost at its first call: {error}", *hints_for(error, self._options))
            return
        else:
            self._add_note(f"The server runs a tool that does not exist ({_NO_TOOL!r}) instead of refusing it.")
        if not self.report.resume:
            self._add_note("Calls can't be resumed here; one whose connection breaks ends its episode.")

    # --- Findings ----------------------------------------------------------------------------------------------------

    def _is_answered(self, endpoint: str) -> bool:
        last = self._recorder.last(endpoint)
        return last is not None and last.status == 200

    @contextlib.contextmanager
    def _waiting(self, doing: str, most: float, *, fixed: bool = False) -> Generator[None]:
        self.wait = Wait(doing, anyio.current_time(), most, fixed=fixed)
        try:
            yield
        finally:
            self.wait = None

    @contextlib.contextmanager
    def _timed(self, step: str) -> Generator[None]:
        began = anyio.current_time()
        yield
        self.report.seconds[step] = anyio.current_time() - began

    @contextlib.contextmanager
    def _problem(self, where: str = "") -> Generator[None]:
        """Turn an error into a problem."""
        try:
            yield
        except _NoEnvironments:
            self._add_problem("The server lists no environments.", "Was it started with any?")
        except ORSError as error:
            self._add_problem(f"{where}{error}", *hints_for(error, self._options))

    def _add_problem(self, what: str, *advice: str) -> None:
        self.report.problems.append(Problem(what, list(advice)))

    def _add_note(self, text: str) -> None:
        self.report.notes.append(text)

    def _warn_of_unencrypted_key(self, url: str) -> None:
        parts = urlsplit(url)
        if self._options.api_key is None or parts.scheme == "https" or _is_local(parts.hostname or ""):
            return
        self._add_note(f"The key travels to {parts.hostname} unencrypted; use https.")


class _NoEnvironments(Exception):
    """Raised when there is nothing to examine."""


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
