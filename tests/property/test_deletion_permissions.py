"""What permits a deletion: every answer of a catalog or a store to every request before a deletion.

Each row states which answers are replaced, and whether a file that a neighbour adopted may then be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, TypeAlias

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.policy import ResolvedPolicy
from icekeeper.pyiceberg_private import rest_session
from icekeeper.runtime import Runtime
from icekeeper.state.claims import TableClaims
from icekeeper.state.identity import Entry
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.examples import NIGHTLY
from support.maintained_table import ID_AND_PART, new_table
from support.model.process import in_one_thread
from support.scripted_rest import Answer, AskedRest, asked_rest, error_document, listed_namespaces, listed_tables
from support.served import files_of, open_ours

OWNER, GUEST = TableName(("ns",), "t"), TableName(("guest",), "g")
LOAD, TABLES, CHILDREN, ROOT = "guest/tables/g", "guest/tables", "parent=guest", "namespaces"

# The answers of a server or of a proxy in front of it.

STATUSES = (200, 204, 301, 400, 401, 403, 404, 405, 406, 408, 409, 410, 418, 419, 429, 500, 501, 502, 503, 504)
ENVELOPE = "Iceberg's error document"
BODIES: dict[str, Callable[[int], Any]] = {
    ENVELOPE: lambda status: error_document(status, "NoSuchTabularError"),
    "Iceberg's error document of another code": lambda status: error_document(403 if status == 404 else 404),
    "another document": lambda status: {"message": HTTPStatus(status).phrase if status != 419 else "expired"},
    "HTML": lambda status: b"<html><body>404 page not found</body></html>",
    "empty": lambda status: b"",
    "truncated": lambda status: json.dumps(error_document(status, "NoSuchTabularError"))[:-4].encode(),
}
OF_EVERY_BODY = (200, 204, 400, 404, 410, 503)
"""Statuses that the code distinguishes: success, no nested namespaces, denial, and similar failures."""
IN_ANY_STATUS = (ENVELOPE, "Iceberg's error document of another code", "HTML")
"""Bodies of other statuses: all of them in ``make nightly``, otherwise one for each."""
Answers: TypeAlias = dict[str, list[Answer]]
LATE: Answer = (None, b"")
DENIED: Answer = (404, error_document(404, "NoSuchTabularError"))
BOTH: Answer = (200, listed_namespaces("ns", "guest"))
ALONE: Answer = (200, listed_namespaces("ns"))
SHOWN: Answer = (200, listed_tables("guest", "g"))
LACKING: Answer = (200, listed_tables("guest"))


@dataclass(frozen=True)
class Row:
    """Answers, the records of the guest, the behaviour of the store, and whether the file may be deleted."""

    name: str
    scripted: Answers = field(default_factory=dict)
    permits: bool = False
    missing_days: float | None = 9
    """For how long the guest is recorded as missing; ``None``: the last look found it."""
    is_known: bool = True
    """Whether a look has recorded the guest."""
    store: Callable[[pytest.MonkeyPatch, World], None] = lambda patch, world: None


def every_answer() -> Iterator[tuple[str, Answer]]:
    for status in STATUSES:
        others = IN_ANY_STATUS if NIGHTLY else IN_ANY_STATUS[status % 3 :][:1]
        for name in BODIES if status in OF_EVERY_BODY else others:
            yield f"{status} with {name}", (status, BODIES[name](status))
    yield "no answer in time", LATE


def loads() -> Iterator[Row]:
    """Does the table exist?  Only the catalog's own 404 denies it, if no listing shows the table."""
    gone: Answers = {TABLES: [LACKING]}
    for name, answer in every_answer():
        yield Row(f"load: {name}", {**gone, LOAD: [answer]}, permits=name == f"404 with {ENVELOPE}")
        yield Row(f"load of one never looked at: {name}", {LOAD: [answer]}, missing_days=None, is_known=False)
    for days, permits in ((None, False), (0, False), (7.9, False), (8.1, True), (-9, False)):
        yield Row(f"missing for {days} days", {**gone, LOAD: [DENIED]}, permits, missing_days=days)
    yield Row("readable and not listed", gone)
    yield Row("denied, and not asked again", {**gone, LOAD: [DENIED, (503, b"")]}, permits=True)


def listings() -> Iterator[Row]:
    """Which tables exist?  Only a complete listing that begins after the denial proves that a table is gone."""
    denied: Answers = {LOAD: [DENIED]}
    dropped: Answers = {**denied, ROOT: [BOTH, ALONE]}
    for name, answer in every_answer():
        is_denied = name == f"404 with {ENVELOPE}"
        if is_denied:  # but the namespace is still listed
            yield Row(f"tables: {name}", {**denied, TABLES: [answer]})
            yield Row(f"children: {name}", {**denied, TABLES: [LACKING], CHILDREN: [answer]})
        yield Row(f"tables, and the namespace goes: {name}", {**dropped, TABLES: [answer]}, is_denied)
        yield Row(
            f"children, and the namespace goes: {name}", {**dropped, TABLES: [LACKING], CHILDREN: [answer]}, is_denied
        )
        yield Row(
            f"children of every namespace: {name}",
            {**denied, TABLES: [LACKING], CHILDREN: [answer], "parent=ns": [answer]},
            permits=name.startswith("400 "),  # no nested namespaces
        )
        yield Row(f"namespaces, later: {name}", {**denied, TABLES: [LACKING], ROOT: [BOTH, answer]})
    page, more = listed_tables("guest"), {"next-page-token": "2"}
    yield Row("the whole listing", {**denied, TABLES: [LACKING]}, permits=True)
    yield Row("shown", {**denied, TABLES: [SHOWN]})
    yield Row("shown before the denial only", {**denied, TABLES: [SHOWN, LACKING]})  # the eight days start again
    yield Row("shown after the denial", {**denied, TABLES: [LACKING, SHOWN]})
    yield Row("shown on the second page", {**denied, TABLES: [(200, {**page, **more}), SHOWN]})
    yield Row("the second page fails", {**denied, TABLES: [(200, {**page, **more}), (503, b"")]})
    yield Row("the same page again and again", {**denied, TABLES: [(200, {**page, **more})]})
    yield Row("no namespace at all", {**denied, ROOT: [(200, listed_namespaces())]})
    yield Row("without the table itself", {**denied, "ns/tables": [(200, listed_tables("ns"))], TABLES: [LACKING]})
    yield Row("never looked at, shown", {**denied, TABLES: [SHOWN]}, missing_days=None, is_known=False)
    lacking = {**denied, TABLES: [SHOWN, LACKING]}
    yield Row("never looked at, and a temporary table", lacking, permits=True, missing_days=None, is_known=False)
    partial = {**denied, TABLES: [SHOWN, (503, b"")]}
    yield Row("never looked at, then not listed", partial, missing_days=None, is_known=False)


FAILURES: dict[str, Callable[[str], OSError]] = {
    "403": lambda path: PermissionError(13, "AccessDenied", path),
    "404": lambda path: FileNotFoundError(2, "NoSuchKey", path),
    "503": lambda path: OSError(5, "SlowDown", path),
    "late": lambda path: TimeoutError(f"{path}: timed out"),
}


def failing_reads(failure: Callable[[str], OSError], kind: str) -> Callable[[pytest.MonkeyPatch, World], None]:
    """The store fails for files of the guest with this kind of name."""

    def script(patch: pytest.MonkeyPatch, world: World) -> None:
        read = Storage.read

        def reads(storage: Storage, path: str) -> bytes:
            if "/guest/" in path and kind in path.rpartition("/")[2]:
                raise StorageError(f"{path} cannot be read") from failure(path)
            return read(storage, path)

        patch.setattr(Storage, "read", reads)

    return script


def listing(
    change: Callable[[World, list[ListedObject]], list[ListedObject]],
) -> Callable[[pytest.MonkeyPatch, World], None]:
    """The store changes the listing of the table's folders."""

    def script(patch: pytest.MonkeyPatch, world: World) -> None:
        lists = Storage.list_unread

        def listed(storage: Storage, prefix: str) -> Iterator[ListedObject]:
            return iter(change(world, [read for file in lists(storage, prefix) if (read := file.read())]))

        patch.setattr(Storage, "list_unread", listed)

    return script


def _fails(failure: Callable[[str], OSError]) -> Callable[[World, list[ListedObject]], list[ListedObject]]:
    def change(world: World, found: list[ListedObject]) -> list[ListedObject]:
        raise StorageError("the folder cannot be listed") from failure("folder")

    return change


def stores() -> Iterator[Row]:
    """Can the guest's references be read and the table's own folders be listed?"""
    for name, failure in FAILURES.items():
        for kind in ("snap-", "-m0.avro"):
            for is_known in (True, False):
                # A table whose metadata files are missing needs nothing, unless a look has recorded it.
                permits = (name, is_known) == ("404", False)
                script, known = failing_reads(failure, kind), "" if is_known else ", never looked at"
                yield Row(f"{kind} {name}{known}", {}, permits, None, is_known, script)
    gone: Answers = {LOAD: [DENIED], TABLES: [LACKING]}
    changes: dict[str, tuple[Callable[[World, list[ListedObject]], list[ListedObject]], bool]] = {
        "whole": (lambda world, found: found, True),
        "repeated": (lambda world, found: [*found, *found], True),
        "without the head": (
            lambda world, found: [item for item in found if item.path != world.owner.metadata_location],
            False,
        ),
        "empty": (lambda world, found: [], False),
        **{name: (_fails(failure), False) for name, failure in FAILURES.items()},
    }
    for name, (change, permits) in changes.items():
        yield Row(f"folders: {name}", gone, permits, store=listing(change))


@dataclass
class World:
    """A table, and a guest in another namespace that adopted a file which the table no longer references."""

    server: AskedRest
    catalog: Catalog
    hasty: Catalog
    """A client that waits a tenth of a second for each answer."""
    state: SqliteStateStore
    adopted: str
    owner: LoadedTable
    policy: ResolvedPolicy
    known: TableClaims | None = None

    def permits(self, row: Row) -> bool:
        """Whether the file may be deleted."""
        claims = self.state.claims
        claims.forget(Entry(self.catalog.id, GUEST.key))
        if row.is_known and self.known is not None:
            since = -1 if row.missing_days is None else system_clock() - int(row.missing_days * 24 * HOUR_MS)
            claims.record(replace(self.known, missing_ms=since))
        self.server.scripted = {question: [*answers] for question, answers in row.scripted.items()}
        is_late = any(LATE in answers for answers in row.scripted.values())
        catalog = self.hasty if is_late else self.catalog
        runtime = Runtime(catalog, self.state, environment={}, other_catalog=lambda recorded: None)
        context = runtime.context(self.owner, self.policy, LocalEngine(1))
        try:
            with self.state.kept_open():
                needs = FileNeeds(context, self.owner)
                needs.ask([self.adopted])
                needs.look_again()
        except MaintenanceError:
            return False
        return not needs.need(self.adopted)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("permissions")
    at = {"uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": (folder / "warehouse").as_uri()}
    theirs = SqlCatalog("local", **at)
    made = new_table(theirs, folder)
    made.append(1)
    theirs.create_namespace("guest")
    guest = theirs.create_table("guest.g", schema=ID_AND_PART)
    (adopted,) = files_of(made.table)
    guest.add_files([adopted])
    first = made.table.current_snapshot()
    assert first is not None
    made.table.overwrite(made.new_rows(2))
    made.table.maintenance.expire_snapshots().by_ids(
        [item.snapshot_id for item in made.table.snapshots()[:-1]]
    ).commit()
    with ExitStack() as opened, pytest.MonkeyPatch.context() as patch, in_one_thread():
        server = opened.enter_context(asked_rest(open_ours(theirs)))
        catalog = server.open()
        patch.setattr(rest_session, "REQUEST_TIMEOUT_S", (5.0, 0.1))
        state, owner = SqliteStateStore(folder / "permissions.db"), catalog.load(OWNER)
        policy = Runtime(catalog, state, environment={}).policy(owner, {})
        found = World(server, catalog, server.open(), state, adopted, owner, policy)
        assert not found.permits(Row("as it is"))
        found.known = found.state.claims.of_entry(Entry(catalog.id, GUEST.key))
        assert found.known is not None
        assert found.known.folders == {normalise(adopted).rpartition("/")[0]}
        yield found
        theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [loads, listings, stores])
def test_only_these_answers_permit_a_deletion(
    world: World, rows: Callable[[], Iterator[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other answer does (rule: gone-is-proven-twice, partial-listings-delete-nothing)."""
    found: dict[str, bool] = {}
    expected: Sequence[Row] = list(rows())
    for row in expected:
        with monkeypatch.context() as patch:
            row.store(patch, world)
            found[row.name] = world.permits(row)
    assert len(found) == len(expected)
    assert {name for name, permits in found.items() if permits} == {row.name for row in expected if row.permits}
