"""What a fleet costs a month, from counted calls of the local stack: ``PYTHONPATH=tests python -m
benchmarks.fleet_cost``.

Table buckets of two sizes get small files; scheduled runs of the real state machine, functions and jobs maintain them
under a retention that every run reaches.  The difference of both is what a table costs, the rest what a run costs; both
are scaled to fleets of the given sizes, once with all compaction in Glue and once with small tables in functions.

Calls, states, requests and metrics are counted exactly.  Durations are of this machine, whose store is moto, a Python
server, where AWS has S3: GB-seconds are a hint.  A Glue run is reckoned: ``--wave-start`` seconds, and
``--wave-table`` for each table (docs/costs.md says where both come from).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from rich.console import Console

from icekeeper.machine.metering import Amount
from icekeeper.report.costs import MONTH_HOURS, US_EAST_1, Bill, month_of
from icekeeper.state.store import HourOfUse
from local_stack.moto_s3tables import ANSWERS
from local_stack.moto_server import MotoServer, running_moto
from local_stack.stack import deployed
from local_stack.template import load_template

_DAYS = 30
# Table buckets list no objects.
_BLIND = {"py-io-impl": "support.aws_table_bucket.BlindFileIO"}
# Every run expires the snapshots that the one before has left.
_REACHED = {"ICEKEEPER_SNAPSHOT_RETENTION_HOURS": "0", "ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP": "2"}
# Amazon CloudWatch pricing, us-east-1: a standard alarm, and a dashboard.
_ALARM_USD, _DASHBOARD_USD = 0.10, 3.00
# AWS Glue pricing: a job run is billed for a minute at least.
_LEAST_GLUE_S = 60.0
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


Amounts: TypeAlias = Mapping[str, float]


def _month(
    tables: int, run: Amounts, table: Amounts, metrics: frozenset[str], options: argparse.Namespace, *, by_glue: bool
) -> Bill:
    runs = options.passes * _DAYS
    scaled = {name: round(runs * (run[name] + tables * table[name])) for name in run}
    if by_glue:
        seconds = max(_LEAST_GLUE_S, options.wave_start + tables * options.wave_table)
        scaled[Amount.GLUE_FLEX_DPU_MS.value] = round(runs * seconds * 1000 * options.wave_workers)
    hours = [HourOfUse("all", scaled)] + [HourOfUse(f"{n}", {}, metrics) for n in range(runs)]
    return month_of(hours, MONTH_HOURS, US_EAST_1)


def _lines(bill: Bill, options: argparse.Namespace) -> Iterator[str]:
    watching = options.alarms * _ALARM_USD + _DASHBOARD_USD
    for _, what, amount, usd in bill.lines:
        if amount:
            yield f"  {what:34} {amount:>14,.0f}  {usd:8.2f} USD"
    yield f"  {'alarms and one dashboard':34} {options.alarms + 1:>14}  {watching:8.2f} USD"
    yield f"  {'total':34} {'':>14}  {bill.total + watching:8.2f} USD"
    yield f"  {'S3 Tables, the same files':34} {bill.compacted_gb:>11,.0f} GB  {bill.aws_own['s3_tables']:8.2f} USD"
    yield f"  {'Glue optimizers (an estimate)':34} {'':>14}  {bill.aws_own['glue_optimizers']:8.2f} USD"


def main() -> None:
    """Print the bills of a fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, nargs="+", default=(1000, 10), help="of each fleet")
    parser.add_argument("--passes", type=int, default=4, help="of each table a day, as many as runs")
    parser.add_argument("--files", type=int, default=25, help="that a table gets between two passes")
    parser.add_argument("--megabytes", type=float, default=2, help="of each file")
    parser.add_argument("--measured", type=int, nargs=2, default=(2, 8), help="numbers of tables really maintained")
    parser.add_argument("--wave-start", type=float, default=45, help="seconds until a Glue run begins to work")
    parser.add_argument("--wave-table", type=float, default=0.5, help="seconds of a Glue run for each table")
    parser.add_argument("--wave-workers", type=int, default=2, help="of a Glue run, its driver included")
    parser.add_argument("--alarms", type=int, default=_alarms(), help="of the stack")
    options = parser.parse_args()
    for by_glue in (True, False):
        # moto keeps its resources for the life of a process.
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone:
            few, many = alone.map(partial(_measured, options, by_glue=by_glue), options.measured)
        fewer, more = options.measured
        names = {name for name in {*few.amounts, *many.amounts} if not name.startswith("glue")}
        table = {n: max(0.0, (many.amounts.get(n, 0) - few.amounts.get(n, 0)) / (more - fewer)) for n in names}
        run = {n: max(0.0, few.amounts.get(n, 0) - fewer * table[n]) for n in names}
        told = "all compaction in Glue" if by_glue else "small tables in functions"
        for tables in options.tables:
            bill = _month(tables, run, table, few.metrics | many.metrics, options, by_glue=by_glue)
            Console().print(f"{tables} tables, {told}:", *_lines(bill, options), sep="\n", highlight=False)


def _alarms() -> int:
    return sum(one["Type"] == "AWS::CloudWatch::Alarm" for one in load_template()["Resources"].values())


def _measured(options: argparse.Namespace, tables: int, *, by_glue: bool) -> HourOfUse:
    """What one run over so many tables uses; an earlier run has warmed the functions."""
    with tempfile.TemporaryDirectory() as folder, running_moto() as moto:
        arn = _fill(moto, Path(folder), tables, options.files, options.megabytes)
        small = {"SmallCompactionMb": "0" if by_glue else "1280"}
        parameters = {"TableBucketArns": arn, "MaxConcurrentTables": "1", **small}
        with deployed(moto, parameters=parameters, environment=_REACHED) as stack:
            stack.run({}, timeout_s=600)
            warm = stack.used()
            for number in range(tables):
                _append_more(moto, Path(folder), arn, number, options)
            execution = stack.run({}, timeout_s=600)
            assert execution.output["report"]["status"] == "succeeded", execution.output
            used = stack.used()
            amounts = {name: number - warm.amounts.get(name, 0) for name, number in used.amounts.items()}
            return HourOfUse("run", amounts, used.metrics)


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
