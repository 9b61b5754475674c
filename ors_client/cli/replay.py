"""The command `ors replay`: a server that answers from a record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from ors_client.record import read
from ors_client.replay import Replay, Script
from ors_client.replay import read_tools as parse_tools
from ors_client.replay._router import SESSION_SECONDS

from .options import Misuse
from .output import out, show_note
from .signals import run_until_signal

_GAPS = 8  # indices that are named


def replay(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="The episodes, as JSON lines.")],
    *,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.")] = 8001,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools",
            metavar="FILE",
            help="What `ors tools URL --json` wrote; left out, tools are made from the calls.",
        ),
    ] = None,
    pace: Annotated[
        float, typer.Option("--pace", min=0, metavar="X", help="1 takes the recorded time for calls, 0 no time.")
    ] = 0.0,
    session_timeout: Annotated[
        float,
        typer.Option(
            "--session-timeout",
            min=0.01,
            metavar="SECONDS",
            help="After which a session that is neither used nor pinged is ended.",
        ),
    ] = SESSION_SECONDS,
) -> None:
    """Serve a record as an environment: a training loop can be tested without the real one. Ctrl-C ends it.

    A call is answered by the task, the calls before it, the tool and the arguments; what is not in the record is
    refused. The tasks that are listed are those of the record, each under its index or, where the record has gaps, in
    the gap of one that is missing. Their specifications are those that the record has (of `ors run`), else split and
    index alone.
    """
    try:
        given = None if tools is None else parse_tools(tools.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"The tools in {str(tools)!r} can't be read: {error}") from None
    try:
        script = Script(read(record), tools=given)
    except OSError as error:
        raise Misuse(f"The record {str(record)!r} can't be read: {error.strerror or error}.") from None
    if not script.episodes:
        raise Misuse(f"The record {str(record)!r} holds no episode that could be replayed.")
    if script.left_out:
        show_note(f"{script.left_out} episodes are left out: they name no task, or had no session")
    _show_gaps(script)

    async def serve() -> None:
        async with Replay(script, host=host, port=port, pace=pace, session_timeout=session_timeout) as server:
            out().print(f"replaying {script.episodes} episodes of {script.num_tasks} tasks")
            print(f"listening on {server.url}", flush=True)  # noqa: T201 - at once, for whoever waits for it
            await anyio.sleep_forever()

    try:
        anyio.run(run_until_signal, serve)
    except OSError as error:
        raise Misuse(
            f"Cannot listen on {host!r}, port {port}: {error.strerror or error}; --port 0 takes any."
        ) from None


def _show_gaps(script: Script) -> None:
    for name, environment in script.environments.items():
        for split in environment.splits:
            indices = enumerate(environment.indices(split))
            moved = [f"{asked} opens task {index}" for asked, index in indices if asked != index]
            if moved:
                more = f" and {len(moved) - _GAPS} more" if len(moved) > _GAPS else ""
                show_note(f"{name}, {split}: the record has gaps; index {', '.join(moved[:_GAPS])}{more}")
