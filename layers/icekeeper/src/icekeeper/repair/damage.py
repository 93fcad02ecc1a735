"""Finds damage of a head that its manifests and a listing show, and decides how it is mended (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.types import comparable, decode, summarise_partitions
from icekeeper.model import EntryStatus, ManifestEntry, ManifestFile, PartitionFieldSummary
from icekeeper.repair.plan import (
    Effect,
    EntryMend,
    Found,
    Head,
    Listed,
    ManifestMend,
    MendKind,
    RepairOptions,
    Unmended,
)
from icekeeper.text import counted
from icekeeper.verification.checks import manifest_problems, summary_problems


def duplicates(head: Head, options: RepairOptions, live_rows: Callable[[Listed], int | None]) -> Found:
    """Files that the head lists more than once: one entry of each stays.

    Entries that are equal in all that decides which rows readers see are interchangeable.  Others are not: a smaller
    sequence number exposes the file to more deletes, so only a person can choose, by the numbers of the sentence.
    ``live_rows``: counts the rows of the file that readers see with one of its entries; ``None``: unknown.
    """
    groups: dict[tuple[str, int | None], list[Listed]] = defaultdict(list)
    for listed in head.live():
        groups[listed.entry.file.key].append(listed)
    mends: list[EntryMend] = []
    left: list[Unmended] = []
    for (path, _), group in groups.items():
        if len(group) == 1:
            continue
        group.sort(key=lambda listed: (_rank(listed), listed.manifest.manifest_path, listed.place))
        is_alike = len({_rank(listed) for listed in group}) == 1
        number = 1 if is_alike else options.keep
        if number is None or number > len(group):
            left += _choices(path, group, live_rows)
            continue
        kept = group[number - 1]
        for listed in group:
            if listed is not kept:
                stays = f"the entry with sequence number {kept.entry.sequence_number} stays"
                sentence = f"{path} is listed {len(group)} times; {stays}, an entry with {_differs(listed)} goes"
                mends.append(listed.mend(MendKind.DUPLICATE_FILE, None, sentence))
    return Found(mends=tuple(mends), unmended=tuple(left))


def _rank(listed: Listed) -> tuple[int, int, int, str]:
    """What must be equal in interchangeable entries of a file, the oldest first."""
    entry, row_id = listed.entry, listed.entry.file.first_row_id
    where = repr((listed.manifest.partition_spec_id, entry.file.partition))
    return entry.sequence_number or 0, entry.file_sequence_number or 0, -1 if row_id is None else row_id, where


def _differs(listed: Listed) -> str:
    number, _, row_id, _ = _rank(listed)
    return f"sequence number {number}" + (f" and row ids from {row_id}" if row_id >= 0 else "")


def _choices(path: str, group: Sequence[Listed], live_rows: Callable[[Listed], int | None]) -> Iterator[Unmended]:
    for number, listed in enumerate(group, 1):
        spec_id, stated, rows = listed.manifest.partition_spec_id, listed.entry.file.record_count, live_rows(listed)
        seen = "an unknown number" if rows is None else str(rows)
        sentence = (
            f"{path} is listed {len(group)} times, differently; --keep {number} keeps the entry with "
            f"{_differs(listed)} in spec {spec_id}, partition {list(listed.entry.file.partition)}: readers then see "
            f"{seen} of its {counted(stated, 'row')}"
        )
        yield Unmended(kind=MendKind.DUPLICATE_FILE.value, path=path, sentence=sentence, option=f"--keep {number}")


def wrong_lists(head: Head, options: RepairOptions) -> Found:
    """Manifests that the manifest list describes wrongly, and wrong totals of the snapshot."""
    mends: list[ManifestMend] = []
    left: list[Unmended] = []
    for manifest in head.manifests:
        entries = head.entries[manifest.manifest_path]
        if not options.file_metrics and (doubt := _doubt(manifest, entries)):
            left.append(doubt)
            continue
        details = [p.detail for p in manifest_problems(manifest, entries)]
        if head.sizes.get(manifest.manifest_path) not in (None, manifest.manifest_length):
            details.append(f"the manifest list says that it has {counted(manifest.manifest_length, 'byte')}")
        is_hidden = not manifest.may_have_live_files and any(entry.is_live for entry in entries)
        if is_hidden:
            details.append("readers skip its live files")
        if narrow := _narrow_summaries(head, manifest, entries):
            is_hidden = True
            details.append(f"the manifest list says that its partitions are fewer than they are (field {narrow})")
        if details:
            effect = Effect.ROWS_CHANGE if is_hidden else Effect.NONE
            sentence = f"{manifest.manifest_path} is written anew: {'; '.join(details)}"
            mends.append(ManifestMend(manifest=manifest.manifest_path, sentence=sentence, effect=effect))
    path = head.snapshot.manifest_list or ""
    details = [problem.detail for problem in summary_problems(head.snapshot, head.manifests, path)]
    if details and not mends and not left:
        mends.append(ManifestMend(manifest=path, sentence="; ".join(details), kind=MendKind.SUMMARY))
    return Found(manifests=tuple(mends), unmended=tuple(left))


def _doubt(manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> Unmended | None:
    """The finding that a manifest list and entries count other rows of the same files: only the files show which is
    right, so the list must not be made to agree with wrong entries."""
    for status, files, rows in (
        (EntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
        (EntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
    ):
        counts = [entry.file.record_count for entry in entries if entry.status is status]
        if files == len(counts) and rows not in (None, sum(counts)):
            return Unmended(
                kind=MendKind.MANIFEST_COUNTS.value,
                path=manifest.manifest_path,
                sentence=f"the manifest list counts {rows} rows in {manifest.manifest_path}, its entries count "
                f"{sum(counts)}; only their files show which of the two is right",
                option="--repair-file-metrics",
            )
    return None


def _narrow_summaries(head: Head, manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> str:
    """The partition field whose summary in the manifest list excludes a live entry; empty: none does."""
    if manifest.partitions is None:
        return ""
    types = partition_types(head.metadata, manifest.partition_spec_id)
    names = [str(field["name"]) for field in head.metadata.specs[manifest.partition_spec_id]["fields"]]
    if len(manifest.partitions) != len(names):
        return ", ".join(names) if names else ""
    live = [entry.file.partition for entry in entries if entry.is_live]
    found = summarise_partitions(types, live) or ()
    for name, kind, stated, real in zip(names, types, manifest.partitions, found, strict=True):
        if _excludes(kind, stated, real):
            return name
    return ""


def _excludes(kind: str, stated: PartitionFieldSummary, real: PartitionFieldSummary) -> bool:
    if (real.contains_null and not stated.contains_null) or (real.contains_nan and stated.contains_nan is False):
        return True
    if kind == "uuid" or real.lower_bound is None or real.upper_bound is None:  # readers order uuids differently
        return False
    if stated.lower_bound is None or stated.upper_bound is None:
        return True
    try:
        low, high, least, most = (
            comparable(kind, decode(kind, bound))
            for bound in (stated.lower_bound, stated.upper_bound, real.lower_bound, real.upper_bound)
        )
        return bool(least < low or most > high)
    except (ValueError, TypeError):
        return True
