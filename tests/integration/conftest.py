"""Fixtures of the integration tests: the command on a fresh catalog, and deployments over one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from local_stack.moto_server import REGION, MotoServer
from support.maintained_table import MaintainedTable, grow_old, new_table
from support.pipeline_deployment import Pipeline
from support.state_stores import a_table, state_address
from support.table_functions import Functions


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the loads of each table of a SQL catalog by its name."""
    counted: Counter[str] = Counter()
    load = OurSqlCatalog.load

    def loading(catalog: OurSqlCatalog, table: TableName) -> LoadedTable:
        counted[str(table)] += 1
        return load(catalog, table)

    monkeypatch.setattr(OurSqlCatalog, "load", loading)
    return counted


@pytest.fixture(params=["local", "local-one", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "spark":
        from icekeeper.engines.spark import SparkEngine

        return SparkEngine(request.getfixturevalue("spark_session").sparkContext)
    return LocalEngine(2 if request.param == "local" else 1)


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A local table without rows."""
    return new_table(local_catalog, tmp_path)


@pytest.fixture
def table_of_five(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A local table of five files."""
    return new_table(local_catalog, tmp_path, appends=5)


@pytest.fixture
def three_appends(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A local table of three appends."""
    return new_table(local_catalog, tmp_path, appends=3)


@pytest.fixture
def four_appends(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A local table of four appends."""
    return new_table(local_catalog, tmp_path, appends=4)


@pytest.fixture
def old_table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two appends, every file ten days old."""
    made = new_table(local_catalog, tmp_path, appends=2)
    grow_old(Path(path) for path in made.files())
    return made


@pytest.fixture
def pipeline(table_of_five: MaintainedTable, tmp_path: Path) -> Pipeline:
    """A deployment over that table, whose control bucket is a folder."""
    return Pipeline(table_of_five, tmp_path)


@pytest.fixture
def functions(
    table_of_five: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Functions]:
    functions = Functions(table_of_five, tmp_path, str(tmp_path / "state.db"), monkeypatch, capsys)
    yield functions
    functions.end()


@pytest.fixture
def aws_functions(
    table_of_five: MaintainedTable,
    tmp_path: Path,
    moto_dynamodb: MotoServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Functions]:
    """Functions whose state is in DynamoDB."""
    aws = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": REGION}
    state = state_address(moto_dynamodb, a_table(moto_dynamodb))
    functions = Functions(table_of_five, tmp_path, state, monkeypatch, capsys, **aws)
    yield functions
    functions.end()
