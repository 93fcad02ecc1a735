"""Catalogs that list no table, or may not list all of them: what is told, and what is done all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from icekeeper.catalogs.addresses import add_found, named_addresses
from icekeeper.catalogs.glue import GlueCatalog
from icekeeper.detection.detect import detect, detect_catalog
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetReport
from icekeeper.errors import PartlyListed, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.state.sqlite.store import SqliteStateStore
from support.scans import PreparedCatalog, with_uuid
from support.settings import MB, small_files, table

ARN = "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake"
NONE = "catalog C lists no table: if it has any, a right to see them is missing, such as a grant of AWS Lake Formation"
PROPERTIES = {"glue.region": "eu-west-1", "glue.access-key-id": "a", "glue.secret-access-key": "b"}


class HalfListed(PreparedCatalog):
    """A catalog that may not list all of its tables."""

    def list_tables(self) -> Iterator[TableName]:
        yield from super().list_tables()
        raise PartlyListed("catalog C: the tables of 1 database(s) must not be listed (hr)")


@pytest.fixture
def state(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def scanned(state: SqliteStateStore, catalog: PreparedCatalog, **source: Any) -> FleetReport:
    return detect([CatalogSource(catalog.name, lambda: catalog, **source)], state, TablePolicies({}))


def test_a_configured_catalog_without_tables_is_told(state: SqliteStateStore) -> None:
    """Under Lake Formation a listing holds what was granted: without grants nothing, and no error (rule 141)."""
    report = scanned(state, PreparedCatalog({}))
    assert (report.warnings, report.empty_catalogs, report.errors) == ((NONE,), 1, 0)


def test_a_bucket_that_was_only_found_may_be_empty(state: SqliteStateStore) -> None:
    report = scanned(state, PreparedCatalog({}), may_be_empty=True)
    assert (report.warnings, report.empty_catalogs) == ((), 0)
    (named,) = named_addresses({"ICEKEEPER_TABLE_BUCKETS": ARN}, {})
    (found,) = add_found((), [ARN], {})
    assert (named.is_found, found.is_found) == (False, True)
    assert [one.is_found for one in add_found([named], [ARN], {})] == [False]


def test_what_may_be_listed_is_maintained_and_the_rest_is_told(state: SqliteStateStore) -> None:
    few, other = (with_uuid(table(small_files(10, MB)), uuid) for uuid in ("u1", "u2"))
    whole = scanned(state, PreparedCatalog({"ns.few": few, "hr.few": other}))
    assert {one.proposal.table for one in whole.proposals} == {"ns.few", "hr.few"}
    half = HalfListed({"ns.few": few})
    report = scanned(state, half)
    assert [one.proposal.table for one in report.proposals] == ["ns.few"]
    assert report.warnings == ("catalog C: the tables of 1 database(s) must not be listed (hr)",)
    assert (report.errors, report.empty_catalogs) == (0, 0)
    # What was remembered of tables that are not listed just now stays.
    assert {str(one.identity.table) for one in state.lake_stats.of_catalog("C", half.warehouse)} == {"ns.few", "hr.few"}
    found = detect_catalog(half, state, TablePolicies({}))
    assert (found.note, found.scanned) == (report.warnings[0], 1)


Stub = tuple[str, Mapping[str, Any], Mapping[str, Any] | str]


def glue(*answers: Stub, **properties: str) -> GlueCatalog:
    """A catalog whose client expects these requests, in this order; a text is an error's code."""
    catalog = GlueCatalog("lake", {**PROPERTIES, **properties})
    stubber = Stubber(catalog._clients.repeating)
    for operation, expected, answer in answers:
        if isinstance(answer, str):
            stubber.add_client_error(operation, answer, http_status_code=400, expected_params=dict(expected))
        else:
            stubber.add_response(operation, dict(answer), dict(expected))
    stubber.activate()
    return catalog


def of(name: str) -> Mapping[str, Any]:
    return {"TableList": [{"Name": name, "Parameters": {"table_type": "ICEBERG"}}]}


DATABASES = {"DatabaseList": [{"Name": "hr"}, {"Name": "sales"}]}


def test_a_database_that_must_not_be_looked_into_hides_no_other() -> None:
    catalog = glue(
        ("get_databases", {}, DATABASES),
        ("get_tables", {"DatabaseName": "hr"}, "AccessDeniedException"),
        ("get_tables", {"DatabaseName": "sales"}, of("orders")),
    )
    listed: list[TableName] = []
    with pytest.raises(PartlyListed) as told:
        listed.extend(catalog.list_tables())
    assert listed == [TableName(("sales",), "orders")]
    assert str(told.value) == (
        "catalog lake (Glue Data Catalog): the tables of 1 database(s) must not be listed (hr); allow glue:GetTables "
        "on them where they may share files with tables that are maintained"
    )


@pytest.mark.parametrize("code", ["ThrottlingException", "InternalServiceException", "OperationTimeoutException"])
def test_a_database_that_cannot_be_listed_now_is_an_error_of_the_whole(code: str) -> None:
    catalog = glue(("get_databases", {}, DATABASES), ("get_tables", {"DatabaseName": "hr"}, code))
    with pytest.raises(StorageError, match=code) as told:
        list(catalog.list_tables())
    assert not isinstance(told.value, PartlyListed)


def test_another_accounts_catalog_is_asked_by_its_id() -> None:
    catalog = glue(
        ("get_databases", {"CatalogId": "222233334444"}, {"DatabaseList": [{"Name": "sales"}]}),
        ("get_tables", {"CatalogId": "222233334444", "DatabaseName": "sales"}, of("orders")),
        (
            "get_table",
            {"CatalogId": "222233334444", "DatabaseName": "sales", "Name": "orders"},
            "EntityNotFoundException",
        ),
        **{"glue.id": "222233334444"},
    )
    assert list(catalog.list_tables()) == [TableName(("sales",), "orders")]
    with pytest.raises(PolicyError, match=r"^there is no table sales\.orders in catalog lake$"):
        catalog.load(TableName(("sales",), "orders"))


@pytest.mark.parametrize("catalog_id", ["111122223333:s3tablescatalog/lake", "s3tablescatalog"])
def test_table_buckets_behind_glue_are_opened_as_what_they_are(catalog_id: str) -> None:
    with pytest.raises(PolicyError) as told:
        glue(**{"glue.id": catalog_id})
    assert str(told.value) == (
        f"catalog lake: glue.id '{catalog_id}' names S3 table buckets; open each as a catalog of type s3tables, with "
        "its ARN as warehouse"
    )
