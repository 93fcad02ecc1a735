"""A commit that the catalog refuses: believed only when the head, or what the store shows, agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.transaction import Committed
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata, apply_updates
from icekeeper.model import Nothing
from support.memory_catalog import NAME, MemoryCatalog, Run, Script, append, busy, refuse


def test_a_conflict_about_ones_own_success_is_success() -> None:
    """A client that repeats a request by itself hears of a conflict with what it just committed (iceberg 5752)."""

    def landed_then_conflict(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise CommitConflict("ref main is at snapshot 101")

    run = Run(MemoryCatalog(scripts=[landed_then_conflict]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


@pytest.mark.parametrize("error", [CommitRefused("no"), CatalogBusy("no"), CommitConflict("no")])
def test_a_no_to_what_the_head_shows_is_success(error: MaintenanceError) -> None:
    """A server may act and answer 404, 403 or 429 nevertheless."""

    def landed_and_refused(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise error

    run = Run(MemoryCatalog(scripts=[landed_and_refused]))
    assert isinstance(run.go(), Committed)
    assert (run.catalog.commits, run.discarded, run.waits) == (1, [], [])


@pytest.mark.parametrize("error", [CommitRefused("no"), CatalogBusy("no"), CommitConflict("no")])
def test_a_no_that_the_head_cannot_confirm_keeps_the_files(error: MaintenanceError) -> None:
    def refuse_and_break(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.load_errors = [StorageError("down")]
        raise error

    run = Run(MemoryCatalog(scripts=[refuse_and_break]))
    with pytest.raises(CommitStateUnknown, match="cannot be read to make sure of it: down"):
        run.go()
    assert (run.catalog.commits, run.discarded, run.waits) == (1, [], [])


def test_a_no_to_what_could_have_landed_and_expired_keeps_the_files() -> None:
    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitRefused("no")

    run = Run(MemoryCatalog(scripts=[refuse]))
    run.cannot_have_landed = False
    with pytest.raises(CommitStateUnknown, match="expired already"):
        run.go()
    assert run.discarded == []


def test_a_confirmed_refusal_is_told_in_the_catalogs_words_after_a_few_looks() -> None:
    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitRefused("HTTP 403: not you")

    run = Run(MemoryCatalog(scripts=[refuse]))
    with pytest.raises(StorageError, match=r"^HTTP 403: not you$") as raised:
        run.go()
    assert type(raised.value) is StorageError  # the name that a state machine knows
    assert (run.catalog.commits, run.discarded) == (1, ["staged-1"])
    assert [0.4 * 2**n <= wait <= 0.8 * 2**n for n, wait in enumerate(run.waits)] == [True] * 3


@pytest.mark.parametrize("error", [CommitRefused("no"), CatalogBusy("no")])
@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("back", [0, 1])
def test_a_no_to_what_a_replica_shows_late_is_success(error: MaintenanceError, lag: int, back: int) -> None:
    """The server acts, answers no, and for a while shows the table as it was: nothing may be discarded."""
    run = Run(MemoryCatalog())
    states = []
    for number in (1, 2):
        run.catalog.change(*append(number, number + 1))
        states.append(run.catalog.load(NAME))

    def landed_but_shows_the_past(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.lagging = [states[-1 - back]] * lag
        raise error

    run.catalog.scripts = [landed_but_shows_the_past]
    committed = run.go(max_retries=4)
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.attempts, run.discarded) == (101, 1, [])


def test_a_conflict_after_too_many_requests_is_looked_up_by_the_attempt_that_was_sent_first() -> None:
    """The 429 was about a commit that landed; the same one, sent again, meets itself."""

    def landed_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        land()
        catalog.lagging = [past]
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[landed_and_busy]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (run.catalog.commits, run.attempts, run.discarded) == (2, 1, [])
    assert set(committed.table.metadata.snapshots) == {101}


@pytest.mark.parametrize("script", [refuse, busy])
def test_what_the_store_shows_of_a_refused_commit_outweighs_a_catalog_that_never_shows_it(script: Script) -> None:
    """A replica may lag for ever; the metadata file of a commit that landed lies beside the table's others."""
    run = Run(MemoryCatalog(scripts=[script] * 9))
    head = run.catalog.metadata
    run.traces = [head, apply_updates(head, append(101, 1), metadata_location="v1", now_ms=1)]
    with pytest.raises(CommitStateUnknown, match="a metadata file in the store shows the commit"):
        run.go()
    assert run.discarded == []


def test_a_store_that_cannot_be_asked_for_traces_keeps_the_files() -> None:
    run = Run(MemoryCatalog(scripts=[refuse]))

    def fail(base: LoadedTable) -> list[TableMetadata]:
        raise StorageError("slow down")

    run.find_traces = fail  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown, match="slow down"):
        run.go()
    assert run.discarded == []


def test_a_refusal_with_a_head_that_disproves_the_commit_needs_no_second_look() -> None:
    def overtaken_and_refused(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        raise CommitRefused("HTTP 403: not you")

    run = Run(MemoryCatalog(scripts=[overtaken_and_refused]))
    with pytest.raises(StorageError, match=r"^HTTP 403: not you$"):
        run.go()
    assert (run.discarded, run.waits) == (["staged-1"], [])


def test_a_conflict_of_what_was_sent_twice_is_not_explained_by_an_unrelated_change() -> None:
    """429 about a commit that landed on an unrelated change; the replica shows only that change."""

    def landed_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        catalog.change({"action": "set-properties", "updates": {"a": "b"}})
        changed = catalog.load(NAME)
        land()
        catalog.lagging = [past, changed]
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[landed_and_busy]))
    assert isinstance(run.go(), Committed)
    assert (run.attempts, run.discarded) == (1, [])


def test_a_document_that_a_refused_swap_left_goes_only_when_the_refusal_is_believed() -> None:
    def refuse_and_leave(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitRefused("no", left=("document",))

    run = Run(MemoryCatalog(scripts=[refuse_and_leave]))
    with pytest.raises(StorageError):
        run.go()
    assert run.discarded == ["staged-1", "document"]

    def land_and_leave(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        land()
        catalog.lagging = [past] * 2
        raise CommitRefused("no", left=("document",))

    run = Run(MemoryCatalog(scripts=[land_and_leave]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


def test_a_refusal_of_what_needs_no_files_is_believed_after_one_look() -> None:
    """An expiry whose catalog does not know an update tries again without it, in every pass."""
    run = Run(MemoryCatalog(scripts=[refuse]))
    adding = run.prepare

    def expire(head: LoadedTable) -> PreparedCommit | Nothing:
        prepared = adding(head)
        assert isinstance(prepared, PreparedCommit)
        return replace(prepared, updates=[{"action": "remove-snapshots", "snapshot-ids": [1]}], staged=())

    run.prepare = expire  # type: ignore[method-assign]
    with pytest.raises(StorageError, match=r"^HTTP 403: not you$"):
        run.go()
    assert (run.catalog.commits, run.waits) == (1, [])
