"""A cluster of Ray for the length of an evaluation: connected to or started, and its workers made.

What they play is the dispatcher's to say.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from ors_client._errors import ORSError, one_line
from ors_client._http.redaction import Redactor

from ._dispatcher import WorkerHandle
from ._ray_worker import Worker, WorkerSettings

_CONNECT_SECONDS = 10.0  # for a cluster's node to accept a connection
_EXCERPT = 500  # characters of why Ray can't be used, as that its versions differ
_MOST_BYTES = 100 * 1024  # of an argument that goes from process to process; Ray stores others, also on a disk


def import_ray(address: str | None = None) -> Any:
    """Return the package `ray`, where an evaluation can use it at an address.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to do that.
        ValueError: The address can't be used.
    """
    if address is not None and address.startswith("ray://"):
        raise ValueError(f"The address of Ray Client ({address!r}) can't be used; start this on a node of the cluster.")
    try:
        import ray  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "An evaluation on Ray needs ray: pip install 'ors-client[ray]'.", name="ray"
        ) from None
    if address is not None and ray.is_initialized():
        raise ValueError(f"Ray is initialised already, so there is no address to connect to: {address!r}.")
    return ray


def pickled(ray: Any, settings: WorkerSettings) -> bytes:
    """Return settings as Ray carries them.

    Raises:
        TypeError: They can't be sent to the workers; the message names which.
    """
    for name in ("client", "model", "secrets"):
        try:
            ray.cloudpickle.dumps(getattr(settings, name))
        except Exception as error:  # noqa: BLE001 - whatever its class does to be pickled
            raise TypeError(
                f"{name}= can't be sent to the workers ({type(error).__name__}: {one_line(error)}). Pass what each of "
                "them calls to make its own: a function of a module, or functools.partial(...) of a class and what can "
                "be pickled."
            ) from None
    sent: bytes = ray.cloudpickle.dumps(settings)
    if len(sent) > _MOST_BYTES:
        raise TypeError(
            f"client=, model= and secrets= take {len(sent):,} bytes when they are pickled, and {_MOST_BYTES:,} is "
            "the most that Ray sends without storing it. Load what is large in the function that makes it."
        )
    return sent


@asynccontextmanager
async def connected(ray: Any, address: str | None, *, hide: Iterable[str]) -> AsyncGenerator[None]:
    """Connect to a cluster, or start one, for the length of the block; where Ray is initialised, use it as it is.

    Args:
        ray: The package.
        address: Of the cluster, as `ray.init` takes it.
        hide: What the cluster must not be shown of this program's command line.
    """
    if ray.is_initialized():
        yield
        return
    _hide_command_line(ray, Redactor(hide))
    no_cluster = f"There is no Ray cluster at {address!r}. Start one with `ray start --head`, or leave the address out"
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal():  # Ray would wait for minutes, and not be interrupted
        with anyio.move_on_after(_CONNECT_SECONDS) as scope:
            try:
                await (await anyio.connect_tcp(host.strip("[]"), int(port))).aclose()
            except OSError as error:
                raise ORSError(f"{no_cluster} ({one_line(error)}).") from None
        if scope.cancelled_caught:
            raise ORSError(f"{no_cluster} (it did not accept a connection within {_CONNECT_SECONDS:g} s).")
    try:
        try:
            # In a thread: it takes seconds, and sets handlers of signals in the main one.
            await anyio.to_thread.run_sync(_initialise, ray, address)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, ConnectionError):
                raise ORSError(f"{no_cluster} ({one_line(error)}).") from None
            where = "" if address is None else f" at {address!r}"
            raise ORSError(f"Ray can't be used{where}: {one_line(error, _EXCERPT)}") from None
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(ray.shutdown)


def _initialise(ray: Any, address: str | None) -> None:
    log = logging.getLogger("ray")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of the signals that it does not handle in a thread
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    finally:
        log.setLevel(level)


def _hide_command_line(ray: Any, redactor: Redactor) -> None:
    # Ray shows the command line of each program to the whole cluster; this is what it and `ps` read from now on.
    line = " ".join(sys.orig_argv)
    shown = redactor.redact(line)
    if shown != line:
        try:
            ray._raylet.setproctitle(shown)  # noqa: SLF001 - it has no public name
        except AttributeError:  # as in 2.40
            raise ORSError(
                f"Ray {ray.__version__} shows a program's command line to its cluster, and there is a key or a secret "
                "on this one. Give it by its variable, or use a newer Ray."
            ) from None


def create_workers(ray: Any, count: int | None) -> list[WorkerHandle]:
    """Start so many workers; `None` is one a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as `ray` itself

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    # A worker waits for servers and takes a share of a core, so it is told to take none: its count is the caller's. The
    # byte is there because Ray puts an actor that takes nothing on a node by chance, whatever node it is told.
    actor = ray.remote(num_cpus=0, memory=1, max_restarts=-1, max_task_retries=0)(Worker)
    return [
        actor.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True)
        ).remote()
        for number in range(count or len(nodes))
    ]
