"""``verify`` finds and names every kind of damage, passes healthy tables, and never crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.storage.storage import Storage
from icekeeper.verification import verify
from icekeeper.verification.checks import Problem, ProblemKind, Verification
from support.command import EVERYTHING_IS_OLD, LOCAL, Command, local_path
from support.corpus import corpus_params, corpus_table, expected
from support.damaged_table import Damaged, Record, edit_avro, entry, read_avro, state_length


def lose(path: str) -> str:
    local_path(path).unlink()
    return path


def cut(path: str, size: int = 40) -> str:
    local_path(path).write_bytes(local_path(path).read_bytes()[:-size])
    return path


def listed(**values: Any) -> Callable[[Damaged], str]:
    """The manifest list states these values of the newest manifest."""

    def damage(table: Damaged) -> str:
        table.edit_list(lambda records: entry(records, table.manifests[0]).update(values))
        return table.manifests[0]

    return damage


def documented(change: Callable[[Record], object]) -> Callable[[Damaged], str]:
    """The metadata document is changed."""

    def damage(table: Damaged) -> str:
        table.edit_document(change)
        return table.location

    return damage


def wrong_file_count(table: Damaged) -> str:
    def change(records: list[Record]) -> None:
        record = entry(records, table.manifests[0])
        record["added_files_count" if "added_files_count" in record else "added_data_files_count"] += 1

    table.edit_list(change)
    return table.manifests[0]


def duplicate_path(table: Damaged) -> str:
    """Two manifests of a snapshot list the same file."""
    twin = read_avro(local_path(table.manifests[0]))[0]["data_file"]
    path = local_path(table.manifests[1])
    edit_avro(path, lambda records: records[0]["data_file"].update(twin))
    # Every snapshot lists that manifest, so every manifest list needs its new length.
    for snapshot in table.table.snapshots():
        edit_avro(local_path(snapshot.manifest_list), lambda listed: state_length(listed, table.manifests[1]))
    return str(twin["file_path"])


def duplicate_entry(table: Damaged) -> str:
    """A manifest lists a file twice."""
    table.edit_manifest(lambda records: records.append(records[0]))
    return str(read_avro(local_path(table.manifests[0]))[0]["data_file"]["file_path"])


def current_is_not_main(table: Damaged) -> str:
    first = table.table.snapshots()[0].snapshot_id
    return documented(lambda document: document.update({"current-snapshot-id": first}))(table)


def wrong_total(table: Damaged) -> str:
    table.edit_document(lambda document: document["snapshots"][-1]["summary"].update({"total-records": "10"}))
    return table.manifest_list


def date_last_change(document: Record, seconds: int) -> None:
    """Date the last entry of the snapshot log so many seconds after the previous entry."""
    before, last = document["snapshot-log"][-2:]
    last["timestamp-ms"] = before["timestamp-ms"] + seconds * 1000


def test_clocks_of_writers_may_differ_by_a_minute(command: Command) -> None:
    """Iceberg-Java's TableMetadata allows the same."""
    Damaged(command).edit_document(lambda document: date_last_change(document, -59))
    assert command("verify", "ns.t").code == 0


DAMAGE: dict[str, tuple[Callable[[Damaged], str], str, set[str]]] = {
    "missing data file": (lambda table: lose(table.data_files[0]), "missing_file", set()),
    "missing manifest": (lambda table: lose(table.manifests[0]), "missing_file", set()),
    "missing manifest list": (lambda table: lose(table.manifest_list), "missing_file", set()),
    "truncated manifest": (lambda table: cut(table.manifests[0]), "unreadable_metadata", set()),
    "truncated manifest list": (lambda table: cut(table.manifest_list), "unreadable_metadata", set()),
    "unknown partition spec": (listed(partition_spec_id=7), "unreadable_metadata", set()),
    "wrong manifest length": (listed(manifest_length=17), "wrong_size", set()),
    "wrong file size": (lambda table: cut(table.data_files[0], 1), "wrong_size", set()),
    "wrong file count": (wrong_file_count, "wrong_count", {"summary"}),
    "wrong row count": (listed(added_rows_count=99), "wrong_count", {"summary"}),
    "duplicate path": (duplicate_path, "duplicate_file", set()),
    "duplicate entry": (duplicate_entry, "duplicate_file", {"wrong_count"}),
    "broken ref": (
        documented(lambda document: document["refs"].update(old={"snapshot-id": 1, "type": "tag"})),
        "broken_ref",
        set(),
    ),
    "current is not main": (current_is_not_main, "broken_ref", set()),
    "wrong total": (wrong_total, "summary", set()),
    "summary without text": (
        documented(lambda document: document["snapshots"][-1]["summary"].update({"replicas": 3})),
        "summary",
        set(),
    ),
    "sequence number above the last": (
        documented(lambda document: document.update({"last-sequence-number": 2})),
        "sequence_number",
        set(),
    ),
    "entry below the least sequence number": (listed(min_sequence_number=9), "sequence_number", set()),
    "log out of order": (documented(lambda document: date_last_change(document, -61)), "sequence_number", set()),
}
"""A function that damages a table and returns the damaged path; the kind of problem; further kinds that follow."""


@pytest.mark.parametrize(("damage", "kind", "consequences"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(
    damage: Callable[[Damaged], str], kind: str, consequences: set[str], command: Command
) -> None:
    table = Damaged(command)
    path = damage(table)
    before = command.contents()
    answer = command("verify", "ns.t", "--json")
    assert command.contents() == before
    assert answer.code == 1
    assert answer.json["ok"] is False
    problems = answer.json["problems"]
    assert (kind, path) in {(problem["kind"], problem["path"]) for problem in problems}, problems
    others = {problem["kind"] for problem in problems} - {kind}
    assert others <= consequences, problems
    assert all(list(problem) == ["kind", "path", "detail"] and problem["detail"] for problem in problems)
    assert answer.err.startswith("ns.t: damaged (")
    found = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert set(answer.json["remedies"]) == {problem["kind"] for problem in problems}
    last = answer.err.splitlines()[-1]
    assert last == f"error: ns.t is damaged: {found} found; the lines above say what to do"


# What verify finds is remembered.


def states(command: Command) -> list[tuple[str, str]]:
    return [(entry["name"], entry["state"]) for entry in command("list", "--json").json["tables"]]


def test_a_damaged_table_comes_first_everywhere_until_it_is_repaired(command: Command) -> None:
    table = Damaged(command)
    command.table("ns.sound", appends=1)
    assert command("detect").code == 0
    assert states(command) == [("ns.sound", "well"), ("ns.t", "well")]
    assert command("list").out.count("never verified") == 2
    victim = local_path(table.data_files[0])
    whole = victim.read_bytes()
    victim.unlink()
    assert command("verify", "ns.t").code == 1
    sentence = (
        f"verify found damage in 1 file: missing_file: {table.data_files[0]}: it is referenced but does not exist; "
        "`icekeeper repair` looks for a copy; else restore the object, "
        "roll back to a snapshot without it, or repair with `--drop-missing`"
    )
    for _ in range(2):
        assert states(command) == [("ns.t", "damaged"), ("ns.sound", "well")]
        assert command("list", "--json").json["tables"][0]["trouble"] == sentence
        detection = command("detect", "--json").json
        assert [(skip["table"], skip.get("warning")) for skip in detection["skipped"]] == [
            ("ns.t", sentence),
            ("ns.sound", None),
        ]
    assert command("health", "ns.t", "--json").json["warnings"][0] == {"kind": "damaged", "message": sentence}
    victim.write_bytes(whole)
    assert command("verify", "ns.t").code == 0
    assert states(command) == [("ns.sound", "well"), ("ns.t", "well")]
    never, verified = command("list").out.splitlines()[1:]
    assert (never.endswith("never verified"), verified.endswith("verified 1 minute ago")) == (True, True)
    assert ", verified 1 minute ago" in command("health", "ns.t").out


@pytest.mark.parametrize("expired_by", ["Icekeeper", "another engine"])
def test_damage_is_forgotten_once_no_retained_snapshot_references_it(command: Command, expired_by: str) -> None:
    table = Damaged(command)
    assert command("detect").code == 0
    lose(table.data_files[0])
    assert command("verify", "ns.t").code == 1
    (lost,) = (t.file for t in table.table.scan().plan_files() if t.file.file_path == table.data_files[0])
    with table.table.transaction() as transaction, transaction.update_snapshot().overwrite() as removal:
        removal.delete_data_file(lost)
    assert command("maintain", "ns.t", "--operations", "compact", *LOCAL).code == 0
    assert states(command) == [("ns.t", "damaged")]
    ended_by = ("--operations", "expire_snapshots", "--set", "max_snapshots_to_keep=1")
    if expired_by != "Icekeeper":
        ended_by = ("--operations", "remove_orphans", "--set", "orphan_max_delete_ratio=1")
        assert command("maintain", "ns.t", *ended_by, *LOCAL, *EVERYTHING_IS_OLD).code == 0
        assert states(command) == [("ns.t", "damaged")]
        old = [snapshot.snapshot_id for snapshot in table.table.refresh().snapshots()[:-1]]
        table.table.maintenance.expire_snapshots().by_ids(old).commit()
    assert command("maintain", "ns.t", *ended_by, *LOCAL, *EVERYTHING_IS_OLD).code == 0
    assert states(command) == [("ns.t", "well")]


def test_a_file_that_an_expiry_deletes_while_verify_reads_is_no_damage(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, look = Damaged(command), verify.verify_table
    loads = list[str]()

    def meanwhile(loaded: LoadedTable, storage: Storage) -> Verification:
        if not loads:
            table.table.delete(AlwaysTrue())
            old = [snapshot.snapshot_id for snapshot in table.table.refresh().snapshots()[:-1]]
            table.table.maintenance.expire_snapshots().by_ids(old).commit()
            lose(table.data_files[0])
        loads.append(loaded.metadata_location)
        return look(loaded, storage)

    monkeypatch.setattr(verify, "verify_table", meanwhile)
    assert command("verify", "ns.t").code == 0
    assert len({*loads}) == len(loads) == 2


def test_of_a_table_that_changed_only_confirmed_problems_count() -> None:
    gone, stays = (Problem(ProblemKind.MISSING_FILE, path, "gone") for path in ("a", "b"))
    refs = [Problem(ProblemKind.BROKEN_REF, f"v{number}.json", "ref 'x' is broken") for number in (1, 2)]
    new = Problem(ProblemKind.WRONG_SIZE, "c", "shorter")
    earlier = Verification("ns.t", (gone, stays, refs[0]), {})
    assert Verification("ns.t", (stays, refs[1], new), {}).confirming(earlier).problems == (stays, refs[1])


def test_a_table_without_snapshots_has_no_problem(command: Command) -> None:
    command.table(appends=0)
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 0
    assert answer.json["checked"] == {"snapshots": 0, "manifests": 0, "files": 0}


def test_an_invalid_metadata_document_is_reported_in_one_sentence(command: Command) -> None:
    table = Damaged(command)
    table.edit_document(lambda document: document["snapshots"][0].pop("snapshot-id"))
    for arguments in (("verify", "ns.t"), ("maintain", "ns.t", "--engine", "local")):
        answer = command(*arguments, "--json")
        assert answer.code == 1
        assert list(answer.json) == ["error"]
        assert len(answer.err.splitlines()) == 1


# Tables whose entries contradict their files: invented bounds, and a delete file that counts one of its two keys.
CONTRADICTORY = {"dk_moved_posdel", "im_v2_delete_equality_nulls"}


@pytest.mark.parametrize("name", corpus_params())
def test_verify_reads_tables_of_other_engines(name: str, command: Command) -> None:
    found = corpus_table(name, command.warehouse)
    command.register(found.metadata_path)
    answer = command("verify", "ns.t", "--deep", "--json", *LOCAL)
    keys = ["table", "ok", "problems", "checked", "superseded", *([] if answer.json["ok"] else ["remedies"])]
    assert list(answer.json) == [*keys, "catalog", "status"], answer.err
    assert answer.code == (0 if answer.json["ok"] else 1)
    live = sum(counts[0] for what, counts in expected(name)["live"].items() if what in ("data", "posdel", "eqdel"))
    kinds = {problem["kind"] for problem in answer.json["problems"]}
    assert answer.json["checked"]["files"] >= live or kinds & {"missing_file", "unreadable_metadata"}
    contradictions = {"wrong_metrics"} if name in CONTRADICTORY else set()
    assert kinds & {"wrong_metrics", "wrong_partition", "unreadable_data"} == contradictions
