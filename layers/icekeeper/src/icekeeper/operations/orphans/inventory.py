"""List files from an inventory: plain text, CSV, Parquet, ORC, or an Amazon S3 Inventory report.

Source: Amazon S3 user guide, "Locating your inventory list" (manifest.json) and "Amazon S3 Inventory list" (columns).
A report may be a day old, so every orphan that it shows is looked up in the store before its deletion.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import PolicyError
from icekeeper.machine.foreign_bytes import GZIP_MAGIC, FileLimits, parsed_json
from icekeeper.rows.orc_rows import OrcRows
from icekeeper.storage.listing import ListedObject, known_ms
from icekeeper.storage.paths import S3_SCHEMES, is_local, is_under, split_path
from icekeeper.storage.storage import SourcePart, Storage

_BATCH_ROWS = 10_000
# A key has at most 1,024 bytes; URL-encoded in CSV it has up to three times as many characters.
_LONGEST_LINE = 64 * 1024
# Column names in lower case, without blanks and underscores.
_WANTED = ("path", "bucket", "key", "size", "lastmodifieddate", "lastmodified", "islatest", "isdeletemarker")


def file_rows(
    storage: Storage, path: str, location: str, names: Sequence[str] | None = None, bucket: str | None = None
) -> Iterator[ListedObject]:
    """Every current object that an inventory file names; keys become paths with the scheme of ``location``.

    A plain text file has a path per line and no ages, so its files count as young.  ``names`` and ``bucket`` come from
    an inventory's manifest: the columns of CSV files, which then have no header, and the bucket of the keys.

    Raises:
        PolicyError: a column is missing, or a value is invalid.
        StorageError: the file cannot be read.
    """
    name = path.removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            rows = _parquet(storage, path)
        elif name.endswith(".orc"):
            rows = _orc(storage, path)
        elif name.endswith(".csv"):
            rows = _csv(storage, path, names)
        else:
            yield from _lines(storage, path)
            return
        scheme = split_path(location).scheme
        for row in rows:
            found = _object(row, scheme if scheme in S3_SCHEMES else "s3", bucket)
            if found is not None:
                yield found
    except (
        KeyError,
        ValueError,
        TypeError,
        pa.ArrowException,
        csv.Error,
        EOFError,
        OSError,
        OverflowError,
        zlib.error,
    ) as error:
        if isinstance(error, KeyError):
            problem = f"it has no column {error.args[0]}"
        else:
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise PolicyError(f"policy key orphan_inventory: {path} cannot be read as an inventory: {problem}") from error


def _lines(storage: Storage, path: str) -> Iterator[ListedObject]:
    for line in _text(storage, path):
        if name := line.rstrip("\r\n"):
            yield ListedObject(name, 0, None)


def _csv(storage: Storage, path: str, names: Sequence[str] | None) -> Iterator[Mapping[str, Any]]:
    reader = csv.reader(_text(storage, path))
    header = [_plain(name) for name in (next(reader, []) if names is None else names)]
    if "key" not in header and "path" not in header:
        raise KeyError("key (or path) in its first line")
    for values in reader:
        row: dict[str, Any] = dict(zip(header, values, strict=False))
        if "key" in row:
            row["key"] = unquote_plus(row["key"])  # only CSV has URL-encoded keys
        yield row


def _parquet(storage: Storage, path: str) -> Iterator[Mapping[str, Any]]:
    with storage.open_input(path) as stream:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        names = [name for name in file.schema_arrow.names if _plain(name) in _WANTED]
        for batch in file.iter_batches(_BATCH_ROWS, columns=names):
            yield from _arrow_rows(batch)


def _orc(storage: Storage, path: str) -> Iterator[Mapping[str, Any]]:
    with storage.open_input(path) as stream:
        file = OrcRows(stream)
        names = [name for name in file.schema.names if _plain(name) in _WANTED]
        for batch in file.batches(names, _BATCH_ROWS):
            yield from _arrow_rows(batch)


def _arrow_rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    header = [_plain(name) for name in batch.schema.names]
    for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield dict(zip(header, values, strict=True))


def _text(storage: Storage, path: str) -> Iterator[str]:
    """The lines of a text file, decompressed if it is gzip."""
    with storage.open_input(path) as stream:
        plain: Any = gzip.GzipFile(fileobj=stream) if stream.read(2) == GZIP_MAGIC else stream
        stream.seek(0)
        text = io.TextIOWrapper(plain, encoding="utf-8", newline="")
        while line := text.readline(_LONGEST_LINE + 1):
            if len(line) > _LONGEST_LINE:
                raise ValueError(f"a line has more than {_LONGEST_LINE} characters")
            yield line


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "").replace(" ", "")


def _object(row: Mapping[str, Any], scheme: str, known_bucket: str | None) -> ListedObject | None:
    if not _flag(row.get("islatest", True)) or _flag(row.get("isdeletemarker", False)):
        return None
    if "path" in row:
        path = str(row["path"])
    else:
        bucket = row["bucket"] if known_bucket is None else row.get("bucket", known_bucket)
        path = f"{scheme}://{bucket}/{row['key']}"
    modified = row.get("lastmodifieddate", row.get("lastmodified"))
    return ListedObject(path, int(row.get("size") or 0), _epoch_ms(modified))


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() == "true"


def _epoch_ms(value: Any) -> int | None:
    """Epoch milliseconds of a cell, ``None`` if it is empty; a time without a zone is UTC, as in S3's reports."""
    if value is None or value == "":
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return known_ms(int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class InventoryFiles:
    """The files of an inventory below a location; see :class:`icekeeper.storage.storage.FileSource`."""

    storage: Storage
    address: str
    location: str
    is_current: bool = False

    def objects(self) -> Iterator[ListedObject]:
        """All files.

        Raises:
            PolicyError: the inventory is invalid.
            StorageError: the inventory cannot be read.
        """
        return chain.from_iterable(part() for part in self.parts())

    def parts(self) -> Sequence[SourcePart]:
        """One part per file of the inventory; errors as for :meth:`objects`."""
        if self.address.rpartition("/")[2] != "manifest.json":
            return [partial(_listed, self.storage, self.address, self.location)]
        address = self.address
        try:
            document = parsed_json(self.storage.read(address), FileLimits(address))
            schema = str(document["fileSchema"]) if document["fileFormat"] == "CSV" else ""
            keys = [str(entry["key"]) for entry in document["files"]]
            destination = str(document["destinationBucket"]).removeprefix("arn:aws:s3:::")
            names = tuple(name.strip() for name in schema.split(",")) if schema else None
            bucket = str(document["sourceBucket"])
        except (ValueError, KeyError, TypeError) as error:
            raise PolicyError(
                f"policy key orphan_inventory names {address}, which is not a manifest of an S3 Inventory: "
                f"{type(error).__name__} {error}"
            ) from error
        files = [_data_file(self.storage, address, destination, key) for key in keys]
        return [partial(_listed, self.storage, path, self.location, names, bucket) for path in files]


def _listed(
    storage: Storage, path: str, location: str, names: Sequence[str] | None = None, bucket: str | None = None
) -> Iterable[ListedObject]:
    for found in file_rows(storage, path, location, names, bucket):
        if is_under(found.path, location):
            yield found


def _data_file(storage: Storage, address: str, destination: str, key: str) -> str:
    if not is_local(address):
        return f"{split_path(address).scheme}://{destination}/{key}"
    # A report copied to this machine: its files are beside the manifest, or in ../data/ as in the bucket.
    folder, name = address.rpartition("/")[0], key.rpartition("/")[2]
    beside = f"{folder}/{name}"
    return beside if storage.size(beside) is not None else f"{folder.rpartition('/')[0]}/data/{name}"
