"""The public names: listed in one sorted `__all__`, each of them there, none forgotten."""

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

import ors_client

ROOT = Path(__file__).parents[2]
PACKAGES = ("ors_client", "trl_bridge")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_resolves(package):
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_listed(package):
    module = importlib.import_module(package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_listed_names_are_sorted(package):
    # The linter knows the order (constants, classes, functions); without `noqa` nothing can be excepted from it.
    options = ["--isolated", "--ignore-noqa", "--no-cache", "--select", "RUF022"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(ROOT / package / "__init__.py")]
    ruff = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ruff.returncode == 0, ruff.stdout


def test_every_error_is_public():
    def below(error):
        return {error}.union(*map(below, error.__subclasses__()))

    tree = {
        error.__name__ for error in below(ors_client.ORSError) if error.__module__ == ors_client.ORSError.__module__
    }
    assert tree <= set(ors_client.__all__)
