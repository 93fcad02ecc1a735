"""Parses and renders metadata files, plain or gzip-compressed."""

from __future__ import annotations

import gzip
import json
import re
import zlib

from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.foreign_bytes import GZIP_MAGIC, FileLimits, parsed_json
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_shape import require_shape

__all__ = ["is_metadata_file", "leading_uuid", "parse_document", "render_document"]

METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")

_BEGINNING = 64 * 1024
# Only plain values may stand before it, so that it is a member of the document and not of a value inside.
_LEADING_UUID = re.compile(
    rb'\s*\{(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[^\s"{}\[\],]+)\s*,)*\s*"table-uuid"\s*:\s*"(?P<uuid>[0-9A-Za-z-]+)"'
)


def is_metadata_file(path: str) -> bool:
    """Whether a path ends as that of a table metadata file, compressed or not."""
    return path.endswith(METADATA_SUFFIXES)


def parse_document(data: bytes, location: str) -> TableMetadata:
    """Parse a metadata file, plain or gzip-compressed.

    Raises:
        MetadataUnreadable: the bytes are truncated or not table metadata, or unfold to more than a file may.
    """
    limits = FileLimits(f"metadata file {location}", len(data))
    try:
        document = parsed_json(limits.unpack("gzip" if data[:2] == GZIP_MAGIC else "null", data), limits)
    except (ValueError, MemoryError) as error:
        raise MetadataUnreadable(f"metadata file {location} cannot be parsed: {error}") from error
    if not isinstance(document, dict):
        raise MetadataUnreadable(f"metadata file {location} does not hold a JSON object")
    try:
        require_shape(document)
        return TableMetadata(document)
    except MetadataUnreadable as error:
        raise MetadataUnreadable(f"metadata file {location} is not an Iceberg table's: {error}") from None


def leading_uuid(beginning: bytes) -> str | None:
    """The table UUID from the first bytes of a metadata file; ``None``: they do not tell for certain."""
    try:
        is_packed = beginning[:2] == GZIP_MAGIC
        plain = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(beginning, _BEGINNING) if is_packed else beginning
    except zlib.error:
        return None
    match = _LEADING_UUID.match(plain)
    return match["uuid"].decode() if match else None


def render_document(metadata: TableMetadata, *, compress: bool = False) -> bytes:
    """The bytes of a metadata file, gzip-compressed if asked for (``write.metadata.compression-codec``)."""
    plain = json.dumps(metadata.document, separators=(",", ":")).encode()
    return gzip.compress(plain) if compress else plain
