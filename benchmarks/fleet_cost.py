"""What a fleet costs a month, from counted calls of the local stack: ``PYTHONPATH=tests python -m
benchmarks.fleet_cost``.

Table buckets of two sizes get small files; scheduled runs of the real state machine, functions and jobs maintain them
under a retention that every run reaches.  The difference of both is what a table costs, the rest what a run costs; both
are scaled to fleets of the given sizes, once with all compaction in Glue and once with small tables in functions.

As on Lambda, a call has a process to itself.  Each request of a function or job takes ``--latency`` more.  A call is
billed for the CPU time of its process and for the time in which at least one of its requests is delayed: both are
independent of the load of this machine.  Calls, states, requests, metrics and log bytes are counted exactly, requests
where they reach the server.  Units of the state table are reckoned from the bytes of requests and answers.  A Glue run
is reckoned: ``--wave-start`` seconds, and ``--wave-table`` for each table (docs/costs.md has their sources).

``--once 1000`` instead lets one run maintain so many copies of a table for the first time and proves it: the journal,
the rows of each table, the quotas of Step Functions and the longest call.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

import pyarrow as pa
from moto.s3.models import s3_backends
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from rich.console import Console

from benchmarks.billed import CALLS, GB_LOGGED, GB_SECONDS, GETS, PUTS, READS, WRITES, Used, billing, calls_of_steps
from icekeeper.model import TableName
from local_stack.executions import Execution
from local_stack.metrics import metrics_in
from local_stack.moto_s3tables import ANSWERS
from local_stack.moto_server import MotoServer, running_moto
from local_stack.stack import LocalStack, deployed
from local_stack.template import ACCOUNT, load_template

# AWS's list prices in US dollars: us-east-1, November 2026, without free tiers and discounts.  What is billed, the
# amount that the price is for, and the price, from the pricing pages of AWS Lambda (x86), AWS Glue ("ETL jobs", FLEX),
# AWS Step Functions (standard workflows), Amazon DynamoDB (on demand), Amazon S3 (the same for table buckets) and
# Amazon CloudWatch (of the first 10,000 custom metrics; each is billed per hour in which it is written).
_DPU_HOURS, _TRANSITIONS, _METRICS = "Glue, FLEX, DPU-hours", "state transitions", "custom metrics"
_PRICES: Mapping[str, tuple[float, float]] = {
    GB_SECONDS: (1, 0.0000166667),
    CALLS: (1e6, 0.20),
    _DPU_HOURS: (1, 0.29),
    _TRANSITIONS: (1000, 0.025),
    READS: (1e6, 0.125),
    WRITES: (1e6, 0.625),
    GETS: (1000, 0.0004),
    PUTS: (1000, 0.005),
    _METRICS: (1, 0.30),
    GB_LOGGED: (1, 0.50),
}
# Amazon S3 pricing, "S3 Tables maintenance": objects and GB that compaction processes.
_FILES, _GB_COMPACTED = "files compacted", "GB compacted"
_S3_TABLES: Mapping[str, tuple[float, float]] = {_FILES: (1000, 0.002), _GB_COMPACTED: (1, 0.005)}
_GB = 2**30
# AWS's definition of a month.
_MONTH_HOURS = 730
_DAYS = 30
# Table buckets list no objects.
_BLIND = {"py-io-impl": "support.aws_table_bucket.BlindFileIO"}
_PLAIN = {"write.avro.compression-codec": "null"}
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
        where = pointer["warehouseLocation"]
        table = writer.create_table(f"ns.t{number}", rows.schema, location=where, properties=_PLAIN)
        for _ in range(files):
            table.append(rows)
        client.update_table_metadata_location(
            **address, versionToken=pointer["versionToken"], metadataLocation=table.metadata_location
        )
    return arn


def _month(
    tables: int, run: Mapping[str, float], table: Mapping[str, float], metrics: int, options: argparse.Namespace
) -> dict[str, float]:
    """The amounts of a month; of Glue only where runs use it."""
    runs = options.passes * _DAYS
    amounts = {name: runs * (run[name] + tables * table[name]) for name in run}
    if run.get(_DPU_HOURS):
        seconds = max(_LEAST_GLUE_S, options.wave_start + tables * options.wave_table)
        amounts[_DPU_HOURS] = runs * options.wave_workers * seconds / 3600
    return {**amounts, _METRICS: runs * metrics / _MONTH_HOURS}


def _lines(month: Mapping[str, float], options: argparse.Namespace) -> Iterator[str]:
    watching, total = options.alarms * _ALARM_USD + _DASHBOARD_USD, 0.0
    for what, (unit, price) in _PRICES.items():
        if amount := month.get(what):
            total += amount / unit * price
            yield f"  {what:34} {amount:>14,.0f}  {amount / unit * price:8.2f} USD"
    yield f"  {'alarms and one dashboard':34} {options.alarms + 1:>14}  {watching:8.2f} USD"
    yield f"  {'total':34} {'':>14}  {total + watching:8.2f} USD"
    aws_own = sum(month[what] / unit * price for what, (unit, price) in _S3_TABLES.items())
    yield f"  {'S3 Tables, the same files':34} {month[_GB_COMPACTED]:>11,.0f} GB  {aws_own:8.2f} USD"


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
    parser.add_argument("--latency", type=float, default=0.03, help="seconds that a request takes")
    parser.add_argument("--alarms", type=int, default=_alarms(), help="of the stack")
    parser.add_argument("--once", type=int, help="how many copies of a table a run maintains and proves")
    options = parser.parse_args()
    if options.once:
        _once(options)
        return
    for by_glue in (True, False):
        # moto keeps its resources for the life of a process.
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone:
            (few, few_metrics), (many, many_metrics) = alone.map(
                partial(_measured, options, by_glue=by_glue), options.measured
            )
        fewer, more = options.measured
        names = {*few, *many}
        table = {n: max(0.0, (many[n] - few[n]) / (more - fewer)) for n in names}
        run = {n: max(0.0, few[n] - fewer * table[n]) for n in names}
        place = "all compaction in Glue" if by_glue else "small tables in functions"
        for tables in options.tables:
            month = _month(tables, run, table, len(few_metrics | many_metrics), options)
            Console().print(f"{tables} tables, {place}:", *_lines(month, options), sep="\n", highlight=False)


def _alarms() -> int:
    return sum(one["Type"] == "AWS::CloudWatch::Alarm" for one in load_template()["Resources"].values())


def _measured(options: argparse.Namespace, tables: int, *, by_glue: bool) -> tuple[Counter[str], frozenset[str]]:
    """What one run over so many tables uses, and the names of the metrics that it writes.

    An earlier run has warmed the functions.
    """
    with tempfile.TemporaryDirectory() as folder, running_moto() as moto:
        arn = _fill(moto, Path(folder), tables, options.files, options.megabytes)
        with deployed(moto, parameters=_parameters(arn, by_glue=by_glue, at_once=1), environment=_REACHED) as stack:
            with billing(stack, options.latency) as used:
                stack.run({}, timeout_s=600)
                for number in range(tables):
                    _append_more(moto, Path(folder), arn, number, options)
                stack.forget_calls()
                used.forget()
                execution = stack.run({}, timeout_s=600)
            _note_run(used, stack, execution, tables)
            return used.amounts, _metrics(used)


def _parameters(arn: str, *, by_glue: bool, at_once: int) -> dict[str, str]:
    """Of the stack."""
    small = "0" if by_glue else "1280"
    return {
        "TableBucketArns": arn,
        "Ownership": "auto",
        "MaxConcurrentTables": str(at_once),
        "SmallCompactionMb": small,
    }


def _metrics(used: Used) -> frozenset[str]:
    return frozenset(metric.name for printed in used.printed for metric in metrics_in(printed))


def _note_run(used: Used, stack: LocalStack, execution: Execution, tables: int) -> None:
    assert execution.output["report"]["status"] == "succeeded", execution.output
    used.add(_TRANSITIONS, execution.transitions)
    used.add(GB_LOGGED, sum(len(run.log.encode()) for job in stack.jobs.values() for run in job.runs) / _GB)
    if any(job.runs for job in stack.jobs.values()):
        used.add(_DPU_HOURS, 1)  # reckoned later
    for number in range(tables):
        done = stack.document_of_pass(execution, "pass.json", of=f"ns.t{number}")["metrics"]
        used.add(_FILES, done["compact.files_merged"])
        used.add(_GB_COMPACTED, done["compact.bytes_read"] / _GB)


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


def _once(options: argparse.Namespace) -> None:
    """Let a run maintain copies of a table, print what it used, and prove it."""
    with tempfile.TemporaryDirectory() as folder, running_moto() as moto:
        arn = _fill(moto, Path(folder), 1, options.files, options.megabytes)
        names = ["t0", *(_copy(moto, arn, number) for number in range(1, options.once))]
        with deployed(moto, parameters=_parameters(arn, by_glue=True, at_once=8), environment=_REACHED) as stack:
            before = _content(moto, arn, names[0])
            begun_s = time.monotonic()
            with billing(stack, options.latency) as used:
                execution = stack.run({}, timeout_s=7200)
            print(f"{options.once} tables in {time.monotonic() - begun_s:.0f} s", flush=True)
            _note_run(used, stack, execution, options.once)
            _print_once(used, execution, options.once)
            assert {_content(moto, arn, name) for name in names} == {before}
            assert _journaled(stack, execution) == {TableName.parse(f"ns.{name}").key for name in names}


def _copy(moto: MotoServer, arn: str, number: int) -> str:
    """Copy the first table under a name, a UUID and a location of its own; the name.

    Its manifests are not compressed, and a location is as long as each other.
    """
    client, store = moto.client("s3tables"), s3_backends[ACCOUNT]["aws"]
    first = client.get_table_metadata_location(tableBucketARN=arn, namespace="ns", name="t0")
    made = {"tableBucketARN": arn, "namespace": "ns", "name": f"t{number}"}
    client.create_table(**made, format="ICEBERG")
    ANSWERS[arn, "ns", f"t{number}"] = dict(_OFF)
    pointer = client.get_table_metadata_location(**made)
    before, after = (one["warehouseLocation"].removeprefix("s3://") for one in (first, pointer))
    keys = store.get_bucket(before).keys
    head = json.loads(keys[first["metadataLocation"].partition(f"{before}/")[2]].value)
    names = {before: after, head["table-uuid"]: str(uuid.uuid4())}
    for key in keys.values():
        data = key.value
        for old, new in names.items() if key.name.startswith("metadata/") else ():
            data = data.replace(old.encode(), new.encode())
        store.put_object(after, key.name, data)
    location = first["metadataLocation"].replace(before, after)
    client.update_table_metadata_location(**made, versionToken=pointer["versionToken"], metadataLocation=location)
    return f"t{number}"


def _content(moto: MotoServer, arn: str, name: str) -> str:
    """A digest of a table's rows, read by PyIceberg."""
    where = moto.client("s3tables").get_table_metadata_location(tableBucketARN=arn, namespace="ns", name=name)
    rows = StaticTable.from_metadata(where["metadataLocation"], {**_BLIND, **moto.s3_properties}).scan().to_arrow()
    lines = sorted(map(repr, rows.to_pylist()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _journaled(stack: LocalStack, execution: Execution) -> set[str]:
    """The keys of the tables whose pass in this run is in the journal of its hour, and succeeded."""
    pages = stack.moto.client("dynamodb").get_paginator("scan").paginate(TableName=stack.template.name("StateTable"))
    items = (item for page in pages for item in page["Items"] if item["pk"]["S"].startswith("passes#"))
    done = [item for item in items if item["run_id"]["S"] == execution.name and item["status"]["S"] == "succeeded"]
    names = [item["table_name"]["S"] for item in done]
    assert len(names) == len(set(names))
    return set(names)


def _print_once(used: Used, execution: Execution, tables: int) -> None:
    for what, amount in sorted(used.amounts.items()):
        print(f"  {what:34} {amount:>14,.3f} {amount / tables:>12,.3f} a table")
    print(f"  largest payload of a state {execution.largest_payload} bytes")
    for step, calls in sorted(calls_of_steps(used.calls).items()):
        billed, cpu, sent, wall = zip(*((c.billed_s, c.cpu_s, c.requests, c.wall_s) for c in calls), strict=True)
        print(
            f"  {step:18} {len(calls):>6} calls; billed {mean(billed):6.2f} s on average, {max(billed):6.1f} at most,"
            f" CPU {mean(cpu):5.2f} s; {mean(sent):7.1f} requests; on this machine {max(wall):6.1f} s at most",
            flush=True,
        )


if __name__ == "__main__":
    main()
