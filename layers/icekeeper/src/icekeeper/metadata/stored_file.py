"""A file as a manifest stores it: what is long, such as metrics of columns, stays bytes until somebody asks for it.

It is most of a manifest, and most plans look at none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from icekeeper.metadata.avro_fields import is_field
from icekeeper.metadata.avro_files import structure
from icekeeper.metadata.avro_types import AvroTypes
from icekeeper.metadata.avro_values import (
    PLAIN_READERS,
    Reader,
    Skipper,
    array_reader,
    keyed_reader,
    optional_reader,
    then,
)
from icekeeper.model import DataFile

__all__ = ["LATE_FIELDS", "METRIC_FIELDS", "STORED", "LateReader", "Layout", "StoredFile", "layout_of"]

METRIC_FIELDS = {
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    137: "nan_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
}
_INTEGERS = ("int", "long")
LATE_FIELDS = METRIC_FIELDS | {132: "split_offsets"}
"""The fields of a data file that are read when they are asked for."""


Layout: TypeAlias = tuple[tuple[int | None, Any], ...]
"""The ids and types of some fields: values of equal layouts are encoded alike."""


def layout_of(fields: Sequence[Mapping[str, Any]]) -> Layout:
    """The layout of these fields of a data file."""
    return tuple((field.get("field-id"), structure(field["type"])) for field in fields)


@dataclass(frozen=True, slots=True)
class LateReader:
    """Reads late fields out of a stretch of an encoded data file."""

    readers: Mapping[str, Reader]
    """Name → reads one field of a stretch that begins at its begin."""
    layout: Layout
    """Of its stretches."""

    @classmethod
    def of(cls, types: AvroTypes, stretch: Sequence[Mapping[str, Any]]) -> LateReader | None:
        """For a stretch of these fields; ``None``: a late one is no array of numbers, or of pairs of numbers or bytes.

        Such arrays can be read whenever they could be passed over, so no damage is found later on (rule 132).
        """
        readers: dict[str, Reader] = {}
        before: list[Skipper] = []
        for field in stretch:
            name = next((name for i, name in LATE_FIELDS.items() if is_field(field, i, name)), None)
            if name is not None:
                read = _late_reader(types, field["type"], is_metric=name != "split_offsets")
                if read is None:
                    return None
                readers[name] = _after(tuple(before), read)
            before.append(types.skipper(field["type"]))
        return cls(readers, layout_of(stretch))

    def read(self, name: str, stretch: bytes) -> Any:
        """One field; ``None``: the file has none."""
        read = self.readers.get(name)
        return None if read is None else read(stretch, 0)[0]


def _after(before: Sequence[Skipper], read: Reader) -> Reader:
    def value(data: bytes, at: int) -> tuple[Any, int]:
        for skip in before:
            at = skip(data, at)
        return read(data, at)

    return value


def _late_reader(types: AvroTypes, kind: Any, *, is_metric: bool) -> Reader | None:
    defined = types.defined(kind)
    if isinstance(defined, list):
        if len(defined) != 2 or types.defined(defined[0]) != {"type": "null"}:
            return None
        present = _late_reader(types, defined[1], is_metric=is_metric)
        return None if present is None else optional_reader([PLAIN_READERS["null"], present])
    if defined["type"] != "array":
        return None
    item = types.defined(defined["items"])
    if isinstance(item, list):
        return None
    if not is_metric:
        return then(array_reader(PLAIN_READERS[item["type"]]), tuple) if item["type"] in _INTEGERS else None
    if item["type"] != "record" or [f["name"] for f in item["fields"]] != ["key", "value"]:
        return None
    key, value = (types.defined(field["type"]) for field in item["fields"])
    kinds = [None if isinstance(part, list) else part["type"] for part in (key, value)]
    if kinds[0] not in _INTEGERS or kinds[1] not in (*_INTEGERS, "bytes"):
        return None
    return keyed_reader(PLAIN_READERS[kinds[1]])


class StoredFile(DataFile):
    """A data or delete file that reads its late fields out of its manifest's bytes, each when it is first asked for.

    It equals a ``DataFile`` of the same fields, and becomes one when it is copied with changes or sent to a worker.
    """

    __slots__ = ("_known", "_reader", "_stretch")
    _known: dict[str, Any] | None
    """Late fields that were asked for: deletes are compared with file after file."""
    _reader: LateReader
    _stretch: bytes

    def __new__(cls, **values: Any) -> Any:
        """Whoever makes one by all its fields (``dataclasses.replace``) gets a ``DataFile``."""
        return DataFile(**values)

    @classmethod
    def of(cls, values: Sequence[Any], reader: LateReader, stretch: bytes) -> StoredFile:
        """``values`` are those of all other fields, in the order of ``STORED``."""
        file: StoredFile = object.__new__(cls)
        for put, value in zip(_PUT, values, strict=True):
            put(file, value)
        _put_known(file, None)
        _put_reader(file, reader)
        _put_stretch(file, stretch)
        return file

    def stretch(self, layout: Layout) -> bytes | None:
        """Its late fields encoded; ``None``: they are laid out otherwise."""
        return self._stretch if self._reader.layout == layout else None

    def plain(self) -> DataFile:
        """The same with all its fields at hand."""
        return replace(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredFile):
            return self.plain() == other.plain()
        return self.plain() == other if isinstance(other, DataFile) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.plain())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _data_file, ({field.name: getattr(self, field.name) for field in fields(DataFile)},)


def _data_file(values: Mapping[str, Any]) -> DataFile:
    return DataFile(**values)


def _late(name: str) -> property:
    def value(file: StoredFile) -> Any:
        known = file._known
        if known is None:
            known = {}
            _put_known(file, known)
        if name not in known:
            known[name] = file._reader.read(name, file._stretch)
        return known[name]

    return property(value)


for _name in LATE_FIELDS.values():
    setattr(StoredFile, _name, _late(_name))

STORED = tuple(field.name for field in fields(DataFile) if field.name not in LATE_FIELDS.values())
"""The fields of a file that are at hand, in the order of ``StoredFile.of``."""
# What a frozen dataclass sets one by one with a call by name takes half as long through its slots.
_PUT = tuple(getattr(DataFile, name).__set__ for name in STORED)
_put_known, _put_reader, _put_stretch = (getattr(StoredFile, name).__set__ for name in StoredFile.__slots__)
