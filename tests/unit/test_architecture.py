"""The structure of the source: imports point downwards, plans are pure, foreign packages have few importers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.house_plan import FLOORS, PURE, ROOMS, SIDE_EFFECTS, UNKNOWN_TO
from support.source_tree import (
    DEPLOYED,
    LOCAL_STACK,
    MODULES,
    ROOT,
    SOURCES,
    imported,
    is_within,
    module_name,
    own_imports,
    relative,
    room,
)


def forbidden_imports(importer: str, forbidden: Collection[str]) -> set[str]:
    """Imports of forbidden packages by a room or module."""
    assert importer in MODULES
    return {
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if is_within(name, importer)
        for target in [*own_imports(path), *(module for module, _ in imported(path))]
        if any(is_within(target, package) for package in forbidden)
    }


def test_the_docs_list_every_room() -> None:
    """docs/generate_rooms.py writes the table of rooms from the plan and the rooms' docstrings."""
    page = ROOT / "docs" / "contributing" / "architecture.md"
    script = ROOT / "docs" / "generate_rooms.py"
    done = subprocess.run([sys.executable, str(script), "--print"], capture_output=True, text=True, check=True)
    assert done.stdout == page.read_text(), "run docs/generate_rooms.py"


def test_imports_point_downwards() -> None:
    level = {name: number for number, name in enumerate(ROOMS)}
    upwards = [
        f"{relative(path)} imports {target}"
        for name, path in MODULES.items()
        if name != "icekeeper"
        for target in own_imports(path)
        if room(target) != room(name) and level[room(target)] >= level[room(name)]
    ]
    assert upwards == []


def children(house: str) -> dict[str, set[str]]:
    """Rooms and modules directly inside a room, and the imports between them."""
    prefix = f"icekeeper.{house}."

    def child(module: str) -> str | None:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None

    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        importer = child(name)
        if importer is not None:
            found.setdefault(importer, set()).update(
                target for target in map(child, own_imports(path)) if target not in (None, importer)
            )
    return found


@pytest.mark.parametrize("house", sorted(FLOORS))
def test_a_room_keeps_its_floors(house: str) -> None:
    """Planning and execution do not import each other: shared code is below both, and their caller above."""
    level = {name: number for number, floor in enumerate(FLOORS[house]) for name in floor}
    found = children(house)
    assert sorted(found) == sorted(level)
    pairs = [(name, target) for name, targets in found.items() for target in targets]
    assert [f"{name} imports {target}" for name, target in pairs if level[target] >= level[name]] == []


def test_no_operation_imports_another_operation() -> None:
    rooms = {
        name
        for name in children("operations")
        if (path := MODULES.get(f"icekeeper.operations.{name}")) and path.name == "__init__.py"
    }
    assert {"compaction", "expiry", "manifests", "orphans", "position_deletes", "statistics"} <= rooms
    assert {name: targets for name, targets in children("operations").items() if name in rooms and targets} == {}


def test_imports_have_no_cycle() -> None:
    assert_acyclic({name: {target for target in own_imports(path) if target != name} for name, path in MODULES.items()})


def assert_acyclic(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_rooms_import_no_forbidden_packages_and_plans_are_pure() -> None:
    forbidden = {**UNKNOWN_TO, **dict.fromkeys(PURE, SIDE_EFFECTS)}
    assert {importer: forbidden_imports(importer, packages) for importer, packages in forbidden.items()} == {
        importer: set() for importer in forbidden
    }


# Foreign packages, and imports of code that is not deployed.

# Foreign package → where it may be imported: a room, or a file below the package.
ALLOWED_IN: dict[str, frozenset[str]] = {
    "pyspark": frozenset({"engines/spark.py"}),
    "py4j": frozenset({"engines/spark.py"}),
    "boto3": frozenset({"aws", "demo/seaweedfs.py"}),
    "botocore": frozenset(
        {"aws", "catalogs", "storage", "state", "demo/seaweedfs.py", "pyiceberg_private", "pipeline/executions.py"}
    ),
    "sqlalchemy": frozenset({"catalogs", "pyiceberg_private"}),
    "sqlglot": frozenset({"policy"}),
    "strictyaml": frozenset({"policy", "pyiceberg_private"}),
    "requests": frozenset({"catalogs", "pyiceberg_private"}),
    "thrift": frozenset({"row_group_copy"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli", "demo", "report/terminal.py"}),
    "duckdb": frozenset({"demo/duckdb_child.py"}),
    "aws_lambda_powertools": frozenset(),
}


def test_foreign_packages_are_imported_only_where_allowed() -> None:
    forbidden = {
        f"{relative(path)} imports {package}"
        for path in SOURCES
        for package in {module.split(".")[0] for module, _ in imported(path)} & ALLOWED_IN.keys()
        if not {room(module_name(path)), relative(path)} & ALLOWED_IN[package]
    }
    assert forbidden == set()


def imports_of(paths: Collection[Path], packages: Collection[str]) -> set[str]:
    """Imports of these packages, by file."""
    return {
        f"{relative(path)} imports {module}"
        for path in paths
        for module, _ in imported(path)
        if module.split(".")[0] in packages
    }


def test_deployed_code_imports_nothing_that_is_not_deployed() -> None:
    assert imports_of(DEPLOYED, {"benchmarks", "local_stack", "moto", "state_machine", "support"}) == set()


def test_the_local_stack_imports_nothing_of_the_tests() -> None:
    assert imports_of(LOCAL_STACK, {"hypothesis", "pytest", "support"}) == set()


# Modules of PyIceberg whose contents are not a public interface.
PYICEBERG_INSIDES = frozenset(
    {"pyiceberg.catalog.rest", "pyiceberg.catalog.rest.scan_planning", "pyiceberg.utils.config"}
)


def test_private_names_of_pyiceberg_are_used_in_one_room() -> None:
    """Modules and names with an underscore, and modules whose contents are not a public interface."""
    forbidden = set()
    for path in SOURCES:
        if relative(path).startswith("pyiceberg_private/"):
            continue
        for module, name in imported(path):
            parts = [*module.split("."), name or ""]
            if parts[0] == "pyiceberg" and (module in PYICEBERG_INSIDES or any(p.startswith("_") for p in parts)):
                forbidden.add(f"{relative(path)}: {module}.{name}")
    assert forbidden == set()
