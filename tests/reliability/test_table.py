"""Each cell of the table of reliability names a test that is there."""

import ast
from pathlib import Path

import pytest
from fault_table import cases, met
from table import ROWS, Row, markdown

HERE = Path(__file__).parent


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_cell_names_a_test(row: Row) -> None:
    file, _, name = row.test.partition("::")
    function, _, parameter = name.partition("[")
    tree = ast.parse((HERE / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if parameter:
        assert parameter.removesuffix("]") in {case.id for case in cases() if met(case, "asyncio")}


def test_page_holds_the_table() -> None:
    assert markdown() in (HERE.parents[1] / "docs" / "faults.md").read_text()


def test_table_is_markdown() -> None:
    lines = markdown().splitlines()
    assert len(lines) == len(ROWS) + 2
    assert {line.count("|") for line in lines} == {5}
