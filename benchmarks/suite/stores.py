"""Rows on a table bucket (SeaweedFS)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.row import Row, Target
from benchmarks.suite.settings import MB, ONE_OUTPUT_SETTINGS, WHOLE_PASS


def _on_store(key: str, title: str, data: str, entrant: str, targets: Sequence[Target]) -> Row:
    """A rewrite in a table bucket, 20 ms before every request."""
    return Row(
        key,
        title,
        data,
        "compact",
        (entrant,),
        targets,
        settings=ONE_OUTPUT_SETTINGS,
        most_files=1,
        store_delay_ms=20,
    )


STORES: Sequence[Row] = (
    _on_store(
        "store_decode",
        "append-only on SeaweedFS, decoding",
        "append_only",
        "icekeeper_decoding",
        (Target("peak_mb_of_worker", "icekeeper_decoding", 400),),
    ),
    _on_store(
        "store_copy",
        "files of 16 MB and more on SeaweedFS, copied by the store",
        "append_only_16mb",
        "icekeeper_copy",
        (Target("bytes_ratio", "icekeeper_copy", 0.02), Target("peak_mb_of_worker", "icekeeper_copy", 150)),
    ),
    Row(
        "small_table_store",
        "a small table's whole pass on SeaweedFS, 60 files",
        "small_table",
        WHOLE_PASS,
        ("icekeeper",),
        # One for each file and for its one manifest, and 40 more; the catalog's are not among them.
        (Target("requests", "icekeeper", 60 + 1 + 40),),
        store_delay_ms=20,
    ),
    Row(
        "seaweedfs_worker",
        "600 files, 176 MB beside SeaweedFS's worker",
        "append_only_300kb",
        "compact",
        ("icekeeper", "seaweedfs"),
        (Target("wall_s", "icekeeper", 0.15, "seaweedfs"), Target("output_ratio", "icekeeper", 1.0)),
        task={"target_bytes": 256 * MB},
        settings={**ONE_OUTPUT_SETTINGS, "target_file_size_mb": "256"},
        most_files=1,
        # The worker speaks to the store by another protocol, which the proxy does not delay.
        store_delay_ms=0,
    ),
)
