"""Creates the four tables of the demonstration, each as unmaintained as streaming writers and crashed jobs leave it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestampType

from icekeeper.pyiceberg_private.transactions import copy_metadata_once
from icekeeper.storage.storage import Storage

NAMESPACE = "shop"
# 2026-01-01T00:00:00 in microseconds; fixed, so that every demonstration holds the same rows.
_START_US = 1_767_225_600_000_000


@dataclass(frozen=True, slots=True)
class MessyTable:
    """A table of the demonstration and what is wrong with it, in words."""

    name: str
    mess: str
    tag: str | None = None


def create_messy_tables(catalog: Catalog, storage: Storage) -> Iterator[MessyTable]:
    """Create the tables one by one; each is complete when it is yielded."""
    copy_metadata_once()  # half the processor time of what follows, which is over a hundred commits
    catalog.create_namespace(NAMESPACE)
    yield _clicks(catalog)
    yield _orders(catalog)
    yield _events(catalog)
    yield _customers(catalog, storage)


def _clicks(catalog: Catalog) -> MessyTable:
    schema = Schema(
        NestedField(1, "click_id", LongType(), required=False),
        NestedField(2, "at", TimestampType(), required=False),
        NestedField(3, "page", StringType(), required=False),
        NestedField(4, "seconds", DoubleType(), required=False),
    )
    table = catalog.create_table(f"{NAMESPACE}.clicks", schema)
    rows = 4_000
    for number in range(60):
        ids = range(number * rows, (number + 1) * rows)
        table.append(
            pa.table(
                {
                    "click_id": pa.array(ids, pa.int64()),
                    "at": pa.array([_START_US + i // 40 * 1_000_000 for i in ids], pa.timestamp("us")),
                    "page": [None if i % 97 == 0 else f"/product/{i * 31 % 500}" for i in ids],
                    "seconds": [float("nan") if i % 211 == 0 else (i * 7 % 1000) / 10 for i in ids],
                }
            )
        )
    return MessyTable("clicks", "60 small files from 60 commits")


def _orders(catalog: Catalog) -> MessyTable:
    schema = Schema(
        NestedField(1, "order_id", LongType(), required=False),
        NestedField(2, "region", StringType(), required=False),
        NestedField(3, "amount", DoubleType(), required=False),
    )
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
    table = catalog.create_table(f"{NAMESPACE}.orders", schema, partition_spec=spec)
    rows = 2_000
    for number, region in enumerate(["us", "us", "eu", "us", "us", "eu", "us"]):
        ids = range(number * rows, (number + 1) * rows)
        table.append(
            pa.table(
                {
                    "order_id": pa.array(ids, pa.int64()),
                    "region": [region] * rows,
                    "amount": [i * 13 % 9_973 / 100 for i in ids],
                }
            )
        )
    return MessyTable("orders", "region=us has 5 small files, region=eu only 2, too few to merge")


def _events(catalog: Catalog) -> MessyTable:
    schema = Schema(
        NestedField(1, "event_id", LongType(), required=False), NestedField(2, "kind", StringType(), required=False)
    )
    table = catalog.create_table(f"{NAMESPACE}.events", schema)
    for number in range(40):
        if number == 20:
            snapshot = table.current_snapshot()
            assert snapshot is not None  # 20 appends made it
            table.manage_snapshots().create_tag(snapshot.snapshot_id, "quarter-close").commit()
        ids = range(number * 500, (number + 1) * 500)
        table.append(pa.table({"event_id": pa.array(ids, pa.int64()), "kind": [f"kind-{i % 7}" for i in ids]}))
    return MessyTable("events", "40 snapshots, one of them tagged 'quarter-close'", tag="quarter-close")


def _customers(catalog: Catalog, storage: Storage) -> MessyTable:
    schema = Schema(
        NestedField(1, "customer_id", IntegerType(), required=False),
        NestedField(2, "name", StringType(), required=False),
        NestedField(3, "fax", StringType(), required=False),
    )
    table = catalog.create_table(f"{NAMESPACE}.customers", schema)
    for number in range(8):
        ids = range(number * 1_000, (number + 1) * 1_000)
        columns = {
            "customer_id": pa.array(ids, pa.int32() if number < 4 else pa.int64()),
            ("name" if number < 4 else "full_name"): [f"customer {i}" for i in ids],
        }
        if number < 4:
            columns["fax"] = pa.nulls(1_000, pa.string())
        else:
            columns["city"] = [f"city {i % 50}" for i in ids]
        table.append(pa.table(columns))
        if number == 3:
            with table.update_schema() as update:
                update.rename_column("name", "full_name")
                update.update_column("customer_id", LongType())
                update.delete_column("fax")
                update.add_column("city", StringType())
    # Files that no snapshot refers to, as crashed writers leave behind.
    location = table.location().rstrip("/")
    for _ in range(12):
        storage.write(f"{location}/data/00000-0-{uuid.uuid4()}.parquet", b"PAR1" + bytes(20_000))
    for _ in range(3):
        storage.write(f"{location}/metadata/{uuid.uuid4()}-m0.avro", b"Obj\x01" + bytes(2_000))
    return MessyTable("customers", "evolved schema (add, drop, rename, promote), 15 orphan files")
