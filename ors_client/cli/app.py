"""The commands of `ors`, in the order of its help. What they share is in `command`."""

import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer
from typer.core import TyperCommand

from .check import check
from .command import command, log_shown
from .compare import compare_records
from .export import export
from .listing import envs, prompt, splits, tasks, tools
from .merge import merge_records
from .play import play
from .profile import profile
from .replay import replay
from .report import report
from .run import RunCommand, run

app = typer.Typer(
    help="Look at, check, play and evaluate with the environments of an Open Reward Standard server.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer's way
    if asked:
        typer.echo(f"ors-client {version('ors-client')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _version: Annotated[  # noqa: FBT002 - typer's way
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and end.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Show each request; twice: retries, pings and deletions too."),
    ] = 0,
) -> None:
    """Take the options that stand before a command."""
    if verbose:
        context.with_resource(log_shown(logging.INFO if verbose == 1 else logging.DEBUG))


def _add(
    function: Callable[..., int | None], *examples: str, name: str | None = None, cls: type[TyperCommand] | None = None
) -> None:
    """Add a command, with examples below its help."""
    # Two blanks at its end break a line of Markdown, and a block of code would be framed and padded.
    epilog = "\n".join(f"`ors {example}`  " for example in examples)
    app.command(name or function.__name__, cls=cls, epilog=f"Examples:\n\n{epilog}")(command(function))


_URL = "http://localhost:8000"
_add(
    check,
    f"check {_URL} --hold 60",
    f"check {_URL} --call run_tests --arguments '{{\"seconds\": 70}}'",
    "check owner/name",
)
_add(envs, f"envs {_URL}", "envs owner/name")
_add(splits, f"splits {_URL} --env math")
_add(tasks, f"tasks {_URL} --split train --stop 50", f"tasks {_URL} --json > tasks.json")
_add(tools, f"tools {_URL}", f"tools {_URL} --task 3 --json")
_add(prompt, f"prompt {_URL} --split test --task -1")
_add(play, f"play {_URL} --task 3", f"play {_URL} --script calls.jsonl --json")
_add(
    run,
    f"run {_URL} --model my-model --base-url http://localhost:9000/v1 --attempts 4",
    f"run {_URL} --model gpt-5 --split test -n 100 --set temperature=0.7",
    f"run {_URL} --model my-model --shard 2/8",
    cls=RunCommand,
)
_add(report, "report episodes.jsonl -o report.html")
_add(compare_records, "compare before.jsonl after.jsonl", name="compare")
_add(merge_records, "merge episodes-1-of-2.jsonl episodes-2-of-2.jsonl -o episodes.jsonl", name="merge")
_add(profile, "profile episodes.jsonl", "profile episodes.jsonl --between 0.2 0.8 -o tasks.json")
_add(export, "export episodes.jsonl --to sft -o sft.jsonl")
_add(replay, "replay episodes.jsonl --port 8001")
