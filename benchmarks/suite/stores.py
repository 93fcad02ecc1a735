"""Rows on a table bucket (SeaweedFS)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.row import Row, Target
from benchmarks.suite.settings import MB, ONE_OUTPUT, ONE_OUTPUT_SETTINGS, WHOLE_PASS

_OTHERS = ("pyiceberg", "duckdb_s3", "rust_s3", "java_s3a")


def _on_store(key: str, title: str, data: str, entrant: str, delay_ms: float, targets: Sequence[Target]) -> Row:
    """A rewrite in a table bucket, so many ms before every request."""
    return Row(
        f"{key}_{delay_ms:g}ms",
        f"{title}, {delay_ms:g} ms a request",
        data,
        "compact",
        (entrant, *_OTHERS),
        targets,
        task=ONE_OUTPUT,
        settings=ONE_OUTPUT_SETTINGS,
        most_files=1,
        store_delay_ms=delay_ms,
    )


def _decoding(delay_ms: float) -> Row:
    limit = Target("peak_mb_of_worker", "icekeeper_decoding", 400)
    title = "append-only on SeaweedFS, decoding"
    return _on_store("store_decode", title, "append_only", "icekeeper_decoding", delay_ms, (limit,))


def _copying(delay_ms: float) -> Row:
    limits = [Target("peak_mb_of_worker", "icekeeper_copy", 150)]
    if delay_ms:  # without a delay nothing is counted
        limits.insert(0, Target("bytes_ratio", "icekeeper_copy", 0.02))
    title = "files of 16 MB and more on SeaweedFS, copied by the store"
    return _on_store("store_copy", title, "append_only_16mb", "icekeeper_copy", delay_ms, limits)


STORES: Sequence[Row] = (
    _decoding(20),
    _decoding(0),
    _copying(20),
    _copying(0),
    Row(
        "small_table_store",
        "a small table's whole pass on SeaweedFS, 60 files",
        "small_table",
        WHOLE_PASS,
        ("icekeeper",),
        # One for each file and for its one manifest, and 7 more; the catalog's are not among them.
        (Target("requests", "icekeeper", 60 + 1 + 7),),
        store_delay_ms=20,
    ),
    Row(
        "seaweedfs_worker",
        "600 files, 176 MB beside SeaweedFS's worker",
        "append_only_300kb",
        "compact",
        ("icekeeper", "pyarrow_s3", "seaweedfs"),
        (Target("wall_s", "icekeeper", 1.2, "pyarrow_s3"), Target("output_ratio", "icekeeper", 1.0)),
        task={"target_bytes": 256 * MB},
        settings={**ONE_OUTPUT_SETTINGS, "target_file_size_mb": "256"},
        most_files=1,
        # The worker speaks to the store by another protocol, which the proxy does not delay.
        store_delay_ms=0,
    ),
)
