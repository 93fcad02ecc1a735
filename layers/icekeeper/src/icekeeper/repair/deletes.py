"""Damage of deletes: two vectors of a data file, deletes under another partition than their file, and what is hidden by
a delete file that is gone."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

import pyarrow as pa
from pyroaring import BitMap64

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import FileUnreadable, MetadataUnreadable
from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, named_file, partition_key
from icekeeper.metadata.puffin import decode_deletion_vector, decode_footer
from icekeeper.metadata.types import encode
from icekeeper.model import DataFile, EntryStatus, FileContent, FileKey, ManifestEntry
from icekeeper.repair.file_facts import FileFacts, excludes
from icekeeper.repair.plan import EntryMend, Found, Head, Listed, MendKind, RepairOptions, Unmended, existing
from icekeeper.rows.apply_deletes import SpelledFiles, vector_positions
from icekeeper.rows.write_deletes import encode_vectors
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.read_files import blob_of, decoded_vector, puffin_blobs


@dataclass(slots=True)
class HeadDeletes:
    """The live deletes of a head that name one data file, and all live data files by path."""

    data: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    vectors: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    positions: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    have_keys: bool = False
    """Whether there are equality deletes."""
    listed: Counter[FileKey] = field(default_factory=Counter)

    @classmethod
    def of(cls, head: Head) -> HeadDeletes:
        found = cls()
        for one in head.live():
            file = one.entry.file
            found.listed[file.key] += 1
            found.have_keys |= file.content is FileContent.EQUALITY_DELETES
            if file.content is FileContent.DATA:
                found.data[file.file_path].append(one)
            elif (named := named_file(file)) is not None:
                (found.positions if file.content_offset is None else found.vectors)[named].append(one)
        return found


def broken_deletes(head: Head, options: RepairOptions, loaded: LoadedTable, storage: Storage) -> Found:
    """Mends for data files with several deletion vectors, and for deletes under a foreign spec or partition.

    Deletes whose own file is gone, or is listed twice, are left to other finders: an entry has one mend at a time.

    Raises:
        StorageError: the store does not answer.
    """
    deletes = HeadDeletes.of(head)
    mends: list[EntryMend] = []
    left: list[Unmended] = []
    for path, group in deletes.vectors.items():
        if any(_waits(head, deletes, one) for one in group) or not (len(group) > 1 or options.file_metrics):
            continue
        is_one, first = len(group) == 1, group[0]
        try:
            mends += _recounted(first, storage) if is_one else _united(path, group, deletes, head, storage)
        except (FileUnreadable, MetadataUnreadable) as error:
            kind = MendKind.FILE_METRICS if is_one else MendKind.UNITED_VECTORS
            sentence = f"{counted(len(group), 'deletion vector')} of {path} cannot be mended: {error}"
            left.append(Unmended(kind=kind.value, path=first.entry.file.file_path, sentence=sentence))
    for groups in (deletes.vectors, deletes.positions):
        for path, group in groups.items():
            if groups is deletes.positions or len(group) == 1:
                mends += (m for one in group for m in _moved(one, deletes.data[path], head, deletes))
    return Found(mends=tuple(mends), unmended=tuple(left))


def _waits(head: Head, deletes: HeadDeletes, one: Listed) -> bool:
    """Whether another finder decides about an entry: its file or its data file is gone, or it is listed twice."""
    file, named = one.entry.file, named_file(one.entry.file) or ""
    is_gone = head.sizes.get(file.file_path) is None or (bool(deletes.data[named]) and head.sizes.get(named) is None)
    return is_gone or deletes.listed[file.key] > 1


def _united(
    path: str, group: Sequence[Listed], deletes: HeadDeletes, head: Head, storage: Storage
) -> Iterator[EntryMend]:
    """One vector in the place of all vectors of a data file; of a data file that is gone, all vectors go.

    Raises:
        FileUnreadable, MetadataUnreadable: a vector cannot be read or names another data file.
        StorageError: the store does not answer.
    """
    data = deletes.data[path]
    if len(data) > 1:
        raise MetadataUnreadable("the data file is listed twice")
    found = [_positions(one.entry.file, storage) for one in group]
    sizes = " and ".join(str(len(positions)) for positions in found)
    if not data:
        SpelledFiles(deletes.data).refuse(group[0].entry.file.file_path, path)
        for one in group:
            sentence = (
                f"{one.entry.file.file_path} deletes rows of {path} alone, which the table no longer has; it goes"
            )
            yield one.mend(MendKind.DANGLING_DELETE, None, sentence)
        return
    home, union = data[0], reduce(or_, found)
    digest = hashlib.sha256(repr([path, *(one.entry.file.key for one in group)]).encode()).hexdigest()[:32]
    bytes_, (file,) = encode_vectors(
        f"{head.metadata.data_location}/{digest}-deletes.puffin", {path: union}, {path: home.entry.file.partition}
    )
    sentence = (
        f"{path} has {len(group)} deletion vectors with {sizes} positions; they are united to one with {len(union)}: "
        "rows that only an older vector deletes, even wrongly, are hidden now"
    )
    becomes = ManifestEntry(EntryStatus.ADDED, None, None, None, file)
    new_spec_id = home.manifest.partition_spec_id
    yield group[0].mend(MendKind.UNITED_VECTORS, becomes, sentence, new_spec_id=new_spec_id, new_file=bytes_)
    for one in group[1:]:
        yield one.mend(MendKind.UNITED_VECTORS, None, f"{one.entry.file.file_path} is part of the united vector")


def _positions(file: DataFile, storage: Storage) -> BitMap64:
    """The positions of a vector, which its Puffin file must give to the same data file."""
    offset, size = file.content_offset, file.content_size_in_bytes
    if offset is None or size is None or file.key_metadata is not None:
        raise MetadataUnreadable(f"the entry of {file.file_path} lacks its size, or it is encrypted")
    blob = blob_of(file, puffin_blobs(file.file_path, storage) or ())
    if blob is None or blob.get("referenced-data-file") != file.referenced_data_file:
        raise MetadataUnreadable(f"{file.file_path} does not say that its vector is of that data file")
    return vector_positions(file.file_path, offset, size, file.record_count, storage)


def _recounted(one: Listed, storage: Storage) -> Iterator[EntryMend]:
    """The entry of a vector with as many positions as the vector has.

    Raises:
        FileUnreadable: the vector cannot be read.
        StorageError: the store does not answer.
    """
    file = one.entry.file
    if file.content_size_in_bytes is None or file.key_metadata is not None:
        return
    blob = blob_of(file, puffin_blobs(file.file_path, storage) or ()) or {}
    if (found := len(decoded_vector(file, blob, storage))) != file.record_count:
        becomes = replace(existing(one.entry), file=replace(file, record_count=found))
        sentence = f"the vector in {file.file_path} has {found} positions, its entry says {file.record_count}"
        yield one.mend(MendKind.FILE_METRICS, becomes, sentence)


def _moved(one: Listed, data: Sequence[Listed], head: Head, deletes: HeadDeletes) -> Iterator[EntryMend]:
    """The entry of a delete under the spec and partition of its data file; the delete file itself stays as it is."""
    if len(data) != 1 or _waits(head, deletes, one):
        return
    (home,), file = data, one.entry.file
    spec_id, partition = home.manifest.partition_spec_id, home.entry.file.partition
    if partition_key(one.manifest.partition_spec_id, file.partition) == partition_key(spec_id, partition):
        return
    sentence = (
        f"{file.file_path} gets spec {spec_id} and the partition of {home.entry.file.file_path}, whose rows it deletes"
    )
    becomes = replace(existing(one.entry), file=replace(file, partition=partition))
    yield one.mend(MendKind.MOVED_DELETE, becomes, sentence, new_spec_id=spec_id)


# Delete files that are gone.


def why_other_vectors(stream: pa.NativeFile, files: Sequence[DataFile]) -> str | None:
    """Why a Puffin file does not hold the vectors of these entries, as the end of a sentence; ``None``: it holds each,
    by place, checksum, number of positions and data file.

    Raises:
        MetadataUnreadable: it has no readable footer, or a vector is damaged.
    """
    data = stream.read_at(stream.size(), 0)
    blobs = {(blob.offset, blob.length): blob.properties for blob in decode_footer(data, "the Puffin file")}
    for file in files:
        place = file.content_offset or 0, file.content_size_in_bytes or 0
        properties = blobs.get(place)
        if properties is None:
            return f"has no vector at offset {place[0]}"
        if properties.get("referenced-data-file") != file.referenced_data_file:
            return f"has a vector of another data file at offset {place[0]}"
        decode_deletion_vector(data[place[0] : sum(place)], file.file_path, file.record_count)
    return None


def why_other_positions(file: DataFile, facts: FileFacts) -> str | None:
    """Why a position delete file is not of the data file that an entry names; ``None``: nothing shows it."""
    if file.content is not FileContent.POSITION_DELETES or file.referenced_data_file is None:
        return None
    only = {DELETE_FILE_PATH_ID: encode("string", file.referenced_data_file)}
    named = replace(file, lower_bounds=only, upper_bounds=only)
    for low, high in facts.bounds.get(DELETE_FILE_PATH_ID, ()):
        if excludes(named, DELETE_FILE_PATH_ID, "string", low, high):
            return "deletes from another data file"
    return None


def reappearing(deletes: HeadDeletes, entry: ManifestEntry) -> tuple[int | None, str]:
    """How many rows reappear without a delete file, and the same in words; ``None``: it is not known how many."""
    file = entry.file
    if file.content is FileContent.EQUALITY_DELETES:
        return None, f"rows with its {counted(file.record_count, 'key')}"
    named = named_file(file)
    if named is None:
        return None, f"up to {counted(file.record_count, 'row')}"
    data = [one for one in deletes.data[named] if (one.entry.sequence_number or 0) <= (entry.sequence_number or 0)]
    if not data or (file.content_offset is None and deletes.vectors[named]):
        return 0, "no row"
    is_exact = file.content_offset is not None and len(deletes.vectors[named]) == 1 and not deletes.have_keys
    rows = counted(file.record_count, "row")
    return (file.record_count, rows) if is_exact else (None, f"up to {rows}")
