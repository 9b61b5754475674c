"""The commands in the pages are ones that `ors` takes."""

import re
import shlex

import pytest
import typer
from pages import snippets

from ors_client.cli.app import app

COMMANDS = [
    pytest.param(shlex.split(line, comments=True), id=f"{snippet.title}: {line[:40]}")
    for snippet in snippets("console")
    for line in re.findall(r"(?:^\$ |\| )(ors .+)", snippet.text.replace("\\\n", " "), re.MULTILINE)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_command_has_the_options_that_a_page_names(words):
    _, name, *arguments = words
    command = typer.main.get_command(app).commands[name]
    command.make_context(name, arguments, resilient_parsing=False)
