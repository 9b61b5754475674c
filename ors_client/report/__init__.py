"""Figures of a record, one HTML page about it, and whether two records differ.

`write_report("episodes.jsonl", "report.html")` reads a record of training or of an evaluation, of any length, and needs
no package besides the client's own. `summarise` gives the figures alone, and `compare` pairs those of two by task.
"""

from ._compare import Comparison, compare
from ._figures import Figures, ToolFigures, pass_at, pass_hat
from ._intervals import Estimate
from ._page import write_report
from ._profile import Profile, TaskRate, profile
from ._reading import summarise

__all__ = [
    "Comparison",
    "Estimate",
    "Figures",
    "Profile",
    "TaskRate",
    "ToolFigures",
    "compare",
    "pass_at",
    "pass_hat",
    "profile",
    "summarise",
    "write_report",
]
