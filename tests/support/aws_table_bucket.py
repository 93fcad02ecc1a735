"""A table in a bucket that, as on AWS, neither lists nor deletes objects."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.operation_facts import BuiltIn
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer


def runtime_of_table_bucket(moto_server: MotoServer, folder: Path, *, appends: int) -> Runtime:
    """``ns.t``, appended to by PyIceberg, whose catalog is only a stepping stone: the pointer is then S3 Tables'."""
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"lake-{uuid.uuid4()}")["arn"]
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    # Most tests are of what is left to do where the bucket does nothing.
    off = {"status": "disabled"}
    moto_s3tables.ANSWERS[(arn,)] = {BuiltIn.UNREFERENCED_FILE_REMOVAL.value: off}
    moto_s3tables.ANSWERS[arn, "ns", "t"] = {
        BuiltIn.COMPACTION.value: off,
        BuiltIn.SNAPSHOT_MANAGEMENT.value: off,
    }
    address = {"tableBucketARN": arn, "namespace": "ns", "name": "t"}
    s3tables.create_table(**address, format="ICEBERG")
    pointer = s3tables.get_table_metadata_location(**address)
    blind = {"py-io-impl": "support.blind_io.BlindFileIO", **moto_server.s3_properties}
    writer = load_catalog("writer", type="sql", uri=f"sqlite:///{folder}/writer.db", **blind)
    writer.create_namespace("ns")
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    table = writer.create_table("ns.t", rows.schema, location=pointer["warehouseLocation"])
    for _ in range(appends):
        table.append(rows)
    s3tables.update_table_metadata_location(
        **address, versionToken=pointer["versionToken"], metadataLocation=table.metadata_location
    )
    properties = {
        "type": "s3tables",
        "warehouse": arn,
        "s3tables.endpoint": moto_server.endpoint,
        **moto_server.s3_properties,
    }
    return Runtime(open_catalog("aws", properties), SqliteStateStore(folder / "state.db"), environment={})
