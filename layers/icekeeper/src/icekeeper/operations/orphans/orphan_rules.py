"""Which listed files are orphans: the candidates, and every reason to keep a file.  Reads no files.

Candidates are the listed files that the table does not reference.  The listing is streamed; only candidates are kept in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice, takewhile
from typing import Protocol

from icekeeper.deletion.foreign_tables import WAIVER, other_format_at
from icekeeper.deletion.referenced_paths import ReferencedPaths, UnlistedPaths
from icekeeper.deletion.sweep_permission import ASIDE_KEPT_MS, is_aside, is_of_iceberg
from icekeeper.errors import MetadataUnreadable, OperationRefused
from icekeeper.machine.clock import CLOCKS_DIFFER_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.model import ManifestFile, TableName
from icekeeper.policy import DEFAULT_SOURCE
from icekeeper.storage.listing import Listed, ListedObject
from icekeeper.storage.paths import PathSet, compared, is_under, may_be_under, normalise

# A single mismatch is enough to refuse the deletion; more are kept because a mismatch may be a hash collision.
_MISMATCHES_KEPT = 100
_AT_ONCE = 10_000


class References(Protocol):
    """Tells which listed files are referenced, as :class:`icekeeper.deletion.referenced_paths.ReferencedPaths` does."""

    def unreferenced(self, listed: Sequence[ListedObject]) -> list[ListedObject]: ...

    def has_prefix_mismatch(self, path: str) -> bool: ...


@dataclass(slots=True)
class OrphanCandidates:
    """The unreferenced files of a listing, and the number of listed files."""

    listed: int = 0
    too_young: int = 0
    """The number of unreferenced files within the grace period."""
    unreferenced: list[ListedObject] = field(default_factory=list)
    """Files past the grace period."""
    metadata_files: list[ListedObject] = field(default_factory=list)
    """Unreferenced files of any age with the name of a metadata file; they may belong to another table."""
    prefix_mismatches: list[str] = field(default_factory=list)
    """Some of the unreferenced files that are probably referenced under another scheme, bucket or host."""
    other_formats: set[str] = field(default_factory=set)
    """Folders of other formats' tables, found by unreferenced files of any age in their logs."""
    too_young_bytes: int = 0
    newest_ms: int = 0
    """Modification time of the youngest file of an inventory; 0: unknown."""
    unlisted: UnlistedPaths | None = None
    """Referenced files that the listing lacks; ``None``: the listing is incomplete."""

    def add(self, listed: Iterable[Listed], referenced: ReferencedPaths, older_than_ms: int) -> None:
        """Add the candidates among the objects of a listing, or of a part of a listing.

        A file that was modified before ``older_than_ms`` (epoch milliseconds) is old.  A file of unknown age is young.
        """
        rest = iter(listed)
        while some := list(islice(rest, _AT_ONCE)):
            self.listed += len(some)
            known = (found.modified_ms or 0 for found in some if isinstance(found, ListedObject))
            self.newest_ms = max(self.newest_ms, *known, 0)
            for found in filter(None, (file.read() for file in referenced.unreferenced(some))):
                if referenced.has_prefix_mismatch(found.path) and len(self.prefix_mismatches) < _MISMATCHES_KEPT:
                    self.prefix_mismatches.append(found.path)
                if is_metadata_file(found.path):
                    self.metadata_files.append(found)
                elif (folder := other_format_at(found.path)) is not None:
                    self.other_formats.add(folder)
                if found.modified_ms is None or found.modified_ms >= older_than_ms:
                    self.too_young += 1
                    self.too_young_bytes += found.size
                else:
                    self.unreferenced.append(found)


def find_candidates(listed: Iterable[Listed], referenced: ReferencedPaths, older_than_ms: int) -> OrphanCandidates:
    """The candidates of a complete listing, and the files that it lacks."""
    candidates = OrphanCandidates()
    candidates.add(listed, referenced, older_than_ms)
    candidates.unlisted = referenced.unlisted()
    return candidates


def live_files(manifests: Iterable[ManifestFile]) -> int:
    """The number of live entries in the manifests, by the counts in manifest lists; a missing count is 0."""
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def join_candidates(parts: Iterable[OrphanCandidates]) -> OrphanCandidates:
    """Join the candidates of a listing's parts."""
    parts = list(parts)
    return OrphanCandidates(
        sum(part.listed for part in parts),
        sum(part.too_young for part in parts),
        [found for part in parts for found in part.unreferenced],
        [found for part in parts for found in part.metadata_files],
        [path for part in parts for path in part.prefix_mismatches],
        {folder for part in parts for folder in part.other_formats},
        sum(part.too_young_bytes for part in parts),
        max((part.newest_ms for part in parts), default=0),
        UnlistedPaths.joined(part.unlisted for part in parts if part.unlisted is not None),
    )


def without_referenced(candidates: OrphanCandidates, referenced: References) -> OrphanCandidates:
    """The candidates without the files that further references need."""
    mismatches = (found.path for found in candidates.unreferenced if referenced.has_prefix_mismatch(found.path))
    return replace(
        candidates,
        unreferenced=referenced.unreferenced(candidates.unreferenced),
        metadata_files=referenced.unreferenced(candidates.metadata_files),
        prefix_mismatches=[*candidates.prefix_mismatches, *mismatches],
    )


# A failed job may leave more files than a small table has, so a ratio means little below this number.
FEW_ORPHANS = 1_000
_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """The files to delete, and the old unreferenced files that are kept, by reason."""

    orphans: tuple[ListedObject, ...]
    protected: int
    of_other_tables: int
    """The number of files in folders of another table, whose own pass handles them."""
    in_other_folders: tuple[str, ...] = ()
    """Paths in folders where the table never had files; deleted only if a person names the folder."""
    of_other_formats: tuple[str, ...] = ()
    """Paths in the folder of another format's table, which may need them."""
    of_other_names: tuple[str, ...] = ()
    """Paths with names that no writer of Iceberg tables gives."""
    like_missing: tuple[str, ...] = ()
    """Paths with the size or the name of a missing file, of which they may be copies."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(found.path for found in self.orphans)


def plan_orphans(
    metadata: TableMetadata,
    unreferenced: Iterable[ListedObject],
    *,
    protected: PathSet,
    other_tables: Iterable[str] = (),
    other_formats: Iterable[str] = (),
    swept: Iterable[str],
    elsewhere: Iterable[str] = (),
    since_ms: int | None = None,
    is_needed: Callable[[str], bool] = lambda path: False,
    may_sweep: Callable[[str], bool] = is_of_iceberg,
) -> OrphanPlan:
    """Decide which old unreferenced files of a table are orphans (rule: orphans-outlive-the-grace-period).

    Args:
        metadata: the table's metadata.
        unreferenced: files past their grace period that the table does not reference.
        protected: files and folders to keep.
        other_tables: locations of tables nested in this one.
        other_formats: folders of other formats' tables.
        swept: the folders in which an unreferenced file is an orphan (:func:`swept_folders`).
        elsewhere: the swept folders outside the table's location.
        since_ms: keep files that were modified since this time (epoch milliseconds).
        is_needed: whether anything else needs a file.
        may_sweep: whether a file with this name may be deleted.
    """
    owned, others = tuple(map(compared, (metadata.location, *elsewhere))), PathSet(other_tables)
    formats, folders = PathSet(other_formats), PathSet(swept, protects=False)
    oldest_ms, like_hidden = _oldest_of_history_ms(metadata), partition_folders_like_hidden(metadata)
    orphans: list[ListedObject] = []
    kept = in_other_folders, of_other_formats, of_other_names = list[str](), list[str](), list[str]()
    left = of_other_tables = 0
    for found in unreferenced:
        path = compared(found.path)
        if others.may_contain(path):
            of_other_tables += 1
        elif (
            found.modified_ms is None
            or (since_ms is not None and found.modified_ms >= since_ms)
            or (root := next((folder for folder in owned if is_under(path, folder)), None)) is None
            or protected.may_contain(path)
            or is_hidden(path, root, like_hidden)
            or not _is_text(found.path)
            or is_needed(path)
            # Some catalogs keep an incomplete metadata log
            # (rule: orphans-outlive-the-grace-period, platform: seaweedfs-metadata-log-gaps).
            or (is_metadata_file(found.path) and found.modified_ms >= oldest_ms)
        ):
            left += 1
        elif formats.may_contain(path):
            of_other_formats.append(found.path)
        elif not may_sweep(path):
            of_other_names.append(found.path)
        elif not folders.may_contain(path):
            in_other_folders.append(found.path)
        else:
            orphans.append(found)
    orphans.sort(key=lambda found: found.path)
    return OrphanPlan(tuple(orphans), left, of_other_tables, *(tuple(sorted(paths)) for paths in kept))


def without_young_asides(
    metadata: TableMetadata, unreferenced: Iterable[ListedObject], now_ms: int
) -> list[ListedObject]:
    """The files without the metadata that a rollback copied aside in the last 30 days
    (rule: the-old-head-stays)."""
    since_ms = now_ms - ASIDE_KEPT_MS
    return [
        found
        for found in unreferenced
        if not is_aside(found.path, metadata) or (found.modified_ms is not None and found.modified_ms < since_ms)
    ]


def kept_for_damaged(metadata: TableMetadata, damaged: Iterable[ListedObject]) -> tuple[list[str], int | None]:
    """What to keep because of unreferenced metadata files that cannot be parsed.

    Returns the folders of tables to which they may belong, and the time (epoch milliseconds) since which files may
    belong to a newer state of the table; ``None`` if no file may.

    Raises:
        MetadataUnreadable: a file may belong to a table whose location contains this table's location.
    """
    own = {normalise(folder) for folder in (metadata.metadata_directory, f"{metadata.location}/metadata")}
    folders: list[str] = []
    since_ms: int | None = None
    for file in damaged:
        folder = normalise(file.path).rpartition("/")[0]
        if folder in own:
            # It may be a torn commit or another head, whose files are younger than the entry's metadata.
            known_ms = metadata.last_updated_ms - CLOCKS_DIFFER_MS
            if file.modified_ms is None or file.modified_ms >= known_ms:
                since_ms = known_ms
            continue
        table = folder.rpartition("/")[0] if folder.endswith("/metadata") else folder
        if may_be_under(metadata.location, table):
            raise MetadataUnreadable(
                f"{file.path} cannot be parsed and may belong to a table whose location contains {metadata.location}; "
                f"nothing was deleted; if it belongs to no table, delete it by hand or name it in {WAIVER}"
            )
        folders.append(table)
    return folders, since_ms


def _oldest_of_history_ms(metadata: TableMetadata) -> int:
    """The time of the oldest snapshot in the history of main, or of all branches if there is no main.

    Tags do not count: a tag that is kept for years would keep every metadata file since.
    """
    times_ms: dict[int, int] = {}
    for head in metadata.head_ids:
        way = takewhile(lambda ancestor: ancestor.snapshot_id not in times_ms, metadata.ancestors(head))
        times_ms.update((snapshot.snapshot_id, snapshot.timestamp_ms) for snapshot in way)
    return min(times_ms.values() or metadata.snapshot_times_ms, default=metadata.last_updated_ms)


def without_copies(plan: OrphanPlan, resembles: Callable[[ListedObject], bool]) -> OrphanPlan:
    """The plan without the orphans that may be copies of missing files (rule: keep-possible-last-copies)."""
    kept = {found.path for found in plan.orphans if resembles(found)}
    left = tuple(found for found in plan.orphans if found.path not in kept)
    return replace(plan, orphans=left, like_missing=tuple(sorted(kept)))


def swept_folders(metadata: TableMetadata, data_roots: Iterable[str], named: Iterable[str]) -> tuple[str, ...]:
    """The folders in which an unreferenced file counts as an orphan (rule: sweep-only-table-folders).

    These are ``data/`` and ``metadata/`` in the table's location, the folders that its properties name instead, the
    folders in which its data files were ever seen (``data_roots``), and those that the policy names (``named``).
    """
    home = metadata.location
    own = (f"{home}/data", f"{home}/metadata", metadata.data_location, metadata.metadata_directory)
    return (*own, *data_roots, *named)


def _is_text(path: str) -> bool:
    """Whether a path is valid UTF-8; a local name may consist of any bytes, which can be neither recorded nor
    printed."""
    return path.isascii() or not any("\ud800" <= character <= "\udfff" for character in path)


def is_hidden(path: str, root: str, partition_folders: tuple[str, ...]) -> bool:
    """Whether the path is in a hidden folder below ``root``, or is a hidden file directly in it.

    Other formats keep their state there (``_delta_log`` of a Delta table with Iceberg metadata, ``.hoodie``), and
    engines their uncommitted files (``_temporary``).  Elsewhere a hidden file is garbage.  ``partition_folders``: see
    :func:`partition_folders_like_hidden`.  Source: Iceberg-Java's ``PartitionAwareHiddenPathFilter``.
    """
    below = normalise(path)[len(normalise(root)) :].lstrip("/")
    if not below.startswith(_HIDDEN) and "/_" not in below and "/." not in below:
        return False
    *folders, name = below.split("/")
    return (not folders and name.startswith(_HIDDEN)) or any(
        folder.startswith(_HIDDEN) and not folder.startswith(partition_folders) for folder in folders
    )


def partition_folders_like_hidden(metadata: TableMetadata) -> tuple[str, ...]:
    """The prefixes (``FIELD=``) of partition folders that look hidden because the field's name starts with ``_`` or
    ``.``."""
    names = {str(field["name"]) for spec in metadata.specs.values() for field in spec.get("fields") or ()}
    return tuple(sorted(f"{name}=" for name in names if name.startswith(_HIDDEN)))


def refuse_mass_deletion(orphans: int, listed: int, limit: Fraction, source: str, *, any_missing: bool) -> None:
    """Refuse to delete too large a share of the listed files.

    The default limit applies only above 1,000 orphans, or if a referenced file is missing.

    Raises:
        OperationRefused: names both numbers and the key.
    """
    if orphans <= limit * listed or (source == DEFAULT_SOURCE and orphans <= FEW_ORPHANS and not any_missing):
        return
    raise OperationRefused(
        f"{orphans} of {listed} listed files are orphans, more than orphan_max_delete_ratio {float(limit):g} "
        f"({source}) allows; nothing was deleted; check them in a dry run with orphan_max_delete_ratio=1, and if "
        "they are orphans, run once with that setting"
    )


class TableLocations:
    """The locations of many tables; a lookup takes as many steps as the path has folders."""

    def __init__(self, locations: Iterable[tuple[TableName, str]]) -> None:
        self._tables: dict[str, list[tuple[TableName, str]]] = {}
        for name, location in locations:
            self._tables.setdefault(normalise(location), []).append((name, location))

    def tables_around(self, path: str) -> tuple[TableName, ...]:
        """The tables at the innermost location that contains the file: none, one, or several that share it.

        A path that is there only after normalisation (``%2F``, ``..``) belongs to no table.
        """
        folder = normalise(path).rpartition("/")[0]
        while folder:
            if found := self._tables.get(folder):
                return tuple(name for name, location in found if is_under(path, location))
            folder = folder.rpartition("/")[0]
        return ()
