"""The settings of a deployment name its catalogs; two names for the same tables are an error."""

from __future__ import annotations

import json

import pytest

from icekeeper.catalogs.addresses import (
    CATALOGS,
    TABLE_BUCKETS,
    CatalogAddress,
    add_found,
    address_from_json,
    find_address,
    named_addresses,
    wants_all_buckets,
)
from icekeeper.errors import PolicyError

ARN = "arn:aws:s3tables:eu-west-1:111122223333:bucket/sales"
OTHER = "arn:aws:s3tables:us-east-1:111122223333:bucket/logs"
BUCKET = {"type": "s3tables", "warehouse": ARN, "s3tables.endpoint": "http://e", "s3.secret-access-key": "hidden"}
LAKE = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "file:///lake"}
GLUE = {"type": "glue", "glue.region": "eu-west-1"}
REST = {"uri": "http://rest/", "warehouse": "w", "credential": "id:secret"}


def named(catalogs: dict[str, dict[str, str]], *, names: str = "", buckets: str = "") -> list[tuple[str, str | None]]:
    environment = {CATALOGS: names, TABLE_BUCKETS: buckets}
    return [(a.name, a.warehouse) for a in named_addresses(environment, catalogs)]


def test_configured_catalogs_come_first_then_table_buckets_each_once_in_the_order_given() -> None:
    catalogs = {"lake": LAKE, "g": GLUE, "unused": REST}
    assert named(catalogs, names=" g, lake,g ,", buckets=f"{OTHER}, {ARN},{OTHER}") == [
        ("g", None),
        ("lake", "file:///lake"),
        ("logs", OTHER),
        ("sales", ARN),
    ]
    assert named(catalogs) == []


def test_without_names_all_of_the_catalog_file_is_served() -> None:
    catalogs = {"lake": LAKE, "g": GLUE}
    assert [a.name for a in named_addresses({}, catalogs, unless_named=["lake"])] == ["lake"]
    assert [a.name for a in named_addresses({CATALOGS: "g"}, catalogs, unless_named=["lake"])] == ["g"]


def test_names_are_found_and_spelled_whatever_their_case() -> None:
    """One catalog is one identity; but a SQL catalog's rows carry the name as it is spelled."""
    assert named({"g": GLUE, "lake": LAKE}, names="G,Lake") == [("g", None), ("Lake", "file:///lake")]


def test_a_table_bucket_is_opened_with_what_its_configured_catalog_has() -> None:
    [address] = named_addresses({TABLE_BUCKETS: ARN}, {"other": BUCKET})
    assert (address.name, address.properties) == ("sales", BUCKET)
    rest = {**REST, "type": "rest", "warehouse": ARN, "client.region": "r", "rest.sigv4-enabled": "true"}
    [address] = named_addresses({TABLE_BUCKETS: ARN}, {"other": rest})
    assert address.properties == {"type": "s3tables", "warehouse": ARN, "client.region": "r"}


def test_of_several_lenders_the_one_with_the_buckets_name_is_asked_else_they_must_agree() -> None:
    differs = {**BUCKET, "s3tables.endpoint": "http://f"}
    [address] = named_addresses({TABLE_BUCKETS: ARN}, {"a": differs, "sales": BUCKET})
    assert address.properties == BUCKET
    [address] = named_addresses({TABLE_BUCKETS: ARN}, {"a": BUCKET, "b": BUCKET})
    assert address.properties == BUCKET
    with pytest.raises(PolicyError, match=f"catalogs a, b are all about table bucket {ARN} and differ"):
        named_addresses({TABLE_BUCKETS: ARN}, {"a": BUCKET, "b": differs})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (CATALOGS, "lake,nope", r"^ICEKEEPER_CATALOGS has 'nope', but there is no such catalog \(configured: lake\)$"),
        (CATALOGS, ARN, f"^ICEKEEPER_CATALOGS has '{ARN}'; table buckets belong into ICEKEEPER_TABLE_BUCKETS$"),
        (TABLE_BUCKETS, "sales", r"^ICEKEEPER_TABLE_BUCKETS has 'sales', but must be the ARN of a table bucket, for"),
        (TABLE_BUCKETS, "arn:aws:s3:::sales", "^ICEKEEPER_TABLE_BUCKETS has 'arn:aws:s3:::sales', but must be"),
        (TABLE_BUCKETS, f"{ARN}/table/t", "^ICEKEEPER_TABLE_BUCKETS has '.*', but must be"),
        (TABLE_BUCKETS, f"all,{ARN}", f"^ICEKEEPER_TABLE_BUCKETS is 'all,{ARN}'; set it to ARNs or to 'all', not both"),
    ],
)
def test_a_malformed_value_names_its_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        named_addresses({variable: value}, {"lake": LAKE})


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
    with pytest.raises(PolicyError, match=r"reach the same tables as catalog 'a' and as catalog '(b|sales)'"):
        named(catalogs, names=names, buckets=buckets)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LAKE, LAKE),  # one database, but each name has its own rows
        (GLUE, {**GLUE, "glue.id": "111122223333"}),
        (GLUE, {"type": "glue", "client.region": "us-east-1"}),
        (REST, {**REST, "warehouse": "v"}),
    ],
)
def test_catalogs_that_differ_are_both_served(first: dict[str, str], second: dict[str, str]) -> None:
    assert [name for name, _ in named({"a": first, "b": second}, names="a,b")] == ["a", "b"]


def test_two_catalogs_of_one_name_are_an_error() -> None:
    twin = OTHER.replace("logs", "sales")
    with pytest.raises(PolicyError, match="two catalogs of this deployment are called 'sales'"):
        named({}, buckets=f"{ARN},{twin}")
    with pytest.raises(PolicyError, match="two catalogs of this deployment are called 'sales'"):
        add_found(named_addresses({TABLE_BUCKETS: ARN}, {}), [twin], {})


def test_a_bucket_that_was_only_found_gives_way_to_the_catalog_configured_for_it() -> None:
    catalogs = {"mine": BUCKET}
    addresses = named_addresses({CATALOGS: "mine", TABLE_BUCKETS: "all"}, catalogs)
    assert wants_all_buckets({TABLE_BUCKETS: " all "})
    assert not wants_all_buckets({TABLE_BUCKETS: ARN})
    assert [a.name for a in add_found(addresses, [ARN, OTHER], catalogs)] == ["mine", "logs"]


def test_a_catalog_is_meant_by_name_by_address_or_by_being_the_only_one() -> None:
    addresses = named_addresses({TABLE_BUCKETS: f"{ARN},{OTHER}"}, {})
    assert find_address(addresses, "sales").warehouse == ARN
    assert find_address(addresses, OTHER).name == "logs"
    assert find_address(addresses[:1], None).name == "sales"
    with pytest.raises(PolicyError, match=r"^name the catalog: this deployment serves logs, sales$"):
        find_address(addresses, None)
    with pytest.raises(PolicyError, match=r"^this deployment has no catalog 'x'; it has: logs, sales$"):
        find_address(addresses, "x")


def test_what_is_written_down_holds_no_secret_and_is_found_again() -> None:
    catalogs = {"sales": BUCKET, "g": GLUE, "lake": LAKE}
    addresses = named_addresses({CATALOGS: "g,Lake", TABLE_BUCKETS: f"{ARN},{OTHER}"}, catalogs)
    for address in addresses:
        written = json.dumps(address.to_json())
        assert "hidden" not in written + repr(address)
        assert address_from_json(json.loads(written), catalogs) == address


def test_what_is_configured_otherwise_by_now_is_not_taken_for_what_was_written_down() -> None:
    for document in (
        CatalogAddress("lake", "file:///lake", LAKE).to_json(),
        CatalogAddress("sales", OTHER, {}).to_json(),
        {"catalog": "gone", "warehouse": None},
    ):
        with pytest.raises(PolicyError, match="is not configured any more"):
            address_from_json(document, {"lake": {**LAKE, "warehouse": "file:///moved"}})
