"""Variants: rows, and the bytes of their values, are the same before and after each operation.

Files that store variants in the same columns share an output, and copies keep these columns.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow.parquet as pq
import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.erasure.row_filter import Wanted
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import NAME_MAPPING
from icekeeper.model import DataFile
from icekeeper.policy import Operation
from icekeeper.repair.file_facts import facts_at, why_another
from icekeeper.repair.plan import RepairOptions
from icekeeper.report.activity import silent
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.verification.checks import Verification
from icekeeper.verification.deep import Extent, verify_deep
from support.deletes import equality_delete
from support.maintained_table import NAME, MaintainedTable, assert_agree, dry_run, local_path, maintained_table
from support.plans import data_file
from support.scripted_catalog import once
from support.v3 import commit_files, commit_keys, data_files, delete_positions, lineage
from support.variants import SHREDDINGS, annotated, append, seen_by_duckdb, stored, variant_table, write

COPYING: dict[str, Any] = {"min_row_group_copy_bytes": "100", "min_input_files": "2"}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two files of ten rows without variants, of us and eu, and in us six more, stored in three ways."""
    with maintained_table(tmp_path) as made:
        variant_table(made)
        for number, (how, writer) in enumerate([("shredded", "duckdb"), ("shredded", "arrow"), ("plain", "arrow")]):
            for first in (100 + 20 * number, 110 + 20 * number):
                append(made, range(first, first + 10), stored=how, writer=writer)
        yield made


def merged(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    """A compaction that keeps rows, paths into variants, bytes and row ids."""
    before, ids = (seen_by_duckdb(table), stored(table)), lineage(table)
    outcome = table.run(Operation.COMPACT, **{**COPYING, "proof": "full", **settings})
    assert outcome.status is Status.SUCCEEDED, outcome
    assert (seen_by_duckdb(table), stored(table)) == before
    assert {row: count for row, count in lineage(table).items() if row in ids} == {
        row: count for row, count in ids.items() if row[1] is not None
    }
    assert (table.verify().problems, table.unreferenced()) == ((), set())
    return outcome


def columns_of(file: DataFile) -> list[str]:
    schema = pq.ParquetFile(local_path(file.file_path)).schema
    return [schema.column(number).path for number in range(len(schema))]


def test_files_are_merged_with_those_that_store_variants_in_the_same_columns(table: MaintainedTable) -> None:
    outcome = merged(table)
    assert (outcome.metrics["compact.files_merged"], outcome.metrics["compact.files_written"]) == (7, 3)
    assert outcome.metrics["compact.bytes_copied"] > 0
    files = [file for file in data_files(table) if file.column_sizes and 3 in file.column_sizes]
    assert sorted(file.record_count for file in files) == [20, 20, 30]  # the plain files, and one without variants
    assert [annotated(file.file_path) for file in files] == [{"v", "s", "l"}] * 3
    assert sorted(sum(path.startswith("v.") for path in columns_of(file)) for file in files) == [2, 6, 6]
    assert table.run(Operation.COMPACT, **COPYING).status is Status.SKIPPED


def test_entries_say_nothing_of_the_values_and_copies_keep_the_statistics_of_columns(tmp_path: Path) -> None:
    """Bounds of a variant are variants themselves (specification, "Bounds for Variant"), which a union would have to
    understand.  Statistics of a column describe the row group whose bytes are copied: readers skip it as before."""
    with maintained_table(tmp_path) as made:
        variant_table(made)
        inputs = [made.loaded.metadata.data_location + f"/region=us/{first}.parquet" for first in (100, 110)]
        for path, first in zip(inputs, (100, 110), strict=True):
            write(local_path(path), range(first, first + 10), "us", "shredded", "arrow")
            bound = {3: bytes.fromhex("0100000201000000")}
            counts: dict[str, Any] = {"value_counts": {1: 10, 3: 10}, "null_value_counts": {1: 0, 3: 1}}
            size = local_path(path).stat().st_size
            entry = data_file(path, size, ("us",), records=10, lower_bounds=bound, upper_bounds=bound, **counts)
            commit_files(made, [entry], {})
        before = [group for path in inputs for group in statistics(path)]
        assert before[0]["v.typed_value.b.typed_value"]["max"] == "text 102"
        assert merged(made, target_file_size_mb="1").metrics["compact.bytes_copied"] > 0
        (file,) = [file for file in data_files(made) if file.record_count == 20]
        for found in (file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds):
            assert found is not None
            assert {1, 2} <= found.keys()
            assert found.keys().isdisjoint({3, 5, 7})
        footer = pq.read_metadata(local_path(file.file_path))
        chunks = [footer.row_group(group).column(number) for group in range(2) for number in range(2, 8)]
        assert (file.column_sizes or {})[3] == sum(chunk.total_compressed_size for chunk in chunks)
        after = statistics(file.file_path)
        assert [{path: group[path] for path in old} for old, group in zip(before, after, strict=True)] == before


def statistics(path: str) -> list[dict[str, Any]]:
    """For each row group, the statistics of its columns by path."""
    footer = pq.read_metadata(local_path(path))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = ([group.column(number) for number in range(group.num_columns)] for group in groups)
    return [
        {chunk.path_in_schema: chunk.statistics.to_dict() for chunk in chunks if chunk.statistics is not None}
        for chunks in columns
    ]


@pytest.fixture
def odd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[MaintainedTable, str]]:
    """A table of two plain files in us, and a file of five rows whose variants are not read."""
    with maintained_table(tmp_path) as made:
        variant_table(made)
        append(made, range(100, 110))
        append(made, range(110, 120))
        ending = "avro" if request.param == "Avro" else "parquet"
        path = f"{made.loaded.metadata.data_location}/region=us/odd.{ending}"
        if ending == "avro":
            fields = [{"name": n, "type": t, "field-id": i} for n, t, i in (("id", "long", 1), ("region", "string", 2))]
            with local_path(path).open("wb") as sink:
                rows = [{"id": number, "region": "us"} for number in range(200, 205)]
                fastavro.writer(sink, {"type": "record", "name": "row", "fields": fields}, rows)
        else:
            ids = ", FIELD_IDS {id: 1, region: 2, v: 3}" if request.param == "another type" else ""
            query = "SELECT range AS id, 'us' AS region, {} AS v FROM range(200, 205)"
            value = "'a'" if ids else "range::VARIANT"
            duckdb.sql(f"COPY ({query.format(value)}) TO '{local_path(path)}' (FORMAT parquet{ids})")
            mapping = json.dumps([{"field-id": i, "names": [name]} for i, name in enumerate(("id", "region", "v"), 1)])
            made.rewrite_document(lambda document: document["properties"].update({NAME_MAPPING: mapping}))
        size = local_path(path).stat().st_size
        commit_files(made, [data_file(path, size, ("us",), records=5, file_format=ending.upper())], {})
        yield made, path


WHY = {
    "Avro": "is AVRO, from which variants are not read",
    "no field ids": "cannot be read: it has no field ids, so its variants are not found",
    "another type": "cannot be read: it stores no variant in column 3, which is one in the table",
}


@pytest.mark.parametrize(("odd", "why"), WHY.items(), indirect=["odd"], ids=list(WHY))
def test_a_file_whose_variants_are_not_read_is_left_alone_by_name(odd: tuple[MaintainedTable, str], why: str) -> None:
    made, path = odd
    outcome = made.run(Operation.COMPACT, **COPYING)
    assert (outcome.status, outcome.metrics["compact.files_unsupported"]) == (Status.SUCCEEDED, 1)
    assert outcome.metrics["compact.files_merged"] == 3
    assert path in {file.file_path for file in data_files(made)}
    (alone,) = (made.run(Operation.COMPACT, **COPYING).reason,)
    assert alone is not None
    assert "1 file(s) stay unchanged" in alone
    assert f"{path} {why}" in alone
    checked = read_deep(made)
    assert checked.problems == ()
    assert checked.checked.get("files_without_variants", 0) == (path.endswith("parquet"))


def read_deep(table: MaintainedTable) -> Verification:
    return verify_deep(table.loaded, table.storage, LocalEngine(1), Extent(), silent, table.verify())


def test_verify_reads_variants_as_each_file_stores_them(table: MaintainedTable) -> None:
    def problems() -> list[tuple[str, str]]:
        return [(problem.kind.value, problem.path) for problem in read_deep(table).problems]

    assert problems() == []
    assert read_deep(table).checked["read_rows"] == 80
    merged(table)
    assert problems() == []
    (file,) = [file for file in data_files(table) if file.record_count == 30]
    group = pq.read_metadata(local_path(file.file_path)).row_group(0)
    (chunk,) = [c for c in map(group.column, range(4)) if c.path_in_schema == "v.value"]
    whole = bytearray(local_path(file.file_path).read_bytes())
    whole[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 0xFF
    local_path(file.file_path).write_bytes(whole)
    assert problems() == [("unreadable_data", file.file_path)]


def test_repair_knows_a_file_by_its_variants(table: MaintainedTable) -> None:
    merged(table)
    kinds = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(table.metadata.current_schema)}
    for file in data_files(table):
        facts = facts_at(file.file_path, "PARQUET", table.storage)
        assert why_another(file, file.file_size_in_bytes, facts, kinds) is None
        if 3 in (file.column_sizes or {}):
            other = why_another(replace(file, column_sizes={3: 1}), file.file_size_in_bytes, facts, kinds)
            assert str(other).endswith(" bytes in the column with field id 3, not 1")
    planned = table.runtime_with().plan_repair(NAME, RepairOptions(file_metrics=True)).plan
    assert planned is not None
    assert (planned.mends, planned.unmended) == ((), ())


def test_rows_deleted_during_a_copy_are_deleted_in_the_outputs(table: MaintainedTable) -> None:
    """The proof reads the deleted rows in inputs and outputs, with their variants."""
    before = seen_by_duckdb(table)
    first = min(file.file_path for file in data_files(table) if "shredded-duckdb" in file.file_path)
    table.engine.during = once(lambda: delete_positions(table, {first: [2, 3]}))
    outcome = table.run(Operation.COMPACT, **COPYING, proof="full")
    assert (outcome.status, outcome.metrics["compact.rows_forwarded"]) == (Status.SUCCEEDED, 2), outcome
    assert seen_by_duckdb(table) == Counter({row: n for row, n in before.items() if row[0] not in (102, 103)})


def test_a_dry_run_expects_what_a_pass_does(table: MaintainedTable) -> None:
    would = dry_run(table, "compact", **COPYING)
    assert_agree(would, table.maintain(operations="compact", **COPYING))


def test_a_variant_that_its_file_does_not_call_one_is_decoded_and_called_one(tmp_path: Path) -> None:
    """Spark 4.0 and old versions of Iceberg-Java write a plain group."""
    with maintained_table(tmp_path) as made:
        variant_table(made)
        plain = f"{made.loaded.metadata.data_location}/region=us/plain.parquet"
        paths = [local_path(path) for path in (append(made, range(100, 110), stored="shredded"), plain)]
        write(paths[1], range(110, 120), "us", "shredded", "arrow")
        pq.write_table(pq.ParquetFile(paths[1]).read(), paths[1], store_schema=False)
        assert annotated(plain) == set()
        commit_files(made, [data_file(plain, paths[1].stat().st_size, ("us",))], {})
        before = [row for path in paths for row in pq.ParquetFile(path).read(["v"]).to_pylist()]
        outcome = made.run(Operation.COMPACT, **COPYING, proof="full")
        assert outcome.metrics["compact.bytes_copied"] > 0
        (file,) = [file for file in data_files(made) if file.record_count == 20]
        assert annotated(file.file_path) == {"v", "s", "l"}
        after = pq.ParquetFile(local_path(file.file_path)).read(["id", "v"]).sort_by("id").select(["v"]).to_pylist()
        assert after == before


def test_files_that_all_store_variants_otherwise_are_left_alone_and_not_proposed_again(tmp_path: Path) -> None:
    with maintained_table(tmp_path) as made:
        variant_table(made)
        for number, how in enumerate(SHREDDINGS, 10):
            append(made, range(10 * number, 10 * number + 10), stored=how)
        settings = {"operations": "compact", "min_input_files": "4"}
        assert made.runtime.detect(settings).proposals
        (outcome,) = made.runtime.maintain(NAME, settings, made.engine).operations
        count = len(SHREDDINGS) + 2
        why = f"no files eligible for compaction ({count} file(s) store variants in too many ways to be merged)"
        assert (outcome.status, outcome.reason) == (Status.SKIPPED, why)
        (skip,) = made.runtime.detect(settings).skipped
        assert skip.reason == "nothing came since the last pass"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"where": "v = 1"}, "Could not convert 1 into a variant, which column v is"),
        ({"where": "v.a = 1"}, "the table has no column 'v.a'"),
        ({"strategy": "sort", "sort_order": "v"}, "names column 'v' of type variant, which cannot be sorted"),
        ({"strategy": "zorder", "sort_order": "id, v"}, "names column 'v' of type variant, which cannot be sorted"),
    ],
    ids=str,
)
def test_variants_cannot_be_compared(settings: dict[str, str], reason: str, table: MaintainedTable) -> None:
    with pytest.raises(PolicyError, match=re.escape(reason)):
        table.run(Operation.COMPACT, **settings)


@pytest.mark.parametrize("where", ["v is null", "s.x is not null", "s is null and id = 1"])
def test_erased_searches_no_variants(where: str, table: MaintainedTable) -> None:
    with pytest.raises(PolicyError, match=re.escape(f"{where} names a column with variants, which are not searched")):
        table.runtime.erased(NAME, Wanted(where=where), LocalEngine(1))
    found = table.runtime.erased(NAME, Wanted(where="id = 1000"), LocalEngine(1))
    assert (found["answer"], found["unknown"]) == ("gone", [])


def test_equality_deletes_by_a_variant_leave_the_table_alone(table: MaintainedTable) -> None:
    keys, more = equality_delete(100, "us")
    commit_keys(table, [(keys, {**more, "equality_ids": (3,)})])
    before = table.metadata_location
    outcome = table.run(Operation.COMPACT, **COPYING)
    why = "TableUnsupported: an equality delete compares column 3 of type variant, which has no equality"
    assert (outcome.status, outcome.reason) == (Status.FAILED, f"3 bin(s) failed: {why}")
    assert table.metadata_location == before
