"""The faults that `python -m tests.mutants` tries can still be put into the product."""

from collections import Counter
from pathlib import Path

from tests.mutants.all_mutants import MUTANTS
from tests.mutants.catalogue import problems

ROOT = Path(__file__).parents[2]
FEWEST = {"ors_client/_protocol": 20, "ors_client/_http": 15, "ors_client/_lifecycle": 15, "trl_bridge": 20}


def test_every_mutant_can_be_made_and_has_tests():
    assert problems(ROOT, MUTANTS) == []


def test_every_area_has_mutants():
    assert Counter(mutant.area for mutant in MUTANTS) >= Counter(FEWEST)
