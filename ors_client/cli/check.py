"""The command `ors check`: what a server is and offers, for people and for scripts."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import anyio
import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ors_client import JSONValue, KeepalivePolicy
from ors_client.report._text import duration

from .check_report import CheckReport, EnvironmentDescription, Problem, SessionDemand, Wait
from .command import INTERRUPTED, PROBLEMS
from .json_input import read_json
from .options import (
    Misuse,
    SecretHostsOption,
    SecretOption,
    ServerOptions,
    SplitOption,
    TaskOption,
    ToolsetOption,
    read_secrets,
)
from .output import err, out, printable, show, show_error, show_json, show_note
from .server_check import ServerCheck
from .signals import run_until_signal

_REAPED = 900  # seconds after which the official servers end a session without a sign of life
_OFFICIAL = ("openreward ", "ors-sdk")
_FEWEST = 2  # rollouts of one prompt that GRPOConfig takes
_LABEL = len("group scoring")
_SHOW_SECONDS = 0.2  # between looks at what is waited for
_LINE_SECONDS = 10.0  # between lines about one wait, in a pipe
_PANEL = "What a GRPO run would ask of it"


def check(
    options: ServerOptions,
    *,
    split: SplitOption = None,
    task: TaskOption = 0,
    secret: SecretOption = None,
    secret_hosts: SecretHostsOption = None,
    toolset: ToolsetOption = None,
    hold: Annotated[
        float | None,
        typer.Option(
            "--hold",
            min=1,
            metavar="SECONDS",
            help="Hold a session for so long, pinged as in training, and see whether the server keeps it.",
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            metavar="TOOL",
            help="Call this tool, one that takes its time, and see whether proxies let its stream through.",
        ),
    ] = None,
    arguments: Annotated[
        str, typer.Option("--arguments", metavar="JSON", help="Of the tool that --call names, as an object.")
    ] = "{}",
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, metavar="N", help="Rollouts per device.", rich_help_panel=_PANEL)
    ] = 8,
    generations: Annotated[
        int, typer.Option("--generations", min=1, metavar="N", help="Rollouts of one prompt.", rich_help_panel=_PANEL)
    ] = 8,
    accumulation: Annotated[
        int,
        typer.Option("--accumulation", min=1, metavar="N", help="Gradient accumulation steps.", rich_help_panel=_PANEL),
    ] = 1,
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="Devices.", rich_help_panel=_PANEL)
    ] = 1,
) -> int:
    """Examine a server: what it is, what it offers, whether a session works, and what a training run would need.

    Opens four sessions (another with --hold or --call) and calls none of their tools but that of --call. The exit
    status is 0 when all is well, 1 when there are problems.
    """
    demand = SessionDemand(batch_size, generations, accumulation, processes)
    server_check = ServerCheck(
        options,
        split=split,
        task=task,
        secrets=read_secrets(options, secret, secret_hosts),
        toolset=toolset,
        hold=hold,
        call=None if call is None else (call, _read_arguments(arguments)),
    )
    if anyio.run(run_until_signal, server_check.examine, partial(_show_waits, server_check)):
        show_note("interrupted")
        return INTERRUPTED
    report = server_check.report
    if generations < _FEWEST:
        report.problems.append(_too_few(generations))
    elif demand.sessions % generations:
        report.problems.append(_indivisible(demand))
    if options.as_json:
        show_json(_as_json(options, report, demand))
    else:
        _show(options, report, demand)
    return PROBLEMS if report.problems else 0


def _read_arguments(text: str) -> dict[str, JSONValue]:
    try:
        read = read_json(text)
    except ValueError as error:
        raise Misuse(f"--arguments is no JSON: {error}.") from None
    if not isinstance(read, dict):
        raise Misuse("--arguments is a JSON object, such as '{\"seconds\": 60}'.")
    return read


async def _show_waits(server_check: ServerCheck) -> None:
    """Show what is waited for: on a terminal as it goes, in a pipe a line for each ten seconds of one wait."""
    console = err()
    told: tuple[Wait, int] | None = None
    with console.status("") if console.is_terminal else contextlib.nullcontext() as status:
        while True:
            now, wait = anyio.current_time(), server_check.wait
            if wait is not None and status is not None:
                status.update(printable(wait.describe(now)))
            elif wait is not None:
                times = int((now - wait.began) // _LINE_SECONDS)
                if times and told != (wait, times):
                    told = wait, times
                    show_note(wait.describe(now), console)
            await anyio.sleep(_SHOW_SECONDS)


def _too_few(generations: int) -> Problem:
    return Problem(
        f"TRL refuses groups of {generations}: the baseline of a rollout is what others of its prompt scored.",
        [f"Choose --generations {_FEWEST} or more."],
    )


def _indivisible(demand: SessionDemand) -> Problem:
    return Problem(
        f"TRL refuses {demand.sessions} rollouts at a time in groups of {demand.generations}: they do not divide.",
        ["Choose --generations so that it divides batch size x accumulation x processes."],
    )


def _as_json(options: ServerOptions, report: CheckReport, demand: SessionDemand) -> dict[str, Any]:
    policy = KeepalivePolicy()
    return {
        "url": options.url,
        "ok": not report.problems,
        "server": {"kind": report.kind, "version": report.version},
        "environments": [
            {
                "name": one.name,
                "splits": [{"name": name, "type": kind, "num_tasks": count} for name, kind, count in one.splits],
                "tools": one.tools,
                "terminal_tool": one.terminal_tool,
                "group_scoring": one.group_scoring,
            }
            for one in report.environments
        ],
        "session": None
        if report.opened is None
        else dict(zip(("environment", "split", "index"), report.opened, strict=True))
        | {"seconds": report.seconds, "tools": report.tools},
        "keepalive": {
            "answered": report.ping_answered,
            "interval": policy.interval,
            "tolerance": policy.tolerance,
            "held": report.held,
            "kept": report.kept,
        },
        "affinity": report.affinity,
        "call": None if report.call is None else asdict(report.call),
        "features": {
            "messages": report.messages,
            "terminal_tool": report.terminal_tool,
            "group_scoring": report.group_scoring,
            "ranges": report.ranges,
            "task_tools": report.task_tools,
            "own_tools": report.own_tools,
            "secrets": report.secrets,
            "resume": report.resume,
        },
        "grpo": asdict(demand) | {"sessions": demand.sessions},
        "problems": [{"what": problem.what, "try": problem.hints} for problem in report.problems],
        "notes": report.notes,
    }


# --- For people ------------------------------------------------------------------------------------------------------


def _show(options: ServerOptions, report: CheckReport, demand: SessionDemand) -> None:
    known = report.kind is not None
    show(_facts([("server", Text(printable(f"{report.kind} at {options.url}" if known else options.url)))]))
    if report.environments:
        show(_facts([("environments", Text(str(len(report.environments))))]))
        show(Padding(_environments(report.environments), (0, 0, 0, 2), expand=False))
    facts: list[tuple[str, Text]] = []
    if report.opened is not None:
        name, split, index = report.opened
        steps = [(step, report.seconds.get(step)) for step in ("create", "prompt", "ping", "delete")]
        timed = ", ".join(f"{step} {duration(took)}" for step, took in steps if took is not None) or "not opened"
        facts += [("session", Text(printable(f"{name}, {split} {index}: {timed}"))), ("keepalive", _keepalive(report))]
        facts += _ways(report)
        facts += _features(report)
    if report.environments:
        facts.append(("a GRPO run", Text(_demand(demand))))
    show(_facts(facts))
    _show_findings(report)


def _facts(rows: list[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True, min_width=_LABEL)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text)
    return grid


def _environments(environments: list[EnvironmentDescription]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("name", "tasks", "tools"):
        table.add_column(column, overflow="fold")
    for one in environments:
        splits = ", ".join(f"{name} {count}" for name, _, count in one.splits)
        tools = [tool.name for tool in one.tools] + ([f"{one.terminal_tool} (terminal)"] if one.terminal_tool else [])
        table.add_row(Text(printable(one.name)), Text(printable(splits)), Text(printable(", ".join(tools))))
    return table


def _keepalive(report: CheckReport) -> Text:
    policy = KeepalivePolicy()
    if report.ping_answered is None:
        return Text("not tried", style="dim")
    if not report.ping_answered:
        return Text("pings are not answered", style="red")
    if report.kept is False:
        return Text("pings are answered, and yet a session was not kept", style="red")
    official = (report.kind or "").startswith(_OFFICIAL)
    by_default = f"; by default such a server ends a session {_REAPED} s after the last" if official else ""
    held = "--hold 60 sees whether it is kept" if report.held is None else f"held for {report.held:.0f} s and kept"
    return Text(f"pings are answered; they are sent every {policy.interval:g} s{by_default}; {held}")


def _ways(report: CheckReport) -> list[tuple[str, Text]]:
    """Say what was seen of balancers and proxies."""
    found = "found each time, by requests on connections of their own" if report.affinity else "not tried"
    ways = [("sessions", Text(found, style="" if report.affinity else "dim"))]
    if report.call is not None:
        call = report.call
        first = "no event" if call.first is None else f"the first event after {duration(call.first)}"
        ways.append(
            ("a long call", Text(printable(f"{call.tool}: {duration(call.seconds)}, {first}, {call.cuts} cuts")))
        )
    return ways


def _features(report: CheckReport) -> list[tuple[str, Text]]:
    def yes_or_no(value: bool | None, yes: str = "yes", no: str = "no") -> Text:  # noqa: FBT001 - a fact, not a switch
        return Text("not asked" if value is None else yes if value else no, style="" if value else "dim")

    where = {
        "header": "in the header X-Secrets",
        "body": "in the body of /create",
        None: "in the header and, unless it refuses, in the body",
    }
    final = report.terminal_tool
    return [
        ("resume", yes_or_no(report.resume, "yes: a call whose connection was cut was taken up again", "no")),
        ("task ranges", yes_or_no(report.ranges, no="no; tasks are listed whole or one by one")),
        (
            "task tools",
            yes_or_no(report.task_tools, _own_tools(report.own_tools), "no route; every task has the same tools"),
        ),
        ("messages", yes_or_no(report.messages, no="no; the prompt stands for the conversation")),
        ("terminal tool", yes_or_no(None if report.group_scoring is None else final is not None, printable(final))),
        ("group scoring", yes_or_no(report.group_scoring)),
        ("secrets", Text(where[report.secrets])),
    ]


def _own_tools(names: list[str]) -> str:
    if not names:
        return "can be asked for; this task has those of its environment"
    return f"this task has more than its environment: {printable(', '.join(names))}"


def _demand(demand: SessionDemand) -> str:
    factors = f"batch {demand.batch_size} x accumulation {demand.accumulation} x processes {demand.processes}"
    count = "1 session" if demand.sessions == 1 else f"{demand.sessions} sessions"
    if demand.sessions % demand.generations:
        return f"holds {count} open at a time ({factors})"
    tasks = "1 task" if demand.prompts == 1 else f"{demand.prompts} tasks"
    return f"holds {count} open at a time ({factors}; {tasks} x {demand.generations} generations)"


def _show_findings(report: CheckReport) -> None:
    console = out()
    console.print()
    for note in report.notes:
        show_note(note, console)
    for problem in report.problems:
        show_error(problem.what, problem.hints, label="problem", console=console)
    count = len(report.problems)
    if count:
        console.print(Text("1 problem." if count == 1 else f"{count} problems.", style="bold red"))
    else:
        console.print(Text("No problems.", style="bold green"))
