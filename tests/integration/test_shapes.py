"""Geometries and geographies: files written by Arrow's own annotation are merged, and stay what they are."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, ListType, LongType, NestedField

from icekeeper.metadata.types import EDGES, shape_of
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.row_group_copy.annotations import shape_in, with_annotations
from icekeeper.row_group_copy.footer_structs import GeographyType, GeometryType, LogicalType, SchemaElement
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.storage.paths import normalise
from support.maintained_table import MaintainedTable, new_table
from support.v3 import upgrade

KINDS = {"g": "geometry(srid:3857)", "h": "geography", "k": "geography(srid:4326)"}
NAMES = ("id", *KINDS, "many")
ANNOTATIONS = {
    "g": b'{"crs": "srid:3857"}',
    "h": b'{"edges": "spherical"}',
    "k": b'{"crs": "srid:4326", "edges": "spherical"}',
}


class Wkb(pa.ExtensionType):  # type: ignore[misc]  # PyArrow has no types
    """The type for which Parquet's C++ writes the annotation of shapes (GeoArrow, "Extension types")."""

    def __init__(self, metadata: bytes = b"{}") -> None:
        self.metadata = metadata
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.metadata

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Wkb:
        return cls(serialized)


@contextmanager
def known_to_arrow() -> Iterator[None]:
    pa.register_extension_type(Wkb())
    try:
        yield
    finally:
        pa.unregister_extension_type("geoarrow.wkb")


def point(number: int) -> bytes | None:
    return None if number % 5 == 0 else struct.pack("<BIdd", 1, 1, float(number), -float(number))


def write(path: Path, ids: Sequence[int], *, annotated: bool = True) -> None:
    """A file with the three columns, as a writer that knows these types writes it."""
    points = pa.array([point(number) for number in ids], pa.binary())
    with known_to_arrow():
        shapes: list[pa.Array] = [
            pa.ExtensionArray.from_storage(Wkb(metadata), points) if annotated else points
            for metadata in ANNOTATIONS.values()
        ]
        inside = pa.ExtensionArray.from_storage(Wkb(), points) if annotated else points
        offsets = pa.array(range(len(ids) + 1), pa.int32())
        many = pa.ListArray.from_arrays(offsets, inside, pa.list_(with_id("element", inside.type, 6)))
        arrays = [pa.array(ids), *shapes, many]
        fields = [with_id(name, array.type, i) for i, (name, array) in enumerate(zip(NAMES, arrays, strict=True), 1)]
        pq.write_table(pa.table(arrays, pa.schema(fields)), path, store_schema=False, compression="zstd")


def with_id(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def table_of(local_catalog: SqlCatalog, tmp_path: Path, plain: int) -> MaintainedTable:
    """Three files of ten rows; ``plain`` of them say nothing of shapes, as PyIceberg's."""
    made = new_table(
        local_catalog,
        tmp_path,
        schema=Schema(
            NestedField(1, "id", LongType()),
            *(NestedField(number, name, BinaryType()) for number, name in enumerate(KINDS, 2)),
            NestedField(5, "many", ListType(6, BinaryType(), False)),
        ),
    )
    folder = tmp_path / "warehouse" / "ns" / "t" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        path = folder / f"{number}.parquet"
        write(path, range(10 * number, 10 * number + 10), annotated=number < 3 - plain)
        made.table.add_files([path.as_uri()])
    upgrade(made)

    def name_shapes(document: dict[str, Any]) -> None:
        for field in document["schemas"][-1]["fields"]:
            field["type"] = KINDS.get(field["name"], field["type"])
            if field["name"] == "many":
                field["type"]["element"] = "geometry"

    made.rewrite_document(name_shapes)
    return made


def shapes_in(path: str) -> dict[str, str]:
    schema = pq.ParquetFile(normalise(path)).schema
    return {schema.column(number).path: str(schema.column(number).logical_type) for number in range(5)}


WANTED = {
    "id": "None",
    "g": "Geometry(crs=srid:3857)",
    "h": "Geography(crs=OGC:CRS84, algorithm=spherical)",
    "k": "Geography(crs=srid:4326, algorithm=spherical)",
    "many.list.element": "Geometry(crs=OGC:CRS84)",
}


def assert_same_shapes(table: MaintainedTable, ids: Sequence[int]) -> None:
    """Each reader finds the values, and finds that they are shapes."""
    (file,) = table.data_files()
    assert shapes_in(file.file_path) == WANTED
    assert {2, 3, 4}.isdisjoint(file.lower_bounds or {})
    path = normalise(file.file_path)
    found = duckdb.sql(f"SELECT id, typeof(g), g, typeof(many[1]), h FROM '{path}' ORDER BY id").fetchall()
    assert [(row[0], row[2], row[4]) for row in found] == [(i, point(i), point(i)) for i in ids]
    assert {(row[1], row[3]) for row in found} == {("GEOMETRY", "GEOMETRY('OGC:CRS84')")}  # it knows no other system
    assert pq.read_table(path, columns=["id", "k"]).sort_by("id")["k"].to_pylist() == [point(i) for i in ids]
    assert (table.verify().problems, table.unreferenced()) == ((), set())


@pytest.mark.parametrize(
    ("settings", "plain", "greatest_x"),
    [
        ({"min_row_group_copy_bytes": "100"}, 0, [9, 19, 29]),
        ({"min_row_group_copy_bytes": "100"}, 1, [None, 9, 19]),
        ({"min_row_group_copy_bytes": "none"}, 0, [None]),
        ({"strategy": "sort", "sort_order": "id desc"}, 0, [None]),
    ],
    ids=str,
)
def test_shapes_are_kept_by_copying_decoding_and_sorting(
    settings: dict[str, str], plain: int, greatest_x: list[float | None], local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    table = table_of(local_catalog, tmp_path, plain)
    outcome = table.run(Operation.COMPACT, **settings, min_input_files="2", proof="full")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert (outcome.metrics["compact.bytes_copied"] > 0) is (len(greatest_x) > 1)
    assert_same_shapes(table, range(30))
    boxes = [group.column(1).geo_statistics for group in row_groups(table)]
    assert [box and box.xmax for box in boxes] == greatest_x


def row_groups(table: MaintainedTable) -> list[pq.RowGroupMetaData]:
    (file,) = table.data_files()
    footer = pq.read_metadata(normalise(file.file_path))
    return [footer.row_group(number) for number in range(footer.num_row_groups)]


def test_every_shape_has_its_annotation() -> None:
    for kind in ("geometry", "geometry(srid:3857)", "geography", *(f"geography(a, {edges})" for edges in EDGES)):
        schema = arrow_schema({"fields": [{"id": 7, "name": "c", "required": False, "type": kind}]})
        (element,) = with_annotations([SchemaElement(field_id=7)], schema)
        assert element.logical_type is not None
        assert shape_in(element.logical_type) == shape_of(kind)
    assert shape_in(LogicalType(geometry=GeometryType())) == shape_of("geometry")
    assert shape_in(LogicalType(geography=GeographyType())) == shape_of("geography")
