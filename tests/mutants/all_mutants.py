"""All mutants."""

from . import bridge_mutants, client_mutants

MUTANTS = (*client_mutants.MUTANTS, *bridge_mutants.MUTANTS)
