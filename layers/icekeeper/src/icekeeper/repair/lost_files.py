"""Files that are gone: found again as older versions, in another folder or at another address, or dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import owned_locations
from icekeeper.errors import FileUnreadable, MetadataUnreadable, StorageError
from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DELETE_POSITION_ID
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.types import decode
from icekeeper.model import DataFile, FileContent
from icekeeper.repair.deletes import HeadDeletes, reappearing, why_other_positions, why_other_vectors
from icekeeper.repair.file_facts import facts_of, why_another
from icekeeper.repair.plan import EntryMend, Found, Head, Listed, MendKind, RepairOptions, Unmended, existing
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.file_rows import reading
from icekeeper.storage.copies import versions_of
from icekeeper.storage.paths import is_under
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.checks import ProblemKind

_SHOWN_BOUNDS = 4


def lost_files(head: Head, options: RepairOptions, loaded: LoadedTable, storage: Storage) -> Found:
    """Mends for files that are gone, and for paths at another address than the table's.

    Raises:
        StorageError: the store does not answer.
    """
    lost = [found for found in head.live() if head.sizes.get(found.path) is None]
    if not lost:
        return Found()
    namesakes = _namesakes(loaded, storage, {_name(one.path) for one in lost})
    locations, kinds = owned_locations(loaded.metadata), _kinds(head.metadata)
    targets: dict[str, str] = {}
    gone: list[Listed] = []
    for one in lost:
        is_elsewhere = not any(is_under(one.path, location) for location in locations)
        if is_elsewhere and (target := _target(one.entry.file, namesakes)) is not None:
            targets[one.path] = target
        else:
            gone.append(one)
    parts = [_moved(head, targets)]
    groups, deletes = defaultdict[str, list[Listed]](list), HeadDeletes.of(head)
    for one in gone:
        groups[one.path].append(one)  # a Puffin file has many vectors
    for path, group in groups.items():
        if not storage.allows(path):
            parts.append(Found(unmended=(_not_allowed(path),)))
        elif not _is_gone(path, storage):
            parts.append(Found(unmended=(_uncertain(path),)))
        elif isinstance(again := _found_again(group, namesakes, kinds, storage), Found):
            parts.append(again)
        elif others := [other for other, _ in namesakes.get(_name(path), ())]:
            parts.append(Found(unmended=(_alike(path, others, again),)))
        else:
            parts += [_dropped(one, head, deletes, options, again) for one in group]
    return Found(
        mends=tuple(mend for part in parts for mend in part.mends),
        unmended=tuple(left for part in parts for left in part.unmended),
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_gone(path: str, storage: Storage) -> bool:
    """Whether the store answers that there is no such object: a missing bucket is no evidence of that."""
    try:
        storage.read_end(path, 1)
    except StorageError as error:
        return storage.shows_missing(path, error)
    return False


def _uncertain(path: str) -> Unmended:
    sentence = f"{path} cannot be read, but the store does not say that it is gone; repair again later"
    return Unmended(kind=ProblemKind.MISSING_FILE.value, path=path, sentence=sentence)


def _namesakes(loaded: LoadedTable, storage: Storage, names: set[str]) -> Mapping[str, Sequence[tuple[str, int]]]:
    """The files below the table's locations with these names: name → paths and sizes."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for location in filter(storage.allows, owned_locations(loaded.metadata)):
        if storage.can_list(location):
            for listed in storage.list(location):
                if (name := _name(listed.path)) in names and (listed.path, listed.size) not in found[name]:
                    found[name].append((listed.path, listed.size))
    return found


def _kinds(metadata: TableMetadata) -> dict[int, str]:
    """The type of each primitive column of every schema; the current schema's counts."""
    schemas = reversed(metadata.schemas_current_first)
    kinds = {leaf.field_id: leaf.iceberg_type for schema in schemas for leaf in leaf_columns(schema)}
    return {**kinds, DELETE_FILE_PATH_ID: "string", DELETE_POSITION_ID: "long"}


# Files that are copied back to their paths.


def _found_again(
    group: Sequence[Listed],
    namesakes: Mapping[str, Sequence[tuple[str, int]]],
    kinds: Mapping[int, str],
    storage: Storage,
) -> Found | str:
    """A mend that copies the file of some entries from where it is found, or which files are not it, for people.

    A file of another name with the same size is not looked at: equal sizes prove nothing.
    """
    one, files, hints = group[0], [other.entry.file for other in group], list[str]()
    for source, version_id, why in _candidates(files, namesakes, kinds, storage):
        where = source if version_id is None else f"version {version_id} of it"
        if why is None:
            sentence = f"{one.path} is gone; {where} is what its entry describes, and is copied to its path"
            copy = {"copy_from": source, "copy_version": version_id}
            return Found(mends=(one.mend(MendKind.MISSING_FILE, existing(one.entry), sentence, **copy),))
        hints.append(f"{where} {why}")
    return f" ({'; '.join(hints)})" if hints else ""


def _candidates(
    files: Sequence[DataFile],
    namesakes: Mapping[str, Sequence[tuple[str, int]]],
    kinds: Mapping[int, str],
    storage: Storage,
) -> Iterator[tuple[str, str | None, str | None]]:
    """Older versions and namesakes of the lost file of these entries with its size: path, version, why it is another
    file."""
    file = files[0]
    for version in versions_of(storage, file.file_path):
        if version.size == file.file_size_in_bytes:
            try:
                with reading(file.file_path, storage):
                    why = _why_another(storage.open_version(version), files, kinds)
                    yield file.file_path, version.version, why
            except (FileUnreadable, MetadataUnreadable) as error:
                yield file.file_path, version.version, str(error)
    for path, size in namesakes.get(_name(file.file_path), ()):
        if size == file.file_size_in_bytes:
            try:
                with reading(path, storage), storage.open_input(path, size) as stream:
                    yield path, None, _why_another(stream, files, kinds)
            except FileUnreadable as error:
                yield path, None, str(error)


def _why_another(stream: pa.NativeFile, files: Sequence[DataFile], kinds: Mapping[int, str]) -> str | None:
    file = files[0]
    if file.content_offset is not None:
        return why_other_vectors(stream, files)
    facts = facts_of(stream, file.file_format)
    return why_another(file, file.file_size_in_bytes, facts, kinds) or why_other_positions(file, facts)


def _alike(path: str, others: Sequence[str], hints: str) -> Unmended:
    """The finding about a lost file of whose name there are other files: it may not be gone for good."""
    sentence = (
        f"{path} is gone, and is not dropped while {', '.join(others)} has its name, although the entry describes "
        f"another file{hints}; copy the right file to its path, or remove those, and repair again"
    )
    return Unmended(kind=ProblemKind.MISSING_FILE.value, path=path, sentence=sentence)


def _dropped(one: Listed, head: Head, deletes: HeadDeletes, options: RepairOptions, hints: str) -> Found:
    """The mend that drops an entry whose file is gone for good, or the finding without the option."""
    file, is_data = one.entry.file, one.entry.file.content is FileContent.DATA
    rows_back, words = (0, _lost_rows(one, head)) if is_data else reappearing(deletes, one.entry)
    what = f"{file.file_path} is gone, and is not found elsewhere{hints}: {words}"
    if not options.drop_missing:
        left = Unmended(
            kind=ProblemKind.MISSING_FILE.value,
            path=file.file_path,
            sentence=f"{what} would {'be lost' if is_data else 'reappear'}; restore the object, or drop its entry",
            option="--drop-missing",
        )
        return Found(unmended=(left,))
    mend = one.mend(
        MendKind.DROPPED_FILE,
        None,
        f"{what} {'are lost; load' if is_data else 'reappear; delete'} them again",
        rows_lost=file.record_count if is_data else 0,
        rows_back=rows_back,
        leaves_deleted=True,
    )
    return Found(mends=(mend,))


def _lost_rows(one: Listed, head: Head) -> str:
    """The rows of an entry by its counts, partition and bounds: what must be loaded again."""
    file = one.entry.file
    names = [field["name"] for field in head.metadata.specs[one.manifest.partition_spec_id]["fields"]]
    where = ", ".join(f"{name}={value!r}" for name, value in zip(names, file.partition, strict=True))
    leaves = {leaf.field_id: leaf for leaf in leaf_columns(head.metadata.current_schema)}
    ranges = list(_ranges(file, {i: (leaf.name, leaf.iceberg_type) for i, leaf in leaves.items()}))
    within = f", with {'; '.join(ranges[:_SHOWN_BOUNDS])}" if ranges else ""
    return f"its {counted(file.record_count, 'row')}{f' of partition {where}' if where else ''}{within}"


def _ranges(file: DataFile, columns: Mapping[int, tuple[str, str]]) -> Iterator[str]:
    for field_id, (name, kind) in columns.items():
        lower, upper = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
        if lower is not None and upper is not None:
            try:
                yield f"{name} from {decode(kind, lower)!r} to {decode(kind, upper)!r}"
            except ValueError:
                continue


# Paths at another address: the table was copied, its bucket renamed, or its store is reached by another scheme.


def _moved(head: Head, targets: Mapping[str, str]) -> Found:
    """Mends that give entries the paths at which their files are: old path → new path.

    Position delete files name data files inside, which a new path of the data file does not match: its deleted rows
    would reappear.  So with such files nothing is moved.
    """
    named = [entry.file.file_path for _, _, entry in head.live() if _names_paths_inside(entry.file)]
    prefixes = {_prefixes(old, new) for old, new in targets.items()}
    why = None
    if named:
        why = (
            f"{counted(len(named), 'position delete file')}, such as {named[0]}, names data files by their old paths; "
            "rewrite the table's paths with Iceberg's rewrite_table_path"
        )
    elif len(prefixes) > 1:
        why = f"the files are at {len(prefixes)} different places, so it is no plain copy of the table"
    if why is not None and targets:
        sentence = f"{counted(len(targets), 'file')} of the table, such as {min(targets)}, would get other paths; {why}"
        left = Unmended(kind=MendKind.MOVED_PATH.value, path=min(targets), sentence=sentence)
        return Found(unmended=(left,))
    mends: list[EntryMend] = []
    for listed in head.live():
        file = listed.entry.file
        new = targets.get(file.file_path, file.file_path)
        subject = targets.get(file.referenced_data_file or "", file.referenced_data_file)
        if (new, subject) == (file.file_path, file.referenced_data_file):
            continue
        becomes = replace(existing(listed.entry), file=replace(file, file_path=new, referenced_data_file=subject))
        sentence = f"{file.file_path} is not below the table's location; its entry gets the path {new}"
        mends.append(listed.mend(MendKind.MOVED_PATH, becomes, sentence))
    return Found(mends=tuple(mends))


def _not_allowed(path: str) -> Unmended:
    sentence = f"{path} is outside of where the table may have files, and no file of its name and size is inside"
    return Unmended(kind=ProblemKind.NOT_ALLOWED.value, path=path, sentence=sentence)


def _names_paths_inside(file: DataFile) -> bool:
    return file.content is FileContent.POSITION_DELETES and file.content_offset is None


def _target(file: DataFile, namesakes: Mapping[str, Sequence[tuple[str, int]]]) -> str | None:
    """The only file of the entry's name and size below the table's locations."""
    found = [path for path, size in namesakes.get(_name(file.file_path), ()) if size == file.file_size_in_bytes]
    return found[0] if len(found) == 1 else None


def _prefixes(old: str, new: str) -> tuple[str, str]:
    """What is left of two paths before their common end."""
    olds, news = old.split("/"), new.split("/")
    while olds and news and olds[-1] == news[-1]:
        olds.pop(), news.pop()
    return "/".join(olds), "/".join(news)
