"""Entries that describe their files wrongly: sizes, counts, bounds and split offsets are corrected by the files.

Footers only arouse suspicion, because they may be truncated or of writers with wrong statistics: a count or a bound of
a column is corrected by its decoded values.  What an entry does not state stays unstated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

import pyarrow as pa

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import FileUnreadable
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.types import decode, encode, truncated_lower, truncated_upper
from icekeeper.model import DataFile, FileContent, ManifestEntry
from icekeeper.repair.file_facts import FileFacts, excludes, facts_at
from icekeeper.repair.plan import EntryMend, Found, Head, MendKind, RepairOptions, Unmended, existing
from icekeeper.rows.arrow_schema import LeafColumn, fields_with, leaf_columns, leaf_values
from icekeeper.rows.file_rows import READABLE_FORMATS, projected_rows
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.checks import ProblemKind
from icekeeper.verification.row_checks import ColumnFacts, are_usable_offsets

_PARALLEL_READS = 16
# Iceberg's default of write.metadata.metrics.default is truncate(16).
_BOUND_LENGTH = 16
_OPTION = "--repair-file-metrics"


def file_metrics(head: Head, options: RepairOptions, loaded: LoadedTable, storage: Storage) -> Found:
    """Mends for entries that state something else than their files; other sizes are reported without the option, too.

    Raises:
        StorageError: the store does not answer.
    """
    live = [found for found in head.live() if head.sizes.get(found.path) is not None]
    if not options.file_metrics:
        wrong = (e.file for _, _, e in live if head.sizes[e.file.file_path] != e.file.file_size_in_bytes)
        return Found(unmended=tuple(_wrong_size(file, head.sizes[file.file_path]) for file in wrong))
    by_schema = leaf_columns(head.metadata.current_schema)
    leaves = {leaf.field_id: leaf for leaf in by_schema if not leaf.repeated and leaf.iceberg_type != "variant"}
    look = partial(_looked_at, head=head, leaves=leaves, storage=storage)
    with WorkThreads(_PARALLEL_READS, thread_name_prefix="footers") as pool:
        looked = list(pool.map(look, [entry for _, _, entry in live]))
    mends: list[EntryMend] = []
    left: list[Unmended] = []
    for listed, found in zip(live, looked, strict=True):
        if isinstance(found, Unmended):
            left.append(found)
        elif (wrong_fields := _differences(listed.entry.file, found)) and found != listed.entry.file:
            sentence = f"{listed.path} is described wrongly: {'; '.join(wrong_fields)}"
            becomes = replace(existing(listed.entry), file=found)
            mends.append(listed.mend(MendKind.FILE_METRICS, becomes, sentence))
    return Found(mends=with_own_row_ids(head, mends), unmended=tuple(left))


def _wrong_size(file: DataFile, found: int | None) -> Unmended:
    return Unmended(
        kind=ProblemKind.WRONG_SIZE.value,
        path=file.file_path,
        sentence=f"the entry of {file.file_path} says {file.file_size_in_bytes} bytes, it has {found}",
        option=_OPTION,
    )


def _looked_at(
    entry: ManifestEntry, head: Head, leaves: Mapping[int, LeafColumn], storage: Storage
) -> DataFile | Unmended:
    """The file as its entry should describe it, or why that is unknown."""
    file, size = entry.file, head.sizes[entry.file.file_path] or 0
    is_right_size = size == file.file_size_in_bytes
    if file.file_format.upper() not in READABLE_FORMATS or file.key_metadata is not None:
        return file if is_right_size else replace(_wrong_size(file, size), option=None)
    try:
        facts = facts_at(file.file_path, file.file_format, storage)
        suspects = suspicious_columns(file, facts, leaves) if file.content is FileContent.DATA else []
        schema = head.metadata.current_schema
        columns = decoded_columns(file, suspects, schema, storage) if suspects else {}
    except FileUnreadable as error:
        sentence = f"{error}; an entry is corrected only by a file that can be read: restore the object"
        return Unmended(kind=ProblemKind.MISSING_FILE.value, path=file.file_path, sentence=sentence)
    return corrected(file, size, facts, columns, leaves)


def suspicious_columns(file: DataFile, facts: FileFacts, leaves: Mapping[int, LeafColumn]) -> list[int]:
    """The columns whose counts or bounds in an entry may be wrong by the facts of the file (pure).

    A format without such facts leaves all stated columns under suspicion.
    """
    stated = {
        field_id
        for found in (file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds)
        for field_id in found or ()
    }
    known = sorted(stated & leaves.keys() & facts.field_ids)
    if not facts.value_counts and facts.record_count:
        return known
    return [field_id for field_id in known if _is_suspicious(file, field_id, facts, leaves[field_id])]


def _is_suspicious(file: DataFile, field_id: int, facts: FileFacts, leaf: LeafColumn) -> bool:
    for stated, found in ((file.value_counts, facts.value_counts), (file.null_value_counts, facts.null_counts)):
        count = (stated or {}).get(field_id)
        if count is not None and field_id in found and found[field_id] != count:
            return True
    ranges = facts.bounds.get(field_id, ()) if leaf.has_bounds else ()
    return any(_misleads(file, leaf, low, high) for low, high in ranges)


def _misleads(file: DataFile, leaf: LeafColumn, low: Any, high: Any) -> bool:
    """Whether an entry's bounds do not contain these values, or are NaN, which some readers compare with."""
    stated = [bound for found in (file.lower_bounds, file.upper_bounds) if (bound := (found or {}).get(leaf.field_id))]
    if leaf.is_float and any(len(bound) in (4, 8) and isnan(decode(leaf.iceberg_type, bound)) for bound in stated):
        return True
    return excludes(file, leaf.field_id, leaf.iceberg_type, low, high)


def decoded_columns(
    file: DataFile, field_ids: Sequence[int], schema: Mapping[str, Any], storage: Storage
) -> dict[int, ColumnFacts]:
    """The values of primitive columns outside lists and maps, decoded.

    Raises:
        FileUnreadable: the file cannot be read.
        StorageError: the store failed.
    """
    wanted = {**schema, "fields": fields_with(schema["fields"], set(field_ids))}
    found: dict[int, ColumnFacts] = {}
    for batch in projected_rows(ReadableFile(file.file_path, file.file_format), wanted, storage):
        leaves = iter(leaf_columns(wanted))
        for column in batch.columns:
            for leaf, values in leaf_values(column, leaves):
                facts = found.setdefault(leaf.field_id, ColumnFacts(leaf.name, leaf.iceberg_type))
                facts.add(values.storage if isinstance(values, pa.ExtensionArray) else values)
    return found


def corrected(
    file: DataFile, size: int, facts: FileFacts, columns: Mapping[int, ColumnFacts], leaves: Mapping[int, LeafColumn]
) -> DataFile:
    """The file with all that it states wrongly corrected (pure)."""
    values, nulls, nans = (dict(m or {}) for m in (file.value_counts, file.null_value_counts, file.nan_value_counts))
    lower, upper = dict(file.lower_bounds or {}), dict(file.upper_bounds or {})
    for field_id, found in columns.items():
        for counts, count in ((values, found.values), (nulls, found.nulls), (nans, found.nans)):
            if field_id in counts:
                counts[field_id] = count
        leaf, kind, low, high = leaves[field_id], leaves[field_id].iceberg_type, found.low, found.high
        if leaf.is_float and low is not None:  # either sign of zero may be the least or the greatest value
            low, high = low or -0.0, high or 0.0
        if low is None or not leaf.has_bounds or not _misleads(file, leaf, low, high):
            continue
        if field_id in lower:
            lower[field_id] = truncated_lower(kind, encode(kind, low), _BOUND_LENGTH)
        most = truncated_upper(kind, encode(kind, high), _BOUND_LENGTH)
        if most is None:
            upper.pop(field_id, None)
        elif field_id in upper:
            upper[field_id] = most
    offsets = file.split_offsets
    starts = facts.row_group_offsets
    offsets = starts if offsets and starts and not are_usable_offsets(offsets, size, len(starts)) else offsets
    return replace(
        file,
        file_size_in_bytes=size,
        record_count=facts.record_count,
        value_counts=None if file.value_counts is None else values,
        null_value_counts=None if file.null_value_counts is None else nulls,
        nan_value_counts=None if file.nan_value_counts is None else nans,
        lower_bounds=None if file.lower_bounds is None else lower,
        upper_bounds=None if file.upper_bounds is None else upper,
        split_offsets=offsets,
    )


def _differences(before: DataFile, after: DataFile) -> list[str]:
    """What is corrected, for people."""
    found = []
    if before.file_size_in_bytes != after.file_size_in_bytes:
        found.append(f"{before.file_size_in_bytes} bytes, it has {after.file_size_in_bytes}")
    if before.record_count != after.record_count:
        found.append(f"{counted(before.record_count, 'row')}, it has {after.record_count}")
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        old, new = getattr(before, name) or {}, getattr(after, name) or {}
        if ids := sorted(i for i in old if old[i] != new.get(i)):
            found.append(f"{name.replace('_', ' ')} of the columns with field ids {ids}")
    if before.split_offsets != after.split_offsets:
        found.append(f"split offsets {list(before.split_offsets or ())}, not {list(after.split_offsets or ())}")
    return found


def with_own_row_ids(head: Head, mends: Sequence[EntryMend]) -> tuple[EntryMend, ...]:
    """The mends; a file with more rows than its entry said gets new row ids if its range would reach into that of
    another file, or into ids that are yet to be given (pure).
    """
    becomes = {(mend.manifest, mend.place): mend for mend in mends}
    taken: list[tuple[int, int, tuple[str, int]]] = []
    for manifest, place, entry in head.live():
        mend = becomes.get((manifest.manifest_path, place))
        file = entry.file if mend is None or mend.becomes is None else mend.becomes.file
        if file.content is FileContent.DATA and file.first_row_id is not None:
            end = file.first_row_id + file.record_count
            taken.append((file.first_row_id, end, (manifest.manifest_path, place)))
    return tuple(_with_own_row_ids(mend, taken, head.metadata.next_row_id) for mend in mends)


def _with_own_row_ids(
    mend: EntryMend, taken: Sequence[tuple[int, int, tuple[str, int]]], next_row_id: int
) -> EntryMend:
    new = mend.becomes
    if new is None or new.file.first_row_id is None or new.file.record_count <= mend.entry.file.record_count:
        return mend
    first, end = new.file.first_row_id, new.file.first_row_id + new.file.record_count
    own = mend.manifest, mend.place
    if end <= next_row_id and not any(low < end and first < high for low, high, where in taken if where != own):
        return mend
    sentence = f"{mend.sentence}; its row ids from {first} would reach into others, so its rows get new row ids"
    return replace(mend, becomes=replace(new, file=replace(new.file, first_row_id=None)), sentence=sentence)
