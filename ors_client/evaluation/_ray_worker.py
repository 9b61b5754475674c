"""One worker of an evaluation on Ray: a client and a model of its own, and the episodes that it was sent.

It is the class of an actor and imports no Ray: what it takes and gives is Ray's to carry. It knows neither the queue
nor the record. Nothing is raised out of it, since Ray would write that in its logs: errors are returned.
"""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio

from ors_client._client import AsyncClient
from ors_client._errors import one_line
from ors_client._http.credentials import Secrets
from ors_client.record import EpisodeRecord

from ._episode import play
from ._model import ChatModel
from ._rules import Rules
from ._shard import Attempt

Outcome = tuple[Attempt, EpisodeRecord | Exception]

_GATHER_SECONDS = 0.02  # in which other episodes may end and go to the driver with the first


@dataclass(frozen=True, kw_only=True, repr=False)
class WorkerSettings:
    """What a worker plays with; its secrets are among it.

    Args:
        client: Makes the client.
        model: Makes the model.
        environment: The environment's name, as `AsyncClient.environment` takes it.
        variant: As it takes it.
        rules: How episodes are played.
        secrets: For the environment.
    """

    client: Callable[[], AsyncClient]
    model: Callable[[], ChatModel]
    environment: str | None
    variant: str | None
    rules: Rules
    secrets: Secrets | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a worker leaves.

    Args:
        outcomes: Of episodes that ended since it was asked last.
        leaked: How many sessions could not be confirmed deleted.
    """

    outcomes: list[Outcome]
    leaked: int


class Worker:
    """Plays the episodes that it is sent, all at once; how many those are is for the driver to limit."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []
        self._some_ended = asyncio.Event()
        self._token = ""
        self._leaked = 0
        self._playing: asyncio.Task[None] | None = None

    async def start(self, settings: bytes) -> str | Exception:
        """Open a client and a model; return the token that `exchange` takes, or why they can't be opened.

        What was played before is stopped, and its outcomes are dropped: the driver has sent it elsewhere.

        Args:
            settings: A pickled `WorkerSettings`. As bytes, they show in nothing that Ray tells of arguments.
        """
        await self.stop()
        opened: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._playing = asyncio.create_task(self._play_until_stopped(settings, opened))
        error = await opened
        self._token = uuid.uuid4().hex
        return self._token if error is None else error

    async def exchange(self, token: str, attempts: Sequence[Attempt]) -> list[Outcome] | None:
        """Begin further episodes and return those that ended, once there are any.

        Returns:
            `None` where this is no longer the process that the token is of: it was restarted, and plays nothing.
        """
        if token != self._token:
            return None
        for attempt in attempts:
            self._group.start_soon(self._play, attempt)
        await self._some_ended.wait()
        await asyncio.sleep(_GATHER_SECONDS)
        return self._handed_over() if token == self._token else None

    async def stop(self) -> Stopped:
        """End all episodes, delete their sessions, and close the client and the model."""
        self._token = ""
        if self._playing is not None:
            self._playing.cancel()
            with suppress(asyncio.CancelledError):
                await self._playing
            self._playing = None
        return Stopped(self._handed_over(), self._leaked)

    def _handed_over(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        self._some_ended.clear()
        return outcomes

    async def _play_until_stopped(self, pickled: bytes, opened: asyncio.Future[Exception | None]) -> None:
        client = None
        try:
            settings: WorkerSettings = pickle.loads(pickled)  # noqa: S301 - from the driver
            client, model = settings.client(), settings.model()
            async with client, model, anyio.create_task_group() as group:
                self._settings, self._model, self._group = settings, model, group
                self._environment = client.environment(settings.environment, variant=settings.variant)
                opened.set_result(None)
                await anyio.sleep_forever()
        except Exception as error:  # noqa: BLE001 - the top of a task
            if not opened.done():
                opened.set_result(_portable(error))
        finally:
            self._leaked = 0 if client is None else client.leaked_sessions

    async def _play(self, attempt: Attempt) -> None:
        rules, secrets = self._settings.rules, self._settings.secrets
        try:
            outcome = await play(self._environment, attempt[0], self._model, rules=rules, secrets=secrets)
        except Exception as error:  # noqa: BLE001 - the top of a task; the driver raises it
            outcome = _portable(error)
        self._outcomes.append((attempt, outcome))
        self._some_ended.set()


def _portable(error: Exception) -> Exception:
    """Return an error as it can be sent; where it can't, its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just made
    except Exception:  # noqa: BLE001 - whatever its class does to be copied
        return RuntimeError(f"{type(error).__name__}: {one_line(error)}")
    return error
