"""Warnings about a table's health, one sentence per kind (pure).

Warnings are for people, and logged when they appear.  So their thresholds are higher than those of detection, which
proposes a pass at the first sign of need: a state that a pass repairs within a day should not raise a warning each day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import PREVIOUS_VERSIONS_MAX_DEFAULT
from icekeeper.policy import Policy
from icekeeper.policy.values import text_of
from icekeeper.state.unreadable_files import UnreadableFile
from icekeeper.text import counted, size_text

__all__ = ["deletes_old_metadata", "lake_warnings", "metadata_log_limit", "unreadable_warning"]

Counters = Mapping[str, int | float]

# Java's commit.manifest.target-size-bytes is 8 MB, which holds some ten thousand entries: at a tenth of that, merging
# manifests saves most of the requests of a planner.
SPARSE_MANIFEST_FILES = 1000
# Every reader opens the delete files of the data that it reads: at one for ten data files that is slow (our estimate).
DATA_FILES_PER_DELETE_FILE = 10
# Expiry runs hourly: if a snapshot is a day late, nothing expires it.
LATE_EXPIRY_MS = 24 * HOUR_MS
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


def lake_warnings(metadata: TableMetadata, counters: Counters, policy: Policy, *, now_ms: int) -> dict[str, str]:
    """Kind → sentence; ``counters`` are those of :func:`icekeeper.health.counters.lake_counters`."""
    return {
        kind: sentence
        for kind, sentences in (
            ("delete_debt", _delete_debt(counters, policy)),
            ("manifest_sprawl", _manifest_sprawl(counters, policy)),
            ("small_files", _small_files(counters, policy)),
            ("snapshot_sprawl", _snapshot_sprawl(metadata, policy, now_ms)),
            ("metadata_sprawl", _metadata_sprawl(metadata)),
        )
        for sentence in sentences
    }


def unreadable_warning(files: Mapping[str, UnreadableFile]) -> str | None:
    """What to tell people of files that passes could not read, and leave alone; ``None``: there are none."""
    if not files:
        return None
    first = next(iter(files.values()))
    verb = "is" if len(files) == 1 else "are"
    return f"{counted(len(files), 'file')} could not be read and {verb} left alone, but for a try a week: {first.why}"


def _delete_debt(counters: Counters, policy: Policy) -> Iterator[str]:
    files, deletes = counters.get("lake_data_files"), counters.get("lake_delete_files", 0)
    records = counters.get("lake_records", 0)
    rows = counters.get("lake_position_deletes", 0) + counters.get("lake_equality_deletes", 0)
    if rows and records and rows >= policy.delete_compaction_min_ratio * int(records):
        yield (
            f"{rows} deletes stand against {records} records, which reaches delete_compaction_min_ratio "
            f"{text_of(policy.delete_compaction_min_ratio)}: every reader has to apply them"
        )
    elif files is not None and deletes >= max(policy.min_input_files, files / DATA_FILES_PER_DELETE_FILE):
        yield f"{deletes} delete files lie beside {files} data files: every reader has to apply them"


def _manifest_sprawl(counters: Counters, policy: Policy) -> Iterator[str]:
    count, files = counters.get("lake_manifests"), counters.get("lake_data_files")
    if count is None or count < policy.min_manifests_to_rewrite:
        return
    if files is not None and files / count >= SPARSE_MANIFEST_FILES:
        return
    each = "" if files is None else f" for {files} data files"
    yield f"{count} manifests{each} reach min_manifests_to_rewrite {policy.min_manifests_to_rewrite}"


def _small_files(counters: Counters, policy: Policy) -> Iterator[str]:
    files, average = counters.get("lake_data_files"), counters.get("lake_average_file_bytes")
    if files is None or average is None or files < policy.min_input_files or average >= policy.min_file_size_bytes:
        return
    yield f"{files} data files of {size_text(average)} on average are below {size_text(policy.min_file_size_bytes)}"


def _snapshot_sprawl(metadata: TableMetadata, policy: Policy, now_ms: int) -> Iterator[str]:
    if len(metadata.snapshots) <= policy.max_snapshots_to_keep:
        return
    late_ms = now_ms - policy.snapshot_retention_ms - LATE_EXPIRY_MS
    if min(metadata.snapshot_times_ms) >= late_ms:
        return
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    late = sum(s.timestamp_ms < late_ms for i, s in metadata.snapshots.items() if i not in heads)
    if late > policy.max_snapshots_to_keep:
        hours = text_of(policy.snapshot_retention_hours)
        yield f"{late} snapshots are more than a day past snapshot_retention_hours {hours}"


def _metadata_sprawl(metadata: TableMetadata) -> Iterator[str]:
    count = len(metadata.metadata_log)
    if not deletes_old_metadata(metadata) and count >= metadata_log_limit(metadata):
        yield (
            f"the metadata log is full with {count} files and {_DELETE_AFTER_COMMIT} is off: every commit leaves a "
            "metadata file behind; set that property to true"
        )


def deletes_old_metadata(metadata: TableMetadata) -> bool:
    """Whether each commit deletes the metadata files that fall out of the log."""
    return metadata.property_flag(_DELETE_AFTER_COMMIT, default=False)


def metadata_log_limit(metadata: TableMetadata) -> int:
    """How many former metadata files the log holds at most; the default where the property is no number."""
    text = str(metadata.properties.get(_PREVIOUS_VERSIONS_MAX, "")).strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) else PREVIOUS_VERSIONS_MAX_DEFAULT
