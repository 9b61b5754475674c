"""The command `ors report`: a page about a record of training or of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ors_client.record import read
from ors_client.report import write_report
from ors_client.report._output import is_stream

from .figures import PassAtOption, Unscored, UnscoredOption, as_json, show_figures
from .options import Misuse
from .output import out, printable, show_json


def report(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="The episodes, as JSON lines.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page; left out, beside the record.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="The page's heading.")] = None,
    transcripts: Annotated[
        int, typer.Option("--transcripts", min=0, metavar="N", help="How many episodes are shown in full.")
    ] = 40,
    pass_at: PassAtOption = 1.0,
    unscored: UnscoredOption = Unscored.ZERO,
    as_json_: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
) -> None:
    """Write one HTML page about a record: rewards, failures, the slowest tools, and episodes to read."""
    page = output or record.with_suffix(".html")
    if page.exists() and page.samefile(record):
        raise Misuse("The page would take the record's place; name another with -o FILE.")
    streamed = is_stream(page)
    if streamed and as_json_:
        raise Misuse(f"The page and the JSON would mix in {str(page)!r}; name a file with -o FILE.")
    try:
        if next(read(record), None) is None:
            raise Misuse(
                f"{str(record)!r} holds no episode; records are what `ors run` and the bridge's record= write."
            )
        figures = write_report(
            record, page, title=title, transcripts=transcripts, passing=pass_at, unscored=unscored.value_in_means
        )
    except OSError as error:  # one of writing names no file
        raise Misuse(f"{str(error.filename or page)!r}: {error.strerror or error}.") from None
    if as_json_:
        show_json({**as_json(figures), "record": str(record), "report": str(page)})
        return
    if streamed:  # whoever reads the page from a pipe wants nothing else in it
        return
    show_figures(figures)
    out().print(f"report  {printable(page)}", soft_wrap=True)
