"""A commit whose outcome is unknown: what the head shows settles it, and until then its files stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import Committed
from icekeeper.errors import (
    CommitConflict,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    PolicyError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from support.memory_catalog import NAME, MemoryCatalog, Run, append, unknown, unknown_but_landed


def test_an_unknown_commit_that_landed_is_found_by_its_snapshot() -> None:
    run = Run(MemoryCatalog(scripts=[unknown_but_landed]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert committed.attempts == run.catalog.commits == 1
    assert run.discarded == []


def test_a_commit_on_top_of_an_unknown_one_that_landed_changes_nothing_about_it() -> None:
    def landed_and_overtaken(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1, parent=101))
        raise CommitStateUnknown("no answer")

    run = Run(MemoryCatalog(scripts=[landed_and_overtaken]))
    assert isinstance(run.go(), Committed)
    assert run.attempts == 1


def test_while_an_unknown_commit_may_still_land_its_files_stay() -> None:
    """A token that moved is no proof: an unrelated change leaves what the attempt requires as it was."""

    def unknown_and_unrelated(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change({"action": "set-properties", "updates": {"a": "b"}})
        raise CommitStateUnknown("no answer")

    for script in (unknown, unknown_and_unrelated):
        run = Run(MemoryCatalog(scripts=[script]))
        with pytest.raises(CommitStateUnknown):
            run.go()
        assert run.attempts == 1
        assert run.discarded == []
        assert 3 < sum(run.waits) < 7


@pytest.mark.parametrize("gone", [PolicyError("no such table"), StorageError("down"), MetadataUnreadable("torn")])
def test_a_table_that_cannot_be_read_proves_nothing(gone: MaintenanceError) -> None:
    run = Run(MemoryCatalog(scripts=[lambda catalog, land: _break(catalog, gone)]))
    with pytest.raises(CommitStateUnknown):
        run.go()
    assert run.discarded == []


def _break(catalog: MemoryCatalog, error: MaintenanceError) -> LoadedTable:
    catalog.load_errors = [error] * 20
    raise CommitStateUnknown("no answer")


def test_an_endpoint_that_comes_back_settles_it() -> None:
    def landed_then_down(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.load_errors = [StorageError("down")] * 3
        raise CommitStateUnknown("no answer")

    assert isinstance(Run(MemoryCatalog(scripts=[landed_then_down])).go(), Committed)


def test_an_answer_that_is_no_table_metadata_is_an_unknown_outcome() -> None:
    def landed_and_garbled(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise MetadataUnreadable("not JSON")

    run = Run(MemoryCatalog(scripts=[landed_and_garbled]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


def test_a_success_that_is_not_shown_at_once_is_looked_for() -> None:
    def landed_but_shows_the_past(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        land()
        catalog.load_errors = [StorageError("down")]
        return past

    run = Run(MemoryCatalog(scripts=[landed_but_shows_the_past]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert set(committed.table.metadata.snapshots) == {101}
    assert run.discarded == []


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_success_that_is_never_shown_is_unknown(overtaken: bool) -> None:
    """Not even another commit on the same base disproves what the catalog itself says that it did."""

    def claim(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        if overtaken:
            catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        return catalog.load(NAME)

    run = Run(MemoryCatalog(scripts=[claim]))
    with pytest.raises(
        CommitStateUnknown, match="answered that the commit landed, but the table's metadata do not show"
    ):
        run.go()
    assert (run.catalog.commits, run.discarded) == (1, [])
    assert 3 < sum(run.waits) < 7


def test_a_success_about_another_table_is_none() -> None:
    def answer_with_another(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        before = catalog.metadata
        after = land()
        catalog.metadata = before
        elsewhere = {**after.metadata.document, "table-uuid": "00000000-0000-0000-0000-000000000009"}
        return replace(after, metadata=TableMetadata(elsewhere))

    run = Run(MemoryCatalog(scripts=[answer_with_another]))
    with pytest.raises(CommitStateUnknown):
        run.go()
    assert run.discarded == []


NOES_AND_SILENCE = [CommitConflict("ref main moved"), CommitStateUnknown("no answer")]


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("error", NOES_AND_SILENCE)
def test_a_replica_that_lags_proves_nothing(error: MaintenanceError, back: int) -> None:
    """It shows the state that the attempt was made on, or one before, after the attempt has landed."""
    run = Run(MemoryCatalog())
    states = []
    for number in (1, 2, 3):
        run.catalog.change(*append(number, number + 1))
        states.append(run.catalog.load(NAME))

    def landed_but_shows_the_past(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.lagging = [states[-1 - back]] * 2
        raise error

    run.catalog.scripts = [landed_but_shows_the_past]
    committed = run.go(max_retries=3)
    assert isinstance(committed, Committed)
    assert committed.prepared.snapshot_id == 101
    assert (run.attempts, run.discarded) == (1, [])
