"""What a catalog's answer to a swap proves: conflict, refused, busy, or unknown."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog

from icekeeper.catalogs.aws_service import AwsService
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.commit_answer import CommitAnswer, ErrorDocument, answer_of_rest, error_of, read_error
from icekeeper.catalogs.glue import GLUE
from icekeeper.catalogs.pointer import commit_document, load_document
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.catalogs.sql import SqlCatalog, _Sqlite
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import render_document
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from support.dying_database import DRIVERS, DyingDatabase, address_of, sql_catalog
from support.maintained_table import NAME, new_table
from support.tables import new_document

# Answers of AWS services: conflict, refused, busy, unknown, or never sent.

TABLE = TableName(("ns",), "t")


def error_for(service: AwsService, error: Exception) -> MaintenanceError:
    return service.swap_error(error, TABLE, lambda cause: StorageError(f"unusable: {cause}"))


@pytest.mark.parametrize(
    ("service", "code", "status", "expected"),
    [
        (S3_TABLES, "ConflictException", 409, CommitConflict),
        (S3_TABLES, "NotFoundException", 404, CommitRefused),
        (S3_TABLES, "InternalServerErrorException", 500, CommitStateUnknown),
        (S3_TABLES, "ThrottlingException", 503, CatalogBusy),
        (S3_TABLES, "TooManyRequestsException", 429, CatalogBusy),
        (S3_TABLES, "ForbiddenException", 403, CommitRefused),
        *((S3_TABLES, str(status), status, CommitStateUnknown) for status in (301, 307, 403, 404, 408, 429)),
        (S3_TABLES, "", 404, CommitStateUnknown),
        (S3_TABLES, "RequestTimeoutException", 408, CommitStateUnknown),
        (S3_TABLES, "RequestTimeout", 400, CommitStateUnknown),
        (S3_TABLES, "SlowDown", 503, CatalogBusy),
        (GLUE, "InternalServiceException", 400, CommitStateUnknown),
        (GLUE, "PriorRequestNotComplete", 400, CommitStateUnknown),
        (GLUE, "Throttling", 400, CatalogBusy),
        (GLUE, "ConcurrentModificationException", 400, CommitConflict),
        (GLUE, "VersionMismatchException", 400, CommitConflict),
        (GLUE, "EntityNotFoundException", 400, CommitRefused),
        (GLUE, "InternalServiceException", 500, CommitStateUnknown),
        (GLUE, "503", 503, CommitStateUnknown),
        (GLUE, "OperationTimeoutException", 400, CommitStateUnknown),
        (GLUE, "FederationSourceException", 400, CommitStateUnknown),
        (GLUE, "ThrottlingException", 400, CatalogBusy),
        (GLUE, "AccessDeniedException", 400, CommitRefused),
        (GLUE, "InvalidInputException", 400, CommitRefused),
        (GLUE, "ResourceNumberLimitExceededException", 400, CommitRefused),
    ],
)
def test_the_code_and_status_of_an_answer_decide_the_error(
    service: AwsService, code: str, status: int, expected: type[MaintenanceError]
) -> None:
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert type(error_for(service, ClientError(answer, "Update"))) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadTimeoutError(endpoint_url="http://x"), CommitStateUnknown),
        (ResponseParserError("garbage"), CommitStateUnknown),
        (EndpointConnectionError(endpoint_url="http://x"), StorageError),
        (ConnectTimeoutError(endpoint_url="http://x"), StorageError),
        (NoCredentialsError(), StorageError),
    ],
)
def test_without_an_answer_a_sent_request_is_unknown(error: Exception, expected: type[MaintenanceError]) -> None:
    assert type(error_for(GLUE, error)) is expected


# Answers of REST catalogs: only an error document of the catalog proves that a commit did not land.

OVERTAKEN = "can't add snapshot with sequence number 3, must be > than last sequence number 4"
# Status, type of the error document (``None``: no document), and what the answer proves.
ANSWERS: list[tuple[int, str | None, CommitAnswer]] = [
    (200, None, CommitAnswer.LANDED),
    (204, None, CommitAnswer.LANDED),
    (200, "CommitStateUnknownException", CommitAnswer.UNKNOWN),
    *((status, None, CommitAnswer.UNKNOWN) for status in (301, 302, 303, 304, 307, 308)),
    (301, "MovedException", CommitAnswer.UNKNOWN),
    *((status, None, CommitAnswer.UNKNOWN) for status in (400, 401, 403, 404, 408, 409, 412, 419, 429)),
    *((status, "SomeException", CommitAnswer.REFUSED) for status in (400, 401, 403, 404, 405, 406, 412, 413, 419)),
    (408, "RequestTimeoutException", CommitAnswer.UNKNOWN),
    (409, "CommitFailedException", CommitAnswer.CONFLICT),
    (429, "TooManyRequestsException", CommitAnswer.BUSY),
    *((status, None, CommitAnswer.UNKNOWN) for status in (500, 501, 502, 503, 504, 507, 599)),
    *((status, "ServiceFailureException", CommitAnswer.UNKNOWN) for status in (500, 501, 502, 503, 504)),
    (501, "NotImplementedException", CommitAnswer.REFUSED),
    (501, "UnsupportedOperationException", CommitAnswer.REFUSED),
    *((status, "CommitStateUnknownException", CommitAnswer.UNKNOWN) for status in (400, 404, 409, 429, 500, 501)),
    (100, "SomeException", CommitAnswer.UNKNOWN),
    (600, "SomeException", CommitAnswer.UNKNOWN),
]


@pytest.mark.parametrize(("status", "kind", "expected"), ANSWERS)
def test_status_and_error_type_decide_the_answer_of_a_rest_catalog(
    status: int, kind: str | None, expected: CommitAnswer
) -> None:
    error = None if kind is None else ErrorDocument("no", kind, status)
    assert answer_of_rest(status, error) is expected


def test_an_overtaken_sequence_number_is_a_conflict_by_its_message() -> None:
    assert answer_of_rest(400, ErrorDocument(OVERTAKEN, "BadRequestException", 400)) is CommitAnswer.CONFLICT
    assert answer_of_rest(404, ErrorDocument(OVERTAKEN, "NotFoundException", 404)) is CommitAnswer.REFUSED


@pytest.mark.parametrize("status", [400, 403, 404, 409, 429, 501])
def test_a_status_that_differs_from_the_error_document_proves_nothing(status: int) -> None:
    """A gateway may replace the status of a catalog's error."""
    assert answer_of_rest(status, ErrorDocument("no", "UnsupportedException", 500)) is CommitAnswer.UNKNOWN
    assert answer_of_rest(status, ErrorDocument("no", "UnsupportedException")) is not CommitAnswer.UNKNOWN


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "m", "type": "T", "code": 404}}, ErrorDocument("m", "T", 404)),
        ({"error": {"message": "m", "type": "T", "code": 404, "stack": ["a"]}}, ErrorDocument("m", "T", 404)),
        ({"error": {"message": "m", "type": "T"}}, ErrorDocument("m", "T")),
        ({"error": {"message": "m", "type": "T", "code": "500"}}, ErrorDocument("m", "T", 500)),
        ({"error": {"message": "m", "type": "T", "code": "no"}}, ErrorDocument("m", "T")),
        ({"error": {"message": "m", "code": 404}}, None),
        ({"error": {"type": "T", "code": 404}}, None),
        ({"error": "not found"}, None),
        ({"error": {"message": {}, "type": "T"}}, None),
        ({"message": "Too Many Requests"}, None),
        ({}, None),
        ([], None),
        ("no", None),
        (None, None),
    ],
)
def test_an_error_document_needs_a_type_and_a_message(body: Any, expected: ErrorDocument | None) -> None:
    assert read_error(body) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CommitAnswer.CONFLICT, CommitConflict),
        (CommitAnswer.REFUSED, CommitRefused),
        (CommitAnswer.BUSY, CatalogBusy),
        (CommitAnswer.UNKNOWN, CommitStateUnknown),
    ],
)
def test_each_answer_has_its_error_with_the_catalogs_message(
    answer: CommitAnswer, expected: type[MaintenanceError]
) -> None:
    error = error_of(answer, TableName(("ns",), "t"), "catalog lake said so")
    assert type(error) is expected
    assert str(error).startswith("ns.t: ")
    assert "catalog lake said so" in str(error)


# A staged document is deleted after a failed swap only if the pointer proves that the swap did not happen.

FAILURES = [CommitConflict("no"), CommitRefused("no")]


@dataclass
class Pointer:
    """A catalog with one table; ``shown`` are stale locations that the next loads return."""

    folder: Path
    at: str = ""
    storage: Storage = field(default_factory=lambda: Storage({}))
    loads: int = 0
    broken: Exception | None = None
    shown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        location = self.folder.as_uri()
        self.at = f"{location}/metadata/00000-first.metadata.json"
        self.storage.write(self.at, render_document(TableMetadata(new_document(location, 2))))

    def load(self, table: TableName) -> LoadedTable:
        self.loads += 1
        if self.broken is not None:
            raise self.broken
        at = self.shown.pop(0) if self.shown else self.at
        return LoadedTable(table, load_document(self.storage, at), at, at, {})

    def swap(self, location: str) -> str:
        self.at = location
        return location

    def commit(self, base: LoadedTable, swap: Callable[[str], str], **more: Any) -> LoadedTable:
        updates = [{"action": "set-properties", "updates": {"a": swap.__qualname__}}]
        return commit_document(base, [], updates, swap=swap, storage=self.storage, load=self.load, **more)

    def documents(self) -> int:
        return len(list(self.folder.rglob("*.metadata.json")))


@pytest.fixture
def pointer(tmp_path: Path) -> Pointer:
    return Pointer(tmp_path)


@pytest.mark.parametrize("no", FAILURES)
def test_a_document_that_the_pointer_shows_has_landed_despite_the_answer(
    pointer: Pointer, no: MaintenanceError
) -> None:
    def swap_and_fail(location: str) -> str:
        pointer.swap(location)
        raise no

    after = pointer.commit(pointer.load(NAME), swap_and_fail)
    assert after.metadata_location == pointer.at
    assert load_document(pointer.storage, pointer.at).document == after.metadata.document


@pytest.mark.parametrize("no", FAILURES)
def test_a_document_in_the_log_of_a_later_commit_has_landed(pointer: Pointer, no: MaintenanceError) -> None:
    def swap_and_be_overtaken(location: str) -> str:
        pointer.swap(location)
        pointer.commit(pointer.load(NAME), pointer.swap)
        raise no

    after = pointer.commit(pointer.load(NAME), swap_and_be_overtaken)
    assert after.metadata_location == pointer.at
    assert pointer.documents() == 3


@pytest.mark.parametrize("no", FAILURES)
@pytest.mark.parametrize("overtaken", [False, True])
def test_a_document_that_did_not_land_is_deleted_after_another_commit(
    pointer: Pointer, no: MaintenanceError, overtaken: bool
) -> None:
    def fail(location: str) -> str:
        if overtaken:
            pointer.commit(pointer.load(NAME), pointer.swap)
        raise no

    with pytest.raises(type(no)) as raised:
        pointer.commit(pointer.load(NAME), fail)
    # If the pointer did not move, the document remains for a later decision.
    assert pointer.documents() == 2
    if isinstance(raised.value, CommitRefused):
        assert len(raised.value.left) == 1 - overtaken
        pointer.storage.delete(raised.value.left)
        assert pointer.documents() == 1 + overtaken


@pytest.mark.parametrize("no", FAILURES)
def test_a_stale_read_after_a_failed_swap_proves_nothing(pointer: Pointer, no: MaintenanceError) -> None:
    """The swap may have been repeated on its way, or have landed despite a refusal."""
    before = pointer.at

    def swap_and_show_stale(location: str) -> str:
        pointer.swap(location)
        pointer.shown = [before]
        raise no

    with pytest.raises(type(no)):
        pointer.commit(pointer.load(NAME), swap_and_show_stale)
    assert pointer.load(NAME).metadata_location != before


@pytest.mark.parametrize("no", FAILURES)
def test_a_document_of_unknown_outcome_is_not_deleted(pointer: Pointer, no: MaintenanceError) -> None:
    base = pointer.load(NAME)

    def fail_and_break(location: str) -> str:
        pointer.broken = StorageError("down")
        raise no

    with pytest.raises(CommitStateUnknown, match="cannot be read to confirm this: down"):
        pointer.commit(base, fail_and_break)
    assert pointer.documents() == 2
    pointer.broken = None

    def be_overtaken_beyond_the_log(location: str) -> str:
        table_location = pointer.folder.as_uri()
        pointer.at = f"{table_location}/metadata/00009-other.metadata.json"
        pointer.storage.write(pointer.at, render_document(TableMetadata(new_document(table_location, 2))))
        raise no

    with pytest.raises(CommitStateUnknown, match="log does not reach back to its base"):
        pointer.commit(base, be_overtaken_beyond_the_log)
    assert pointer.documents() == 4


def test_a_proven_conflict_and_an_unsent_swap_need_no_read(pointer: Pointer) -> None:
    base = pointer.load(NAME)
    for error, more in ((CommitConflict("no"), {"conflict_is_proof": True}), (StorageError("never sent"), {})):

        def fail(location: str, error: Exception = error) -> str:
            raise error

        with pytest.raises(type(error)):
            pointer.commit(base, fail, **more)
    assert (pointer.loads, pointer.documents()) == (1, 1)


# A SQL catalog's swap if the database fails during it, or does not report the changed rows.

UPDATES = [{"action": "set-properties", "updates": {"ours": "yes"}}]


@pytest.fixture(params=DRIVERS)
def sql(local_catalog: PyIcebergCatalog, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SqlCatalog]:
    new_table(local_catalog, tmp_path)
    catalog = sql_catalog(address_of(tmp_path), request.param, (tmp_path / "warehouse").as_uri())
    yield catalog
    catalog.close()


@pytest.mark.parametrize("landed", [False, True])
def test_a_broken_connection_leaves_the_outcome_unknown_and_keeps_the_document(
    sql: SqlCatalog, tmp_path: Path, landed: bool
) -> None:
    """The statement, rollback or commit is not confirmed, which proves nothing."""
    base, database = sql.load(NAME), DyingDatabase(sql)
    database.at_swap, database.after_commit, database.at_end = not landed, landed, True
    with pytest.raises(CommitStateUnknown, match="it is unknown whether it landed"):
        sql.commit(base, [], UPDATES)
    database.at_end = False
    assert ("ours" in sql.load(NAME).metadata.properties) is landed
    assert len(list(tmp_path.rglob("*.metadata.json"))) == 2


def test_a_driver_that_does_not_count_rows_refuses_the_commit(sql: SqlCatalog) -> None:
    base, database = sql.load(NAME), DyingDatabase(sql)
    database.rowcount = -1
    with pytest.raises(CommitRefused, match="does not report how many rows") as raised:
        sql.commit(base, [], UPDATES)
    assert len(raised.value.left) == 1
    assert sql.load(NAME).metadata_location == base.metadata_location


def test_with_autocommit_an_uncounted_swap_has_landed(local_catalog: PyIcebergCatalog, tmp_path: Path) -> None:
    """Its document must not be deleted."""
    new_table(local_catalog, tmp_path)
    catalog: Any = sql_catalog(address_of(tmp_path), "sqlalchemy", (tmp_path / "warehouse").as_uri())
    engine = catalog._database._engine
    catalog._database._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    base = catalog.load(NAME)
    with mock.patch("sqlalchemy.engine.cursor.CursorResult.rowcount", -1):
        after = catalog.commit(base, [], UPDATES)
    assert after.metadata.properties["ours"] == "yes"
    assert catalog.load(NAME).metadata_location == after.metadata_location
    catalog.close()


def test_a_database_that_replaces_another_is_used_at_once(sql: SqlCatalog, tmp_path: Path) -> None:
    """Connections to the former file are closed, and a lost swap leaves no lock on the new file."""
    base = sql.load(NAME)
    database, copy = tmp_path / "catalog.db", tmp_path / "copy.db"
    shutil.copy(database, copy)
    newer = sql_catalog(f"sqlite:///{copy}", "sqlite3", (tmp_path / "warehouse").as_uri())
    location = newer.commit(base, [], UPDATES).metadata_location
    newer.close()
    if isinstance(sql._database, _Sqlite):  # SQLAlchemy keeps its connections
        with ThreadPoolExecutor(8) as threads:
            assert {found.metadata_location for found in threads.map(sql.load, [NAME] * 40)} == {base.metadata_location}
        copy.replace(database)
        assert sql.load(NAME).metadata_location == location
        with pytest.raises(CommitConflict):
            sql.commit(base, [], UPDATES)
        assert sql.commit(sql.load(NAME), [], UPDATES).metadata_location != location
