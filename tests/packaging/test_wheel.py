"""What `pip install` brings: the two packages with their types, and nothing that only this repository needs."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ors_client", "trl_bridge")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return HeaderParser().parsestr(wheel.read(name).decode())


def test_wheel_holds_only_the_two_packages(wheel):
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_source_distribution_holds_only_what_the_wheel_is_built_from(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    strays = {name for name in files if name.split("/")[0] not in PACKAGES}
    # hatchling adds the last two by itself.
    assert strays == {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO"} | (strays & {".gitignore"})
    assert not {name for name in files if name.endswith((".pyc", ".log", ".jsonl"))}


def test_wheel_holds_every_module_and_style_sheet_of_the_packages(wheel):
    paths = (path for package in PACKAGES for kind in ("*.py", "*.css") for path in (ROOT / package).rglob(kind))
    files = {path.relative_to(ROOT).as_posix() for path in paths}
    assert files <= set(wheel.namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_tells_type_checkers_that_it_is_typed(wheel, package):
    assert f"{package}/py.typed" in wheel.namelist()


def test_wheel_holds_the_licence(wheel):
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


def test_wheel_needs_only_what_a_client_needs(metadata):
    requirements = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.split(r"[^A-Za-z0-9-]", line)[0] for line in requirements}
    assert names == {"aiohttp", "anyio", "httpx", "httpx-sse", "pydantic"}


def test_wheel_offers_the_extras_of_users_alone(metadata):
    assert set(metadata.get_all("Provides-Extra", [])) == {"cli", "ray", "trl"}


def test_torch_is_pinned_wherever_it_is_required(metadata):
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    required = [line for group in groups.values() for line in group if isinstance(line, str)]
    torch = [line for line in [*required, *metadata.get_all("Requires-Dist", [])] if re.match(r"torch\b", line)]
    assert torch
    assert all(re.fullmatch(r"torch==\d+\.\d+\.\d+", line) for line in torch)
