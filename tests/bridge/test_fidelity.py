"""What a model sees of a tool's schema, read from rendered prompts; `benchmarks/fidelity.py` prints the whole table."""

import pytest
from benchmarks.fidelity import JSON_TEMPLATES, OurEnvironment, incumbent, measure
from bridge.schemas import CORPUS


def test_corpus_is_large_and_without_repetition():
    assert len({spec.name for spec in CORPUS}) == len(CORPUS) >= 60


@pytest.mark.parametrize("template", JSON_TEMPLATES)
def test_every_schema_reaches_the_model_word_for_word(template):
    assert measure(OurEnvironment.of, template) == {"equal": len(CORPUS)}


def test_incumbent_passes_on_fewer_schemas_and_loses_tools():
    counts = measure(incumbent, "qwen3")
    assert counts.total() == len(CORPUS)
    assert counts["equal"] + counts["reworded"] < len(CORPUS) / 2
    assert counts["dropped"] > 0
