"""Duplicate entries that differ: the rows that readers see with each of them, for the person who chooses."""

from __future__ import annotations

from functools import cache

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import FileUnreadable, MetadataUnreadable, TableUnsupported
from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder, is_unpartitioned
from icekeeper.model import FileContent
from icekeeper.operations.statistics.plan_statistics import RowFile
from icekeeper.repair.damage import duplicates
from icekeeper.repair.file_facts import facts_at
from icekeeper.repair.plan import Found, Head, Listed, RepairOptions
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import NO_COLUMNS, make_read_task
from icekeeper.storage.storage import Storage


def duplicate_entries(head: Head, options: RepairOptions, loaded: LoadedTable, storage: Storage) -> Found:
    """As :func:`.duplicates`; the rows under each choice are counted by reading the file with its deletes.

    Raises:
        StorageError: the store does not answer.
    """

    @cache
    def deletes() -> DeleteIndex:
        builder = DeleteIndexBuilder()
        for manifest, _, entry in head.live():
            if entry.file.content is not FileContent.DATA:
                is_global = is_unpartitioned(head.metadata.specs[manifest.partition_spec_id])
                builder.add(manifest.partition_spec_id, entry, is_unpartitioned=is_global)
        return builder.build()

    def live_rows(listed: Listed) -> int | None:
        file, spec_id = listed.entry.file, listed.manifest.partition_spec_id
        if file.content is not FileContent.DATA:
            return None
        try:
            number = listed.entry.sequence_number or 0
            applying = tuple(deletes().applying_to(file, spec_id, number))
            if not applying:
                return facts_at(file.file_path, file.file_format, storage).record_count
            planned = RowFile(
                file.file_path,
                file.file_format,
                file.partition,
                file.record_count,
                file.file_size_in_bytes,
                file.first_row_id,
                spec_id,
                number,
                applying,
            )
            task = make_read_task(head.metadata, [planned], NO_COLUMNS, loaded.io_properties)
            tally = Tally()
            for _ in read_rows(task, storage, tally):
                pass
        except (FileUnreadable, MetadataUnreadable, TableUnsupported):
            return None
        return tally.live

    return duplicates(head, options, live_rows)
