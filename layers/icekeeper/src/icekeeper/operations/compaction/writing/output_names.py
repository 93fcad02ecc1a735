"""Names the files of a rewrite as Iceberg-Java would place them for the table's own writers (rule 28) (pure).

Source: Java's ``LocationProviders``, ``PartitionSpec.partitionToPath``, ``Transforms.toHumanString``; table properties
``write.data.path``, ``write.object-storage.*``.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any
from urllib.parse import quote_plus

from icekeeper.metadata.avro_schemas import partition_type
from icekeeper.metadata.delete_scope import is_unpartitioned
from icekeeper.metadata.document import TableMetadata, require_known_layout
from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.task import Layout, OutputNames
from icekeeper.operations.compaction.writing.civil_date import civil_date
from icekeeper.storage.paths import split_path

__all__ = ["output_names", "partition_path"]

_DECIMALS = Context(prec=76)


def output_names(metadata: TableMetadata, spec_id: int, partition: Sequence[PartitionValue], stem: str) -> OutputNames:
    """Names that begin with ``stem``, for files of a partition of one of the table's specs.

    Raises:
        TableUnsupported: the table's layout, or a partition transform, is unknown.
    """
    require_known_layout(metadata.properties)
    spec = metadata.specs[spec_id]
    path = "" if is_unpartitioned(spec) else partition_path(spec, partition, metadata.schemas_current_first)
    folder = metadata.data_location
    if not metadata.property_flag("write.object-storage.enabled", default=False):
        return OutputNames(folder, stem, path)
    by_partition = metadata.property_flag("write.object-storage.partitioned-paths", default=True)
    # Several tables may share a folder that is outside of the table's location.
    context = "" if folder.startswith(metadata.location) else _database_and_table(metadata.location)
    return OutputNames(folder, stem, path, Layout.HASHED if by_partition else Layout.HASHED_FLAT, context)


def _database_and_table(location: str) -> str:
    """The last two folders of the location (Java's ``ObjectStoreLocationProvider.pathContext``)."""
    return "/".join(part for part in split_path(location).key.rstrip("/").rsplit("/", 2)[-2:] if part)


def partition_path(
    spec: Mapping[str, Any], partition: Sequence[PartitionValue], schemas: Sequence[Mapping[str, Any]]
) -> str:
    """``name=value/…``, escaped as in a URL; ``partition`` are raw values, ``schemas`` the current one first."""
    return "/".join(
        f"{_escaped(field['name'])}={_escaped(_human(str(field['transform']), partition_type(schemas, field), value))}"
        for field, value in zip(spec["fields"], partition, strict=True)
    )


def _escaped(text: str) -> str:
    """The text escaped as by Java's ``URLEncoder``."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def _human(transform: str, kind: str, value: PartitionValue) -> str:
    """A raw partition value as Java's ``Transforms.toHumanString`` writes it; ``kind`` is its Iceberg type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _human_int(transform, kind, value)
    if isinstance(value, bytes):
        if kind.startswith("decimal"):
            return _decimal(value, kind)
        return str(uuid.UUID(bytes=value)) if kind == "uuid" else base64.b64encode(value).decode()
    return str(value)


def _human_int(transform: str, kind: str, value: int) -> str:
    if transform == "year":
        return f"{1970 + value:04d}"
    if transform == "month":
        return f"{1970 + value // 12:04d}-{value % 12 + 1:02d}"
    if transform == "hour":
        return _moment(value * 3600, 0).partition(":")[0].replace("T", "-")
    if kind == "date":
        return _moment(value * 86_400, 0).partition("T")[0]
    if kind == "time":
        return _clock(value // 10**6, value % 10**6 * 1000)
    if kind.startswith("timestamp"):
        unit = 10**9 if kind.endswith("_ns") else 10**6
        zone = "+00:00" if kind.startswith("timestamptz") else ""
        return _moment(value // unit, value % unit * (10**9 // unit)) + zone
    return _decimal(value, kind) if kind.startswith("decimal") else str(value)


def _moment(seconds: int, nanos: int) -> str:
    """A time since 1970 as Java's ``ISO_LOCAL_DATE_TIME``: with as many digits of the fraction as are needed."""
    days, seconds = divmod(seconds, 86_400)
    year, month, day = civil_date(days)
    minutes, seconds = divmod(seconds, 60)
    text = f"{year:04d}-{month:02d}-{day:02d}T{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
    return f"{text}.{nanos:09d}".rstrip("0") if nanos else text


def _clock(seconds: int, nanos: int) -> str:
    """A time of day as Java's ``LocalTime.toString``: no zero seconds, digits of the fraction in groups of three."""
    minutes, seconds = divmod(seconds, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}"
    if seconds or nanos:
        text += f":{seconds:02d}"
    if nanos:
        text += f".{nanos:09d}"
        while text.endswith("000"):
            text = text[:-3]
    return text


def _decimal(raw: int | bytes, kind: str) -> str:
    scale = int(kind.rpartition(",")[2].rstrip(") "))
    return str(Decimal(decimal_unscaled(raw)).scaleb(-scale, _DECIMALS))
