"""What a whole test run shares: AWS' models, Avro schemas, compiled SQL, and a folder in memory."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sqlite3
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
import sqlalchemy
from pyiceberg.avro import file as avro_file
from pyiceberg.table.metadata import TableMetadataV1, TableMetadataV2, TableMetadataV3

# What botocore knows of AWS' services, read once for a whole test run.
#
# Each session of boto3 reads and parses the models of its services anew, a tenth of a second of CPU for each client.
# Clients of one session share them already, so sharing them between sessions changes nothing that a client does.  The
# rules that tell a service's endpoint, the methods of a client's class and the settings of TLS are made anew for each
# client even then; nothing changes them once they are made.


@functools.cache
def share_aws_models() -> None:
    """Give all sessions of this process one loader, and all clients of a service the same rules and methods."""
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
    original, made = botocore.endpoint_provider.RuleSet, {}

    def rule_set(*, partitions: Any, rules: Any, **more: Any) -> Any:
        """Rules by what they are made of, which is kept, so that nothing else has its identity."""
        key = (id(partitions), id(rules))
        if key not in made:
            made[key] = (original(partitions=partitions, rules=rules, **more), partitions, rules)
        return made[key][0]

    botocore.endpoint_provider.RuleSet = rule_set
    _share_methods()
    # Nothing here speaks TLS but what says so, with certificates that each connection names itself.
    botocore.httpsession.create_urllib3_context = functools.cache(botocore.httpsession.create_urllib3_context)


def _share_methods() -> None:
    """They do nothing but name their operation; hooks add theirs to a dictionary of each client's own."""
    original, made = botocore.client.ClientCreator._create_methods, {}

    def create_methods(creator: Any, service_model: Any) -> dict[str, Any]:
        key = service_model.service_name, service_model.api_version
        if key not in made:
            made[key] = original(creator, service_model)
        return dict(made[key])

    botocore.client.ClientCreator._create_methods = create_methods


# Where a run keeps what its tests write: in memory, where that has the room.
#
# Tests write and delete very many small files.  ext4 gives no inode again within seconds of its deletion, and looks
# through those of the last seconds for each new file: a sixth to a quarter of the CPU of tests that write tables.

_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 8 << 30


def write_into_memory() -> None:
    """Put all temporary files of this process and its children into memory; whoever sets ``TMPDIR`` chose otherwise."""
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def _has_room(folder: Path) -> bool:
    """Whether files can be written and started there, 8 GiB of them; containers often have 64 MiB, and start none."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    words = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    free_bytes = min(found.f_bavail * found.f_frsize, int(words[0]) * 1024)
    return free_bytes >= _LEAST_BYTES and not found.f_flag & os.ST_NOEXEC


# What PyIceberg works out anew for each manifest and each commit, worked out once for a whole test run.
#
# A test begins with some appends of PyIceberg's.  Each makes readers and writers for the same few Avro schemas, and
# deep copies of metadata that nobody changes: both together are a quarter of what it costs.

_MOST = 500


def _remembered(function: Callable[..., Any], key_of: Callable[..., Hashable]) -> Callable[..., Any]:
    """Remember results by a key, and keep the arguments, so that nothing else gets the identity of one of them."""
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
    """Let all Avro files of PyIceberg's share what follows from their schemas: readers, writers and the schemas' text.

    None of them has a state.  Schemas are told apart by identity: they are constants, or remembered here themselves.
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
    """Let metadata share with what follows them all that did not change: both are replaced, never changed."""
    original = TableMetadataV2.model_copy

    def model_copy(self: Any, *, update: Any = None, deep: bool = False) -> Any:
        return original(self, update=update)

    for version in (TableMetadataV1, TableMetadataV2, TableMetadataV3):
        version.model_copy = model_copy  # type: ignore[method-assign]  # there is no seam


# What many small SQLite databases of one process share, and the power failure that they need not outlive.
#
# A test makes two catalogs in a database of its own.  SQLAlchemy would set up a dialect for each and compile each
# statement for it anew, which takes as long as the statements; and SQLite would wait for the disk at each commit.


@functools.cache
def share_compiled_sql() -> None:
    """Let all engines of PyIceberg's SQL catalogs over SQLite have one dialect, and so one cache of statements."""
    catalogs: Any = importlib.import_module("pyiceberg.catalog.sql")
    original = catalogs.create_engine
    first = original("sqlite://")
    first.connect().close()  # which makes the dialect complete

    @functools.wraps(original)
    def create_engine(*arguments: Any, **options: Any) -> sqlalchemy.Engine:
        engine: sqlalchemy.Engine = original(*arguments, **options)
        if type(engine.dialect) is type(first.dialect):
            engine.dialect = first.dialect
            engine._compiled_cache = first._compiled_cache
        return engine

    catalogs.create_engine = create_engine


class _Unsynchronised(sqlite3.Connection):
    """One that hands its pages to the operating system only: they survive a process that is killed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with suppress(sqlite3.Error):  # of a file that is none: whoever asks for something is told
            self.execute("PRAGMA synchronous = OFF")


@functools.cache
def wait_for_no_disk() -> None:
    """Let no connection to SQLite of this process wait until the disk has what was committed."""
    sqlite3.connect = sqlite3.dbapi2.connect = functools.partial(sqlite3.connect, factory=_Unsynchronised)  # type: ignore[assignment]
