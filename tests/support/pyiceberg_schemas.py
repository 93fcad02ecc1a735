"""What PyIceberg works out anew for each manifest and each commit, worked out once for a whole test run.

A test begins with some appends of PyIceberg's.  Each makes readers and writers for the same few Avro schemas, and deep
copies of metadata that nobody changes: both together are a quarter of what it costs.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Hashable
from typing import Any

from pyiceberg.avro import file as avro_file
from pyiceberg.table.metadata import TableMetadataV1, TableMetadataV2, TableMetadataV3

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
