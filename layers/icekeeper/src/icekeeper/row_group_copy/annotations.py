"""Geometries, geographies and variants in Parquet: Arrow writes their values as binary or as a struct, and the schema
of the file says what they are (apache/parquet-format, "Geospatial Types", "Variant")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from icekeeper.metadata.types import EDGES, shape_of
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    FileMetaData,
    GeographyType,
    GeometryType,
    LogicalType,
    SchemaElement,
    VariantType,
    read_exactly,
    write_struct,
)
from icekeeper.rows.arrow_schema import ANNOTATED_KEY, field_id_of


def _types(fields: Any) -> Iterator[tuple[int, str]]:
    """The field ids of the geometries, geographies and variants of an Arrow schema, and their Iceberg types."""
    for field in fields:
        kind = (field.metadata or {}).get(ANNOTATED_KEY)
        field_id = field_id_of(field)
        if kind is not None and field_id is not None:
            yield field_id, kind.decode()
        if pa.types.is_nested(field.type):
            yield from _types(field.type.field(number) for number in range(field.type.num_fields))


def with_annotations(elements: Sequence[SchemaElement], schema: pa.Schema) -> list[SchemaElement]:
    """The elements of a file's schema with the annotations of its geometries, geographies and variants."""
    types = dict(_types(schema))
    wanted = (None if element.field_id is None else types.get(element.field_id) for element in elements)
    pairs = zip(elements, wanted, strict=True)
    return [element if kind is None else replace(element, logical_type=_annotation(kind)) for element, kind in pairs]


def annotated(thrift: bytes, schema: pa.Schema) -> bytes:
    """A footer that Arrow wrote for ``schema``, with these annotations.

    Raises:
        CannotCopy: the footer has fields that this version does not know.
    """
    metadata = read_exactly(FileMetaData, thrift)
    metadata.schema = with_annotations(metadata.schema, schema)
    return write_struct(metadata)


def shape_in(logical: LogicalType) -> tuple[str, str, str]:
    """The shape of an annotation, as :func:`.shape_of` returns it."""
    if logical.geometry is not None:
        kind, crs, algorithm = "geometry", logical.geometry.crs, ""
    elif logical.geography is not None:
        number = logical.geography.algorithm or 0
        kind, crs = "geography", logical.geography.crs
        algorithm = EDGES[number] if number in range(len(EDGES)) else str(number)
    else:
        raise CannotCopy("has an annotation that is no shape")
    return kind, (crs or b"OGC:CRS84").decode(errors="replace"), algorithm


def _annotation(iceberg_type: str) -> LogicalType:
    if iceberg_type == "variant":
        return LogicalType(variant=VariantType(1))
    kind, crs, algorithm = shape_of(iceberg_type) or ("", "", "")
    if kind == "geometry":
        return LogicalType(geometry=GeometryType(crs.encode()))
    return LogicalType(geography=GeographyType(crs.encode(), EDGES.index(algorithm)))
