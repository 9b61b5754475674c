"""The command `ors check`: what a server is and offers, for people and for scripts."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Annotated, Any

import anyio
import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ors_client import KeepalivePolicy
from ors_client.report._text import duration

from .check_report import CheckReport, EnvironmentDescription, Problem, SessionDemand
from .command import INTERRUPTED, PROBLEMS
from .options import SecretHostsOption, SecretOption, ServerOptions, SplitOption, TaskOption, read_secrets
from .output import err, out, printable, show, show_error, show_json, show_note
from .server_check import ServerCheck
from .signals import run_until_signal

_REAPED = 900  # seconds after which the official servers end a session without a sign of life
_OFFICIAL = ("openreward ", "ors-sdk")
_FEWEST = 2  # rollouts of one prompt that GRPOConfig takes
_LABEL = len("group scoring")
_PANEL = "What a GRPO run would ask of it"


def check(
    options: ServerOptions,
    *,
    split: SplitOption = None,
    task: TaskOption = 0,
    secret: SecretOption = None,
    secret_hosts: SecretHostsOption = None,
    hold: Annotated[
        float | None,
        typer.Option(
            "--hold",
            min=1,
            metavar="SECONDS",
            help="Hold a session for so long, pinged as in training, and see whether the server keeps it.",
        ),
    ] = None,
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

    Opens one session (another with --hold) and calls none of its tools. The exit status is 0 when all is well, 1 when
    there are problems.
    """
    demand = SessionDemand(batch_size, generations, accumulation, processes)
    secrets = read_secrets(options, secret, secret_hosts)
    with contextlib.nullcontext() if options.as_json else err().status(f"examining {printable(options.url)}") as status:

        def show_held(seconds: float) -> None:
            if status is not None:
                status.update(f"holding a session: {seconds:.0f} of {hold:g} s")

        server_check = ServerCheck(options, split=split, task=task, secrets=secrets, hold=hold, on_hold=show_held)
        interrupted = anyio.run(run_until_signal, server_check.examine)
    if interrupted:
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
