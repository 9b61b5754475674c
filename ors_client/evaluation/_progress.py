"""A bar while episodes are played, in a notebook or where it is asked for. Nothing is imported until then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator

from ors_client.record import EpisodeRecord
from ors_client.report import Figures


def is_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and type(get_shell()).__name__ == "ZMQInteractiveShell"


@contextlib.contextmanager
def progress_bar(todo: int, figures: Figures, *, wanted: bool | None) -> Generator[Callable[[EpisodeRecord], None]]:
    """Show how many episodes were played, and the mean reward so far.

    Args:
        todo: How many will be.
        figures: Gets the episodes.
        wanted: Whether to show it; `None` shows it in a notebook that has tqdm.

    Raises:
        ModuleNotFoundError: It is wanted, and tqdm is not installed.
    """
    if wanted is False or not todo or (wanted is None and not is_notebook()):
        yield lambda _: None
        return
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415 - an optional package, and slow to import
    except ModuleNotFoundError:
        if wanted:
            raise
        yield lambda _: None
        return
    with tqdm(total=todo, unit="episode") as bar:

        def advance(episode: EpisodeRecord) -> None:
            figures.add(episode)
            bar.set_postfix_str(so_far(figures), refresh=False)
            bar.update()

        yield advance


def so_far(figures: Figures) -> str:
    """Return the mean reward and the failures so far, in a few words."""
    mean = "" if figures.mean_reward is None else f"reward {figures.mean_reward:.2f}"
    return f"{mean} {figures.broken} failed".strip() if figures.broken else mean
