"""What ``icekeeper maintain`` skips, refuses or fails, and what that means for the rest of the pass."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.cli import main
from support.command import LOCAL, PASS, Command, arguments_of, local_path, one_sentence, statuses
from support.proxies import closed_port


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("set", "--set"),
        ("property", "table property icekeeper.maintenance_enabled"),
        ("environment", "deployment ICEKEEPER_MAINTENANCE_ENABLED"),
        ("bound", "bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED"),
    ],
)
def test_disabled_maintenance_skips_everything(
    command: Command, monkeypatch: pytest.MonkeyPatch, source: str, named: str
) -> None:
    properties = {"icekeeper.maintenance_enabled": "false"} if source == "property" else {}
    command.table(properties=properties)
    if source in ("environment", "bound"):
        prefix = "ICEKEEPER_" if source == "environment" else "ICEKEEPER_BOUND_"
        monkeypatch.setenv(f"{prefix}MAINTENANCE_ENABLED", "false")
    # A bound holds whatever the call asks for.
    extra = {"set": ("--set", "maintenance_enabled=false"), "bound": ("--set", "maintenance_enabled=true")}
    before = command.contents()
    answer = command(*PASS, "--json", *extra.get(source, ()))
    assert answer.code == 0
    assert answer.json["status"] == "succeeded"
    assert set(statuses(answer).values()) == {("skipped", f"maintenance is disabled ({named})")}
    assert command.contents() == before


def test_a_switch_skips_its_operation_alone(command: Command) -> None:
    command.table()
    answer = command(*PASS, "--json", "--dry-run", *arguments_of({"snapshot_expiry_enabled": "false"}))
    assert statuses(answer)["expire_snapshots"] == ("skipped", "snapshot_expiry_enabled is false (--set)")
    assert [status for status, _ in statuses(answer).values()].count("succeeded") == 3


def test_gc_disabled_skips_what_deletes(command: Command) -> None:
    command.table(properties={"gc.enabled": "false"})
    answer = command(*PASS, "--json")
    assert answer.code == 0
    told = "gc.enabled is false: this table's files must not be deleted"
    assert statuses(answer)["expire_snapshots"] == statuses(answer)["remove_orphans"] == ("skipped", told)
    assert statuses(answer)["compact"] == ("succeeded", None)


def test_a_table_of_a_newer_format_is_refused_by_every_operation(command: Command) -> None:
    metadata = local_path(command.table().metadata_location)
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": 4}))
    before = command.contents()
    answer = command(*PASS, "--json")
    told = "format version 4 is not maintained by this version of Icekeeper; the table was left alone"
    assert answer.code == 1
    assert answer.json["status"] == "partial"
    assert set(statuses(answer).values()) == {("refused", told)}
    assert answer.err.splitlines()[-1].startswith("error: ns.t: compact refused, ")
    assert command.contents() == before
    detection = command("detect", "--json", "--unsafe")
    assert (detection.code, detection.json["proposals"]) == (0, [])


def test_one_operation_that_is_refused_does_not_stop_the_next(command: Command) -> None:
    """A stray metadata file of another table: the orphan sweep refuses, the rest is done."""
    table, other = command.table(), command.table("ns.other", appends=1)
    stray = local_path(table.location()) / "metadata" / "00000-of-another.metadata.json"
    stray.write_bytes(local_path(other.metadata_location).read_bytes())
    answer = command(*PASS, "--json")
    assert answer.code == 1
    assert answer.json["status"] == "partial"
    told = [status for status, _ in statuses(answer).values()]
    assert told == ["succeeded", "skipped", "succeeded", "refused", "skipped"]
    reason = statuses(answer)["remove_orphans"][1]
    assert reason is not None
    assert f"{stray.as_uri()} belongs to another table" in reason
    assert "counts only from the deployment, a policy file or --set; or, if the table was dropped" in reason
    assert answer.err.splitlines()[-1] == f"error: ns.t: remove_orphans refused: {reason}"
    assert stray.exists()


def test_a_table_at_the_place_of_a_dropped_one_is_not_swept_until_somebody_says_so(command: Command) -> None:
    """PyIceberg's default location is the same again; detection tells it once, and proposes no sweep each hour."""
    first = command.table(appends=2)
    command.catalog.drop_table("ns.t")
    table = command.table(appends=2)
    assert table.location() == first.location()
    left = {path for path in command.contents() if path.startswith("/")}
    answer = command(*PASS, "--json", "--operations", "remove_orphans")
    status, reason = statuses(answer)["remove_orphans"]
    assert (answer.code, status) == (0, "skipped")
    assert f"belongs to a table that was dropped (UUID {first.metadata.table_uuid})" in str(reason)
    assert left <= command.contents().keys()
    for _ in range(2):
        kinds = [one["kind"] for one in command("health", "ns.t", "--json").json["warnings"]]
        assert kinds.count("former_table") == 1
    detected = command("detect", "--json", "--unsafe").json
    assert not [one for one in detected["proposals"] if "orphans" in " ".join(one["reasons"])]
    metadata = local_path(table.location()) / "metadata"
    ours = {local_path(entry.metadata_file) for entry in table.metadata.metadata_log}
    theirs = {*metadata.glob("*.metadata.json")} - ours - {local_path(table.metadata_location)}
    named = ",".join(sorted(path.as_uri() for path in theirs))
    swept = command(
        *PASS,
        "--json",
        "--operations",
        "remove_orphans",
        "--set",
        f"orphan_protected_prefixes={named}",
        "--set",
        "orphan_max_delete_ratio=1",
    )
    assert statuses(swept)["remove_orphans"][0] == "succeeded"
    assert swept.json["operations"][0]["metrics"]["remove_orphans.orphans_removed"] == 6
    assert [one["kind"] for one in command("health", "ns.t", "--json").json["warnings"]].count("former_table") == 0


def test_a_pass_that_only_failed_is_failed(command: Command) -> None:
    table = command.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    local_path(snapshot.manifest_list).unlink()
    before = command.contents()
    answer = command(*PASS, "--json", "--operations", "compact,rewrite_manifests")
    assert (answer.code, answer.json["status"]) == (1, "failed")
    assert {status for status, _ in statuses(answer).values()} == {"failed"}
    assert command.contents() == before


def test_a_store_that_does_not_answer_fails_soon(
    table_bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The catalog answers, the bucket does not."""
    catalog = load_catalog("far", **table_bucket)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "state.db"))
    with closed_port() as endpoint:
        for key, value in {**table_bucket, "s3.endpoint": endpoint}.items():
            variable = key.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__FAR__{variable}", value)
        for arguments in (["maintain", "ns.t", *LOCAL], ["verify", "ns.t"]):
            started = time.monotonic()
            assert main([*arguments, "--catalog", "far"]) == 1
            assert time.monotonic() - started < 15
            captured = capsys.readouterr()
            assert f"nothing answers at {endpoint}" in one_sentence(captured.err)
    assert table.refresh().metadata.snapshots == table.metadata.snapshots
