"""Rebuilds the manifest list of a snapshot where every manifest of it is proven (pure).

A list says which manifests a snapshot has, with values that their entries inherit.  Equal counts alone prove nothing.
These two proofs rest on ids that only the commit of a snapshot writes, and on the protocol of commits:

* By a child that only appended.  A commit carries every manifest with live files over, or rewrites its entries.  If
  each manifest that the child added holds nothing but files that it added, it rewrote none, so the manifests that it
  carried are those of its parent.
* By the parent.  Entries that a snapshot added or deleted state its random id.  If the manifests with such entries,
  and the manifests of the parent that they do not replace, hold exactly the parent's files without the deleted and
  with the added ones, and if the snapshot's own summary counts neither more added nor more deleted files and rows,
  these manifests read as the lost list did.  Attempts of a commit that did not land mislead nobody: each adds the same
  files and applies the same filter to its head, so what one deletes of the parent, the last one deleted, too.

Manifests without live files may be missing in a rebuilt list: no reader looks into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest_list, partition_types
from icekeeper.metadata.types import summarise_partitions
from icekeeper.model import EntryStatus, FileContent, FileKey, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.text import counted

_MOST_TO_CHOOSE_FROM = 8


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """A manifest with its entries of every status, which have their inherited values."""

    manifest: ManifestFile
    entries: tuple[ManifestEntry, ...]
    is_listed: bool = True
    """Whether a readable manifest list describes it; else the description was derived from the file."""

    @property
    def live(self) -> dict[FileKey, ManifestEntry]:
        """The live entries."""
        return {entry.file.key: entry for entry in self.entries if entry.is_live}


def of_file(
    metadata: TableMetadata, described: ManifestFile, snapshot: Snapshot, entries: Sequence[ManifestEntry]
) -> ReadManifest:
    """A manifest that no readable list has, described from its own entries as one that ``snapshot`` added.

    ``described`` has its path, length, spec and content.  Its first row id stays unknown.
    """
    files = {status: [e for e in entries if e.status is status] for status in EntryStatus}
    rows = {status: sum(entry.file.record_count for entry in found) for status, found in files.items()}
    live = [entry for entry in entries if entry.is_live]
    types = partition_types(metadata, described.partition_spec_id)
    manifest = replace(
        described,
        sequence_number=snapshot.sequence_number,
        min_sequence_number=min((e.sequence_number or 0 for e in live), default=snapshot.sequence_number),
        added_snapshot_id=snapshot.snapshot_id,
        added_files_count=len(files[EntryStatus.ADDED]),
        existing_files_count=len(files[EntryStatus.EXISTING]),
        deleted_files_count=len(files[EntryStatus.DELETED]),
        added_rows_count=rows[EntryStatus.ADDED],
        existing_rows_count=rows[EntryStatus.EXISTING],
        deleted_rows_count=rows[EntryStatus.DELETED],
        partitions=summarise_partitions(types, [entry.file.partition for entry in entries]),
    )
    return ReadManifest(manifest, tuple(entries), is_listed=False)


def proven_by_child(
    snapshot: Snapshot, child: Snapshot, listed: Sequence[ManifestFile], added: Sequence[ReadManifest]
) -> Sequence[ManifestFile] | Nothing:
    """The manifests of a snapshot, by the list of a child that only appended; ``added``: the child's own manifests."""
    if child.parent_id != snapshot.snapshot_id:
        return Nothing(f"snapshot {child.snapshot_id} is not its child")
    if any(manifest.added_snapshot_id is None for manifest in listed):
        return Nothing(f"the list of snapshot {child.snapshot_id} does not say which snapshots added its manifests")
    deleted = {key: value for key, value in child.summary.items() if key.startswith(("deleted-", "removed-"))}
    if child.operation != "append" or any(value != "0" for value in deleted.values()):
        return Nothing(f"snapshot {child.snapshot_id}, its child, did more than append")
    own = {manifest.manifest_path for manifest in listed if manifest.added_snapshot_id == child.snapshot_id}
    entries = [entry for found in added if found.manifest.manifest_path in own for entry in found.entries]
    if own != {found.manifest.manifest_path for found in added} or any(
        entry.status is not EntryStatus.ADDED or entry.snapshot_id != child.snapshot_id for entry in entries
    ):
        return Nothing(f"snapshot {child.snapshot_id}, its child, rewrote manifests")
    carried = [manifest for manifest in listed if manifest.manifest_path not in own]
    if any(manifest.sequence_number > snapshot.sequence_number for manifest in carried):
        return Nothing(f"snapshot {child.snapshot_id}, its child, has manifests that are newer than it")
    first, given = snapshot.raw.get("first-row-id"), child.raw.get("first-row-id")
    for manifest in carried if given is not None else ():
        is_known = manifest.first_row_id is not None and manifest.first_row_id < int(given or 0)
        if manifest.content is ManifestContent.DATA and (first is None or not is_known):
            return Nothing(f"snapshot {child.snapshot_id}, its child, gave row ids to manifests that had none")
    return _if_totals_fit(snapshot, carried)


def proven_by_parent(
    snapshot: Snapshot, parent: Sequence[ReadManifest], own: Sequence[ReadManifest]
) -> Sequence[ManifestFile] | Nothing:
    """The manifests of a snapshot, by those of its parent and those with entries that state the snapshot's id.

    ``own`` may also have manifests that were merged before the commit, or are of attempts that did not land.  So a part
    of them may be the proof; any part that is one reads as the lost list did.
    """
    why: Nothing | None = None
    for count in range(len(own), -1, -1) if len(own) <= _MOST_TO_CHOOSE_FROM else [len(own)]:
        for some in combinations(own, count):
            proof = _proven_by(snapshot, parent, some)
            if not isinstance(proof, Nothing):
                return proof
            why = why or proof
    return why or Nothing("nothing is known of its manifests")


def _proven_by(
    snapshot: Snapshot, parent: Sequence[ReadManifest], own: Sequence[ReadManifest]
) -> Sequence[ManifestFile] | Nothing:
    ours = snapshot.snapshot_id
    before = {key: (found, entry) for found in parent for key, entry in found.live.items()}
    replaced: set[FileKey] = set()
    for found in own:
        for entry in found.entries:
            known = before.get(entry.file.key)
            if entry.status is EntryStatus.ADDED:
                if entry.snapshot_id != ours or known is not None:
                    return Nothing(f"{found.manifest.manifest_path} adds a file that is not new in this snapshot")
                if not found.is_listed and entry.sequence_number != snapshot.sequence_number:
                    # Another attempt of the same commit may have chosen another number.
                    return Nothing(f"{found.manifest.manifest_path} adds a file with an older sequence number")
                continue
            if entry.status is EntryStatus.DELETED and entry.snapshot_id != ours:
                return Nothing(f"{found.manifest.manifest_path} deletes a file in another snapshot")
            if known is None or (entry.is_live and not _is_same(*known, found, entry)):
                return Nothing(f"{found.manifest.manifest_path} has a file that its parent does not have like that")
            replaced.add(entry.file.key)
    kept = [found for found in parent if replaced.isdisjoint(found.live)]
    if any(not replaced.issuperset(found.live) for found in parent if found not in kept):
        return Nothing("a manifest of its parent was replaced only in part")
    keys = [key for found in (*own, *kept) for key in found.live]
    if len(keys) != len(set(keys)):
        return Nothing("several manifests have the same file, and no part of them is a proof")
    if why := _why_incomplete(snapshot, own):
        return Nothing(why)
    manifests = _with_row_ids(snapshot, own, kept)
    return manifests if isinstance(manifests, Nothing) else _if_totals_fit(snapshot, manifests)


def rebuilt_list(metadata: TableMetadata, snapshot: Snapshot, manifests: Iterable[ManifestFile]) -> bytes:
    """The bytes of a rebuilt list."""
    first = snapshot.raw.get("first-row-id")
    return encode_manifest_list(
        metadata.format_version if first is not None else min(2, metadata.format_version),
        manifests,
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=snapshot.parent_id,
        sequence_number=snapshot.sequence_number,
        first_row_id=None if first is None else int(first),
    )


def _is_same(before: ReadManifest, then: ManifestEntry, after: ReadManifest, now: ManifestEntry) -> bool:
    """Whether an entry was carried over with all that decides which rows readers see."""

    def facts(found: ReadManifest, entry: ManifestEntry) -> tuple[object, ...]:
        file = entry.file
        where = (found.manifest.partition_spec_id, file.partition, file.content, file.equality_ids)
        return where, entry.snapshot_id, entry.sequence_number, file.first_row_id, file.record_count, file.content_bytes

    return facts(before, then) == facts(after, now)


def _why_incomplete(snapshot: Snapshot, own: Sequence[ReadManifest]) -> str | None:
    """Why files that the snapshot added or deleted may be missing in its known manifests; ``None``: none is."""
    if "total-data-files" not in snapshot.summary or "total-records" not in snapshot.summary:
        return "its summary does not count its files and rows"
    entries = [entry for found in own for entry in found.entries]
    for status, verb, verb_of_deletes in (
        (EntryStatus.ADDED, "added", "added"),
        (EntryStatus.DELETED, "deleted", "removed"),
    ):
        data = [e.file for e in entries if e.status is status and e.file.content is FileContent.DATA]
        deletes = [e.file for e in entries if e.status is status and e.file.content is not FileContent.DATA]
        for key, found in (
            (f"{verb}-data-files", len(data)),
            (f"{verb}-records", sum(file.record_count for file in data)),
            (f"{verb_of_deletes}-delete-files", len(deletes)),
        ):
            if (stated := snapshot.summary.get(key, "0")) != str(found):
                return f"its summary says {key} {stated}, but manifests with its id have {found}"
    return None


def _with_row_ids(
    snapshot: Snapshot, own: Sequence[ReadManifest], kept: Sequence[ReadManifest]
) -> Sequence[ManifestFile] | Nothing:
    """The manifests with their first row ids: only one can be derived, which got all ids that the snapshot gave."""
    first, added = snapshot.raw.get("first-row-id"), snapshot.raw.get("added-rows")
    manifests = [found.manifest for found in (*own, *kept) if found.live]
    if first is None:
        if any(manifest.first_row_id is not None for manifest in manifests):
            return Nothing("it is from before the upgrade to v3, and a manifest has row ids")
        return manifests
    unknown = [m for m in manifests if m.content is ManifestContent.DATA and m.first_row_id is None]
    if not unknown:
        return manifests
    rows = (unknown[0].added_rows_count or 0) + (unknown[0].existing_rows_count or 0)
    derived = {found.manifest.manifest_path for found in own if not found.is_listed}
    if len(unknown) > 1 or unknown[0].manifest_path not in derived or rows != int(added or 0):
        return Nothing(f"it is unknown which row ids {counted(len(unknown), 'manifest')} got")
    return [replace(m, first_row_id=int(first)) if m is unknown[0] else m for m in manifests]


def _if_totals_fit(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> Sequence[ManifestFile] | Nothing:
    """The manifests, unless the snapshot's totals contradict their counts."""
    for content, key, of_rows in (
        (ManifestContent.DATA, "total-data-files", False),
        (ManifestContent.DATA, "total-records", True),
        (ManifestContent.DELETES, "total-delete-files", False),
    ):
        found = 0
        for manifest in manifests:
            counts = (
                (manifest.added_rows_count, manifest.existing_rows_count)
                if of_rows
                else (manifest.added_files_count, manifest.existing_files_count)
            )
            if None in counts:
                return Nothing(f"the counts of {manifest.manifest_path} are unknown")
            found += sum(filter(None, counts)) if manifest.content is content else 0
        if (stated := snapshot.summary.get(key)) is not None and stated != str(found):
            return Nothing(f"its summary says {key} {stated}, but its known manifests add up to {found}")
    return manifests
