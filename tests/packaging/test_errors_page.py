"""The page of errors is what the docstrings say, and these say what a reader needs."""

import errors_page
import pytest

from ors_client import ORSError, ToolError

ERRORS = [pytest.param(error, id=error.__name__) for error in errors_page.errors()]
BASES = {ORSError, ToolError}  # their own causes are those of the classes below them


def test_page_is_made_from_the_docstrings():
    assert errors_page.PAGE.read_text() == errors_page.page(), "run python -m tests.packaging.errors_page"


@pytest.mark.parametrize("error", ERRORS)
def test_docstring_says_what_happened_what_was_tried_and_what_to_do(error):
    wanted = ("", "Do") if error in BASES else ("", *errors_page.LABELS)
    assert tuple(errors_page.paragraphs(error)) == wanted


@pytest.mark.parametrize("error", ERRORS)
def test_class_describes_every_field_it_sets(error):
    assert all(errors_page.fields(error).values())
