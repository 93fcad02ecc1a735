"""The way back from a mend: a tag keeps the branch's old head for 30 days, or copies of its metadata do
(rule: the-old-head-stays)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.sweep_permission import ASIDE_FOLDER, ASIDE_KEPT_MS
from icekeeper.errors import MetadataUnreadable, StorageError, is_damage
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.metadata.table_reader import TableReader
from icekeeper.storage.copies import create_object
from icekeeper.storage.storage import Storage
from icekeeper.verification.checks import BEFORE_TAG

KEPT_MS = ASIDE_KEPT_MS
"""How long the old head is kept."""
UNREADABLE = "its metadata cannot be read"
"""How the reason for no tag begins where what can be read is copied aside."""


def tag_of(snapshot_id: int) -> str:
    """The name of the tag that keeps an old head."""
    return f"{BEFORE_TAG}{snapshot_id}"


def why_no_tag(metadata: TableMetadata, reader: TableReader, head: Snapshot) -> str | None:
    """Why the old head gets no tag; ``None``: it gets one.

    A tag on a snapshot whose metadata cannot be read would stop every later expiry.

    Raises:
        MetadataUnreadable: the store does not answer.
    """
    try:
        for _, entries in reader.entries(reader.manifests(head)):
            deque(entries, maxlen=0)
    except MetadataUnreadable as error:
        if not is_damage(error):
            raise
        return f"{UNREADABLE}: {error}"
    if metadata.format_version < 2:
        return "tables of format version 1 cannot have tags"
    if has_its_own_bucket(metadata.location):
        return "a tag would switch off the table bucket's own snapshot management"
    known = metadata.refs.get(tag_of(head.snapshot_id))
    if known is not None and (known.type, known.snapshot_id) != ("tag", head.snapshot_id):
        return f"{known.type} '{known.name}' of the table points at snapshot {known.snapshot_id}"
    return None


def tag_update(metadata: TableMetadata, head: Snapshot, now_ms: int) -> Mapping[str, Any]:
    """The update that tags the old head for :data:`KEPT_MS`.

    The age of a ref counts from its snapshot (specification, "Snapshot Retention Policy").  The age is never shortened.
    """
    name = tag_of(head.snapshot_id)
    known = metadata.refs.get(name)
    age_ms = max(1, now_ms - head.timestamp_ms + KEPT_MS, (known.max_ref_age_ms or 0) if known is not None else 0)
    tag = {"type": "tag", "snapshot-id": head.snapshot_id, "max-ref-age-ms": age_ms}
    return {"action": "set-snapshot-ref", "ref-name": name, **tag}


def copy_aside(loaded: LoadedTable, storage: Storage, head: Snapshot, now_ms: int) -> str:
    """Copy what can be read of an old head's metadata into a folder that sweeps keep for 30 days; returns the folder.

    These are the metadata file, the manifest list and the manifests.  The metadata file gets another ending, because
    metadata that no catalog entry names stops sweeps.

    Raises:
        StorageError: a copy cannot be written.
    """
    folder = f"{loaded.metadata.metadata_directory}/{ASIDE_FOLDER}/{head.snapshot_id}-{now_ms}"
    paths, reader = [loaded.metadata_location], TableReader(loaded.metadata, storage.read)
    with suppress(MetadataUnreadable):
        paths += [manifest.manifest_path for manifest in reader.manifests(head)]
    for path in (*paths, *filter(None, [head.manifest_list])):
        try:
            data = storage.read(path)
        except StorageError as error:
            if is_damage(error):
                continue
            raise
        name = path.rpartition("/")[2]
        create_object(storage, f"{folder}/{name}{'.copy' if is_metadata_file(name) else ''}", data)
    return folder
