"""Every tool can be called by every provider's model, under a name that leads back to it."""

import logging
import re

from hypothesis import given
from hypothesis import strategies as st

from ors_client import ToolSpec
from ors_client.formats import ToolNames

REFUSED_NOWHERE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def named(*names):
    return ToolNames([ToolSpec(name=name) for name in names])


def test_accepted_name_is_kept_although_an_earlier_tool_would_be_spelt_so():
    names = named("file.read", "file_read")
    assert (names.alias("file_read"), names.alias("file.read")) == ("file_read", "file_read_2")


def test_refused_names_are_spelt_as_documented():
    given = ["file.read", "file-read", "2fast", "-x", "", "löschen", "class"]
    aliases = [named(*given).alias(name) for name in given]
    assert aliases == ["file_read", "file-read", "tool_2fast", "tool_-x", "tool_", "l_schen", "class"]


def test_long_names_with_a_common_start_stay_apart():
    names = named("x" * 65, "x" * 66)
    assert [names.alias("x" * 65), names.alias("x" * 66)] == ["x" * 64, "x" * 62 + "_2"]


def test_name_of_an_unlisted_tool_is_spelt_for_the_model_and_read_as_it_is():
    assert named("add").alias("old.tool") == "old_tool"
    assert named("add").tool("subtract") == "subtract"


def test_tool_that_is_listed_twice_is_shown_once_with_a_warning(caplog):
    first, second = ToolSpec(name="add", description="First."), ToolSpec(name="add", description="Second.")
    with caplog.at_level(logging.WARNING, "ors_client.formats"):
        names = ToolNames([first, second])
    assert names.specs == (first,)
    assert "'add' twice" in caplog.text


@given(st.lists(st.text(max_size=70), max_size=8, unique=True))
def test_aliases_are_accepted_and_lead_back(given_names):
    names = named(*given_names)
    for name in given_names:
        assert REFUSED_NOWHERE.fullmatch(names.alias(name))
        assert names.tool(names.alias(name)) == name
