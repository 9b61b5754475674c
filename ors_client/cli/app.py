"""The commands of `ors`, in the order of its help. What they share is in `command`."""

import logging
from importlib.metadata import version
from typing import Annotated

import typer

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


app.command()(command(check))
app.command()(command(envs))
app.command()(command(splits))
app.command()(command(tasks))
app.command()(command(tools))
app.command()(command(prompt))
app.command()(command(play))
app.command(cls=RunCommand)(command(run))
app.command()(command(report))
app.command("compare")(command(compare_records))
app.command("merge")(command(merge_records))
app.command()(command(profile))
app.command()(command(export))
app.command()(command(replay))
