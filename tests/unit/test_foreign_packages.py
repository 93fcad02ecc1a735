"""Foreign packages stay in their rooms, and what is deployed knows nothing of what stands beside it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from support.source_tree import (
    DEPLOYED,
    LOCAL_STACK,
    SOURCES,
    imported,
    module_name,
    relative,
    room,
)

# Foreign package → where it may be imported: a room, or a file below the package.
AT_HOME: dict[str, frozenset[str]] = {
    "pyspark": frozenset({"engines/spark.py"}),
    "py4j": frozenset({"engines/spark.py"}),
    "boto3": frozenset({"aws", "demo/seaweedfs.py"}),
    "botocore": frozenset(
        {"aws", "catalogs", "storage", "state", "demo/seaweedfs.py", "pyiceberg_private", "pipeline/executions.py"}
    ),
    "sqlalchemy": frozenset({"catalogs", "pyiceberg_private"}),
    "strictyaml": frozenset({"policy", "pyiceberg_private"}),
    "requests": frozenset({"catalogs", "pyiceberg_private"}),
    "thrift": frozenset({"row_group_copy"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli", "demo", "report/terminal.py"}),
    "duckdb": frozenset({"demo/duckdb_child.py"}),
    "aws_lambda_powertools": frozenset(),
}


def is_at_home(path: Path, homes: Collection[str]) -> bool:
    return room(module_name(path)) in homes or relative(path) in homes


@pytest.mark.parametrize("package", sorted(AT_HOME))
def test_foreign_packages_stay_in_their_rooms(package: str) -> None:
    strangers = {
        relative(path)
        for path in SOURCES
        for module, _ in imported(path)
        if module.split(".")[0] == package and not is_at_home(path, AT_HOME[package])
    }
    assert strangers == set()


def imports_of(paths: Collection[Path], packages: Collection[str]) -> set[str]:
    """Which files import of these packages."""
    return {
        f"{relative(path)} imports {module}"
        for path in paths
        for module, _ in imported(path)
        if module.split(".")[0] in packages
    }


def test_what_is_deployed_knows_nothing_of_what_stands_beside_it() -> None:
    assert imports_of(DEPLOYED, {"benchmarks", "local_stack", "moto", "state_machine", "support"}) == set()


def test_the_local_stack_needs_no_tests() -> None:
    assert imports_of(LOCAL_STACK, {"hypothesis", "pytest", "support"}) == set()
