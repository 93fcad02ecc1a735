"""Fixtures over real components: a SeaweedFS table bucket, Iceberg-Java, a local PyIceberg catalog."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from moto.glue.models import glue_backends
from moto.s3tables.models import s3tables_backends
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from artifacts.layer import remove_bytecode
from artifacts.pins import ROOT
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.pyiceberg_private.transactions import copy_metadata_once
from local_stack import moto_s3tables
from local_stack.moto_dynamodb import dynamodb_that_keeps_its_promises
from local_stack.moto_server import MotoServer, running_moto
from support.command import Command, build_the_command_once
from support.duckdb_session import DuckDB, shared_duckdb
from support.iceberg_java import IcebergJava, start_other_jvms_sooner, start_spark
from support.java_writer import JavaTables
from support.whole_run import (
    copy_no_metadata,
    rewrite_a_share_of_assertions,
    share_avro_schemas,
    share_aws_models,
    share_compiled_sql,
    wait_for_no_disk,
    write_into_memory,
)

# Spark returns timestamps as local time without a zone: in UTC they equal those of other readers.
os.environ["TZ"] = "UTC"
time.tzset()

share_aws_models()
share_compiled_sql()
wait_for_no_disk()
build_the_command_once()
start_other_jvms_sooner()
# Most tests begin with a few PyIceberg appends.
copy_metadata_once()
copy_no_metadata()
share_avro_schemas()

# Servers and a JVM share two cores with the tests, so the time of an example is no evidence.
hypothesis.settings.register_profile("icekeeper", deadline=None, max_examples=60)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile("icekeeper")

_SPARK = {"spark_session", "iceberg_java"}
_SEAWEEDFS = {"seaweedfs", "table_bucket"}
_MOTO = {"moto_server", "moto_dynamodb"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what is slow, or needs Java or a server")
    parser.addoption("--in-memory", action="store_true", help="write temporary files into memory, if it has the room")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--in-memory"):
        write_into_memory()
    rewrite_a_share_of_assertions(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect ``nightly/``, whose tests take minutes, with the nightly profile only."""
    is_nightly = config.getoption("--hypothesis-profile") == "nightly"
    return True if collection_path.name == "nightly" and not is_nightly else None


def pytest_sessionfinish() -> None:
    """Remove the bytecode that tests compile: SAM packs the whole folder and would deploy all functions again."""
    remove_bytecode(ROOT / "functions")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests that need a server, and start slow tests first, so that no worker runs a slow test alone at the end.

    All tests that need Spark run in one worker, so that a run starts one session.
    """
    quick: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if "spark" in getattr(getattr(item, "callspec", None), "params", {}).values():
            names.add("spark_session")  # a fixture requests it at run time, for this parameter only
        if names & _SPARK:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
        if names & _SEAWEEDFS:
            item.add_marker(pytest.mark.seaweedfs)
        needs_more = names & (_SPARK | _SEAWEEDFS | _MOTO) or item.get_closest_marker("slow")
        (others if needs_more else quick).append(item)
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=others)
        items[:] = quick
    yield
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # in random order otherwise


def pytest_collection() -> None:
    """Disable garbage collection: thousands of tests and modules live until the end, and scanning them takes a fifth
    of the collection.  Afterwards the collector scans new objects only, and seldom.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seed of the order, which -q omits."""
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"this order again: --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def own_log_handlers() -> Iterator[None]:
    """Remove log handlers that write to the test's standard error, which is closed after the test."""
    before = list(logging.root.handlers)
    yield
    for handler in list(logging.root.handlers):
        if handler not in before and type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def java_and_servers(pytestconfig: pytest.Config) -> None:
    """Every fixture that starts Java or a server depends on this one, which skips its tests in a quick run."""
    if pytestconfig.getoption("--quick"):
        pytest.skip("needs Java or a server, which a quick run does not start")


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory, java_and_servers: None) -> Iterator[SeaweedFSServer]:
    """One real server per worker process."""
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs"), room_bytes=1 << 30) as server:
        yield server


_bucket_numbers = itertools.count(1)


@pytest.fixture
def table_bucket(seaweedfs: SeaweedFSServer) -> dict[str, str]:
    """PyIceberg's properties for a new table bucket."""
    name = f"bucket-{next(_bucket_numbers)}"
    seaweedfs.create_table_bucket(name)
    return seaweedfs.catalog_properties(name)


@pytest.fixture(scope="session")
def spark_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java_and_servers: None
) -> Iterator[SparkSession]:
    """The only Spark session of the run, which our engine finds.

    pytest-xdist writes the group into the test ids.  Without a group every worker would start a session.
    """
    in_group = "@spark" in os.environ["PYTEST_CURRENT_TEST"]
    if request.config.getoption("loadgroup", False) and not in_group:
        pytest.fail(
            "not in the group 'spark': name this fixture or a parameter 'spark', and see that groups work at all"
        )
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def iceberg_java(spark_session: SparkSession) -> IcebergJava:
    """Iceberg-Java 1.10.2 as a reader of local tables."""
    return IcebergJava(spark_session)


@pytest.fixture(scope="session")
def java_tables(spark_session: SparkSession) -> JavaTables:
    """Iceberg-Java 1.10.2 as a writer of local tables."""
    return JavaTables(spark_session)


@pytest.fixture(scope="session")
def duckdb() -> DuckDB:
    """DuckDB as a reader of many small tables."""
    return shared_duckdb()


@pytest.fixture
def local_catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A PyIceberg catalog in SQLite, with its warehouse on this disk."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=warehouse.as_uri())
    yield catalog
    catalog.close()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The ``icekeeper`` command with one local catalog ``C`` and no settings of the user who runs the tests."""
    called = Command(tmp_path, monkeypatch, capsys)
    yield called
    called.catalog.close()


@pytest.fixture(scope="session")
def moto_server(java_and_servers: None) -> Iterator[MotoServer]:
    """moto's AWS server, one per worker process."""
    with running_moto() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def account_is_left_empty() -> Iterator[None]:
    """All modules share one account: a later module would list Glue databases and table buckets of earlier modules, and
    read their maintenance settings."""
    yield
    _empty_account()


@pytest.fixture
def own_account() -> Iterator[None]:
    """Empty the account after a test."""
    yield
    _empty_account()


def _empty_account() -> None:
    for glue_accounts in glue_backends.values():
        for data_catalog in glue_accounts.values():
            data_catalog.databases.clear()
    for s3tables_accounts in s3tables_backends.values():
        for backend in s3tables_accounts.values():
            backend.table_buckets.clear()
    for recorded in (moto_s3tables.ANSWERS, moto_s3tables.JOBS, moto_s3tables.PUTS):
        recorded.clear()


@pytest.fixture(scope="session")
def moto_dynamodb(moto_server: MotoServer) -> Iterator[MotoServer]:
    """The moto server, with a DynamoDB that tests can share."""
    with dynamodb_that_keeps_its_promises():
        yield moto_server
