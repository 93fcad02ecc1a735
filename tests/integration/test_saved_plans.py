"""Plans that are saved, reviewed and applied; exit codes of dry runs."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from icekeeper.errors import PlanStale
from icekeeper.machine.clock import HOUR_MS
from icekeeper.maintenance.saved_plan import SavedPlan, digest_of, read_plan
from icekeeper.operations.expiry import expire_snapshots
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.command import LOCAL, Answer, Command, one_sentence, rows, statuses
from support.deletes import commit_deletes, create_by_region, position_delete
from support.maintained_table import EAGER, NAME, MaintainedTable, maintained_table, outcome_of

OLD = {"icekeeper.snapshot_retention_hours": "0", "icekeeper.max_snapshots_to_keep": "1"}
NEW_PLAN = "save a new plan"


def save(command: Command, *arguments: str) -> tuple[Path, dict[str, Any]]:
    path = command.folder / "plan.json"
    answer = command("plan", "ns.t", *LOCAL, "--save", str(path), *arguments)
    assert answer.code == 0, answer.err
    return path, json.loads(path.read_text())


def apply(command: Command, path: Path, *arguments: str) -> Answer:
    return command("apply", str(path), *LOCAL, *arguments, catalog=None)


def forge(path: Path, change: Callable[[dict[str, Any]], object], *, is_sealed: bool = True) -> None:
    """Change a plan; if ``is_sealed``, give it the digest of the changed plan."""
    document = json.loads(path.read_text())
    digest = document.pop("digest")
    change(document)
    if is_sealed:
        digest = digest_of(document)
    path.write_text(json.dumps({**document, "digest": digest}))


def live_files(command: Command) -> set[str]:
    table = command.catalog.load_table("ns.t")
    return {task.file.file_path for task in table.scan().plan_files()}


def test_a_plan_is_applied_to_its_files_only(command: Command) -> None:
    """Files that others append after the review wait for another plan (rule: apply-only-what-was-reviewed)."""
    table = command.table(appends=6)
    path, plan = save(command, "--operations", "compact")
    planned = live_files(command)
    assert {*plan["tables"][0]["operations"][0]["files"]} == planned
    table.append(table.scan(limit=1).to_arrow())
    table.append(table.scan(limit=1).to_arrow())
    (newer, others) = live_files(command) - planned
    before = rows(command)
    done = apply(command, path, "--json")
    assert (done.code, done.json["status"]) == (0, "succeeded")
    assert done.json["tables"][0]["operations"][0]["summary"] == "compacted 6 files into 1 (across 1 bins)"
    left = live_files(command)
    assert {newer, others} < left
    assert (len(left), left & planned) == (3, set())
    assert rows(command) == before
    seen = command.contents()
    again = apply(command, path, "--json")
    assert again.code == 0
    assert again.json["tables"][0]["operations"][0]["summary"] == (
        "no files eligible for compaction; left 6 file(s) of the plan unchanged: they no longer exist, are already "
        "done, or are needed now"
    )
    assert statuses(Answer(0, json.dumps(again.json["tables"][0]), "")) == {
        "compact": ("skipped", "no files eligible for compaction")
    }
    assert command.contents() == seen


def test_detection_proposes_files_that_an_applied_plan_left(command: Command) -> None:
    table = command.table(appends=6)
    path, _ = save(command, "--operations", "compact")
    for _ in range(8):
        table.append(table.scan(limit=1).to_arrow())
    assert apply(command, path).code == 0
    assert [item["table"] for item in command("detect", "--json").json["proposals"]] == ["ns.t"]


def test_a_plan_expires_only_its_own_snapshots(command: Command) -> None:
    """Each append makes one more snapshot due (rule: apply-only-what-was-reviewed)."""
    table = command.table(appends=3, properties=OLD)
    planned = [snapshot.snapshot_id for snapshot in table.snapshots()[:2]]
    path, plan = save(command, "--operations", "expire_snapshots")
    (operation,) = plan["tables"][0]["operations"]
    assert operation["summary"].startswith("would expire 2 snapshot(s)")
    assert (operation["snapshots"], operation["refs"]) == (planned, [])
    table.append(table.scan(limit=1).to_arrow())
    before = rows(command)
    answer = apply(command, path, "--json")
    done = answer.json["tables"][0]["operations"][0]
    assert (answer.code, done["status"]) == (0, "succeeded")
    reported = "1 more snapshot has become due since the plan; save a new plan"
    assert done["summary"].startswith("expired 2 snapshot(s), deleted 2 unreferenced file(s)")
    assert reported in done["summary"]
    assert {*done["files"]["deleted"]} == {*operation["files"]}
    left = [snapshot.snapshot_id for snapshot in command.catalog.load_table("ns.t").snapshots()]
    assert (len(left), {*left} & {*planned}, rows(command)) == (2, set(), before)
    table.refresh()
    table.append(table.scan(limit=1).to_arrow())
    again = apply(command, path, "--json").json["tables"][0]["operations"][0]
    assert (again["status"], again["summary"].partition("; left")[0]) == (
        "skipped",
        f"no snapshots to expire; {reported}",  # the newest is younger than the plan
    )
    assert apply(command, save(command, "--operations", "expire_snapshots")[0]).code == 0
    assert len(command.catalog.load_table("ns.t").snapshots()) == 1


def test_a_plan_keeps_a_ref_that_became_due_after_it(tmp_path: Path) -> None:
    """A catalog drops a ref together with its snapshot, so an unreviewed tag would be lost."""
    settings: dict[str, Any] = {key: EAGER[key] for key in ("snapshot_retention_hours", "max_snapshots_to_keep")}
    with maintained_table(tmp_path) as made:
        made.create(properties={f"icekeeper.{key}": value for key, value in settings.items()})
        made.fill(4)
        oldest, tagged, third, head = (item.snapshot_id for item in made.table.snapshots())
        made.table.manage_snapshots().create_tag(oldest, "reviewed").set_current_snapshot(head).commit()
        made.rewrite_document(lambda document: document["refs"]["reviewed"].update({"max-ref-age-ms": 1}))
        saved, _ = made.runtime.plan_to_save(NAME, {"operations": "expire_snapshots"}, made.engine, unsafe=True)
        (operation,) = saved.operations
        assert (operation.snapshots, operation.refs) == ((oldest, tagged, third), ("reviewed",))
        made.table.manage_snapshots().create_tag(tagged, "late").commit()
        made.rewrite_document(lambda document: document["refs"]["late"].update({"max-ref-age-ms": 1}))
        (done,) = made.runtime.apply(saved, made.engine, unsafe=True).operations
        assert done.summary.startswith("expired 1 snapshot(s)")
        assert "2 more snapshots have become due since the plan; save a new plan" in done.summary
        assert made.metadata.snapshots.keys() == {oldest, tagged, head}
        assert made.metadata.refs.keys() == {"main", "late"}
        made.assert_sound()


def test_metadata_files_that_the_commits_of_a_plan_drop_wait_for_another_plan(tmp_path: Path) -> None:
    """Each commit drops a metadata file from the log; without a grace period it is an orphan at once."""
    log = {"write.metadata.previous-versions-max": "1"}
    with maintained_table(tmp_path) as made:
        made.create(properties={f"icekeeper.{key}": value for key, value in EAGER.items()} | log)
        made.fill(6)
        made.plant("data/orphan.parquet")
        settings = {"operations": "compact,expire_snapshots,remove_orphans"}
        saved, _ = made.runtime.plan_to_save(NAME, settings, made.engine, unsafe=True)
        planned = {*saved.operations[2].files}
        _, _, removal = made.runtime.apply(saved, made.engine, unsafe=True).operations
        assert removal.status is Status.SUCCEEDED
        assert {*removal.files_deleted} == planned
        assert "metadata file(s) that the plan does not name" in removal.summary
        made.assert_sound()


def test_ages_are_measured_at_the_time_of_the_plan(tmp_path: Path) -> None:
    """Two of four snapshots are older than the retention at that time; the others age before the pass."""
    settings: dict[str, Any] = {
        "operations": "expire_snapshots",
        "snapshot_retention_hours": "1",
        "max_snapshots_to_keep": "1",
    }
    with maintained_table(tmp_path) as made:
        made.create(properties={f"icekeeper.{key}": value for key, value in settings.items()})
        made.fill(4)

        def age(document: dict[str, Any]) -> None:
            for entry in (*document["snapshots"][:2], *document["snapshot-log"][:2]):
                entry["timestamp-ms"] -= 10 * HOUR_MS

        made.rewrite_document(age)
        saved, _ = made.runtime.plan_to_save(NAME, {}, made.engine)
        made.late_ms = 20 * HOUR_MS
        done = outcome_of(made.runtime.apply(saved, made.engine), Operation.EXPIRE_SNAPSHOTS)
        assert done.summary.startswith("expired 2 snapshot(s)")
        assert {*done.files_deleted} == {*saved.operations[0].files}
        later = outcome_of(made.maintain(**settings), Operation.EXPIRE_SNAPSHOTS)
        assert later.summary.startswith("expired 1 snapshot(s)")


def a_messy_table(made: MaintainedTable) -> None:
    """Create a table with position deletes, snapshots, manifests and an orphan."""
    create_by_region(made, 3)
    path = min(file.file_path for file in made.data_files() if file.partition == ("us",))
    for position in range(3):
        commit_deletes(made, [position_delete(path, position, "us")])
    made.plant("data/orphan.parquet")


def a_table_with_an_old_partition(made: MaintainedTable) -> None:
    made.create()
    with made.table.update_spec() as update:
        update.add_identity("part")
    for number in range(2):
        made.append(number, part="2020-01-01")
    made.append(2, part="2999-01-01")


OLD_PARTITIONS = {
    "operations": "all,expire_partitions",
    "partition_retention_hours": "24",
    "partition_time": "part=%Y-%m-%d",
}


@pytest.mark.parametrize(
    ("operation", "create", "settings"),
    [
        ("expire_partitions", a_table_with_an_old_partition, OLD_PARTITIONS),
        ("rewrite_position_deletes", a_messy_table, {}),
        ("expire_snapshots", a_messy_table, {}),
        ("remove_orphans", a_messy_table, {}),
        ("rewrite_manifests", a_messy_table, {}),
    ],
)
def test_every_operation_refuses_a_file_that_the_plan_does_not_name(
    tmp_path: Path, operation: str, create: Callable[[MaintainedTable], None], settings: dict[str, str]
) -> None:
    with maintained_table(tmp_path) as made:
        create(made)
        with made.table.transaction() as change:
            change.set_properties({f"icekeeper.{key}": value for key, value in {**EAGER, **settings}.items()})
        saved, _ = made.runtime.plan_to_save(NAME, {"operations": operation}, made.engine, unsafe=True)
        (planned,) = saved.operations
        assert planned.status == "succeeded", planned.summary
        seen = made.files()
        narrower = replace(saved, operations=(replace(planned, files=planned.files[:-1]),))
        (refused,) = made.runtime.apply(narrower, made.engine, unsafe=True).operations
        assert refused.status is Status.REFUSED
        assert f"change 1 file(s) that the plan does not name, such as {planned.files[-1]}" in refused.summary
        assert made.files() == seen
        (done,) = made.runtime.apply(saved, made.engine, unsafe=True).operations
        assert (done.status, {*done.files_planned}) == (Status.SUCCEEDED, {*planned.files})
        made.assert_sound()


def test_files_that_the_pass_itself_has_written_need_no_plan(tmp_path: Path) -> None:
    """The manifests of the compaction have no name when the plan is saved."""
    with maintained_table(tmp_path) as made:
        made.create(properties={f"icekeeper.{key}": value for key, value in EAGER.items()})
        with made.table.update_spec() as update:
            update.add_identity("part")
        made.fill(4, part="many")
        for number, part in enumerate(("one", "two", "three")):
            made.append(100 + number, part=part)
        saved, _ = made.runtime.plan_to_save(
            NAME, {"operations": "compact,rewrite_manifests"}, made.engine, unsafe=True
        )
        compaction, manifests = made.runtime.apply(saved, made.engine, unsafe=True).operations
        assert (compaction.status, manifests.status) == (Status.SUCCEEDED, Status.SUCCEEDED)
        own = {*manifests.files_planned} - {*saved.operations[1].files}
        assert (len(own), len(saved.operations[1].files)) == (2, 3)
        made.assert_sound()


def test_a_plan_is_applied_again_after_a_killed_pass(command: Command) -> None:
    """The second call skips the work that the first call committed, and accepts the files that it wrote."""
    command.table(appends=6, properties=OLD)
    path, plan = save(command, "--operations", "compact,expire_snapshots")
    with (
        mock.patch.object(expire_snapshots, "resume", side_effect=KeyboardInterrupt),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("signal.signal", lambda *_: None)
        assert apply(command, path).code == 130
    before = rows(command)
    answer = apply(command, path, "--json")
    (table,) = answer.json["tables"]
    assert [item["summary"].partition(";")[0].partition(",")[0] for item in table["operations"]] == [
        "no files eligible for compaction",
        "expired 6 snapshot(s)",
    ]
    planned = {*plan["tables"][0]["operations"][1]["files"]}
    assert {*table["operations"][1]["files"]["deleted"]} == planned
    assert (answer.code, rows(command), len(live_files(command))) == (0, before, 1)


def replaced(command: Command) -> None:
    command.catalog.drop_table("ns.t")
    command.table(appends=2)


def another_policy(command: Command) -> None:
    assert command("policy", "set", "ns.t", "min_input_files=3").code == 0


@pytest.mark.parametrize(
    ("change", "expected_message"),
    [
        (replaced, f"ns.t was replaced by another table since the plan was saved; {NEW_PLAN}"),
        (another_policy, f"the policy of ns.t has changed since the plan was saved; {NEW_PLAN}"),
    ],
)
def test_a_plan_for_a_changed_table_or_policy_is_refused(
    command: Command, change: Callable[[Command], None], expected_message: str
) -> None:
    command.table(appends=6)
    path, _ = save(command)
    change(command)
    seen = command.contents()
    answer = apply(command, path)
    assert (answer.code, one_sentence(answer.err)) == (1, expected_message)
    assert command.contents() == seen
    document = apply(command, path, "--json").json
    assert document["tables"] == [
        {
            "table": "ns.t",
            "catalog": "C",
            "status": "failed",
            "error": {"type": "PlanStale", "message": expected_message},
        }
    ]


def test_a_dropped_table_stops_no_other_table_of_the_plan(command: Command) -> None:
    command.table(appends=6)
    command.table("ns.u", appends=6)
    path, first = save(command)
    command("plan", "ns.u", *LOCAL, "--save", str(path))
    forge(path, lambda document: document["tables"].extend(first["tables"]))
    command.catalog.drop_table("ns.u")
    document = apply(command, path, "--json").json
    assert [(item["table"], item["status"]) for item in document["tables"]] == [
        ("ns.u", "failed"),
        ("ns.t", "succeeded"),
    ]
    assert document["status"] == "partial"
    answer = apply(command, path)
    assert (answer.code, "ns.u" in one_sentence(answer.err)) == (1, True)
    assert answer.out.startswith("ns.t: succeeded\n")


def looser(document: dict[str, Any]) -> None:
    document["tables"][0]["settings"] = {"snapshot_retention_hours": "0"}


def more_operations(document: dict[str, Any]) -> None:
    document["tables"][0]["settings"] = {"operations": "expire_partitions"}


def another_branch(document: dict[str, Any]) -> None:
    document["tables"][0]["settings"] = {"branch": "audit"}


def without_grace(document: dict[str, Any]) -> None:
    document["tables"][0]["settings"] = {"orphan_older_than_hours": "0"}


def test_a_changed_plan_cannot_exceed_the_policy(command: Command) -> None:
    command.table(appends=6)
    path, plan = save(command)
    assert plan["tables"][0]["planned_ms"] <= plan["saved_ms"]
    seen = command.contents()
    for change, sentence in (
        (looser, "a saved plan for ns.t cannot set snapshot_retention_hours to 0, where the policy has 168"),
        (more_operations, "a saved plan for ns.t cannot ask for expire_partitions, which the policy does not have"),
        (another_branch, "branch"),
        (without_grace, "policy key orphan_older_than_hours is 0"),
    ):
        save(command)
        forge(path, change, is_sealed=False)
        answer = apply(command, path)
        assert (answer.code, "was changed after it was saved; save a new plan" in one_sentence(answer.err)) == (2, True)
        save(command)
        forge(path, change)
        answer = apply(command, path)
        assert (answer.code, sentence in one_sentence(answer.err)) == (1, True), answer.err
        assert command.contents() == seen

    # Ages are measured at the time of the plan: a future time would make more files old enough to delete.
    def ahead(document: dict[str, Any]) -> None:
        document["tables"][0]["planned_ms"] = document["saved_ms"] + 1

    save(command)
    forge(path, ahead)
    answer = apply(command, path)
    sentence = (
        f"{path} has a plan for ns.t whose time is after the time at which it was saved; save a new plan with "
        "icekeeper plan --save"
    )
    assert (answer.code, one_sentence(answer.err)) == (2, sentence)
    missing = command.folder / "none" / "plan.json"
    answer = command("plan", "ns.t", *LOCAL, "--save", str(missing))
    sentence = f"--save {missing} cannot be written: No such file or directory; choose another file"
    assert (answer.code, one_sentence(answer.err)) == (2, sentence)


def test_only_its_owner_can_read_a_plan_and_it_has_no_secret(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan names every file (rule: state-is-private)."""
    secrets = {"S3__SECRET_ACCESS_KEY": "kept-secret-1", "TOKEN": "kept-secret-2", "CREDENTIAL": "kept-secret-3"}
    for key, value in secrets.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__C__{key}", value)
    command.table(appends=6, properties={"s3.secret-access-key": "kept-secret-4", "note": "kept-secret-5"})
    before = os.umask(0o022)
    try:
        path, plan = save(command)
        command("detect")
        page = command.folder / "page.html"
        page.write_text("a page that others could read")
        assert command("report", "--output", str(page)).code == 0
    finally:
        os.umask(before)
    assert [stat.filemode(item.stat().st_mode) for item in (path, page)] == ["-rw-------", "-rw-------"]
    assert "kept-secret" not in path.read_text()
    assert plan.keys() == {"version", "saved_ms", "tables", "repairs", "digest"}
    assert read_plan(path.read_bytes(), "it").tables[0].table == "ns.t"


def test_files_that_are_added_to_a_plan_are_not_deleted(command: Command) -> None:
    """The policy selects the files; the list in the plan only narrows the selection."""
    command.table(appends=6)
    path, _ = save(command, "--operations", "compact,remove_orphans")
    live = sorted(live_files(command))

    def add(document: dict[str, Any]) -> None:
        document["tables"][0]["operations"][1]["files"] = live

    forge(path, add)
    before = rows(command)
    answer = apply(command, path, "--json")
    assert (answer.code, rows(command)) == (0, before)
    assert answer.json["tables"][0]["operations"][1]["files"] == {"planned": [], "deleted": []}


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("", "is not a saved plan; save a new plan with icekeeper plan --save"),
        ("[]", "is not a saved plan; save a new plan with icekeeper plan --save"),
        ('{"version": "0.1.0", "saved_ms": 1, "tables": [{}], "digest": ""}', "is not a saved plan"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_plan_is_a_usage_error(command: Command, text: str | None, expected_message: str) -> None:
    path = command.folder / "plan.json"
    if text is not None:
        path.write_text(text)
    answer = apply(command, path)
    assert (answer.code, expected_message in one_sentence(answer.err)) == (2, True), answer.err


@pytest.mark.parametrize(
    ("version", "now_ms", "expected_message"),
    [
        ("0.2.0", 0, f"the plan was saved by Icekeeper 0.1.0, but this is 0.2.0; {NEW_PLAN}"),
        ("0.1.0", 24 * HOUR_MS + 1, f"the plan was saved at 1970-01-01T00:00:00Z, more than 24 hours ago; {NEW_PLAN}"),
        (
            "0.1.0",
            -6 * 60_000,
            "the plan was saved at 1970-01-01T00:00:00Z, which is in the future by this machine's clock",
        ),
    ],
)
def test_a_plan_is_valid_for_a_day_and_for_its_version(version: str, now_ms: int, expected_message: str) -> None:
    plan = SavedPlan(version="0.1.0", saved_ms=0)
    plan.require("0.1.0", 24 * HOUR_MS)
    with pytest.raises(PlanStale, match=expected_message.replace("(", r"\(")):
        plan.require(version, now_ms)


# Exit codes of dry runs, warnings, and freed bytes.

DRY = ("maintain", "ns.t", *LOCAL, "--dry-run", "--exit-code")


def test_the_exit_code_of_a_dry_run_shows_whether_work_is_due(command: Command) -> None:
    command.table(appends=6)
    assert command(*DRY).code == 3
    assert command("maintain", "ns.t", *LOCAL).code == 0
    assert command(*DRY).code == 0
    (document,) = (Path(path.removeprefix("file://")) for _, path in command.pointers())
    document.write_text("{}")
    assert command(*DRY).code == 1
    wrong = command("maintain", "ns.t", "--exit-code")
    assert (wrong.code, one_sentence(wrong.err)) == (2, "--exit-code reports what a dry run found; add --dry-run")


def test_a_short_retention_on_the_command_line_needs_unsafe(command: Command) -> None:
    command.table(appends=2)
    for verb in ("plan", "maintain"):
        short = (verb, "ns.t", *LOCAL, "--set", "snapshot_retention_hours=23.5")
        answer = command(*short)
        sentence = "snapshot_retention_hours=23.5 is below 24: running readers could lose their snapshot"
        assert (answer.code, one_sentence(answer.err)) == (2, f"{sentence}; icekeeper maintain --unsafe allows it")
        assert command(*short, "--unsafe").code == 0
        assert command(verb, "ns.t", *LOCAL, "--set", "snapshot_retention_hours=24").code == 0


def test_a_short_retention_of_a_policy_is_a_warning(command: Command) -> None:
    command.table(appends=2, properties=OLD)
    source = "table property icekeeper.snapshot_retention_hours"
    reported = f"snapshot_retention_hours is 0 ({source}), below 24: running readers could lose their snapshot"
    assert reported in command("plan", "ns.t", *LOCAL, "--json").json["warnings"]
    assert reported in command("policy", "show", "ns.t").out
    assert "warnings" not in command("maintain", "ns.t", *LOCAL, "--json").json


def test_a_pass_reports_freed_bytes_and_the_oldest_readable_state(command: Command) -> None:
    table = command.table(appends=4, properties=OLD)
    newest = table.current_snapshot()
    assert newest is not None
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(newest.timestamp_ms // 1000))
    ask = ("maintain", "ns.t", *LOCAL, "--operations", "expire_snapshots")
    sizes = {path: path.stat().st_size for path in command.warehouse.rglob("*") if path.is_file()}
    assert f"; the oldest state that can be read then is of {at}\n" in command(*ask, "--dry-run").out
    answer = command(*ask, "--json")
    gone = {path: size for path, size in sizes.items() if not path.exists()}
    metrics = answer.json["metrics"]
    assert metrics["expire_snapshots.bytes_freed"] == sum(gone.values()) > 0
    assert metrics["expire_snapshots.oldest_readable_ms"] == newest.timestamp_ms
    assert f"; the oldest state that can be read is of {at}\n" in answer.err
    orphan = command.warehouse / "ns" / "t" / "data" / "orphan.parquet"
    orphan.write_bytes(bytes(3000))
    swept = command(
        "maintain", "ns.t", *LOCAL, "--operations", "remove_orphans", "--unsafe", "--set", "orphan_older_than_hours=0"
    )
    assert "freed 2.9 KB\n" in swept.out
