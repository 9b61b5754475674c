"""Commands that look around: environments, splits, tasks, tools, and a task's prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ors_client import Environment, ORSError, Task, TaskRef, ToolList

from .arguments import Argument, read_arguments
from .block_printer import BlockPrinter
from .options import (
    EPISODE_TIMEOUT,
    SecretHostsOption,
    SecretOption,
    ServerOptions,
    SplitOption,
    TaskOption,
    choose_split,
    read_secrets,
)
from .output import labelled, one_line, out, printable, show, show_json, show_note, show_table

ImagesOption = Annotated[Path, typer.Option("--images", metavar="FOLDER", help="The folder for images.")]
IMAGES = Path("ors-images")

_PAGE = 20  # tasks in a table, unless more are asked for
_COLUMNS = 5  # keys of task specs that still fit beside each other on 80 columns
_CELL = 60  # characters of a value in a table
_DESCRIPTION = 400  # characters of a tool's or an argument's


def envs(options: ServerOptions) -> None:
    """List the server's environments, or with `--env owner/name` a deployment's variants; the first is the default."""
    with options.client() as client:
        names = client.list_environments(options.deployment)
    if options.as_json:
        show_json(names)
    else:
        show_table(["environment", "default"], [(name, "yes" * (position == 0)) for position, name in enumerate(names)])


def splits(options: ServerOptions) -> None:
    """List an environment's splits, with the number of their tasks."""
    with options.client() as client:
        environment = client.environment(options.env, variant=options.variant)
        found = [(split, environment.num_tasks(split.name)) for split in environment.list_splits()]
    if options.as_json:
        show_json([{"name": split.name, "type": split.type, "num_tasks": count} for split, count in found])
    else:
        rows = [(split.name, split.type, count) for split, count in found]
        show_table(["split", "type", "tasks"], rows, right=["tasks"])


def tasks(
    options: ServerOptions,
    *,
    split: SplitOption = None,
    start: Annotated[int | None, typer.Option("--start", metavar="N", help="The first index.")] = None,
    stop: Annotated[int | None, typer.Option("--stop", metavar="N", help="The index after the last.")] = None,
) -> None:
    """List a split's tasks: the first 20 in a table, all in JSON, or those from `--start` to `--stop`."""
    paged = start is None and stop is None and not options.as_json
    with options.client() as client:
        environment = client.environment(options.env, variant=options.variant)
        name = choose_split(environment, split)
        # One more than the page tells whether there are others.
        found = environment.list_tasks(name, 0, _PAGE + 1) if paged else environment.list_tasks(name, start, stop)
        there = _count(environment, name) if paged and len(found) > _PAGE else None
    if options.as_json:
        show_json([{"split": name, "index": task.index, "spec": task.spec} for task in found])
        return
    shown = found[:_PAGE] if paged else found
    _show_tasks(shown)
    if len(found) > len(shown):
        of_all = "" if there is None else f" of {there:,}"
        show_note(f"the first {_PAGE}{of_all} tasks of split {name!r}; for more: --stop N")
    if not found:
        show_note(f"split {name!r} has no tasks there")


def _count(environment: Environment, split: str) -> int | None:
    try:
        return environment.num_tasks(split)
    except ORSError:  # the tasks are there all the same
        return None


def _show_tasks(found: Sequence[Task]) -> None:
    keys = list(dict.fromkeys(key for task in found for key in task.spec))
    if len(keys) > _COLUMNS or "index" in keys:
        rows = [(_index(task), one_line(json.dumps(task.spec, ensure_ascii=False), 4 * _CELL)) for task in found]
        show_table(["index", "spec"], rows, right=["index"])
        return
    rows = [(_index(task), *(_cell(task.spec[key]) if key in task.spec else "" for key in keys)) for task in found]
    numbers = [key for key in keys if all(_is_number(task.spec.get(key, 0)) for task in found)]
    names = {key: one_line(key, _CELL) for key in keys}
    show_table(["index", *names.values()], rows, right=["index", *(names[key] for key in numbers)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _index(task: Task) -> str:
    return "" if task.index is None else str(task.index)


def _cell(value: object) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _CELL)


def tools(
    options: ServerOptions,
    *,
    split: SplitOption = None,
    task: Annotated[
        int | None, typer.Option("--task", metavar="N", help="Of this task, in a session: some have more.")
    ] = None,
    secret: SecretOption = None,
    secret_hosts: SecretHostsOption = None,
) -> None:
    """List an environment's tools, or with `--task` those of a task, with what their arguments are and mean."""
    with options.client(EPISODE_TIMEOUT) as client:
        environment = client.environment(options.env, variant=options.variant)
        if task is None:
            listed = environment.describe_tools()
        else:
            reference = TaskRef(choose_split(environment, split), task)
            with environment.session(reference, secrets=read_secrets(options, secret, secret_hosts)) as session:
                found = session.list_tools()
                listed = ToolList(
                    tools=found,
                    terminal_tool=session.terminal_tool(),
                    supports_score_group=session.supports_score_group(),
                )
    if options.as_json:
        show_json(listed)
        return
    for position, tool in enumerate(listed.tools):
        _show_tool(tool.name, tool.description, read_arguments(tool), first=position == 0)
    if listed.terminal_tool is not None:
        final = listed.terminal_tool
        message = Argument(final.arg or "", ("string",), "string", required=True, description="The final message.")
        about = f"(terminal) {final.description}"
        _show_tool(final.name, about, [message] * (final.arg is not None), first=not listed.tools)
    if not listed.tools and listed.terminal_tool is None:
        show_note("there are no tools")


def _show_tool(name: str, description: str, arguments: Sequence[Argument], *, first: bool) -> None:
    if not first:
        out().print()
    about = one_line(description, _DESCRIPTION)
    if 2 * len(name) <= out().width:
        show(labelled(name, "bold", about, gap=2))
    else:  # beside the name there would be too little room, or none
        show(Text(printable(name), style="bold"))
        show(Padding(Text(about), (0, 0, 0, 2)))
    table = Table.grid(padding=(0, 2))
    table.add_column()  # which indents the others
    for style in ("cyan", "", "dim", ""):
        table.add_column(style=style, overflow="fold", no_wrap=style == "dim")
    for argument in arguments:
        table.add_row(
            "",
            Text(printable(argument.name)),
            Text(printable(argument.takes())),
            "required" if argument.required else "optional",
            Text(one_line(argument.description, _DESCRIPTION)),
        )
    show(table if arguments else Text("  no arguments", style="dim"))


def prompt(
    options: ServerOptions,
    *,
    split: SplitOption = None,
    task: TaskOption = 0,
    messages: Annotated[bool, typer.Option("--messages", help="The conversation that the task begins with.")] = False,
    images: ImagesOption = IMAGES,
    secret: SecretOption = None,
    secret_hosts: SecretHostsOption = None,
) -> None:
    """Show what a task tells the model first."""
    with options.client(EPISODE_TIMEOUT) as client:
        environment = client.environment(options.env, variant=options.variant)
        reference = TaskRef(choose_split(environment, split), task)
        with environment.session(reference, secrets=read_secrets(options, secret, secret_hosts)) as session:
            conversation = session.get_messages() if messages else None
            blocks = [] if messages else session.get_prompt()
    if options.as_json:
        show_json(blocks if conversation is None else conversation)
    elif conversation is not None:
        BlockPrinter(images).messages(conversation)
    elif blocks:
        BlockPrinter(images).blocks(blocks)
    else:
        out().print("(the prompt is empty)")
