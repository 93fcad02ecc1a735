"""Blobs of statistics files that exist already, fetched for another file."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.machine.foreign_bytes import FileLimits
from icekeeper.metadata.puffin import PuffinBlob, decode_footer
from icekeeper.metadata.statistics import ThetaSketch, blob_metadata, decode_theta
from icekeeper.operations.statistics.plan import StoredBlob
from icekeeper.storage.storage import Storage

__all__ = ["StatisticsFileUnusable", "stored_blobs", "stored_sketch"]


class StatisticsFileUnusable(MetadataUnreadable):
    """A statistics file is missing, damaged, or not what the table says: its columns are to be read anew."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"statistics file {path} cannot be used: {why}")
        self.path = path


def stored_blobs(storage: Storage, wanted: Iterable[StoredBlob]) -> dict[StoredBlob, tuple[PuffinBlob, bytes]]:
    """What a footer says of each blob, and its bytes as they are stored; every file is read once.

    Raises:
        StatisticsFileUnusable: a file cannot be read, or lacks a blob.
    """
    by_path: dict[str, list[StoredBlob]] = {}
    for stored in wanted:
        by_path.setdefault(stored.path, []).append(stored)
    found = {}
    for path, blobs in by_path.items():
        try:
            data = storage.read(path)
            held = {blob_metadata(blob): blob for blob in decode_footer(data, path)}
        except StorageError as error:
            raise StatisticsFileUnusable(path, str(error)) from error
        for stored in blobs:
            blob = held.get(stored.blob)
            if blob is None or blob.offset + blob.length > len(data):
                raise StatisticsFileUnusable(path, "it does not hold what the table says")
            found[stored] = blob, data[blob.offset : blob.offset + blob.length]
    return found


def stored_sketch(stored: StoredBlob, blob: PuffinBlob, data: bytes) -> ThetaSketch:
    """The sketch in a blob, as it was fetched.

    Raises:
        StatisticsFileUnusable: it is damaged, or compressed in a way that this version does not know.
    """
    try:
        # A sketch has at most some ten thousand hashes, which do not compress.
        plain = FileLimits(stored.path, len(data)).unpack(blob.compression_codec or "null", data)
        return decode_theta(plain, stored.path)
    except (MetadataUnreadable, ValueError) as error:
        raise StatisticsFileUnusable(stored.path, str(error)) from error
