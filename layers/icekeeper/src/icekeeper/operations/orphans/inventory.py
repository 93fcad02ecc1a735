"""Reads which files there are from a list: plain text, CSV, Parquet, ORC, or an Amazon S3 Inventory report.

Source: Amazon S3 user guide, "Locating your inventory list" (manifest.json) and "Amazon S3 Inventory list" (columns).
A report may be a day old, so every orphan found by it is looked at in the store before it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from icekeeper.errors import PolicyError
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.operations.orphans.inventory_rows import Columns, file_rows
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import is_local, is_under, split_path
from icekeeper.storage.sources import SourcePart
from icekeeper.storage.storage import Storage

__all__ = ["InventoryFiles"]

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class InventoryFiles:
    """The files of a list that lie under a location; all others are passed over."""

    storage: Storage
    address: str
    location: str
    is_current: bool = False

    def objects(self) -> Iterator[ListedObject]:
        """See :class:`icekeeper.storage.sources.FileSource`.

        Raises:
            PolicyError: the list is not what it should be.
            StorageError: it cannot be read.
        """
        return chain.from_iterable(part() for part in self.parts())

    def parts(self) -> Sequence[SourcePart]:
        """One part per file of the list.

        Raises:
            PolicyError: the manifest is not one.
            StorageError: it cannot be read.
        """
        if self.address.rpartition("/")[2] != _MANIFEST:
            return [partial(_listed, self.storage, self.address, self.location, None)]
        columns, files = _manifest(self.storage, self.address)
        return [partial(_listed, self.storage, path, self.location, columns) for path in files]


def _listed(storage: Storage, path: str, location: str, columns: Columns | None) -> Iterable[ListedObject]:
    for found in file_rows(storage, path, location, columns):
        if is_under(found.path, location):
            yield found


def _manifest(storage: Storage, address: str) -> tuple[Columns, list[str]]:
    try:
        document = parsed_json(storage.read(address), FileLimits(address))
        schema = str(document["fileSchema"]) if document["fileFormat"] == "CSV" else ""
        keys = [str(entry["key"]) for entry in document["files"]]
        destination = str(document["destinationBucket"]).removeprefix("arn:aws:s3:::")
        columns = Columns(
            names=tuple(name.strip() for name in schema.split(",")) if schema else None,
            bucket=str(document["sourceBucket"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(
            f"policy key orphan_inventory names {address}, which is no manifest of an S3 Inventory: "
            f"{type(error).__name__} {error}"
        ) from error
    return columns, [_data_file(storage, address, destination, key) for key in keys]


def _data_file(storage: Storage, address: str, destination: str, key: str) -> str:
    if not is_local(address):
        return f"{split_path(address).scheme}://{destination}/{key}"
    # A report brought to this machine: beside its manifest, or as in the bucket, in data/ beside the manifest's.
    folder, name = address.rpartition("/")[0], key.rpartition("/")[2]
    beside = f"{folder}/{name}"
    return beside if storage.size(beside) is not None else f"{folder.rpartition('/')[0]}/data/{name}"
