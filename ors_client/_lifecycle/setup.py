"""A session's environment on its way to being ready: what answers only then, and how a setup that failed is recognised.

Setup begins when the episode does and may take minutes. Nothing here steps the episode.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from ors_client._errors import OutcomeUnknown, ProtocolError, SetupFailed, StatusError, ToolError
from ors_client._protocol.operations import Address, Operation, call, prompt, task_tools, tools
from ors_client._types import ToolList

from .deletion import TrackedSession
from .server import Server

T = TypeVar("T")


class EnvironmentSetup:
    """The setup of one session's environment.

    Args:
        server: Where.
        address: The environment.
        session: Whose it is.
    """

    def __init__(self, server: Server, address: Address, session: TrackedSession) -> None:
        self.failed: SetupFailed | None = None
        """How it failed, once that is known; it does not recover."""
        self.session = session
        self._server = server
        self._address = address
        self._session_id = session.session_id
        self._ready = False

    async def list_tools(self) -> ToolList:
        """Return the tools of the session's task, or of its environment where the server does not tell of tasks'.

        Raises:
            SetupFailed: There are none, as setup failed.
        """
        limits = self._server.transport.limits

        async def of_task() -> ToolList:
            try:
                return await self._send(task_tools(self._address, self._session_id, limits=limits))
            except StatusError as error:
                if error.status == 500:
                    self.failed = SetupFailed(error.detail, url=error.url, session_id=error.session_id)
                    raise self.failed from error
                raise

        return await self._server.ask_optional(
            ("task_tools", self._address.deployment),
            of_task,
            instead=lambda: self._send(tools(self._address, limits=limits, session_id=self._session_id)),
        )

    async def ask(self, operation: Operation[T]) -> T:
        """Send a request that is answered when the environment is set up.

        Raises:
            SetupFailed: It never will be.
        """
        try:
            value = await self._send(operation)
        except StatusError as error:
            if error.status == 500:
                await self._judge(error)
            raise
        self._ready = True
        return value

    async def _judge(self, error: StatusError) -> None:
        """Tell a setup that failed from a prompt that raised: after a failed one, everything else answers 500 too."""
        try:
            await self._probe()
        except StatusError as second:
            if second.status == 500:
                self.failed = SetupFailed(error.detail, url=error.url, session_id=error.session_id)
                raise self.failed from error
        self._ready = True

    async def _probe(self) -> None:
        """Ask for what an environment answers once it is set up, whatever its prompt does."""
        limits = self._server.transport.limits

        async def ask_tools() -> None:
            await self._send(task_tools(self._address, self._session_id, limits=limits))

        async def call_nothing() -> None:
            # openreward 0.1.50 and the standard's pages have no such route. A call that names no tool runs none.
            with suppress(ToolError, ProtocolError, OutcomeUnknown):
                await self._send(call(self._address, self._session_id, "", {}))

        await self._server.ask_optional(("task_tools", self._address.deployment), ask_tools, instead=call_nothing)

    async def wait(self) -> None:
        """Wait for the setup with a request that is safe to repeat, so that a slow one never becomes a lost call.

        Raises:
            SetupFailed: It failed.
        """
        if not self._ready:
            try:
                await self._send(prompt(self._address, self._session_id))
            except StatusError as error:
                if error.status != 500:
                    raise
                await self._judge(error)
            self._ready = True

    async def _send(self, operation: Operation[T]) -> T:
        return await self._server.transport.send(self.session.own(operation))
