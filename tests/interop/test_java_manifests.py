"""Our manifests and manifest lists have Iceberg-Java's schemas, and hold the same values."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from icekeeper.commit.attempt import assign_row_ids
from icekeeper.metadata.avro_schemas import manifest_list_schema, manifest_schema
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.manifest_read import decode_manifest, decode_manifest_list
from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.model import ManifestContent
from support.iceberg_java import IcebergJava

# What Iceberg-Java can partition by through Spark SQL, odd names among it.
JAVA_TABLE = """
    CREATE TABLE java.db.{name} (
        id BIGINT NOT NULL, flag BOOLEAN, `we ird` INT, `1x` DECIMAL(9,2), `a-b` DECIMAL(9,2), huge DECIMAL(38,10),
        day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, text STRING, raw BINARY, f FLOAT, d DOUBLE
    ) USING iceberg
    PARTITIONED BY (flag, `we ird`, `1x`, `a-b`, huge, day, local, text, raw, f, d,
                    bucket(4, id), truncate(3, text), days(at))
    TBLPROPERTIES ('format-version' = '{version}')
"""
JAVA_ROW = """
    INSERT INTO java.db.{name} VALUES (1, true, 1, 1.5, 2.5, 3.5, DATE '2024-02-29', TIMESTAMP '2024-02-29 12:00:00Z',
        TIMESTAMP_NTZ '2024-02-29 12:00:00', 'text', X'00ff', CAST('NaN' AS FLOAT), -0.0D)
"""


@pytest.mark.parametrize("version", [1, 2, 3])
def test_our_avro_schemas_are_javas_field_for_field(version: int, iceberg_java: IcebergJava) -> None:
    """Names, ids, types, defaults, order: only the documentation strings are left out."""
    name = f"avro_v{version}"
    iceberg_java.session.sql(JAVA_TABLE.format(name=name, version=version))
    iceberg_java.session.sql(JAVA_ROW.format(name=name))
    warehouse = iceberg_java.session.conf.get("spark.sql.catalog.java.warehouse")
    path = Path(str(warehouse)) / "db" / name / "metadata" / "v2.metadata.json"
    metadata = parse_document(path.read_bytes(), str(path))
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    list_data = Path(snapshot.manifest_list.removeprefix("file:")).read_bytes()
    assert without_doc(avro_schema(list_data)) == without_doc(manifest_list_schema(version))
    (manifest,) = decode_manifest_list(list_data, snapshot.manifest_list)
    data = Path(manifest.manifest_path.removeprefix("file:")).read_bytes()
    spec = metadata.specs[metadata.default_spec_id]
    ours = manifest_schema(version, metadata.schemas_current_first, spec)
    assert without_doc(avro_schema(data)) == without_doc(ours)

    # The same manifest written by us: the same values, bounds of partitions included.
    (read,) = decode_manifest(data, manifest, spec)
    again = encode_manifest(
        metadata,
        spec_id=spec["spec-id"],
        content=ManifestContent.DATA,
        entries=[replace(read, sequence_number=None, file_sequence_number=None)],
        path=manifest.manifest_path,
        snapshot=NewSnapshot(snapshot.snapshot_id, snapshot.sequence_number),
    )
    assert records(again.data) == records(data)
    ((ours_listed,), _) = assign_row_ids([again.manifest], 0) if version > 2 else ((again.manifest,), 0)
    assert replace(ours_listed, manifest_length=0) == replace(manifest, manifest_length=0)

    # The same manifest list: the same header, row ids included.
    listed = encode_manifest_list(
        version,
        [manifest],
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=None,
        sequence_number=snapshot.sequence_number,
        first_row_id=0,
    )
    assert records(listed) == records(list_data)
    assert header(listed) == header(list_data)


def avro_schema(data: bytes) -> Any:
    return json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])


def header(data: bytes) -> dict[str, str]:
    """What Iceberg says of the file, whatever Avro says."""
    found = fastavro.reader(io.BytesIO(data)).metadata
    return {key: value for key, value in found.items() if not key.startswith("avro.") and key != "iceberg.schema"}


def without_doc(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_doc(value) for key, value in schema.items() if key != "doc"}
    return [without_doc(part) for part in schema] if isinstance(schema, list) else schema


def records(data: bytes) -> list[Any]:
    return [json.loads(json.dumps(record, default=repr)) for record in fastavro.reader(io.BytesIO(data))]
