"""What is said of a trainer that is not as this package knows it."""

from __future__ import annotations

from typing import Any

from ors_client._shared import get_logger

logger = get_logger(__name__)


def warn_unknown(trainer: Any, missing: str, effect: str) -> None:
    """Warn that a trainer lacks something of the TRL release that this package was written for."""
    logger.warning("%s has no %s as trl 1.16 has it; %s.", type(trainer).__name__, missing, effect)
