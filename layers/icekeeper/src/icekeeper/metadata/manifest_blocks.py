"""Assembles manifests from Avro blocks that were compressed before.

So the size of a manifest is known before it is written, and it can end where a partition ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import task_cores
from icekeeper.metadata.avro_block_writer import BLOCK_BYTES, avro_block, container_of
from icekeeper.metadata.avro_container import SYNC_BYTES
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_copy import StoredEntry
from icekeeper.metadata.manifest_entries import entry_encoder
from icekeeper.metadata.manifest_write import EncodedManifest, empty_manifest, partition_types
from icekeeper.metadata.partition_summaries import summarise_partitions
from icekeeper.model import ManifestContent, ManifestFile, PartitionValue

__all__ = ["EntryBlock", "ManifestAssembler", "entry_blocks"]


@dataclass(frozen=True, slots=True)
class EntryBlock:
    """One block of an Avro file without its sync marker, and what a manifest list needs to know of its entries."""

    data: bytes
    files: int
    rows: int
    min_sequence_number: int
    partitions: tuple[tuple[PartitionValue, ...], ...]
    """The partitions of its entries, each once, in the order of the entries."""
    ends_partition: bool
    """Whether no later block has entries of its last partition."""

    @property
    def size(self) -> int:
        """Its bytes in a file, with the sync marker."""
        return len(self.data) + SYNC_BYTES


def entry_blocks(entries: Iterable[StoredEntry], block_bytes: int = BLOCK_BYTES) -> list[EntryBlock]:
    """Entries in partition order as blocks of about ``block_bytes`` before compression.

    Where a partition ends, a block may have a quarter of that, so that most partitions end with a block.  Blocks are
    compressed side by side on the cores that the task may use.
    """
    parts = _parts(entries, block_bytes)
    if (cores := task_cores()) == 1:
        return [_block(*part) for part in parts]
    with WorkThreads(cores, thread_name_prefix="manifest-deflate") as pool:  # deflating is most of the work
        return list(pool.map(lambda part: _block(*part), parts))


def _parts(entries: Iterable[StoredEntry], block_bytes: int) -> Iterator[tuple[list[StoredEntry], bool]]:
    """The entries of each block, and whether a partition ends with it."""
    waiting: list[StoredEntry] = []
    size = 0
    for run in _runs(entries):
        for entry in run:
            if waiting and size >= block_bytes:
                yield waiting, entry is run[0]
                waiting, size = [], 0
            waiting.append(entry)
            size += len(entry.data)
        if waiting and size >= block_bytes // 4:
            yield waiting, True
            waiting, size = [], 0
    if waiting:
        yield waiting, True


def _runs(entries: Iterable[StoredEntry]) -> Iterator[list[StoredEntry]]:
    """The entries of one partition after the other."""
    run: list[StoredEntry] = []
    for entry in entries:
        # Most entries share the object with the one before.  0.0 and -0.0 are equal, and two partitions.
        if run and entry.partition is not run[-1].partition and repr(entry.partition) != repr(run[-1].partition):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _block(entries: Sequence[StoredEntry], ends_partition: bool) -> EntryBlock:
    _, numbers, _, counts, encoded = zip(*entries, strict=True)
    return EntryBlock(
        data=avro_block(encoded),
        files=len(entries),
        rows=sum(counts),
        min_sequence_number=min(numbers),
        partitions=tuple({repr(run[0].partition): run[0].partition for run in _runs(entries)}.values()),
        ends_partition=ends_partition,
    )


class ManifestAssembler:
    """Assembles manifests of one spec and content type from blocks."""

    def __init__(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> None:
        """Raises TableUnsupported: the format version or a partition type cannot be written."""
        self._spec_id, self._content = spec_id, content
        self._types = partition_types(metadata, spec_id)
        self._header = empty_manifest(entry_encoder(metadata, spec_id), metadata, spec_id, content)

    @property
    def header_bytes(self) -> int:
        """The bytes of a manifest without any entry: mostly its schemas."""
        return len(self._header)

    def assemble(self, blocks: Sequence[EntryBlock], path: str) -> EncodedManifest:
        """One manifest of EXISTING entries, still without sequence number and snapshot id: the commit sets them."""
        data = container_of(self._header, (block.data for block in blocks))
        partitions = [partition for block in blocks for partition in block.partitions]
        manifest = ManifestFile(
            manifest_path=path,
            manifest_length=len(data),
            partition_spec_id=self._spec_id,
            content=self._content,
            min_sequence_number=min(block.min_sequence_number for block in blocks),
            added_snapshot_id=None,
            added_files_count=0,
            existing_files_count=sum(block.files for block in blocks),
            deleted_files_count=0,
            added_rows_count=0,
            existing_rows_count=sum(block.rows for block in blocks),
            deleted_rows_count=0,
            partitions=summarise_partitions(self._types, partitions),
        )
        return EncodedManifest(data, manifest)
