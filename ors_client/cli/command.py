"""What makes a function a command: the server's options, errors in one form with what to try, and the exit status.

A command is a plain function that takes `ServerOptions` (or does not), returns its exit status, and raises what it
meets: 0 is for fine, 1 for problems, 2 for misuse.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any, get_type_hints

import typer

import ors_client

from .hints import hints_for
from .options import Misuse, ServerOptions
from .output import show_error, show_json, show_note
from .signals import exit_on_signal

PROBLEMS = 1
MISUSE = 2
INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make a function that typer takes as a command.

    Args:
        function: With the parameter `options`, it gets `ServerOptions`; its other parameters are options as typer reads
            them. Its docstring is the help.
    """
    own = inspect.signature(function, eval_str=True).parameters
    parameters = [
        *(_options_parameters() if "options" in own else ()),
        *(p for name, p in own.items() if name != "options"),
    ]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        options: ServerOptions | None = None
        if "options" in own:
            options = given["options"] = ServerOptions(
                **{field.name: given.pop(field.name) for field in fields(ServerOptions)}
            )
        with _notes_shown(), exit_on_signal():
            raise typer.Exit(_exit_status(lambda: function(**given), options))

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined] - what inspect documents
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters], return_annotation=None
    )
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _options_parameters() -> list[inspect.Parameter]:
    annotations = get_type_hints(ServerOptions, include_extras=True)
    defaults = inspect.signature(ServerOptions).parameters
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name].default, annotation=annotations[name]
        )
        for name in defaults
    ]


def _exit_status(work: Callable[[], int | None], options: ServerOptions | None) -> int:
    as_json = options is not None and options.as_json
    try:
        return work() or 0
    except Misuse as error:
        show_failure(error, [], as_json=as_json)
        return MISUSE
    except ors_client.ORSError as error:
        show_failure(error, [] if options is None else hints_for(error, options), as_json=as_json)
        return PROBLEMS
    except KeyboardInterrupt:
        show_note("interrupted")
        return INTERRUPTED


def show_failure(error: Exception, hints: list[str], *, as_json: bool) -> None:
    """Say what ended a command, and what to try."""
    if as_json:
        show_json({"error": {"kind": type(error).__name__, "message": str(error), "try": hints}})
    else:
        show_error(str(error), hints)


class _Notes(logging.Handler):
    """Shows each warning once: a command may read a record several times."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._shown:
            self._shown.add(message)
            show_note(message)


@contextlib.contextmanager
def log_shown(level: int) -> Generator[None]:
    """Show what both packages log from `level` on, on standard error; warnings are shown as notes without this."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(lambda record: record.levelno < logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("ors_client", "trl_bridge")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(before)


@contextlib.contextmanager
def _notes_shown() -> Generator[None]:
    """Show the client's warnings in the command's own form."""
    logger, handler = logging.getLogger("ors_client"), _Notes()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
