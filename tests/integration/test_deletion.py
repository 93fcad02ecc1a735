"""The guard before every deletion, and how it finds out where tables have files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import Catalog, identity_of
from icekeeper.deletion import delete as deletion
from icekeeper.deletion import table_claims as new_manifests
from icekeeper.deletion.delete import DeletedFiles, delete_unneeded
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MetadataUnreadable, OperationRefused
from icekeeper.machine.clock import system_clock
from icekeeper.metadata.table_reader import References, reachable_files
from icekeeper.model import CatalogId
from icekeeper.pass_context.context import OperationContext, PassLimits
from icekeeper.policy import resolve
from icekeeper.runtime import Runtime
from icekeeper.state.claims import SeenHead
from icekeeper.state.staging import StagedLoad
from icekeeper.state.store import Pin
from icekeeper.storage.allowed_locations import AllowedLocations
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import DeleteReport, Storage
from support.maintained_table import NAME, MaintainedTable, new_table
from support.scripted_catalog import ScriptedCatalog

# The guard before every deletion: another look before each batch and each retry, in parallel, with pauses.


def no_other(recorded: CatalogId) -> None:
    """No other catalog is served."""


Delete = Callable[[Storage, Iterable[str]], DeleteReport]


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Two appends; two files make a batch."""
    monkeypatch.setattr(deletion, "_BATCH", 2)
    return new_table(local_catalog, tmp_path, appends=2)


def planted(table: MaintainedTable, count: int) -> list[str]:
    return [table.plant(f"data/{number:03d}.parquet") for number in range(count)]


def deleted(
    table: MaintainedTable,
    paths: list[str],
    *,
    catalog: Catalog | None = None,
    before_batch_of: Mapping[str, Callable[[], object]] | None = None,
    while_waiting: Callable[[], object] = lambda: None,
    allowed: tuple[str, ...] | None = None,
    time_left_s: Callable[[], float] | None = None,
) -> DeletedFiles:
    """Delete files; another writer acts before the last look at the batch of a path, or while a retry waits.

    ``allowed`` are the prefixes that the deployment allows."""
    actions = before_batch_of or {}

    def confirm(batch: Sequence[str]) -> Sequence[str]:
        for path in actions.keys() & batch:
            actions[path]()
        return batch

    def sleep(seconds: float) -> None:
        table.waits.append(seconds)
        while_waiting()

    known = table.loaded
    if allowed is not None:
        known = replace(known, io_properties=AllowedLocations(allowed, True).put_into(known.io_properties))
    references = References()
    reachable_files(table.reader, known.metadata_location, references)
    runtime = Runtime(catalog or table.catalog, table.state, environment={}, other_catalog=no_other, sleep=sleep)
    context = runtime.context(known, resolve([]), LocalEngine(1), run_id="run-1")
    context = replace(context, limits=PassLimits(left_s=time_left_s))
    return delete_unneeded(context, known, paths, "files", FileNeeds(context, known, references), confirm)


def deleting_by(monkeypatch: pytest.MonkeyPatch, delete: Delete) -> list[list[str]]:
    """Replace the store's deletion; return the paths of each call."""
    calls: list[list[str]] = []

    def called(self: Storage, paths: Iterable[str], *, links: bool = True) -> DeleteReport:
        calls.append(list(paths))
        return delete(self, calls[-1])

    monkeypatch.setattr(Storage, "delete", called)
    return calls


def test_every_batch_is_preceded_by_another_look(table: MaintainedTable) -> None:
    paths = planted(table, 5)
    loads: list[None] = []
    catalog = ScriptedCatalog(table.catalog, before_load=lambda: loads.append(None))
    result = deleted(table, paths, catalog=catalog)
    assert (sorted(result.deleted), result.failed, result.spared) == (paths, {}, [])
    assert len(loads) == 3  # a load for each batch, because requests cost money
    assert not [path for path in paths if Path(path).exists()]


def test_files_adopted_staged_or_pinned_before_their_batch_are_kept(table: MaintainedTable) -> None:
    """A load or a pin is only in the state, not in the table's metadata (rule: one-object-decides-deletions)."""
    source = Path(normalise(table.data_files()[0].file_path))
    paths = planted(table, 8)
    Path(paths[7]).write_bytes(source.read_bytes())
    Path(paths[5]).write_bytes(Path(normalise(table.metadata_location)).read_bytes())
    identity, head = identity_of(table.catalog, table.loaded), table.metadata.current_snapshot
    assert head is not None
    load = StagedLoad(identity=identity, name="L", changed_ms=system_clock())
    pin = Pin(identity=identity, name="p", snapshot_id=head.snapshot_id, metadata_location=paths[5], expires_ms=2**62)
    actions: dict[str, Callable[[], object]] = {
        paths[3]: lambda: table.state.staging.stage(load, [paths[3]]),
        paths[5]: lambda: table.state.add_pin(pin),
        paths[7]: lambda: table.table.add_files([Path(paths[7]).as_uri()]),
    }
    result = deleted(table, paths, before_batch_of=actions)
    assert sorted(result.deleted) == [paths[0], paths[1], paths[2], paths[4], paths[6]]
    assert sorted(result.spared) == [paths[3], paths[5], paths[7]]
    assert table.verify().ok


def test_files_outside_the_allowed_prefixes_are_kept(table: MaintainedTable) -> None:
    """This also holds below a location that the table's own properties name (rule: bound-every-table)."""
    paths = [table.plant("data/elsewhere.parquet"), table.plant("metadata/left.avro")]
    result = deleted(table, paths, allowed=(table.metadata.metadata_directory,))
    assert (result.deleted, result.spared) == (paths[1:], paths[:1])


def test_batches_are_deleted_concurrently(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=20)
    original = Storage.delete

    def delete(self: Storage, paths: Iterable[str]) -> DeleteReport:
        together.wait()
        return original(self, paths)

    deleting_by(monkeypatch, delete)
    paths = planted(table, 6)
    assert sorted(deleted(table, paths).deleted) == paths


def test_temporary_failures_are_tried_again_and_refusals_are_not(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = planted(table, 4)
    original, attempts = Storage.delete, dict.fromkeys(paths, 0)

    def delete(self: Storage, asked: Iterable[str]) -> DeleteReport:
        failed = {}
        for path in asked:
            attempts[path] += 1
            if path == paths[0]:
                failed[path] = "was refused"
            elif path == paths[1] and attempts[path] < 3:
                failed[path] = "is busy"
        gone = original(self, [path for path in asked if path not in failed]).deleted
        return DeleteReport(gone, failed, frozenset(failed) - {paths[0]})

    deleting_by(monkeypatch, delete)
    result = deleted(table, paths)
    assert result.failed == {paths[0]: "was refused"}
    assert sorted(result.deleted) == paths[1:]
    assert list(attempts.values()) == [1, 3, 1, 1]
    assert [0.4 <= table.waits[0] <= 0.8, 0.8 <= table.waits[1] <= 1.6] == [True, True]
    assert len(table.waits) == 2


def test_a_retry_is_preceded_by_another_look(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the wait, a writer starts to need the file."""
    source = Path(normalise(table.data_files()[0].file_path))
    path = planted(table, 1)[0]
    Path(path).write_bytes(source.read_bytes())
    busy = [DeleteReport((), {path: "is busy"}, frozenset([path]))]
    original = Storage.delete
    deleting_by(monkeypatch, lambda self, asked: busy.pop() if busy else original(self, asked))
    result = deleted(table, [path], while_waiting=lambda: table.table.add_files([Path(path).as_uri()]))
    assert result.spared == [path]
    assert table.verify().ok


def test_a_link_is_deleted_only_after_a_look_at_its_target(table: MaintainedTable, tmp_path: Path) -> None:
    """The first check does not look at single files, so links remain; the next check keeps a link that leads out."""
    file, inner, outer = planted(table, 3)
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"x")
    for link, target in ((inner, Path(table.plant("data/target.parquet"))), (outer, outside)):
        Path(link).unlink()
        Path(link).symlink_to(target)
    result = deleted(table, [file, inner, outer])
    assert (result.deleted, result.spared, result.failed) == ([file, inner], [outer], {})
    assert (len(table.waits), Path(outer).is_symlink(), outside.exists()) == (1, True, True)
    assert Path(table.plant("data/target.parquet")).exists()


def test_deletion_stops_early_if_the_store_is_down(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = planted(table, 200)

    def down(self: Storage, asked: Iterable[str]) -> DeleteReport:
        return DeleteReport((), dict.fromkeys(asked, "nothing answers"), frozenset(asked))

    calls = deleting_by(monkeypatch, down)
    result = deleted(table, paths)
    assert result.failed == dict.fromkeys(paths, "nothing answers")
    assert len(calls) <= 4 * 2 * 8
    assert all(Path(path).exists() for path in paths)


def test_a_process_that_must_end_leaves_the_rest_to_the_next_pass(table: MaintainedTable) -> None:
    """The time is checked before each batch, because a function that times out could not report its deletions."""
    paths = planted(table, 6)
    looks = iter((900.0, 61.0, *[59.0] * 5))
    result = deleted(table, paths, time_left_s=lambda: next(looks))
    assert sorted(result.deleted) == paths[:4]
    assert result.failed == dict.fromkeys(paths[4:], "was not reached: this process must end")
    why = f"{paths[4]} was not reached: this process must end"
    assert result.failures == (f"2 file(s) could not be deleted and remain for the next pass: {why}",)
    assert table.waits == []
    assert [Path(path).exists() for path in paths] == [False] * 4 + [True] * 2


def test_a_table_that_starts_to_forbid_deletions_keeps_the_rest(table: MaintainedTable) -> None:
    def forbid() -> None:
        table.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()

    paths = planted(table, 6)
    with pytest.raises(OperationRefused, match=r"gc\.enabled is false"):
        deleted(table, paths, before_batch_of={paths[4]: forbid})
    assert [Path(path).exists() for path in paths] == [False] * 4 + [True] * 2


def test_new_unreadable_references_keep_the_rest(table: MaintainedTable) -> None:
    def append_torn() -> None:
        table.append(99)
        newest = table.metadata.current_snapshot
        assert newest is not None
        Path(normalise(newest.manifest_list or "")).unlink()

    paths = planted(table, 4)
    with pytest.raises(MetadataUnreadable):
        deleted(table, paths, before_batch_of={paths[2]: append_torn})
    assert [Path(path).exists() for path in paths] == [False, False, True, True]


# Workers find where a table has files from many manifests, with the same result as this process alone.


def context_of(table_in_two_roots: MaintainedTable) -> OperationContext:
    runtime, loaded = table_in_two_roots.runtime_with(), table_in_two_roots.loaded
    return runtime.context(loaded, runtime.policy(loaded, {}), LocalEngine(processes=1))


@pytest.fixture
def table_in_two_roots(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Three manifests of files in two roots; a single manifest already counts as many."""
    made = new_table(local_catalog, tmp_path, appends=2)
    with made.table.transaction() as change:
        change.set_properties({"write.data.path": f"{made.metadata.location}/elsewhere"})
    made.append(9)
    monkeypatch.setattr(new_manifests, "_BY_ENGINE_BYTES", 0)
    monkeypatch.setattr(new_manifests, "_TASK_BYTES", 1)
    return made


def test_workers_find_the_same_roots_as_this_process(
    table_in_two_roots: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_engine = context_of(table_in_two_roots)
    assert new_manifests.read_new_manifests(by_engine, table_in_two_roots.loaded, ())
    monkeypatch.setattr(new_manifests, "_BY_ENGINE_BYTES", 2**40)
    here = context_of(table_in_two_roots)
    new_manifests.read_new_manifests(here, table_in_two_roots.loaded, ())
    assert by_engine.footprint.roots() == here.footprint.roots()
    assert {root.rpartition("/")[2] for root in here.footprint.roots()} == {"data", "elsewhere"}


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_unreadable_manifest_leaves_the_table_unknown(table_in_two_roots: MaintainedTable, *, is_gone: bool) -> None:
    """A missing manifest hides no other manifest."""
    assert table_in_two_roots.metadata.current_snapshot is not None
    (lost, *_) = table_in_two_roots.reader.manifests(table_in_two_roots.metadata.current_snapshot)
    path, context = Path(lost.manifest_path.removeprefix("file://")), context_of(table_in_two_roots)
    if is_gone:
        path.unlink()
        assert not new_manifests.read_new_manifests(context, table_in_two_roots.loaded, ())
        assert {root.rpartition("/")[2] for root in context.footprint.roots()} == {"data"}
    else:
        path.write_bytes(b"no manifest")
        with pytest.raises(MetadataUnreadable, match=r"^manifest [^ ]*"):
            new_manifests.read_new_manifests(context, table_in_two_roots.loaded, ())
    table_in_two_roots.maintain("expire_snapshots")
    (claims,) = table_in_two_roots.state.claims.touching(table_in_two_roots.metadata.location.removeprefix("file://"))
    assert (str(claims.table), claims.seen) == (str(NAME), SeenHead())
