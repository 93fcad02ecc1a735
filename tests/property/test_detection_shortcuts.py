"""Each shortcut of detection gives the same result as the plain computation that it replaces."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from icekeeper.detection.detect import detect
from icekeeper.detection.proposal import FleetReport
from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata import writer_marks
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.writer_marks import marks_of
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy.keys import MEGABYTE
from icekeeper.policy.values import rounded_down, rounded_up
from icekeeper.state.sqlite.store import SqliteStateStore
from support.corpus import corpus_root
from support.examples import examples
from support.scans import PreparedCatalog, source
from support.settings import MB, NOW_MS, table

SCHEMAS = [{"type": "struct", "schema-id": 0, "fields": []}]
PLAIN = {"format-version": 2, "location": "s3://b/t", "schemas": SCHEMAS}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MARKS = (
    "flink.job-id",
    "flink.max-committed-checkpoint-id",
    "flink.operator-id",
    "kafka.connect.offsets.topic.group",
    "kafka.connect.control.offsets.g",
    "kafka.connect.commit-id",
    "spark.sql.streaming.queryId",
    "spark.sql.streaming.epochId",
    "redpanda.commit-metadata",
    "commit-user",
    writer_marks.COMMITTED_KEY,
)
SUMMARIES = st.dictionaries(
    st.sampled_from((*MARKS, "operation", "total-data-files", "commit", "user", "flink.", "")),
    st.sampled_from(("1", "j", '{"cluster": "c"}', "")),
    max_size=6,
)
COUNTERS = st.fixed_dictionaries(
    {
        "total-data-files": st.integers(0, 400).map(str),
        "total-files-size": st.integers(0, 400).map(lambda size: str(size * MB)),
    },
    optional={
        "total-delete-files": st.integers(0, 9).map(str),
        "total-records": st.integers(0, 99).map(str),
        "total-position-deletes": st.integers(0, 99).map(str),
        "manifests-created": st.just("1"),
        "manifests-kept": st.integers(0, 9).map(str),
        **dict.fromkeys(MARKS, st.just("1")),
    },
)
PROPERTIES = st.dictionaries(
    st.sampled_from(
        (
            "owner",
            "icekeeper.target_file_size_mb",
            "icekeeper.max_snapshots_to_keep",
            "icekeeper.min_input_files",
            "icekeeper.maintenance_enabled",
            "history.expire.max-snapshot-age-ms",
        )
    ),
    st.sampled_from(("1", "128", "true", "false")),
    max_size=3,
)


def read_either_way(data: bytes) -> tuple[Any, Any]:
    """The document as ``parse_document`` and as ``json.loads`` read it; ``None`` if it is invalid
    (rule: bound-foreign-bytes)."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        plain = json.loads(data, parse_constant=refuse)
        json.dumps(plain, ensure_ascii=False).encode()  # no lone surrogates
    except ValueError:
        plain = None
    try:
        return parse_document(data, "m.json").document, plain
    except MetadataUnreadable as error:  # it may be JSON without being table metadata
        return None if "cannot be parsed" in str(error) else plain, plain


@settings(max_examples=examples(60))
@given(more=st.dictionaries(st.text(), VALUES), ascii_only=st.booleans(), indent=st.sampled_from((None, 2)))
@example(more={"a": [1, 1.0, True, 1e308, -0.0, 2**200]}, ascii_only=True, indent=None)
@example(more={"a": float("nan")}, ascii_only=True, indent=None)
@example(more={"a": "\ud800"}, ascii_only=True, indent=None)
def test_a_document_reads_as_with_json_loads(more: Mapping[str, Any], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({**more, **PLAIN}, ensure_ascii=ascii_only, indent=indent)
    fast, plain = read_either_way(text.encode(errors="surrogatepass"))
    assert repr(fast) == repr(plain)  # 1, 1.0 and True are equal


@settings(max_examples=examples(60))
@given(st.binary(max_size=30), st.integers(0, 40))
@example(b'"format-version": 3, "location": "again", "location": "twice"}', 1)
@example(b"", 0)
def test_invalid_documents_are_refused_as_by_the_json_module(noise: bytes, at: int) -> None:
    whole = json.dumps(PLAIN).encode()
    for data in (whole[:at] + noise, whole[:at] + noise + whole[at:], b"\xef\xbb\xbf" + whole):
        fast, plain = read_either_way(data)
        assert repr(fast) == repr(plain)


@settings(max_examples=examples(60))
@given(SUMMARIES)
def test_the_prefilter_for_marks_skips_no_mark(summary: dict[str, str]) -> None:
    snapshot = Snapshot({"snapshot-id": 1, "timestamp-ms": 7, "summary": summary})
    assert [*marks_of(snapshot)] == [*dict(writer_marks._writers(summary))]


@given(st.fractions(min_value=0), st.sampled_from((1, HOUR_MS, MEGABYTE)))
def test_amounts_are_rounded_exactly(amount: Fraction, unit: int) -> None:
    assert rounded_up(amount, unit) == math.ceil(amount * unit)
    assert rounded_down(amount, unit) == math.floor(amount * unit)


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 3)), max_size=6, unique_by=lambda drawn: drawn[0]))
def test_snapshots_with_different_numbers_are_in_the_order_of_the_numbers(drawn: list[tuple[int, int]]) -> None:
    """The whole order, for which two snapshots have the same number, leaves the others at the same places."""
    snapshots = [
        {"snapshot-id": place, "sequence-number": number, "timestamp-ms": time_ms, "parent-snapshot-id": place - 1}
        for place, (number, time_ms) in enumerate(drawn)
    ]
    twins = [
        {"snapshot-id": place, "sequence-number": 9, "timestamp-ms": 0, "parent-snapshot-id": 90} for place in (98, 99)
    ]
    fast, whole = (
        [snapshot.snapshot_id for snapshot in TableMetadata({**PLAIN, "snapshots": some}).in_commit_order]
        for some in (snapshots, [*snapshots, *twins])
    )
    assert [*fast, 98, 99] == whole


class Uncached(TablePolicies):
    """Resolves the settings of each table without a cache."""

    def of(self, *arguments: Any, **named: Any) -> Any:
        self._resolved.clear()
        return super().of(*arguments, **named)


def decided(tables: Mapping[str, TableMetadata], policies: TablePolicies) -> tuple[FleetReport, list[Any]]:
    """The report of a second scan, and the lake stats that the scans recorded."""
    with tempfile.TemporaryDirectory() as folder:
        state, catalog = SqliteStateStore(Path(folder) / "state.db"), PreparedCatalog(tables)
        reports = [detect([source(catalog)], state, policies, clock=lambda: NOW_MS, threads=1) for _ in range(2)]
        assert reports[0].scanned == len(tables)
        return reports[1], list(state.lake_stats.of_catalog(catalog.id))


def same_either_way(documents: Mapping[str, bytes]) -> None:
    fast = decided({name: parse_document(data, name) for name, data in documents.items()}, TablePolicies({}))
    plain = {name: TableMetadata(json.loads(data)) for name, data in documents.items()}
    # Every kind of mark is tried on every snapshot.
    with mock.patch.object(writer_marks, "_may_hold_marks", return_value=True):
        assert decided(plain, Uncached({})) == fast


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.tuples(COUNTERS, PROPERTIES, st.integers(1, 12)), min_size=1, max_size=6))
def test_generated_tables_get_the_same_report(drawn: list[tuple[dict[str, str], dict[str, str], int]]) -> None:
    documents = {}
    for number, (summary, properties, snapshots) in enumerate(drawn):
        made = table(summary, snapshots=snapshots).document
        made = {**made, "schemas": SCHEMAS, "table-uuid": f"u{number}", "properties": properties}
        documents[f"ns.t{number}"] = json.dumps(made).encode()
    same_either_way(documents)


def test_tables_of_other_engines_get_the_same_report() -> None:
    root = corpus_root()
    found = [path.read_bytes() for path in sorted(root.rglob("*.metadata.json"))] if root is not None else []
    whole = [data for data in found if data[:1] == b"{" and {"format-version", "location"} <= json.loads(data).keys()]
    assert whole or root is None
    same_either_way({f"ns.t{number}": data for number, data in enumerate(whole)})
