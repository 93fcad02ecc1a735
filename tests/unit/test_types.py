"""The tables of Iceberg's types and transforms, which no other module repeats."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter
from pyiceberg.transforms import parse_transform as parsed_by_pyiceberg
from pyiceberg.types import IcebergType

import icekeeper
from icekeeper.errors import TableUnsupported
from icekeeper.metadata.avro_schemas import record_schema
from icekeeper.metadata.transforms import applies, is_known, parse_transform, partition_type
from icekeeper.metadata.types import PRIMITIVES, decimal_of, fixed_length, is_primitive, shape_of
from icekeeper.rows.arrow_schema import arrow_type

PARAMETRIC = ("decimal(9, 2)", "decimal(38,0)", "fixed[5]")
SOURCE = Path(icekeeper.__file__).parent


@pytest.mark.parametrize("kind", [*PRIMITIVES, *PARAMETRIC])
def test_every_type_has_an_arrow_type_an_avro_type_and_a_pyiceberg_type(kind: str) -> None:
    assert is_primitive(kind)
    arrow_type(kind)
    assert str(TypeAdapter(IcebergType).validate_python(kind)).replace(" ", "") == kind.replace(" ", "")
    [field] = record_schema("r", [{"id": 1, "name": "a", "required": False, "type": kind}])["fields"]
    assert field["type"][0] == "null"


def test_parameters_of_types_are_parsed() -> None:
    assert decimal_of("decimal( 9 , 2 )") == (9, 2)
    assert decimal_of("decimal") is None
    assert fixed_length("fixed[16]") == 16
    for kind in ("decimal(0,0)", "decimal(39,2)", "decimal(9,39)", f"decimal(9,{10**10})", f"fixed[{10**12}]"):
        assert not is_primitive(kind)
        with pytest.raises(TableUnsupported, match=r"^columns of type .* are not rewritten"):
            arrow_type(kind)
    assert not any(map(is_primitive, ("fixed", "decimal(9)", "variant", "unknown", "geometry(a, b)", "int ")))
    assert shape_of("geometry") == ("geometry", "OGC:CRS84", "")
    assert shape_of("geometry( srid:3857 )") == ("geometry", "srid:3857", "")
    assert shape_of("geography(srid:4326, Karney)") == ("geography", "srid:4326", "karney")
    assert shape_of("geography") == ("geography", "OGC:CRS84", "spherical")
    assert shape_of("geography('srid:4326', 'vincenty')") == ("geography", "srid:4326", "vincenty")
    assert shape_of("geometryx") is None


@pytest.mark.parametrize("transform", ["identity", "void", "year", "month", "day", "hour", "bucket[16]", "truncate[3]"])
def test_known_transforms_equal_those_of_pyiceberg(transform: str) -> None:
    assert is_known(transform)
    assert str(parsed_by_pyiceberg(transform)) == transform


@pytest.mark.parametrize("transform", ["bucket", "truncate[]", "day[3]", "bucket[-1]", "zorder", "", "identity "])
def test_other_transforms_are_unknown(transform: str) -> None:
    assert not is_known(transform)
    assert not applies(transform, "int")
    schemas = [{"fields": [{"id": 1, "name": "a", "type": "int"}]}]
    with pytest.raises(TableUnsupported, match="is unknown"):
        partition_type(schemas, {"name": "p", "source-id": 1, "transform": transform})


def test_parameters_of_transforms_are_parsed() -> None:
    assert parse_transform("bucket[16]") == ("bucket", 16)
    assert parse_transform("day") == ("day", None)


@pytest.mark.parametrize(
    ("transform", "takes", "refuses"),
    [
        ("identity", ("boolean", "double", "uuid", "decimal(9,2)"), ("variant", "unknown", "geometry(srid:1)")),
        ("bucket[4]", ("int", "timestamp_ns", "uuid", "fixed[3]", "decimal(9,2)"), ("boolean", "float", "geography")),
        ("truncate[4]", ("int", "long", "string", "binary", "decimal(9,2)"), ("date", "uuid", "fixed[3]", "double")),
        ("hour", ("timestamp", "timestamptz", "timestamptz_ns"), ("date", "time", "long")),
        ("day", ("date", "timestamp", "timestamp_ns"), ("time", "long", "string")),
    ],
)
def test_a_transform_accepts_its_types_only(transform: str, takes: tuple[str, ...], refuses: tuple[str, ...]) -> None:
    assert [kind for kind in takes if not applies(transform, kind)] == []
    assert [kind for kind in refuses if applies(transform, kind)] == []


def test_types_are_listed_only_in_the_table_and_the_arrow_types() -> None:
    listed = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if '"timestamp_ns"' in path.read_text()}
    assert listed == {"metadata/types.py", "rows/arrow_schema.py"}
