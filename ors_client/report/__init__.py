"""Figures of a record, and one HTML page about it.

`write_report("episodes.jsonl", "report.html")` reads a record of training or of an evaluation, of any length, and needs
no package besides the client's own. `summarise` gives the figures alone.
"""

from ._figures import Figures, ToolFigures, pass_at
from ._page import write_report
from ._reading import summarise

__all__ = ["Figures", "ToolFigures", "pass_at", "summarise", "write_report"]
