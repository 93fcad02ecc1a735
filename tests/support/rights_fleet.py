"""A deployment with a table bucket and tables of the Glue Data Catalog, whose passes need every right."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from moto.s3.models import s3_backends
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from icekeeper.administration.pins import declare_load, stage_load
from icekeeper.catalogs.catalog import Catalog as OurCatalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.model import TableName
from icekeeper.operation_facts import STEPS, BuiltIn
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.pipeline import glue_job
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.events import Item, parse_event
from icekeeper.state.open import open_state
from icekeeper.state.staging import LoadState
from local_stack import functions, moto_s3tables
from local_stack.executions import Execution
from local_stack.jobs import StandInJob
from local_stack.stack import LocalStack
from local_stack.template import ACCOUNT, REGION

DATA_BUCKET = "rights-lake"
DATABASE = "rights"
PARAMETERS = {
    "TableBucketArns": f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/rights-*",
    "DiscoverTableBuckets": "true",
    "TableFilter": f"rights-*/{DATABASE}/*",
    "DataBucketArns": f"arn:aws:s3:::{DATA_BUCKET}",
    "GlueDataCatalogArns": f"arn:aws:glue:{REGION}:{ACCOUNT}:database/*,arn:aws:glue:{REGION}:{ACCOUNT}:table/*",
    "Catalogs": "glue",
    "KmsKeyArns": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/0",
    "Ownership": "auto",
    "SmallCompactionMb": "1280",  # so that every function has something to do
}
IN_JOBS = {
    "ICEKEEPER_SMALL_COMPACTION_MB": "0",
    "ICEKEEPER_SMALL_EXPIRY": "0",
    "ICEKEEPER_SMALL_MANIFESTS": "4",
    "ICEKEEPER_SMALL_ORPHANS": "0",
}
"""Only the manifests of four files are few enough for a function."""
POLICY_FILE = """\
rules:
- settings:
    operations: all,expire_partitions
    min_input_files: 2
    min_manifests_to_rewrite: 2
    max_snapshots_to_keep: 1
    snapshot_retention_hours: 0
    orphan_sweep_interval_hours: 0
    orphan_max_delete_ratio: 1
    partition_retention_hours: 240
    ownership: icekeeper
- table: a
  settings:
    ownership: auto
"""
_CATALOG_FILE = f"""\
catalog:
  glue:
    type: glue
    warehouse: s3://{DATA_BUCKET}
    client.region: {REGION}
    s3.region: {REGION}
"""
_SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
_DAYS_OLD = datetime.timedelta(days=40)


class RightsFleet:
    """A stack deployed with :data:`PARAMETERS`, and its tables."""

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        self.stack = stack
        self._folder = folder
        moto = stack.moto
        moto.client("s3").create_bucket(Bucket=DATA_BUCKET)
        moto.client("glue").create_database(DatabaseInput={"Name": DATABASE})
        self._glue = {**moto.glue_properties, "warehouse": f"s3://{DATA_BUCKET}"}
        stack.put_control("config/pyiceberg.yaml", _CATALOG_FILE)

    def give_policy(self) -> None:
        """Write the optional policy file, and restart all functions, so that they read it."""
        self.stack.put_control("config/policy.yaml", POLICY_FILE)
        self.stack.start_cold()

    def run(self, machine_input: Mapping[str, Any]) -> Execution:
        """Run the pipeline, which must succeed."""
        execution = self.stack.run(dict(machine_input))
        assert execution.status == "SUCCEEDED", [execution.error, *(visit.errors for visit in execution.visits)]
        return execution

    def statuses(self, execution: Execution) -> dict[str, str]:
        """The status of the pass over each table."""
        report = self.stack.control(f"runs/{execution.name}/report.json")
        return {item["table"]: item["status"] for item in report["results"]}

    def ended_steps(self, execution: Execution, table: str) -> list[str]:
        """The steps of a pass that wrote an outcome, in the order in which they did."""
        item = next(child.input["item"] for child in execution.children if child.table == table)
        folder = f"{table_folder(execution.name, parse_event(Item, item).identity.spelling)}/"
        bucket = s3_backends[ACCOUNT]["aws"].get_bucket(self.stack.template.name("ControlBucket"))
        written = {key: bucket.keys.getlist(key)[0].last_modified for key in bucket.keys if key.startswith(folder)}
        names = [key.removeprefix(folder).removesuffix(".json") for key in sorted(written, key=written.__getitem__)]
        return [name for name in names if name in STEPS]

    # -- tables

    def glue_table(self, name: str, folder: str = "") -> Table:
        """Create a partitioned table in the data bucket, with small files of today and of a day long ago."""
        location = f"s3://{DATA_BUCKET}/{folder}{name}"
        return _filled(load_catalog("glue", **self._glue), f"{DATABASE}.{name}", location)

    def leave_orphans(self, table: Table) -> None:
        """Leave an old orphan file and a failed load."""
        orphan, staged = (f"{table.location()}/data/{name}.parquet" for name in ("orphan", "staged"))
        s3 = self.stack.moto.client("s3")
        for path in (orphan, staged):
            s3.put_object(Bucket=DATA_BUCKET, Key=path.removeprefix(f"s3://{DATA_BUCKET}/"), Body=b"left")
        self._leave_failed_load(open_catalog("glue", self._glue), table.name()[-1], staged)
        self.grow_old()

    def _leave_failed_load(self, catalog: OurCatalog, table: str, staged: str) -> None:
        long_ago = int((time.time() - _DAYS_OLD.total_seconds()) * 1000)
        state = open_state({"ICEKEEPER_STATE": f"dynamodb://{self.stack.template.name('StateTable')}"})
        name = TableName((DATABASE,), table)
        handle = TableHandle(catalog, name, state, lambda: long_ago, store_clock=lambda *_: long_ago)
        stage_load(handle, "a-load", [staged], ())
        declare_load(handle, "a-load", LoadState.FAILED)

    def grow_old(self) -> None:
        """Date back every object in the data bucket."""
        _grow_old(DATA_BUCKET)

    def bucket_table(self, name: str, bucket: str = "rights-tables", files_today: int = 3) -> None:
        """Create a partitioned table with a failed load in a new table bucket, which does not remove orphan files."""
        s3tables = self.stack.moto.client("s3tables")
        arn = s3tables.create_table_bucket(name=bucket)["arn"]
        s3tables.create_namespace(tableBucketARN=arn, namespace=[DATABASE])
        address = {"tableBucketARN": arn, "namespace": DATABASE, "name": name}
        s3tables.create_table(**address, format="ICEBERG")
        pointer = s3tables.get_table_metadata_location(**address)
        blind = {"py-io-impl": "support.aws_table_bucket.BlindFileIO", **self.stack.moto.s3_properties}
        writer = load_catalog("writer", type="sql", uri=f"sqlite:///{self._folder}/{bucket}.db", **blind)
        writer.create_namespace(DATABASE)
        table = _filled(writer, f"{DATABASE}.{name}", pointer["warehouseLocation"], files_today)
        s3tables.update_table_metadata_location(
            **address, versionToken=pointer["versionToken"], metadataLocation=table.metadata_location
        )
        moto_s3tables.ANSWERS[arn, DATABASE, name] = {}
        moto_s3tables.ANSWERS[(arn,)] = {BuiltIn.UNREFERENCED_FILE_REMOVAL.value: {"status": "disabled"}}
        endpoint = {"s3tables.endpoint": self.stack.moto.endpoint, **self.stack.moto.s3_properties}
        catalog = open_catalog(bucket, {"type": "s3tables", "warehouse": arn, **endpoint})
        storage = table.location().removeprefix("s3://").partition("/")[0]
        self.stack.moto.client("s3").put_object(Bucket=storage, Key="data/staged.parquet", Body=b"left")
        self._leave_failed_load(catalog, name, f"{table.location()}/data/staged.parquet")
        _grow_old(storage)


def jobs_in_this_process(stack: LocalStack) -> dict[str, StandInJob]:
    """Every job with the rights of its role, as Glue starts it, but in this process and without Spark."""

    def job(role: str) -> StandInJob:
        def run(arguments: Mapping[str, str]) -> None:
            given = [text for pair in arguments.items() for text in pair]
            with functions.as_own_process(stack.jobs[role].environment):
                assert glue_job.run_job(given, role) == 0

        return run

    return {role: job(role) for role in stack.jobs}


def _grow_old(bucket: str) -> None:
    for versions in s3_backends[ACCOUNT]["aws"].get_bucket(bucket).keys.values():
        versions.last_modified -= _DAYS_OLD


def _filled(catalog: Catalog, name: str, location: str, files_today: int = 3) -> Table:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    table = catalog.create_table(name, _SCHEMA, location=location, partition_spec=spec)
    today = datetime.datetime.now(datetime.UTC).date()
    for past in (*[today] * files_today, today - _DAYS_OLD):
        table.append(pa.table({"id": range(5), "day": [past] * 5}, schema=_SCHEMA.as_arrow()))
    return table
