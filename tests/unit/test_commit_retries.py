"""When a commit is tried again: a lost swap, a busy catalog, a conflict that nothing explains, and what ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.resolve_outcome import backoff_seconds
from icekeeper.commit.transaction import Committed, patience_of
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitStateUnknown,
    LeaseLost,
    MaintenanceError,
    PlanStale,
    PolicyError,
    StorageError,
)
from icekeeper.model import Nothing
from support.memory_catalog import MemoryCatalog, Run, Script, append, lost_to_another, unknown_and_lost


def test_a_lost_swap_is_prepared_anew_on_the_new_head() -> None:
    run = Run(MemoryCatalog(scripts=[lost_to_another]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.attempts, committed.prepared.snapshot_id) == (2, 102)
    assert run.discarded == ["staged-1"]
    assert set(run.catalog.metadata.snapshots) == {1, 102}


@pytest.mark.parametrize("script", [lost_to_another, unknown_and_lost])
def test_retries_end_in_a_conflict_with_nothing_left_staged(script: Script) -> None:
    run = Run(MemoryCatalog(scripts=[script] * 9))
    with pytest.raises(CommitConflict):
        run.go(max_retries=3)
    assert run.attempts == run.catalog.commits == 4
    assert run.discarded == [f"staged-{n}" for n in range(1, 5)]


def test_patience_outlasts_the_number_of_retries_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Forty swaps lost to a busy writer do not throw the work of hours away; each is logged (rule 59)."""
    caplog.set_level("INFO", "icekeeper.activity")
    run = Run(MemoryCatalog(scripts=[lost_to_another] * 40))
    committed = run.go(max_retries=2, patience_s=600)
    assert isinstance(committed, Committed)
    assert committed.attempts == 41
    assert max(run.waits) <= 5.0
    lost = [record.__dict__ for record in caplog.records if record.__dict__["event"] == "swap_lost"]
    assert [(line["attempt"], line["seconds"]) for line in lost] == [
        (number, round(wait, 3)) for number, wait in enumerate(run.waits, 1)
    ]
    run = Run(MemoryCatalog(scripts=[lost_to_another] * 99))
    with pytest.raises(CommitConflict):
        run.go(max_retries=2, patience_s=20)
    assert 20 <= sum(run.waits) < 25


@pytest.mark.parametrize(
    ("work_s", "left_s", "patience_s"),
    [(0, None, 30), (120, None, 120), (7200, None, 900), (7200, 100, 70), (7200, 20, 0), (60, 5000, 60)],
)
def test_patience_is_in_proportion_to_the_work_at_stake(work_s: float, left_s: float | None, patience_s: float) -> None:
    """Half a minute to a quarter of an hour, and half a minute less than the process lives on."""
    assert patience_of(work_s, left_s) == patience_s


def test_waits_double_up_to_five_seconds_with_jitter() -> None:
    for attempt in range(12):
        step = min(5.0, 0.05 * 2**attempt)
        assert step / 2 <= backoff_seconds(attempt) <= step


def test_a_busy_catalog_is_asked_again_after_seconds_and_not_for_ever() -> None:
    def busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[busy] * 2))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.attempts, run.attempts, run.discarded) == (3, 1, [])  # the same attempt, sent again
    assert 0.4 <= run.waits[0] <= 0.8 <= run.waits[1] <= 1.6
    run = Run(MemoryCatalog(scripts=[busy] * 9))
    with pytest.raises(StorageError, match=r"^HTTP 429: later$"):
        run.go(max_retries=3)
    assert (run.catalog.commits, run.discarded) == (4, ["staged-1"])


@pytest.mark.parametrize("error", [StorageError("refused"), PolicyError("no such table"), LeaseLost("too slow")])
def test_a_swap_that_was_never_sent_leaves_nothing_staged(error: MaintenanceError) -> None:
    def never_sent(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise error

    run = Run(MemoryCatalog(scripts=[never_sent]))
    with pytest.raises(type(error)):
        run.go()
    assert run.discarded == ["staged-1"]


def test_a_crash_discards_nothing() -> None:
    """What interrupts us may have interrupted a commit that landed."""

    def interrupted(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise KeyboardInterrupt

    run = Run(MemoryCatalog(scripts=[interrupted]))
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.discarded == []


def test_a_plan_that_cannot_follow_ends_the_loop() -> None:
    run = Run(MemoryCatalog(scripts=[lost_to_another]))
    prepared = iter([run.prepare])

    def once(head: LoadedTable) -> PreparedCommit | Nothing:
        for prepare in prepared:
            return prepare(head)
        raise PlanStale("rolled back")

    run.prepare = once  # type: ignore[method-assign]
    with pytest.raises(PlanStale):
        run.go()
    assert run.discarded == ["staged-1"]


def test_a_conflict_that_nothing_explains_is_sent_again_and_may_land() -> None:
    """Glue says so when somebody changed a table's description."""

    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitConflict("changed meanwhile")

    run = Run(MemoryCatalog(scripts=[refuse, refuse]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.attempts, run.attempts, run.discarded) == (3, 1, [])


@pytest.mark.parametrize("then", [CommitConflict("moved"), StorageError("never sent"), LeaseLost("too slow")])
def test_a_conflict_that_is_never_explained_keeps_the_files(then: MaintenanceError) -> None:
    errors = iter([CommitConflict("moved"), then, then])

    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise next(errors)

    run = Run(MemoryCatalog(scripts=[refuse] * 3))
    with pytest.raises(CommitStateUnknown):
        run.go()
    assert (run.attempts, run.discarded) == (1, [])


def test_a_doubtful_attempt_that_another_commit_overtook_is_prepared_anew() -> None:
    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitConflict("changed meanwhile")

    run = Run(MemoryCatalog(scripts=[refuse, lost_to_another]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.discarded) == (102, ["staged-1"])


def test_a_busy_catalog_whose_table_moved_meanwhile_gets_a_new_attempt() -> None:
    def overtaken_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[overtaken_and_busy]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.discarded) == (102, ["staged-1"])


def test_the_right_to_commit_is_renewed_just_before_every_swap() -> None:
    """Between two swaps another pass may have taken the files for those of a dead job."""
    order: list[str] = []

    def overtaken(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        order.append("swap")
        return lost_to_another(catalog, land)

    run = Run(MemoryCatalog(scripts=[overtaken, overtaken]))

    def renew() -> None:
        order.append("renew")
        if order.count("renew") == 3:
            raise PlanStale("stood still for so long")

    run.renew = renew
    with pytest.raises(PlanStale, match="stood still"):
        run.go(max_retries=5)
    assert order == ["renew", "swap", "renew", "swap", "renew"]
    assert run.discarded == ["staged-1", "staged-2", "staged-3"]
