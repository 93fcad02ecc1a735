"""Parses and renders metadata files, plain or gzip-compressed."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import Any

from pydantic_core import from_json

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_shape import require_shape

__all__ = ["is_metadata_file", "leading_uuid", "parse_document", "render_document"]

METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")

GZIP_MAGIC = b"\x1f\x8b"
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
        MetadataUnreadable: the bytes are truncated or not table metadata.
    """
    try:
        plain = gzip.decompress(data) if data[:2] == GZIP_MAGIC else data
        document = _parsed(plain)
    except (OSError, EOFError, ValueError) as error:
        raise MetadataUnreadable(f"metadata file {location} cannot be parsed: {error}") from error
    if not isinstance(document, dict):
        raise MetadataUnreadable(f"metadata file {location} does not hold a JSON object")
    try:
        require_shape(document)
        return TableMetadata(document)
    except MetadataUnreadable as error:
        raise MetadataUnreadable(f"metadata file {location} is not an Iceberg table's: {error}") from None


def _parsed(plain: bytes) -> Any:
    """What ``json.loads`` returns or raises, in half the time: it has the last word on what the faster reader refuses.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return from_json(plain, cache_strings="keys")
    except ValueError:  # also of other encodings than UTF-8, of lone surrogates, and of very deep documents
        return json.loads(plain)


def leading_uuid(beginning: bytes) -> str | None:
    """The table UUID from the first bytes of a metadata file; ``None``: they do not tell for certain."""
    try:
        plain = (
            zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(beginning) if beginning[:2] == GZIP_MAGIC else beginning
        )
    except zlib.error:
        return None
    match = _LEADING_UUID.match(plain)
    return match["uuid"].decode() if match else None


def render_document(metadata: TableMetadata, *, compress: bool = False) -> bytes:
    """The bytes of a metadata file, gzip-compressed if asked for (``write.metadata.compression-codec``)."""
    plain = json.dumps(metadata.document, separators=(",", ":")).encode()
    return gzip.compress(plain) if compress else plain
