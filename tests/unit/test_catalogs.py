"""The catalogs of a deployment, and the identity of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.bucket_maintenance import maintenance_behind
from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.catalogs.configured import (
    CATALOGS,
    TABLE_BUCKETS,
    TableBucketArn,
    add_found,
    find_catalog,
    is_table_bucket,
    named_catalogs,
    recorded_catalog,
    wants_all_buckets,
)
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.state.identity import TableIdentity
from support.scans import PreparedCatalog

# A deployment's settings name its catalogs.

ARN = "arn:aws:s3tables:eu-west-1:111122223333:bucket/sales"
OTHER = "arn:aws:s3tables:us-east-1:111122223333:bucket/logs"
BUCKET = {"type": "s3tables", "warehouse": ARN, "s3tables.endpoint": "http://e", "s3.secret-access-key": "hidden"}
LAKE = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "file:///lake"}
GLUE = {"type": "glue", "glue.region": "eu-west-1"}
REST = {"uri": "http://rest/", "warehouse": "w", "credential": "id:secret"}


def served_ids(catalogs: dict[str, dict[str, str]], *, names: str = "", buckets: str = "") -> list[tuple[str, str]]:
    environment = {CATALOGS: names, TABLE_BUCKETS: buckets}
    return [item.id for item in named_catalogs(environment, catalogs)]


def test_configured_catalogs_come_before_table_buckets_in_the_given_order() -> None:
    catalogs = {"lake": LAKE, "g": GLUE, "unused": REST}
    found = served_ids(catalogs, names=" g, lake,g ,", buckets=f"{OTHER}, {ARN},{OTHER}")
    assert found == [("g", ""), ("lake", "file:///lake"), ("logs", OTHER), ("sales", ARN)]
    assert served_ids(catalogs) == []
    # A name in another case means the same catalog, but a SQL catalog stores the name as it is spelled.
    assert served_ids(catalogs, names="G,Lake") == [("g", ""), ("Lake", "file:///lake")]


def test_without_names_every_catalog_of_the_catalog_file_is_served() -> None:
    catalogs = {"lake": LAKE, "g": GLUE}
    assert [item.name for item in named_catalogs({}, catalogs, unless_named=["lake"])] == ["lake"]
    assert [item.name for item in named_catalogs({CATALOGS: "g"}, catalogs, unless_named=["lake"])] == ["g"]


def test_a_table_bucket_uses_the_properties_of_its_configured_catalog() -> None:
    """Of several, the catalog with the bucket's name decides; otherwise they must agree."""

    def opened(catalogs: dict[str, dict[str, str]]) -> tuple[str, Any]:
        [found] = named_catalogs({TABLE_BUCKETS: ARN}, catalogs)
        return found.name, found.properties

    differs = {**BUCKET, "s3tables.endpoint": "http://f"}
    for catalogs in ({"other": BUCKET}, {"a": differs, "sales": BUCKET}, {"a": BUCKET, "b": BUCKET}):
        assert opened(catalogs) == ("sales", BUCKET)
    rest = {**REST, "type": "rest", "warehouse": ARN, "client.region": "r", "rest.sigv4-enabled": "true"}
    assert opened({"other": rest}) == ("sales", {"type": "s3tables", "warehouse": ARN, "client.region": "r"})
    with pytest.raises(
        PolicyError, match=f"a, b all have table bucket {ARN} as warehouse, and their properties differ"
    ):
        opened({"a": BUCKET, "b": differs})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (CATALOGS, "lake,nope", r"^ICEKEEPER_CATALOGS contains 'nope', which is not configured \(configured: lake\)$"),
        (
            CATALOGS,
            ARN,
            f"^ICEKEEPER_CATALOGS contains '{ARN}'; name table buckets in ICEKEEPER_TABLE_BUCKETS instead$",
        ),
        (
            TABLE_BUCKETS,
            "sales",
            r"^ICEKEEPER_TABLE_BUCKETS contains 'sales', but must be the ARN of a table bucket, for",
        ),
        (TABLE_BUCKETS, "arn:aws:s3:::sales", "^ICEKEEPER_TABLE_BUCKETS contains 'arn:aws:s3:::sales', but must be"),
        (
            TABLE_BUCKETS,
            "arn:aws:s3tables:eu-west-1:111122223333:bucket/*",
            "^ICEKEEPER_TABLE_BUCKETS contains .*, but must be",
        ),
        (TABLE_BUCKETS, f"{ARN}/table/t", "^ICEKEEPER_TABLE_BUCKETS contains '.*', but must be"),
        (TABLE_BUCKETS, f"all,{ARN}", f"^ICEKEEPER_TABLE_BUCKETS is 'all,{ARN}'; set it to ARNs or to 'all', not both"),
    ],
)
def test_a_malformed_value_names_its_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        named_catalogs({variable: value}, {"lake": LAKE})


@pytest.mark.parametrize(
    ("catalogs", "names", "buckets"),
    [
        ({"a": BUCKET, "b": BUCKET}, "a,b", ""),
        ({"a": BUCKET}, "a", ARN),
        ({"a": {"type": "rest", "uri": "http://x", "warehouse": ARN}}, "a", ARN),
        ({"a": REST, "b": {**REST, "uri": "http://rest"}}, "a,b", ""),
        ({"a": GLUE, "b": {**GLUE, "warehouse": "s3://x"}}, "a,b", ""),
    ],
)
def test_two_names_for_the_same_tables_are_an_error(
    catalogs: dict[str, dict[str, str]], names: str, buckets: str
) -> None:
    with pytest.raises(PolicyError, match=r"name the same tables as catalog 'a' and as catalog '(b|sales)'"):
        served_ids(catalogs, names=names, buckets=buckets)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LAKE, LAKE),  # one database, but each name has separate rows
        (GLUE, {**GLUE, "glue.id": "111122223333"}),
        (GLUE, {"type": "glue", "client.region": "us-east-1"}),
        (REST, {**REST, "warehouse": "v"}),
    ],
)
def test_different_catalogs_are_both_served(first: dict[str, str], second: dict[str, str]) -> None:
    assert [name for name, _ in served_ids({"a": first, "b": second}, names="a,b")] == ["a", "b"]


def test_two_catalogs_with_one_name_are_an_error() -> None:
    twin = OTHER.replace("logs", "sales")
    with pytest.raises(PolicyError, match="two catalogs of this deployment are named 'sales'"):
        served_ids({}, buckets=f"{ARN},{twin}")
    with pytest.raises(PolicyError, match="two catalogs of this deployment are named 'sales'"):
        add_found(named_catalogs({TABLE_BUCKETS: ARN}, {}), [twin], {})


def test_a_found_bucket_with_a_configured_catalog_is_served_once() -> None:
    catalogs = {"mine": BUCKET}
    served = named_catalogs({CATALOGS: "mine", TABLE_BUCKETS: "all"}, catalogs)
    assert wants_all_buckets({TABLE_BUCKETS: " all "})
    assert not wants_all_buckets({TABLE_BUCKETS: ARN})
    assert [item.name for item in add_found(served, [ARN, OTHER], catalogs)] == ["mine", "logs"]


def test_a_catalog_is_found_by_name_or_arn_or_as_the_only_catalog() -> None:
    served = named_catalogs({TABLE_BUCKETS: f"{ARN},{OTHER}"}, {})
    assert find_catalog(served, "sales").id.warehouse == ARN
    assert find_catalog(served, OTHER).name == "logs"
    assert find_catalog(served[:1], None).name == "sales"
    with pytest.raises(PolicyError, match=r"^name the catalog: this deployment serves logs, sales$"):
        find_catalog(served, None)
    with pytest.raises(PolicyError, match=r"^this deployment has no catalog 'x'; it has: logs, sales$"):
        find_catalog(served, "x")


def test_a_recorded_catalog_has_no_secret_and_is_found_if_its_configuration_is_unchanged() -> None:
    catalogs = {"sales": BUCKET, "g": GLUE, "lake": LAKE}
    served = named_catalogs({CATALOGS: "g,Lake", TABLE_BUCKETS: f"{ARN},{OTHER}"}, catalogs)
    for item in served:
        assert "hidden" not in repr(item.id) + repr(item)
        assert recorded_catalog(item.id, catalogs) == item
    for recorded in (CatalogId("lake", "file:///lake"), CatalogId("sales", OTHER), CatalogId("gone", "")):
        with pytest.raises(PolicyError, match="is no longer configured"):
            recorded_catalog(recorded, {"lake": {**LAKE, "warehouse": "file:///moved"}})


LAKE_ARN = "arn:aws-us-gov:s3tables:us-gov-west-1:123456789012:bucket/lake"


def test_the_catalog_and_its_maintenance_accept_the_same_table_bucket_arns() -> None:
    for arn in (LAKE_ARN, "arn:aws:s3tables:::bucket/lake"):
        assert is_table_bucket(arn)
        assert TableBucketArn.parse(arn).name == "lake"
        assert maintenance_behind({"warehouse": arn}) is not None
    for more in ("/table/t", f",{LAKE_ARN}", "*", " "):
        assert not is_table_bucket(LAKE_ARN + more), more
        assert maintenance_behind({"warehouse": LAKE_ARN + more}) is None, more
    for arn in ("", "arn:aws:s3:::lake"):
        assert not is_table_bucket(arn), arn
        assert maintenance_behind({"warehouse": arn}) is None, arn


# The identity of a table is its UUID, or its location without a UUID; copies differ, spellings do not.


def identity(
    location: str, uuid: str | None = "0E5F", name: str = "ns.t", catalog: str = "C", warehouse: str = "w"
) -> TableIdentity:
    metadata = TableMetadata(
        {"format-version": 2, "location": location, **({} if uuid is None else {"table-uuid": uuid})}
    )
    loaded = LoadedTable(TableName.parse(name), metadata, "m", "m", {})
    return identity_of(PreparedCatalog({}, name=catalog, warehouse=warehouse), loaded)


def test_spellings_of_a_location_give_one_identity(tmp_path: Path) -> None:
    for item, other in (
        ("s3://b/ns/t", "s3a://b/ns/t/"),
        ("s3://b/ns/t", "s3://b//ns/t"),
        ("/w/ns/t", "file:///w/ns/t/"),
        ("file:/w/ns/t", "file:///w//ns/t"),
    ):
        assert identity(item).place == identity(other).place
        assert identity(item, None).key == identity(other, None, "ns.other", "D", "x").key
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert identity(f"file://{tmp_path}/link/ns/t").place == identity(f"{tmp_path}/real/ns/t").place


def test_a_uuid_identifies_a_table_in_any_case_and_under_any_name() -> None:
    item, other = identity("s3://b/t"), identity("s3://elsewhere/t", "0e5f", "NS.T", "D", "x")
    assert (item.key, item.is_same_table(other)) == (other.key, True)
    assert item.place != other.place
    assert not item.is_same_table(identity("s3://b/t", "other"))
    assert not item.is_same_table(identity("s3://b/t", None))


NAMES = [
    TableName(("a", "b"), "c"),
    TableName(("a.b",), "c"),
    TableName(("a",), "b.c"),
    TableName((), "a.b.c"),
    TableName(("a", ""), "c"),
    TableName(("a.",), "c"),
    TableName((), "c"),
    TableName(("",), ""),
    TableName(('["a',), 'b", "c"]'),
    TableName(("[",), "["),
    TableName((), "[]"),
    TableName(("[a]",), "b"),
    TableName(("a\ud800.",), "b"),
]


def test_different_names_have_different_keys() -> None:
    """So records of a table are found by its name alone, for any name that a catalog allows."""
    assert [TableName.recorded(name.key) for name in NAMES] == NAMES
    assert len({name.key for name in NAMES}) == len(NAMES)
    assert TableName(("a", "b"), "c").key == "a.b.c"


@pytest.mark.parametrize("text", ["", "a", "[", "[]", "[1]", '["a", 1]', f"{'[' * 100_000}", "{}.x"])
def test_any_text_is_parsed_as_a_recorded_name(text: str) -> None:
    assert str(TableName.recorded(text)) == text
