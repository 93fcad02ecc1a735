"""Which table a file lies under."""

from __future__ import annotations

import pytest

from icekeeper.model import TableName
from icekeeper.operations.orphans.orphan_rules import TableLocations

OUTER, INNER, TWIN, OTHER = (TableName(("ns",), name) for name in ("outer", "inner", "twin", "other"))
TERRITORY = TableLocations(
    [
        (OUTER, "s3://b/w/outer"),
        (INNER, "s3a://b/w/outer/data/inner/"),
        (TWIN, "s3://b/w/outer/data/inner"),
        (OTHER, "s3://b/w/other"),
    ]
)


@pytest.mark.parametrize(
    ("path", "owners"),
    [
        ("s3://b/w/outer/data/f", (OUTER,)),
        ("s3a://b/w/outer/data/f", (OUTER,)),
        ("s3://b/w/outer/data/inner/data/f", (INNER, TWIN)),
        ("s3://b/w/outer/data/inner2/f", (OUTER,)),
        ("s3://b/w/other/f", (OTHER,)),
        ("s3://b/w/f", ()),
        ("s3://b/w/outer", ()),
        ("s3://c/w/outer/f", ()),
        ("/b/w/outer/f", ()),
        # Somebody could take these for files in there; what would be deleted is something else.
        ("s3://b/w/outer%2Ff", ()),
        ("s3://b/w//other/f", ()),
        ("s3://b/w/other/../f", ()),
    ],
)
def test_a_file_belongs_to_the_innermost_table_around_it(path: str, owners: tuple[TableName, ...]) -> None:
    assert TERRITORY.tables_around(path) == owners


def test_a_warehouse_without_tables_owns_nothing() -> None:
    assert TableLocations([]).tables_around("/w/t/f") == ()
    assert TableLocations([(OTHER, "file:///w/t")]).tables_around("/w/t/f") == (OTHER,)
