"""A table in a bucket that, as on AWS, neither lists nor deletes objects."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
from botocore.config import Config
from moto.s3.models import s3_backends
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO, _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

from icekeeper.catalogs.load import open_catalog
from icekeeper.operation_facts import BuiltIn
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from local_stack.template import ACCOUNT


def runtime_of_table_bucket(moto_server: MotoServer, folder: Path, *, appends: int) -> Runtime:
    """The runtime of ``ns.t``; PyIceberg appends through a temporary catalog, and then S3 Tables gets the pointer."""
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"lake-{uuid.uuid4()}")["arn"]
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    # Most tests need a bucket whose built-in maintenance is disabled.
    off = {"status": "disabled"}
    moto_s3tables.ANSWERS[(arn,)] = {BuiltIn.UNREFERENCED_FILE_REMOVAL.value: off}
    moto_s3tables.ANSWERS[arn, "ns", "t"] = {BuiltIn.COMPACTION.value: off, BuiltIn.SNAPSHOT_MANAGEMENT.value: off}
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


class TableBucketCatalog(NoopCatalog):
    """A replacement for a table bucket's REST endpoint, which moto lacks, with the calls of ``make smoke``.

    Set as ``py-catalog-impl``, with ``warehouse`` and ``s3tables.endpoint``.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        keys = {
            f"aws_{key}": properties[f"s3.{key.replace('_', '-')}"] for key in ("access_key_id", "secret_access_key")
        }
        # A swap that is sent twice would lose against itself.
        once = Config(retries={"total_max_attempts": 1})
        made = {"endpoint_url": properties["s3tables.endpoint"], "region_name": properties["s3.region"], **keys}
        self._s3tables, self._s3 = (boto3.client(service, config=once, **made) for service in ("s3tables", "s3"))
        self._bucket = {"tableBucketARN": properties["warehouse"]}

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        self._s3tables.create_namespace(**self._bucket, namespace=[namespace])

    def drop_namespace(self, namespace: Any) -> None:
        self._s3tables.delete_namespace(**self._bucket, namespace=namespace)

    def create_table(self, identifier: Any, schema: Any, *_: Any, **__: Any) -> Table:
        self._s3tables.create_table(**self._address(identifier), format="ICEBERG")
        pointer = self._pointer(identifier)
        location = pointer["warehouseLocation"]
        numbered = assign_fresh_schema_ids(visit_pyarrow(schema, _ConvertToIcebergWithoutIDs()))
        metadata = new_table_metadata(numbered, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location)
        self._swap(identifier, metadata, pointer["versionToken"])
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        location = self._pointer(identifier)["metadataLocation"]
        io = load_file_io(self.properties, location)
        return Table(self._named(identifier), FromInputFile.table_metadata(io.new_input(location)), location, io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        # Like the endpoint, read the token first, then check the requirements on its metadata.
        pointer = self._pointer(table.name())
        location = pointer["metadataLocation"]
        newest = FromInputFile.table_metadata(load_file_io(self.properties, location).new_input(location))
        for requirement in requirements:
            requirement.validate(newest)
        metadata = update_table_metadata(newest, updates)
        location = self._swap(table.name(), metadata, pointer["versionToken"])
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})

    def purge_table(self, identifier: Any) -> None:
        self._s3tables.delete_table(**self._address(identifier))

    def _swap(self, identifier: Any, metadata: Any, token: str) -> str:
        # Like the endpoint, write without a request that checks for the file.
        location = f"{metadata.location}/metadata/{uuid.uuid4()}.metadata.json"
        bucket, _, key = location.removeprefix("s3://").partition("/")
        self._s3.put_object(Bucket=bucket, Key=key, Body=metadata.model_dump_json().encode())
        try:
            self._s3tables.update_table_metadata_location(
                **self._address(identifier), versionToken=token, metadataLocation=location
            )
        except self._s3tables.exceptions.ConflictException as error:
            raise CommitFailedException(str(error)) from error
        return location

    def _pointer(self, identifier: Any) -> Any:
        return self._s3tables.get_table_metadata_location(**self._address(identifier))

    def _address(self, identifier: Any) -> dict[str, str]:
        namespace, name = self._named(identifier)
        return {**self._bucket, "namespace": namespace, "name": name}

    def _named(self, identifier: Any) -> tuple[str, ...]:
        return tuple(identifier.split(".")) if isinstance(identifier, str) else tuple(identifier)


# PyIceberg file I/O for table buckets that moto emulates in this process.
#
# These buckets refuse to list, so it never checks whether a file exists; names are unique.  It passes files to moto
# directly: a request over HTTP would take longer than PyIceberg takes to write the file.


class _Upload(io.BytesIO):
    """A file that exists once it is closed."""

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
    """``py-io-impl`` of PyIceberg for buckets of moto in this process."""

    def new_input(self, location: str) -> Any:
        return _BlindFile(location) if location.startswith("s3://") else super().new_input(location)

    def new_output(self, location: str) -> Any:
        return _BlindFile(location)
