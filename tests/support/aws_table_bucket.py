"""A table in a bucket that, as on AWS, neither lists nor deletes objects."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from moto.s3.models import s3_backends
from pyiceberg.catalog import load_catalog
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from icekeeper.catalogs.load import open_catalog
from icekeeper.operation_facts import BuiltIn
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from local_stack.template import ACCOUNT


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
    blind = {"py-io-impl": "support.aws_table_bucket.BlindFileIO", **moto_server.s3_properties}
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


# PyIceberg file I/O for table buckets, as moto in this process plays them.
#
# As these buckets refuse to list, it never asks whether a file exists, names being unique.  It hands files to moto as
# they are: each would take longer over HTTP than PyIceberg takes to make it.


class _Upload(io.BytesIO):
    """A file that is there once it is closed."""

    def __init__(self, bucket: str, key: str) -> None:
        super().__init__()
        self._address = (bucket, key)

    def close(self) -> None:
        if not self.closed:
            s3_backends[ACCOUNT]["aws"].put_object(*self._address, self.getvalue())
        super().close()


class _BlindFile(InputFile, OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._bucket, _, self._key = location.removeprefix("s3://").partition("/")

    def __len__(self) -> int:
        return len(self._read())

    def exists(self) -> bool:
        return False

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._read())

    def create(self, overwrite: bool = False) -> Any:
        return _Upload(self._bucket, self._key)

    def to_input_file(self) -> InputFile:
        return self

    def _read(self) -> bytes:
        found = s3_backends[ACCOUNT]["aws"].get_object(self._bucket, self._key)
        assert found is not None, f"there is no {self.location}"
        return bytes(found.value)


class BlindFileIO(PyArrowFileIO):
    """Set as ``py-io-impl`` for PyIceberg as a writer into AWS table buckets, which moto plays truly."""

    def new_input(self, location: str) -> Any:
        return _BlindFile(location)

    def new_output(self, location: str) -> Any:
        return _BlindFile(location)
