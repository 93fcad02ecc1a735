"""Name output files as Iceberg-Java would.

Sources: Java's ``LocationProviders``, ``PartitionSpec.partitionToPath`` and ``Transforms.toHumanString``.
"""

from __future__ import annotations

import base64
import datetime
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from typing import Any
from urllib.parse import quote_plus

from icekeeper.metadata.delete_scope import is_unpartitioned
from icekeeper.metadata.document import TableMetadata, require_known_layout
from icekeeper.metadata.transforms import partition_type
from icekeeper.metadata.types import PRIMITIVES, TIMESTAMPS, decimal_unscaled
from icekeeper.model import PartitionValue
from icekeeper.storage.paths import ATTEMPTS_PER_RUN, PlannedFile, split_path


class Layout(StrEnum):
    """The form of a data file's path below the table's data folder (Java's ``LocationProviders``)."""

    PLAIN = "plain"
    """``<partition path>/<name>``."""
    HASHED = "hashed"
    """``<hash of the name>/<partition path>/<name>``, so that an object store spreads the requests."""
    HASHED_FLAT = "hashed-flat"
    """``<hash of the name>-<name>``, without a partition path."""


@dataclass(frozen=True, slots=True)
class OutputNames:
    """Unique names for the files of a task; :func:`output_names` creates them."""

    folder: str
    stem: str
    partition_path: str = ""
    """Such as ``a=1/b=x``; empty when the files' spec has no partitions."""
    layout: Layout = Layout.PLAIN
    context: str = ""
    """Names the table if several may share the folder; it is put between hash and partition path."""
    attempts: int = ATTEMPTS_PER_RUN
    """The number of attempts at the task that may write files."""
    attempt: int = 0
    """The attempt that uses these names."""

    def path(self, number: int = 0) -> str:
        """The path of output file ``number`` of this attempt.

        Raises:
            StorageError: there were more attempts than allowed.
        """
        return self.file(number).path(self.attempt)

    def file(self, number: int = 0) -> PlannedFile:
        """Output file ``number`` of the task, for any attempt."""
        return PlannedFile(self._stem(f"{self.stem}-{number:05d}"), "parquet", self.attempts)

    def file_of_any_partition(self, number: int) -> PlannedFile:
        """As :meth:`file`, if rows are divided among partitions, so that only the worker knows the folder."""
        if self.layout is Layout.HASHED_FLAT:
            return self.file(number)
        return PlannedFile.anywhere_below(self.folder, f"{self.stem}-{number:05d}", "parquet")

    def _stem(self, name: str) -> str:
        """The path without attempt and suffix.  The hash does not include the attempt, so all attempts share a
        folder."""
        if self.layout is not Layout.HASHED_FLAT and self.partition_path:
            name = f"{self.partition_path}/{name}"
        if self.layout is Layout.PLAIN:
            return f"{self.folder}/{name}"
        entropy = _entropy(f"{name}.parquet")
        if self.context:
            return f"{self.folder}/{entropy}/{self.context}/{name}"
        return f"{self.folder}/{entropy}{'-' if self.layout is Layout.HASHED_FLAT else '/'}{name}"


def _entropy(name: str) -> str:
    """The hash of a name as in Java and PyIceberg, such as ``0101/1100/0011/01011010``."""
    # Imported here, because it doubles a worker's imports and only tables with such paths need it.
    from pyiceberg.table.locations import ObjectStoreLocationProvider

    path = ObjectStoreLocationProvider("", {}).new_data_location(name)
    return path.removeprefix("/data/").removesuffix(f"/{name}")


_DECIMALS = Context(prec=76)


def output_names(metadata: TableMetadata, spec_id: int, partition: Sequence[PartitionValue], stem: str) -> OutputNames:
    """Names that begin with ``stem``, for files of a partition of one of the table's specs.

    The files are placed where Iceberg-Java would write them, by the properties
    ``write.data.path`` and ``write.object-storage.*``.

    Raises:
        TableUnsupported: the table's layout or a partition transform is unknown.
    """
    require_known_layout(metadata.properties)
    spec = metadata.specs[spec_id]
    path = "" if is_unpartitioned(spec) else partition_path(spec, partition, metadata.schemas_current_first)
    folder = metadata.data_location
    if not metadata.property_flag("write.object-storage.enabled", default=False):
        return OutputNames(folder, stem, path)
    by_partition = metadata.property_flag("write.object-storage.partitioned-paths", default=True)
    context = ""
    if not folder.startswith(metadata.location):
        # Several tables may share the folder, so the last two folders of the location come in between (Java's
        # ``ObjectStoreLocationProvider.pathContext``).
        parts = split_path(metadata.location).key.rstrip("/").rsplit("/", 2)[-2:]
        context = "/".join(part for part in parts if part)
    return OutputNames(folder, stem, path, Layout.HASHED if by_partition else Layout.HASHED_FLAT, context)


def partition_path(
    spec: Mapping[str, Any], partition: Sequence[PartitionValue], schemas: Sequence[Mapping[str, Any]]
) -> str:
    """``name=value/…``, escaped as in a URL; ``partition`` has raw values, ``schemas`` the current schema first."""
    return "/".join(
        f"{_escaped(field['name'])}={_escaped(_human(str(field['transform']), partition_type(schemas, field), value))}"
        for field, value in zip(spec["fields"], partition, strict=True)
    )


def _escaped(text: str) -> str:
    """The text, escaped like Java's ``URLEncoder``."""
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
    if kind in TIMESTAMPS:
        unit = PRIMITIVES[kind].per_second
        zone = "+00:00" if kind.startswith("timestamptz") else ""
        return _moment(value // unit, value % unit * (10**9 // unit)) + zone
    return _decimal(value, kind) if kind.startswith("decimal") else str(value)


def _moment(seconds: int, nanos: int) -> str:
    """A time since 1970 like Java's ``ISO_LOCAL_DATE_TIME``: with only the needed digits of the fraction."""
    days, seconds = divmod(seconds, 86_400)
    year, month, day = civil_date(days)
    minutes, seconds = divmod(seconds, 60)
    text = f"{year:04d}-{month:02d}-{day:02d}T{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
    return f"{text}.{nanos:09d}".rstrip("0") if nanos else text


def _clock(seconds: int, nanos: int) -> str:
    """A time of day like Java's ``LocalTime.toString``: no zero seconds, digits of the fraction in groups of three."""
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


_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats after this many years and days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097


def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day counted from 1970-01-01; there is a year 0, as in Java.

    Tables may have wrong values beyond year 9999, the last year of Python's dates.
    """
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    date = datetime.date.fromordinal(rest + 1)
    return date.year + cycles * _CYCLE_YEARS, date.month, date.day
