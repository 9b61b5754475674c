"""The house: layers as folders, each importing only from those below it; `house` computes it from the imports."""

import ast

import ors_client
import ors_client._shared
from tests.mutants.catalogue import MUTANTS
from tests.packaging import house

# Judgement may not wait, read a clock or touch the network.
IO = {"aiohttp", "anyio", "asyncio", "httpx", "httpx_sse", "requests", "socket", "threading", "time", "trio"}
JUDGEMENT_IMPORTS = {"ors_client: values, errors, settings"}
# All that the bridge knows of the client beyond the public names.
SHARED = [
    "REFUSALS",
    "BlockRecorder",
    "CallEntry",
    "EpisodeLog",
    "Failure",
    "LoopThread",
    "OwnProcess",
    "SchemaResolver",
    "Secrets",
    "brief",
    "check_headers",
    "checked",
    "credentials_in",
    "flatten",
    "get_logger",
    "images_absent",
    "is_one_text",
    "known_versions",
    "mapping",
    "placeholder",
    "plain_text",
    "read_task_file",
    "refusal_text",
    "secret_values",
    "sequence",
    "wait",
]
FOREIGN = {"openreward", "ors", "ors_sdk", "fixtures", "tests"}


def test_every_room_has_its_place():
    assert set(house.rooms()) == set(house.ORDER)


def test_no_room_imports_from_one_above_it():
    upwards = [
        f"{module} -> {imported}"
        for module, found in house.edges().items()
        for imported in found
        if house.ORDER.index(house.room(imported)) > house.ORDER.index(house.room(module))
    ]
    assert upwards == []


def test_no_modules_import_each_other():
    assert house.circles() == []


def test_house_is_small_enough_to_be_remembered():
    assert len(house.rooms()) <= 22
    assert max(map(house.floor, house.rooms())) <= 10


def test_judgement_imports_only_the_ground_and_nothing_that_does_io():
    assert house.rooms()["ors_client/_protocol"] == JUDGEMENT_IMPORTS
    judgement = [module for module in house.sources() if house.room(module) == "ors_client/_protocol"]
    imported = {each.package for module in judgement for each in house.imports(module)}
    assert imported.isdisjoint(IO)


def test_bridge_imports_public_names_and_the_shared_package_alone():
    private = []
    for module in house.sources():
        if not module.startswith("trl_bridge"):
            continue
        private += [
            f"{module}: {each.module}.{each.name or ''}"
            for each in house.imports(module)
            if each.package == "ors_client" and not is_public(each.module, each.name)
        ]
        private += [
            f"{module}: ors_client.{node.attr}"
            for node in ast.walk(house.tree(module))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "ors_client"
            and node.attr not in ors_client.__all__
        ]
    assert private == []


def test_shared_package_lists_what_the_bridge_imports_and_nothing_else():
    taken = {
        each.name
        for module in house.sources()
        if module.startswith("trl_bridge")
        for each in house.imports(module)
        if each.module == "ors_client._shared"
    }
    assert taken == set(SHARED)
    assert ors_client._shared.__all__ == SHARED


def is_public(module: str, name: str | None) -> bool:
    if module == "ors_client._shared":
        return True
    if any(part.startswith("_") for part in (*module.split("."), name or "")):
        return False
    return module != "ors_client" or name is None or name in ors_client.__all__


def test_packages_import_neither_sdk_nor_this_repository():
    assert {each.package for module in house.sources() for each in house.imports(module)}.isdisjoint(FOREIGN)


def test_every_mutant_can_be_made():
    assert [mutant.name for mutant in MUTANTS if not mutant.fits(house.ROOT)] == []


def test_loggers_of_modules_that_log_a_server_s_text_hide_what_it_may_echo():
    plain = {module for module in house.sources() if "logging.getLogger(" in ast.unparse(house.tree(module))}
    assert plain == {
        "ors_client._http.redaction",  # which makes the others
        "ors_client._types",  # logs no word of a server
        "ors_client.evaluation._ray_cluster",  # quietens a logger of Ray's
        "ors_client.cli.command",  # shows what the others log
        "ors_client.replay._server",  # is a server
    }
