"""Objects that a whole test run shares: AWS' models, Avro schemas, compiled SQL, and a folder in memory."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore.client
import botocore.endpoint_provider
import botocore.httpsession
import botocore.loaders
import botocore.session
import pytest
import sqlalchemy
from _pytest.assertion import rewrite
from pyiceberg.avro import file as avro_file
from pyiceberg.table.metadata import TableMetadataV1, TableMetadataV2, TableMetadataV3

# botocore's models of AWS' services, read once per test run.
#
# Each session of boto3 reads and parses the models of its services again, a tenth of a second of CPU per client.
# Clients of one session already share them, so sharing them between sessions changes no client.  Even then, botocore
# builds the endpoint rules, the methods of a client's class and the TLS settings again for each client; nothing changes
# them later.


@functools.cache
def share_aws_models() -> None:
    """Give all sessions of this process the same loader, and all clients of a service the same rules and methods."""
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
    original, made = botocore.endpoint_provider.RuleSet, {}

    def rule_set(*, partitions: Any, rules: Any, **more: Any) -> Any:
        """Cache rules by the identity of their arguments; keep the arguments, so that no other object gets the id."""
        key = (id(partitions), id(rules))
        if key not in made:
            made[key] = (original(partitions=partitions, rules=rules, **more), partitions, rules)
        return made[key][0]

    botocore.endpoint_provider.RuleSet = rule_set
    _share_methods()
    # Only tests of TLS use TLS, and each of their connections names its certificates.
    botocore.httpsession.create_urllib3_context = functools.cache(botocore.httpsession.create_urllib3_context)


def _share_methods() -> None:
    """Cache the methods of clients: a method only names its operation; hooks add methods to a copy per client."""
    original, made = botocore.client.ClientCreator._create_methods, {}

    def create_methods(creator: Any, service_model: Any) -> dict[str, Any]:
        key = service_model.service_name, service_model.api_version
        if key not in made:
            made[key] = original(creator, service_model)
        return dict(made[key])

    botocore.client.ClientCreator._create_methods = create_methods


# A run keeps the files of its tests in memory, if there is enough.
#
# Tests write and delete very many small files.  ext4 does not reuse an inode within seconds of its deletion, and for
# each new file scans those deleted recently: a sixth to a quarter of the CPU of tests that write tables.

_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 8 << 30


def write_into_memory() -> None:
    """Put all temporary files of this process and its children into memory, unless ``TMPDIR`` is set."""
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def _has_room(folder: Path) -> bool:
    """Whether the folder has 8 GiB for files and allows to execute them; containers often have 64 MiB and forbid it."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    words = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    free_bytes = min(found.f_bavail * found.f_frsize, int(words[0]) * 1024)
    return free_bytes >= _LEAST_BYTES and not found.f_flag & os.ST_NOEXEC


# Every worker imports every test file, and pytest rewrites the assertions of a file that has no bytecode yet: six
# seconds of CPU per worker in a fresh checkout.


def rewrite_a_share_of_assertions(config: pytest.Config) -> None:
    """Rewrite a worker's share of the test files before all workers import all of them."""
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    files = sorted(Path(__file__).parents[1].glob("*/test_*.py"))
    for path in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        folder = rewrite.get_cache_dir(path)
        cached = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite.try_makedirs(folder) and rewrite._read_pyc(path, cached) is None:
            stat, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, cached)


# Results that PyIceberg computes again for each manifest and each commit, computed once per test run.
#
# A test begins with some appends by PyIceberg.  Each builds readers and writers for the same few Avro schemas, and deep
# copies of metadata that never change: both together are a quarter of its cost.

_MOST = 500


def _remembered(function: Callable[..., Any], key_of: Callable[..., Hashable]) -> Callable[..., Any]:
    """Cache results by a key; keep the arguments, so that no other object gets the id of an argument."""
    known: dict[Hashable, tuple[Any, Any]] = {}

    @functools.wraps(function)
    def remembering(*arguments: Any, **named: Any) -> Any:
        key = key_of(*arguments, **named)
        found = known.get(key)
        if found is None:
            if len(known) >= _MOST:
                known.clear()
            found = known[key] = function(*arguments, **named), (arguments, named)
        return found[0]

    return remembering


@functools.cache
def share_avro_schemas() -> None:
    """Let all Avro files of PyIceberg share what derives from their schemas: readers, writers and the schemas' text.

    These objects are stateless.  The cache distinguishes schemas by identity: they are constants, or cached here, too.
    """
    manifests: Any = importlib.import_module("pyiceberg.manifest")
    for name in ("data_file_with_partition", "manifest_entry_schema_with_data_file"):
        setattr(manifests, name, functools.lru_cache(_MOST)(getattr(manifests, name)))
    files: Any = avro_file
    files.construct_reader = _remembered(files.construct_reader, lambda file, types: (id(file), *types.items()))
    files.construct_writer = _remembered(files.construct_writer, lambda file_schema: id(file_schema))
    files.resolve_writer = _remembered(
        files.resolve_writer, lambda record_schema, file_schema: (id(record_schema), id(file_schema))
    )
    files.resolve_reader = _remembered(
        files.resolve_reader,
        lambda file, read, types, enums: (id(file), id(read), *types.items(), None, *enums.items()),
    )
    conversion = files.AvroSchemaConversion
    conversion.iceberg_to_avro = _remembered(
        conversion.iceberg_to_avro, lambda _, schema, schema_name=None: (id(schema), schema_name)
    )
    parsed = functools.lru_cache(_MOST)(lambda text: conversion().avro_to_iceberg(json.loads(text)))
    get_schema = files.AvroFileHeader.get_schema

    def schema_of(header: Any) -> Any:
        text = header.meta.get("avro.schema")
        return get_schema(header) if text is None else parsed(text)

    files.AvroFileHeader.get_schema = schema_of


@functools.cache
def copy_no_metadata() -> None:
    """Let new metadata share unchanged parts with the old metadata: both are immutable."""
    original = TableMetadataV2.model_copy

    def model_copy(self: Any, *, update: Any = None, deep: bool = False) -> Any:
        return original(self, update=update)

    for version in (TableMetadataV1, TableMetadataV2, TableMetadataV3):
        version.model_copy = model_copy  # type: ignore[method-assign]  # there is no seam


# The many small SQLite databases of a process share compiled SQL, and need not survive a power failure.
#
# A test makes two catalogs in a new database.  SQLAlchemy would set up a dialect for each and compile each statement
# again, which takes as long as the statements; and SQLite would wait for the disk at each commit.


@functools.cache
def share_compiled_sql() -> None:
    """Let all engines of PyIceberg's SQL catalogs over SQLite share a dialect, and so a cache of statements."""
    catalogs: Any = importlib.import_module("pyiceberg.catalog.sql")
    original = catalogs.create_engine
    first = original("sqlite://")
    first.connect().close()  # this completes the dialect

    @functools.wraps(original)
    def create_engine(*arguments: Any, **options: Any) -> sqlalchemy.Engine:
        engine: sqlalchemy.Engine = original(*arguments, **options)
        if type(engine.dialect) is type(first.dialect):
            engine.dialect = first.dialect
            engine._compiled_cache = first._compiled_cache
        return engine

    catalogs.create_engine = create_engine


class _Unsynchronised(sqlite3.Connection):
    """A connection that only passes its pages to the operating system: they survive a killed process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with suppress(sqlite3.Error):  # the file may not be a database: the first query raises the error
            self.execute("PRAGMA synchronous = OFF")


@functools.cache
def wait_for_no_disk() -> None:
    """Let no SQLite connection of this process wait for the disk at a commit."""
    sqlite3.connect = sqlite3.dbapi2.connect = functools.partial(sqlite3.connect, factory=_Unsynchronised)  # type: ignore[assignment]
