"""Snapshot expiry, by age or on request, deletes exactly the files that nothing else needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.findings import RETRY_MS
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.command import EVERYTHING_IS_OLD, Command, local_path
from support.maintained_table import EAGER, NAME, MaintainedTable, maintained_table, outcome_of, registered_table
from support.readers import canonical, duckdb_rows
from support.scripted_catalog import once

# A snapshot with lost metadata stops expiry and orphan sweeps until a person gives it up.

EXPIRY, SWEEP = Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS


@pytest.fixture
def overwritten_table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A table with two appends, an overwrite that removes their rows (two more snapshots), and a third append."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.append(1)
        made.append(2)
        made.table.overwrite(made.new_rows(3))
        made.append(4)
        yield made


def ids(overwritten_table: MaintainedTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in overwritten_table.table.snapshots()]


def list_of(overwritten_table: MaintainedTable, place: int) -> Path:
    return Path(normalise(overwritten_table.table.snapshots()[place].manifest_list))


def files_of(overwritten_table: MaintainedTable, place: int) -> dict[int | None, tuple[Path, Path]]:
    """Manifest and data file of each append that is live in the snapshot, by the append's snapshot id."""
    reader = overwritten_table.reader
    manifests = reader.manifests(reader.metadata.snapshots[ids(overwritten_table)[place]])
    return {
        entry.snapshot_id: (Path(normalise(manifest.manifest_path)), Path(normalise(entry.file.file_path)))
        for manifest, entries in reader.entries(manifests)
        for entry in entries
        if entry.is_live
    }


def give_up(overwritten_table: MaintainedTable, *places: int, dry_run: bool = False) -> OperationOutcome:
    named = ",".join(str(ids(overwritten_table)[place]) for place in places)
    return overwritten_table.run(EXPIRY, snapshot_give_up_ids=named, dry_run=dry_run)


def test_a_lost_manifest_list_stops_everything_until_its_snapshot_is_given_up(
    overwritten_table: MaintainedTable,
) -> None:
    lost, ((manifest, data),) = list_of(overwritten_table, 0), files_of(overwritten_table, 0).values()
    named, head, rows = ids(overwritten_table)[0], ids(overwritten_table)[-1], overwritten_table.rows()
    lost.unlink()
    for more in ({}, {"snapshot_expire_ids": str(named)}):
        refused = overwritten_table.run(EXPIRY, **more)
        assert refused.status is Status.REFUSED
        for word in (str(lost), f"snapshot_give_up_ids={named} with --unsafe"):
            assert word in (refused.reason or "")
    assert overwritten_table.run(SWEEP).status is Status.REFUSED

    dry, done = give_up(overwritten_table, 0, dry_run=True), give_up(overwritten_table, 0)
    assert (dry.status, done.status) == (Status.SUCCEEDED, Status.SUCCEEDED)
    for outcome in (dry, done):
        assert f"files that only file://{lost} named are unknown and stay" in outcome.summary
    assert done.files_deleted == ()  # the list is missing, and no other file is proven unneeded
    assert (manifest.exists(), data.exists()) == (True, True)
    assert named not in ids(overwritten_table)
    assert str(data) in {
        normalise(path) for path in overwritten_table.run(EXPIRY).files_deleted
    }  # the next snapshot names it, too
    assert (ids(overwritten_table), overwritten_table.rows()) == ([head], rows)
    assert overwritten_table.run(SWEEP).status is Status.SUCCEEDED
    overwritten_table.assert_sound()


def detected(overwritten_table: MaintainedTable) -> tuple[tuple[str, ...], str | None, Mapping[str, str]]:
    """The reasons and the warning of a scan, and the warnings of ``health``."""
    settings = {**EAGER, "operations": "expire_snapshots"}
    found = overwritten_table.runtime.detect(settings, unsafe=True)
    reasons = found.proposals[0].reasons if found.proposals else ()
    (warning,) = [item.warning for item in found.proposals] + [item.warning for item in found.skipped]
    return reasons, warning, overwritten_table.runtime.afresh.health(NAME).warnings


def test_a_refused_expiry_is_recorded_and_tried_again_weekly(overwritten_table: MaintainedTable) -> None:
    """Commits do not change that; a restored file ends it at once (rule: leave-out-unreadable-files)."""
    table, lost = overwritten_table, list_of(overwritten_table, 0)
    content, due = lost.read_bytes(), "4 snapshots exceed max_snapshots_to_keep 1"
    lost.unlink()
    lost.mkdir()  # like HTTP 403 or throttling, an unopenable file is not recorded
    for _ in range(2):
        assert table.run(EXPIRY).status is Status.REFUSED
    reasons, *before = detected(table)
    assert (reasons[0].replace("5", "4"), before) == (due, [None, {}])

    lost.rmdir()
    refused = table.run(EXPIRY, dry_run=True)
    assert (refused.status, detected(table)[1]) == (Status.REFUSED, None)
    refused = table.run(EXPIRY)
    assert refused.status is Status.REFUSED
    sentence = f"no snapshot expires, except for one attempt a week: {refused.reason}"
    for _ in range(2):
        assert detected(table) == ((), sentence, {"expiry_refused": sentence})
        again = table.run(EXPIRY)
        assert (again.status, again.reason) == (Status.SKIPPED, f"it waits and is tried once a week: {refused.reason}")
        table.append(5)
    table.late_ms = RETRY_MS - HOUR_MS
    assert detected(table)[0] == ()
    table.late_ms = RETRY_MS + HOUR_MS
    assert detected(table)[0] != ()
    assert table.run(EXPIRY).status is Status.REFUSED
    assert detected(table)[0] == ()

    lost.write_bytes(content)
    manifest, _ = next(iter(files_of(table, 0).values()))
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-20])
    assert table.run(EXPIRY).status is Status.REFUSED
    assert (table.run(EXPIRY).status, detected(table)[0]) == (Status.SKIPPED, ())
    manifest.write_bytes(content)
    assert table.run(EXPIRY).status is Status.SUCCEEDED
    assert detected(table) == ((), None, {})
    table.assert_sound()


def test_a_change_of_refs_or_snapshots_makes_expiry_try_again(overwritten_table: MaintainedTable) -> None:
    """Without the tag, the recorded sentence would be wrong."""
    table, named = overwritten_table, ids(overwritten_table)[0]
    table.table.manage_snapshots().create_tag(named, "old").commit()
    list_of(table, 0).unlink()
    refused = table.run(EXPIRY)
    assert "first drop tag 'old'" in (refused.reason or "")
    assert detected(table)[0] == ()
    table.table.manage_snapshots().remove_tag("old").commit()
    reasons, warning, _ = detected(table)
    assert (reasons != (), warning) == (True, None)
    sentence = f"give up the snapshots that need it: the setting snapshot_give_up_ids={named}"
    assert sentence in table.run(EXPIRY).summary
    assert detected(table)[0] == ()
    table.table.maintenance.expire_snapshots().by_id(named).commit()
    reasons, warning, _ = detected(table)
    assert (reasons != (), warning) == (True, None)
    assert "expired " in table.run(EXPIRY).summary


def test_files_that_readable_metadata_proves_unneeded_are_deleted(overwritten_table: MaintainedTable) -> None:
    """Only the given up snapshots list two manifests, one of which is readable."""
    ((manifest, data),) = files_of(overwritten_table, 0).values()
    lost, unknown = next(found for found in files_of(overwritten_table, 1).values() if found[0] != manifest)
    lists, rows = [list_of(overwritten_table, place) for place in (0, 1)], overwritten_table.rows()
    lost.unlink()
    outcome = give_up(overwritten_table, 0, 1)
    assert {Path(normalise(path)) for path in outcome.files_deleted} == {manifest, data, lost, *lists}
    assert f"files that only file://{lost} named are unknown and stay" in outcome.summary
    assert (unknown.exists(), overwritten_table.rows()) == (True, rows)


def test_a_damaged_manifest_frees_nothing_by_its_first_entries(overwritten_table: MaintainedTable) -> None:
    manifest, data = next(iter(files_of(overwritten_table, 0).values()))
    manifest.write_bytes(manifest.read_bytes()[:-20])
    outcome = give_up(overwritten_table, 0, 1)
    assert f"files that only file://{manifest} named" in outcome.summary
    assert data.exists()


def test_files_of_other_snapshots_are_kept_and_a_second_unreadable_snapshot_is_named(
    overwritten_table: MaintainedTable,
) -> None:
    table, before = overwritten_table, overwritten_table.files()
    first, second, *_ = ids(table)
    head = list_of(table, -1)
    aside = head.rename(head.with_suffix(".aside"))
    outcome = table.run(EXPIRY)
    assert outcome.status is Status.REFUSED
    assert "first roll back branch 'main', whose head needs it" in (outcome.reason or "")
    with pytest.raises(PolicyError, match=r"snapshot_give_up_ids names \d+, the head of branch 'main'"):
        give_up(table, -1)
    aside.rename(head)

    for place in (0, 1):
        list_of(table, place).unlink()
    refused = give_up(table, 0)
    assert refused.status is Status.REFUSED
    assert f"snapshot_give_up_ids={first},{second} with --unsafe" in (refused.reason or "")
    assert give_up(table, 0, 1).status is Status.SUCCEEDED
    assert len(before - table.files()) == 2
    table.assert_sound()


def test_the_setting_that_the_refusal_prints_works(command: Command) -> None:
    table = command.table(appends=3)
    oldest = table.snapshots()[0]
    local_path(oldest.manifest_list).unlink()
    expire = ("maintain", "ns.t", "--engine", "local", "--operations", "expire_snapshots")
    refused = command(*expire, *EVERYTHING_IS_OLD)
    given = ("--set", f"snapshot_give_up_ids={oldest.snapshot_id}", "--unsafe")
    assert f"{given[1]} with {given[2]}" in refused.err
    denied = command(*expire, *given[:2])
    assert denied.code == 2
    assert re.search(r"snapshot_give_up_ids \(from this call\) drops snapshots .*--unsafe allows it", denied.err)
    both = command(*expire, *given, "--set", "snapshot_expire_ids=7")
    assert (both.code, "only the snapshots of one of them expire" in both.err) == (2, True)
    assert (command(*expire, *given).code, command(*expire, *EVERYTHING_IS_OLD).code) == (0, 0)


# Expiry frees exactly the unneeded files: files of tags and branches, shared manifests and statistics are kept.

ROWS = pa.table({"id": [1, 2, 3]})
EXPIRE: dict[str, Any] = {"operations": "expire_snapshots"}


def expired(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    return outcome_of(table.maintain(**EXPIRE, **overrides), Operation.EXPIRE_SNAPSHOTS)


# Magic, and a footer of magic, JSON, its length, flags and magic (Puffin specification).
EMPTY_PUFFIN = b"PFA1" + b"PFA1" + b'{"blobs":[]}' + bytes([12, 0, 0, 0]) + bytes(4) + b"PFA1"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A table with four appends of the same three rows."""
    with maintained_table(tmp_path) as made:
        written = made.create(ROWS.schema)
        for _ in range(4):
            written.append(ROWS)
        yield made


def _with_statistics(table: MaintainedTable) -> dict[int, Path]:
    """Add a Puffin file of statistics to each snapshot; return their paths."""
    written: dict[int, Path] = {}
    loaded = table.loaded
    folder = Path(loaded.metadata.metadata_directory.removeprefix("file://"))
    updates: list[dict[str, Any]] = []
    for snapshot_id in loaded.metadata.snapshots:
        written[snapshot_id] = folder / f"{snapshot_id}.stats"
        written[snapshot_id].write_bytes(EMPTY_PUFFIN)
        statistics = {
            "snapshot-id": snapshot_id,
            "statistics-path": written[snapshot_id].as_uri(),
            "file-size-in-bytes": len(EMPTY_PUFFIN),
            "file-footer-size-in-bytes": len(EMPTY_PUFFIN) - 4,
            "blob-metadata": [],
        }
        updates.append({"action": "set-statistics", "statistics": statistics})
    table.catalog.inner.commit(loaded, [], updates)
    return written


def test_refs_that_the_catalog_drops_are_restored(table: MaintainedTable) -> None:
    """SeaweedFS drops every ref but main together with removed snapshots.

    The refs are restored even if the table is paused right after the commit; only the deletions wait for a later pass
    (rule: switches-stop-at-once).
    """
    tagged = table.table.snapshots()[2].snapshot_id
    table.table.manage_snapshots().create_tag(tagged, "release").commit()
    calls: list[Sequence[Mapping[str, Any]]] = []

    def forgetful(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        calls.append(updates)
        if any(update["action"] == "remove-snapshots" for update in updates):
            updates = [*updates, {"action": "remove-snapshot-ref", "ref-name": "release"}]
        after = table.catalog.inner.commit(base, requirements, updates)
        if paused and len(calls) == 1:
            until = {"icekeeper.paused_until": "2099-01-01T00:00:00Z"}
            table.table.transaction().set_properties(until).commit_transaction()
        return after

    table.catalog.commit_instead = forgetful
    for paused in (False, True):
        refs = table.loaded.metadata.document["refs"]
        calls.clear()
        outcome = expired(table)
        assert outcome.status is Status.SUCCEEDED
        assert table.loaded.metadata.document["refs"] == refs
        assert len(table.rows(tagged)) == 9
        assert len(calls) == 2
        assert (table.unreferenced() == set(), outcome.files_deleted == ()) == (not paused, paused)
        table.table.append(ROWS)


def test_a_commit_that_restores_an_expired_snapshot_keeps_its_files(table: MaintainedTable) -> None:
    """Between our commit and our deletions another writer makes one of the snapshots current again."""
    table.table.overwrite(ROWS)
    snapshot = table.loaded.metadata.document["snapshots"][-3]  # PyIceberg overwrites in two commits: delete, append

    def revive() -> None:
        table.catalog.after_commit = lambda: None
        loaded = table.loaded
        document = {
            **loaded.metadata.document,
            "snapshots": [*loaded.metadata.document["snapshots"], snapshot],
            "last-sequence-number": 0,
        }
        revived = LoadedTable(
            loaded.name, TableMetadata(document), loaded.metadata_location, loaded.token, loaded.io_properties
        )
        table.catalog.inner.commit(revived, [], [{"action": "set-properties", "updates": {"a": "b"}}])

    table.catalog.after_commit = revive
    expired(table)
    assert len(table.rows(snapshot["snapshot-id"])) == 12


def test_inline_manifests_of_v1_are_followed(tmp_path: Path) -> None:
    """Legacy v1 snapshots list their manifests in the metadata file itself."""
    with maintained_table(tmp_path / "source") as source:
        written = source.create(ROWS.schema, properties={"format-version": "1"})
        for _ in range(3):
            written.append(ROWS)
        live = source.live_files()
        assert len(live) == 3
        document = json.loads(json.dumps(source.loaded.metadata.document))
        lists = []
        for raw in document["snapshots"]:
            found = source.reader.manifests(source.loaded.metadata.snapshots[raw["snapshot-id"]])
            lists.append(normalise(raw.pop("manifest-list")))
            raw["manifests"] = [manifest.manifest_path for manifest in found]
        document.pop("refs", None)
        path = Path(normalise(document["location"])) / "metadata" / "v9.metadata.json"
        path.write_text(json.dumps(document))
    (tmp_path / "home").mkdir()
    table = registered_table(path.as_uri(), tmp_path / "home")
    assert table.live_files() == live
    outcome = outcome_of(table.maintain(**EXPIRE), Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 2
    assert table.live_files() == live
    assert all(Path(normalise(file)).exists() for file in live)


def test_a_dry_run_plans_what_a_run_frees_without_requests_for_objects(table: MaintainedTable) -> None:
    """It frees merged data files, their manifests, manifest lists and statistics; bytes are sizes on disk."""
    before = table.rows()
    statistics = _with_statistics(table)
    table.maintain(operations="compact")
    sized: list[str] = []
    original = Storage.size

    def size(self: Storage, path: str) -> int | None:
        sized.append(path)
        return original(self, path)

    with mock.patch.object(Storage, "size", size):
        preview = outcome_of(table.maintain(dry_run=True, **EXPIRE), Operation.EXPIRE_SNAPSHOTS)
        on_disk = sum(Path(normalise(path)).stat().st_size for path in preview.files_planned)
        outcome = expired(table)
    assert sized == []
    assert preview.metrics["expire_snapshots.bytes_reclaimable"] == on_disk
    assert outcome.metrics["expire_snapshots.bytes_reclaimable"] == on_disk
    assert outcome.files_planned == preview.files_planned
    assert [path.exists() for path in statistics.values()] == [False] * 4
    assert set(outcome.files_deleted) == set(preview.files_planned)
    assert (len([path for path in table.files() if path.endswith(".parquet")]), table.unreferenced()) == (1, set())
    # The head's DELETED entries name the four merged files, but do not keep them.
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    assert sum(e.status == 2 for _, found in table.reader.entries(table.reader.manifests(head)) for e in found) == 4
    assert table.rows() == before
    table.assert_sound()
    again = expired(table)
    assert (again.status, again.summary) == (Status.SKIPPED, "no snapshots to expire")


# On request: named snapshots, and unused specs and schemas.


def test_named_snapshots_expire_regardless_of_the_retention(table: MaintainedTable) -> None:
    ids = [s.snapshot_id for s in table.table.snapshots()]
    outcome = expired(table, snapshot_expire_ids=str(ids[1]), snapshot_retention_hours="168")
    assert outcome.summary == "expired 1 snapshot(s), deleted 1 unreferenced file(s)"
    assert set(table.loaded.metadata.snapshots) == set(ids) - {ids[1]}
    table.assert_sound()
    before = table.loaded.metadata_location
    for named, what in ((ids[1], "not a snapshot of this table"), (ids[3], "the head of branch 'main'")):
        with pytest.raises(PolicyError, match=what):
            table.maintain(operations="compact,expire_snapshots", snapshot_expire_ids=str(named))
    assert table.loaded.metadata_location == before, "nothing ran"

    def theirs() -> None:
        """Another writer expires one of the named snapshots first."""
        table.catalog.inner.commit(table.loaded, [], [{"action": "remove-snapshots", "snapshot-ids": [ids[0]]}])

    table.catalog.before_commit = once(theirs)
    outcome = expired(table, snapshot_expire_ids=f"{ids[0]},{ids[2]}")
    assert outcome.summary == "expired 1 snapshot(s), deleted 1 unreferenced file(s)"
    assert set(table.loaded.metadata.snapshots) == {ids[3]}


def test_unused_specs_and_schemas_are_removed_only_on_request(table: MaintainedTable) -> None:
    def versions() -> tuple[set[int], set[int]]:
        return set(table.loaded.metadata.schemas), set(table.loaded.metadata.specs)

    def old_fashioned(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        if any(update["action"] == "remove-schemas" for update in updates):
            raise StorageError("catalog answered HTTP 400 about ns.t: unknown update action: remove-schemas")
        return table.catalog.inner.commit(base, requirements, updates)

    with table.table.update_schema() as update:
        update.add_column("note", StringType())
    with table.table.update_spec() as spec:
        spec.add_field("id", IdentityTransform(), "part")
    rows = pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]})
    table.table.overwrite(rows)
    expired(table)
    assert versions() == ({0, 1}, {0, 1})

    table.table.overwrite(rows)
    table.catalog.commit_instead = old_fashioned
    outcome = expired(table, clean_expired_metadata="true")
    assert outcome.status is Status.SUCCEEDED
    assert outcome.summary.endswith("; the catalog refused to remove unused partition specs and schemas")
    assert outcome.metrics["expire_snapshots.schemas_removed"] == 0
    assert len(table.loaded.metadata.snapshots) == 1
    assert table.unreferenced() == set()
    table.assert_sound()
    table.catalog.commit_instead = None

    table.table.overwrite(rows)
    before = table.rows()
    preview = outcome_of(
        table.maintain(dry_run=True, **EXPIRE, clean_expired_metadata="true"), Operation.EXPIRE_SNAPSHOTS
    )
    assert preview.summary.endswith("; would remove 1 partition spec(s) and 1 schema(s) that nothing uses")
    outcome = expired(table, clean_expired_metadata="true")
    assert outcome.summary.endswith("; removed 1 partition spec(s) and 1 schema(s) that nothing uses")
    assert outcome.metrics["expire_snapshots.specs_removed"] == 1
    assert outcome.metrics["expire_snapshots.schemas_removed"] == 1
    assert versions() == ({1}, {1})
    assert canonical(duckdb_rows(table.loaded.metadata_location)) == table.rows() == before
    table.assert_sound()
