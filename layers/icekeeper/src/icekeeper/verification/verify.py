"""Verify one table: every referenced file exists, counts add up, the specification's invariants hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import owned_locations
from icekeeper.errors import LocationRefused, MetadataUnreadable, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.delete_scope import named_file
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.statistics import StatisticsFile, statistics_by_snapshot
from icekeeper.metadata.table_reader import TableReader, deletes_standing_elsewhere, statistics_files
from icekeeper.model import ManifestFile
from icekeeper.storage.paths import compared
from icekeeper.storage.storage import Storage
from icekeeper.verification.checks import (
    Problem,
    ProblemKind,
    Verification,
    document_problems,
    duplicate_vector_problems,
    manifest_problems,
    manifest_row_id_problems,
    row_id_problems,
    statistics_problems,
    summary_problems,
    superseded_snapshots,
    vector_problems,
)

_PARALLEL_REQUESTS = 16


def verify_table(loaded: LoadedTable, storage: Storage) -> Verification:
    """Check every snapshot, manifest and file that the table's current metadata references.

    Problems that only snapshots from before a repair or rollback have are no problems of the table.

    Raises:
        StorageError: the store does not answer; a missing or damaged file is a problem instead.
    """
    found = _verified(loaded, storage, frozenset())
    if found.ok or not (old := superseded_snapshots(loaded.metadata)):
        return found
    now = _verified(loaded, storage, old).problems
    return replace(found, problems=now, superseded=tuple(p for p in found.problems if p not in now))


def _verified(loaded: LoadedTable, storage: Storage, left_out: Collection[int]) -> Verification:
    """The same for all snapshots but those with the ids ``left_out``."""
    metadata = loaded.metadata
    problems = list(document_problems(metadata, loaded.metadata_location))
    problems += row_id_problems(metadata, loaded.metadata_location)
    reader = TableReader(metadata, storage.read)
    sizes: dict[str, int | None] = {}
    """Path → size in the metadata; ``None``: the metadata has none."""
    manifests: dict[str, ManifestFile] = {}
    per_snapshot: list[list[ManifestFile]] = []
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    for snapshot in metadata.snapshots.values():
        if snapshot.snapshot_id in left_out:
            continue
        where = snapshot.manifest_list or loaded.metadata_location
        try:
            found = reader.manifests(snapshot)
        except MetadataUnreadable as error:
            problems.append(_unreadable(storage, where, error))
            continue
        if snapshot.manifest_list is not None:
            sizes[snapshot.manifest_list] = None
        per_snapshot.append(found)
        problems += summary_problems(snapshot, found, where)
        problems += manifest_row_id_problems(snapshot, found)
        if snapshot.snapshot_id in heads:
            problems += _delete_scope_problems(reader, found)
        for manifest in found:
            manifests.setdefault(manifest.manifest_path, manifest)
            sizes[manifest.manifest_path] = manifest.manifest_length
    live: dict[str, set[tuple[str, int | None]]] = {}
    vectors: dict[str, list[str]] = {}
    """Manifest path → paths of the data files of the live deletion vectors in it."""
    for manifest in manifests.values():
        problems += _check_manifest(reader, storage, manifest, sizes, live, vectors)
    problems += _duplicates(per_snapshot, live)
    for listed in per_snapshot:
        problems += duplicate_vector_problems(path for m in listed for path in vectors.get(m.manifest_path, ()))
    problems += _check_statistics(metadata, storage, sizes)
    for path in statistics_files(metadata):
        sizes.setdefault(path, None)
    content_files = len(set().union(*live.values()))
    problems += _missing_or_wrong(loaded, storage, sizes)
    return Verification(
        str(loaded.name),
        tuple(dict.fromkeys(problems)),
        {"snapshots": len(metadata.snapshots), "manifests": len(manifests), "files": content_files},
        sizes.keys(),
    )


def _check_manifest(
    reader: TableReader,
    storage: Storage,
    manifest: ManifestFile,
    sizes: dict[str, int | None],
    live: dict[str, set[tuple[str, int | None]]],
    vectors: dict[str, list[str]],
) -> list[Problem]:
    keys = live.setdefault(manifest.manifest_path, set())
    problems: list[Problem] = []
    try:
        for _, found in reader.entries([manifest]):
            entries = list(found)
            problems += manifest_problems(manifest, entries)
            problems += vector_problems(entries)
            for entry in entries:
                if entry.is_live:
                    if entry.file.key in keys:
                        problems.append(_duplicate(entry.file.file_path, manifest.manifest_path))
                    keys.add(entry.file.key)
                    if entry.file.content_offset is not None and entry.file.referenced_data_file is not None:
                        vectors.setdefault(manifest.manifest_path, []).append(entry.file.referenced_data_file)
                    sizes[entry.file.file_path] = entry.file.file_size_in_bytes
    except MetadataUnreadable as error:
        sizes.pop(manifest.manifest_path, None)
        problems.append(_unreadable(storage, manifest.manifest_path, error))
    return problems


def _delete_scope_problems(reader: TableReader, manifests: list[ManifestFile]) -> Iterator[Problem]:
    """Delete files that have another spec or partition than the data file that they name
    (rule: named-deletes-reach-anywhere)."""
    with suppress(MetadataUnreadable):  # reported as a separate problem
        for delete in deletes_standing_elsewhere(reader, manifests):
            detail = (
                f"it has another spec or partition than {named_file(delete.entry.file)}, whose rows it deletes; "
                "Iceberg after 1.11 refuses to read such a table"
            )
            yield Problem(ProblemKind.DELETE_SCOPE, delete.entry.file.file_path, detail)


def _check_statistics(metadata: TableMetadata, storage: Storage, sizes: dict[str, int | None]) -> list[Problem]:
    files = list(statistics_by_snapshot(metadata).values())
    understood = {file.path for file in files}
    unclear = [path for e in metadata.statistics if (path := str(e.get("statistics-path"))) not in understood]
    sizes.update((file.path, file.size) for file in files)
    for entry in metadata.partition_statistics:
        sizes[str(entry["statistics-path"])] = entry.get("file-size-in-bytes")

    def check(file: StatisticsFile) -> list[Problem]:
        try:
            with storage.translated(file.path), storage.open_input(file.path) as stream:
                length = min(file.footer_size, stream.size())
                return list(statistics_problems(file, stream.read_at(length, stream.size() - length)))
        except StorageError as error:
            if not storage.allows(file.path) or storage.size(file.path) is None:
                return []  # reported with all other files that are missing or not allowed
            return [Problem(ProblemKind.UNREADABLE_METADATA, file.path, str(error))]

    with WorkThreads(_PARALLEL_REQUESTS, thread_name_prefix="verify") as pool:
        problems = [problem for found in pool.map(check, files) for problem in found]
    detail = "the table's entry for it cannot be parsed"
    return problems + [Problem(ProblemKind.STATISTICS, path, detail) for path in unclear]


def _unreadable(storage: Storage, path: str, error: MetadataUnreadable) -> Problem:
    if not storage.allows(path):
        return _not_allowed(storage, path)
    if storage.size(path) is None:
        return Problem(ProblemKind.MISSING_FILE, path, "it is referenced but does not exist")
    return Problem(ProblemKind.UNREADABLE_METADATA, path, str(error))


def _not_allowed(storage: Storage, path: str) -> Problem:
    """The problem of a file outside the table's bound, which is not read (rule: bound-every-table)."""
    try:
        storage.require([path])
    except LocationRefused as error:
        return Problem(ProblemKind.NOT_ALLOWED, path, str(error))
    raise AssertionError("it is allowed")


def _duplicates(
    per_snapshot: list[list[ManifestFile]], live: dict[str, set[tuple[str, int | None]]]
) -> Iterator[Problem]:
    """The files that a snapshot lists more than once."""
    for manifests in per_snapshot:
        seen: dict[tuple[str, int | None], str] = {}
        for manifest in manifests:
            for key in live.get(manifest.manifest_path, ()):
                if key in seen:
                    yield _duplicate(key[0], manifest.manifest_path)
                seen[key] = manifest.manifest_path


def _duplicate(path: str, manifest_path: str) -> Problem:
    return Problem(ProblemKind.DUPLICATE_FILE, path, f"a snapshot lists it twice, once more in {manifest_path}")


def _object(path: str) -> tuple[str, str]:
    """The object at a path: keys of S3 that normalise alike are two objects (rule: any-spelling-protects)."""
    place = compared(path)
    return place.authority, place.key


def sizes_of(loaded: LoadedTable, storage: Storage, paths: Collection[str]) -> dict[str, int | None]:
    """The sizes of objects within the table's bound, ``None`` where there is none; those under the table's locations
    come from a listing.

    Raises:
        StorageError: the store does not answer.
    """
    known: dict[tuple[str, str], int] = {}
    locations = owned_locations(loaded.metadata)
    if storage.allows(loaded.metadata.location) and storage.can_list(loaded.metadata.location):
        for location in filter(storage.allows, locations):
            known.update((_object(found.path), found.size) for found in storage.list(location))
    ask = [path for path in paths if _object(path) not in known]
    with WorkThreads(_PARALLEL_REQUESTS, thread_name_prefix="verify") as pool:
        size_of: Callable[[str], int | None] = storage.size
        asked = dict(zip(ask, pool.map(size_of, ask), strict=True))
    return {path: asked[path] if path in asked else known[_object(path)] for path in paths}


def _missing_or_wrong(loaded: LoadedTable, storage: Storage, sizes: dict[str, int | None]) -> Iterator[Problem]:
    """Compare the sizes in metadata with those of the files."""
    outside = [path for path in sizes if not storage.allows(path)]
    yield from (_not_allowed(storage, path) for path in outside)
    for path in outside:
        del sizes[path]
    for path, found in sizes_of(loaded, storage, sizes).items():
        stated = sizes[path]
        if found is None:
            yield Problem(ProblemKind.MISSING_FILE, path, "it is referenced but does not exist")
        elif stated is not None and stated != found:
            yield Problem(ProblemKind.WRONG_SIZE, path, f"its metadata says {stated} bytes, it has {found}")
