"""The command `ors`, of the extra `cli`. Importing this package imports neither typer nor rich."""

import io
import sys

_EXTRA = ("typer", "rich")


def main() -> None:
    """Run the command; without its extra, say how to install it."""
    try:
        from .app import app  # noqa: PLC0415 - the extra may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit(f"error: The command `ors` needs {error.name}.\n  try: pip install 'ors-client[cli]'")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows is no reason to fail
    app(prog_name="ors")
