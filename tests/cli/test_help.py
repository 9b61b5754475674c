"""What each command says of itself."""

import re
import shlex

import pytest
import typer

from ors_client.cli.app import app

COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_the_command_takes(ors, name):
    shown = ors(name, "--help", env={"COLUMNS": "200"}).stdout
    examples = re.findall(r"^ *ors (.+?) *$", shown.rpartition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        word, *arguments = shlex.split(example.partition(" > ")[0])
        assert word == name
        COMMANDS[name].make_context(name, arguments)
