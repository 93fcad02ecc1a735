"""What a fleet costs a month, from counted calls of the local stack: ``PYTHONPATH=tests python -m
benchmarks.fleet_cost``.

A table bucket of a few tables gets small files; a scheduled run of the real state machine and functions merges them.
What they recorded is scaled to the fleet that is asked for.  Durations are those of this machine, whose store is moto,
a Python server, where AWS has S3: the line of GB-seconds is no more than a hint; calls, transitions, requests and
metrics are exact.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from rich.console import Console

from icekeeper.report.costs import MONTH_HOURS, US_EAST_1, Bill, month_of
from icekeeper.state.store import HourOfUse
from local_stack.moto_s3tables import ANSWERS
from local_stack.moto_server import MotoServer, running_moto
from local_stack.stack import deployed

_DAYS = 30
# Table buckets list no objects.
_BLIND = {"py-io-impl": "support.aws_table_bucket.BlindFileIO"}
_OFF = {"icebergCompaction": {"status": "disabled"}, "icebergSnapshotManagement": {"status": "disabled"}}


def _rows(megabytes: float) -> pa.Table:
    """Random columns that do not compress, of about this size."""
    count = int(megabytes * 2**20 / 32)
    columns = {name: pa.py_buffer(os.urandom(8 * count)) for name in ("id", "a", "b", "c")}
    return pa.table({name: pa.Array.from_buffers(pa.int64(), count, [None, data]) for name, data in columns.items()})


def _fill(moto: MotoServer, folder: Path, tables: int, files: int, megabytes: float) -> str:
    client = moto.client("s3tables")
    arn = str(client.create_table_bucket(name="fleet")["arn"])
    client.create_namespace(tableBucketARN=arn, namespace=["ns"])
    ANSWERS[(arn,)] = {"icebergUnreferencedFileRemoval": {"status": "disabled"}}
    writer = load_catalog("writer", type="sql", uri=f"sqlite:///{folder}/writer.db", **_BLIND, **moto.s3_properties)
    writer.create_namespace("ns")
    rows = _rows(megabytes)
    for number in range(tables):
        address = {"tableBucketARN": arn, "namespace": "ns", "name": f"t{number}"}
        client.create_table(**address, format="ICEBERG")
        ANSWERS[arn, "ns", f"t{number}"] = dict(_OFF)
        pointer = client.get_table_metadata_location(**address)
        table = writer.create_table(f"ns.t{number}", rows.schema, location=pointer["warehouseLocation"])
        for _ in range(files):
            table.append(rows)
        client.update_table_metadata_location(
            **address, versionToken=pointer["versionToken"], metadataLocation=table.metadata_location
        )
    return arn


def _month(run: Mapping[str, int], metrics: frozenset[str], tables: int, options: argparse.Namespace) -> Bill:
    passes = options.tables * options.passes * _DAYS
    scaled = {name: round(number * passes / tables) for name, number in run.items()}
    hours = [HourOfUse("all", scaled)] + [HourOfUse(f"{n}", {}, metrics) for n in range(options.active_hours * _DAYS)]
    return month_of(hours, MONTH_HOURS, US_EAST_1)


def _lines(bill: Bill) -> Iterator[str]:
    for _, what, amount, usd in bill.lines:
        if amount:
            yield f"  {what:34} {amount:>14,.0f}  {usd:8.2f} USD"
    yield f"  {'total':34} {'':>14}  {bill.total:8.2f} USD"
    yield f"  {'S3 Tables, the same files':34} {bill.compacted_gb:>11,.0f} GB  {bill.aws_own['s3_tables']:8.2f} USD"
    yield f"  {'Glue optimizers (an estimate)':34} {'':>14}  {bill.aws_own['glue_optimizers']:8.2f} USD"


def main() -> None:
    """Print the bill of a fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000, help="of the fleet")
    parser.add_argument("--passes", type=int, default=4, help="of each table a day")
    parser.add_argument("--files", type=int, default=25, help="that a table gets between two passes")
    parser.add_argument("--megabytes", type=float, default=2, help="of each file")
    parser.add_argument("--active-hours", type=int, default=24, help="of a day in which runs write metrics")
    parser.add_argument("--measured", type=int, default=4, help="tables that are really maintained")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_moto() as moto:
        arn = _fill(moto, Path(folder), options.measured, options.files, options.megabytes)
        with deployed(moto, parameters={"TableBucketArns": arn, "MaxConcurrentTables": "1"}) as stack:
            stack.run({}, timeout_s=600)  # containers are warm afterwards, as those of a run over many tables are
            warm = stack.used()
            for number in range(options.measured):
                _append_more(moto, Path(folder), arn, number, options)
            execution = stack.run({}, timeout_s=600)
            used = stack.used()
            assert len(execution.children) == options.measured, execution.output
            run = {name: number - warm.amounts.get(name, 0) for name, number in used.amounts.items()}
            Console().print("\n".join(_lines(_month(run, used.metrics, options.measured, options))), highlight=False)


def _append_more(moto: MotoServer, folder: Path, arn: str, number: int, options: argparse.Namespace) -> None:
    client = moto.client("s3tables")
    address = {"tableBucketARN": arn, "namespace": "ns", "name": f"t{number}"}
    pointer = client.get_table_metadata_location(**address)
    writer = load_catalog("more", type="sql", uri=f"sqlite:///{folder}/more.db", **_BLIND, **moto.s3_properties)
    writer.create_namespace_if_not_exists("ns")
    table = writer.register_table(f"ns.t{number}", pointer["metadataLocation"])
    for _ in range(options.files):
        table.append(_rows(options.megabytes))
    client.update_table_metadata_location(
        **address, versionToken=pointer["versionToken"], metadataLocation=table.metadata_location
    )


if __name__ == "__main__":
    main()
