"""Settings in table properties: set, unset, reset, and checked against the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.settings import reset_settings, set_settings, unset_settings
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import CommitRefused, CommitStateUnknown, PolicyError, StorageError, TableUnsupported
from icekeeper.machine.clock import system_clock
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import POLICY_KEYS, ResolvedPolicy, layers_for, resolve
from support.command import Command, one_sentence
from support.maintained_table import NAME, MaintainedTable, new_table
from support.scripted_catalog import ScriptedCatalog, once

# ``icekeeper policy set``, ``unset`` and ``reset``.


def settings_of(command: Command) -> dict[str, str]:
    """The table's own properties, as another client of the catalog reads them."""
    properties = command.catalog.load_table("ns.t").properties
    return {name: value for name, value in properties.items() if name.startswith(("icekeeper.", "write.", "owner"))}


def test_settings_are_set_in_one_commit_and_shown(command: Command) -> None:
    command.table(appends=1, properties={"owner": "me"})
    commits = len(command.catalog.load_table("ns.t").metadata.metadata_log)
    answer = command(
        *("policy", "set", "ns.t", "min_input_files=10", "max_snapshots_to_keep = 3", "--set", "strategy=binpack"),
        "--json",
    )
    assert answer.code == 0
    assert list(answer.json) == ["table", "catalog", "status", "changes", "policy"]
    assert tuple(answer.json["policy"]) == POLICY_KEYS
    assert {k: v for k, v in answer.json["policy"].items() if v["source"] != "default"} == {
        "min_input_files": {"value": 10, "source": "table property icekeeper.min_input_files"},
        "max_snapshots_to_keep": {"value": 3, "source": "table property icekeeper.max_snapshots_to_keep"},
        "strategy": {"value": "binpack", "source": "table property icekeeper.strategy"},
    }
    assert settings_of(command) == {
        "owner": "me",
        "icekeeper.min_input_files": "10",
        "icekeeper.max_snapshots_to_keep": "3",
        "icekeeper.strategy": "binpack",
    }
    assert len(command.catalog.load_table("ns.t").metadata.metadata_log) == commits + 1
    assert command("policy", "show", "ns.t", "--json").json["policy"] == answer.json["policy"]
    before = command.contents()
    for call in (("set", "ns.t", "min_input_files=10"), ("unset", "ns.t", "proof")):  # it has these settings already
        assert command("policy", *call).code == 0
        assert command.contents() == before


def test_settings_are_unset_and_reset(command: Command) -> None:
    command.table(
        appends=1,
        properties={
            "write.target-file-size-bytes": "1048576",
            "owner": "me",
            "icekeeper.min_input_files": "10",
            "icekeeper.strategy": "binpack",
            "icekeeper.target_file_size_mb": "2",
        },
    )
    answer = command("policy", "unset", "ns.t", "min_input_files", "target_file_size_mb", "--json")
    assert answer.code == 0
    assert {k: v for k, v in answer.json["policy"].items() if v["source"] != "default"} == {
        "target_file_size_mb": {"value": 1, "source": "table property write.target-file-size-bytes"},
        "strategy": {"value": "binpack", "source": "table property icekeeper.strategy"},
    }
    answer = command("policy", "reset", "ns.t", "--json")
    assert answer.code == 0
    assert settings_of(command) == {"write.target-file-size-bytes": "1048576", "owner": "me"}
    assert [k for k, v in answer.json["policy"].items() if v["source"] != "default"] == ["target_file_size_mb"]
    assert command("policy", "reset", "ns.t").code == 0


WRONG = {
    "nothing": (("set", "ns.t"), "policy set takes one or more settings as KEY=VALUE, for example min_input_files=10"),
    "no value": (("set", "ns.t", "min_input_files"), "a setting is KEY=VALUE, not 'min_input_files'"),
    "unknown key": (
        ("set", "ns.t", "strategy=sort", "min_input_file=3"),
        "unknown policy key 'min_input_file' (from table property icekeeper.min_input_file) "
        "(did you mean 'min_input_files'?)",
    ),
    "malformed value": (
        ("set", "ns.t", "min_input_files=1"),
        "policy key min_input_files cannot be '1' (from table property icekeeper.min_input_files)",
    ),
    "contradiction left behind": (
        ("unset", "ns.t", "target_file_size_mb"),
        "max_file_group_size_mb 100 (from table property icekeeper.max_file_group_size_mb) contradicts "
        "target_file_size_mb 256",
    ),
    "short grace": (
        ("set", "ns.t", "orphan_older_than_hours=1"),
        "policy key orphan_older_than_hours cannot be '1' (from table property icekeeper.orphan_older_than_hours): "
        "orphan_older_than_hours is 72 (default), and a table may only tighten it (higher); "
        "ICEKEEPER_TABLE_SETTINGS=default,orphan_older_than_hours (TableSettings of the stack) lets tables set it",
    ),
    "below a bound": (
        ("set", "ns.t", "snapshot_retention_hours=5"),
        "policy key snapshot_retention_hours cannot be '5' (from table property icekeeper.snapshot_retention_hours): "
        "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS keeps it at 24",
    ),
    "unset of no key": (("unset", "ns.t", "nope"), "unknown policy key 'nope', and ns.t has no table property"),
    "no such table": (("reset", "ns.nope"), "there is no table ns.nope in catalog C"),
}


def test_a_wrong_policy_is_not_written(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS", "24")
    kept = {"min_input_files": "9", "max_file_group_size_mb": "100", "target_file_size_mb": "64"}
    command.table(appends=1, properties={f"icekeeper.{key}": value for key, value in kept.items()})
    before = command.contents()
    for what, (call, sentence) in WRONG.items():
        answer = command("policy", *call)
        assert (answer.code, answer.out) == (2, ""), what
        assert one_sentence(answer.err).startswith(sentence), what
        assert command.contents() == before, what


def test_a_value_that_a_bound_allows_is_set_beside_a_bounded_value(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS", "200")  # above the default
    command.table(appends=1)
    assert command("policy", "set", "ns.t", "min_input_files=3").code == 0
    assert command("policy", "set", "ns.t", "snapshot_retention_hours=200").code == 0


def test_a_misspelt_property_can_be_unset(command: Command) -> None:
    command.table(appends=1, properties={"icekeeper.min_input_file": "3", "icekeeper.nope": "3"})
    assert command("policy", "show", "ns.t").code == 2
    assert command("policy", "unset", "ns.t", "min_input_file").code == 2  # the other misspelt property would be left
    assert command("policy", "unset", "ns.t", "min_input_file", "nope").out.splitlines() == [
        "ns.t: min_input_file: 3 (table property icekeeper.min_input_file) → not set",
        "ns.t: nope: 3 (table property icekeeper.nope) → not set",
    ]
    assert settings_of(command) == {}


def test_unsafe_allows_a_short_grace_period(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEKEEPER_TABLE_SETTINGS", "default,orphan_older_than_hours")
    command.table(appends=1)
    assert command("policy", "set", "ns.t", "orphan_older_than_hours=1", "--unsafe").code == 0
    assert command("policy", "reset", "ns.t").code == 0


def test_ignored_settings_are_shown_with_the_reason(command: Command) -> None:
    properties = {"icekeeper.orphan_max_missing_ratio": "soon", "icekeeper.orphan_sweep_prefixes": "s3://victim"}
    command.table(appends=1, properties=properties)
    why = "only the deployment, a policy file or the call can set it"
    shown = command("policy", "show", "ns.t", "--json").json
    assert [item["key"] for item in shown["ignored"]] == ["orphan_max_missing_ratio", "orphan_sweep_prefixes"]
    assert shown["ignored"][1] == {
        "key": "orphan_sweep_prefixes",
        "source": "table property icekeeper.orphan_sweep_prefixes",
        "value": "s3://victim",
        "why": why,
    }
    assert shown["policy"]["orphan_max_missing_ratio"]["source"] == "default"
    reported = f"table property icekeeper.orphan_sweep_prefixes 's3://victim' is ignored: {why}"
    assert command("policy", "show", "ns.t").out.splitlines()[-2] == reported
    assert command("policy", "set", "ns.t", "min_input_files=3").code == 0  # other settings can be set beside them
    assert command("maintain", "ns.t", "--json").code == 0


# -- races


def handle_of(table: MaintainedTable, catalog: Catalog) -> TableHandle:
    return TableHandle(catalog, NAME, table.state, system_clock, table.waits.append)


def policy_of(loaded: LoadedTable) -> ResolvedPolicy:
    return resolve(layers_for(loaded.metadata.properties, {}, {}))


def properties_of(table: MaintainedTable) -> dict[str, str]:
    return {k: v for k, v in table.metadata.properties.items() if k.startswith("icekeeper.") or k == "owner"}


def change(table: MaintainedTable, **properties: str) -> None:
    with table.table.transaction() as transaction:
        transaction.set_properties({name.replace("__", "."): value for name, value in properties.items()})


def test_concurrent_changes_of_other_properties_are_kept(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)
    change(table, icekeeper__strategy="binpack")
    racing = ScriptedCatalog(table.catalog, before_commit=once(lambda: change(table, owner="me")))
    resolved = set_settings(handle_of(table, racing), {"min_input_files": "9"}, policy_of)
    assert (resolved.policy.min_input_files, racing.commits) == (9, 2)
    racing = ScriptedCatalog(table.catalog, before_commit=once(lambda: change(table, icekeeper__proof="full")))
    reset_settings(handle_of(table, racing), policy_of)
    assert properties_of(table) == {"owner": "me"}


def test_the_policy_is_checked_again_on_every_new_head(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)
    racing = ScriptedCatalog(
        table.catalog, before_commit=once(lambda: change(table, icekeeper__max_snapshots_to_keep="9"))
    )
    with pytest.raises(PolicyError, match=r"snapshot_retain_max 8 .* contradicts max_snapshots_to_keep 9"):
        set_settings(handle_of(table, racing), {"snapshot_retain_max": "8"}, policy_of)
    assert properties_of(table) == {"icekeeper.max_snapshots_to_keep": "9"}


def test_after_a_lost_answer_the_table_is_read_again(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)

    def answer_lost() -> None:
        raise CommitStateUnknown("no answer")

    deaf = ScriptedCatalog(table.catalog, after_commit=answer_lost)
    set_settings(handle_of(table, deaf), {"min_input_files": "9"}, policy_of)
    assert properties_of(table) == {"icekeeper.min_input_files": "9"}
    unset_settings(handle_of(table, deaf), ["min_input_files"], policy_of)
    assert (properties_of(table), deaf.commits) == ({}, 2)


def test_a_change_of_settings_requires_the_uuid_of_the_table(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)
    seen: list[object] = []

    class Watched(ScriptedCatalog):
        def commit(self, base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
            seen.append((list(requirements), list(updates)))
            return super().commit(base, requirements, updates)

    set_settings(handle_of(table, Watched(table.catalog)), {"min_input_files": "9"}, policy_of)
    assert seen == [
        (
            [{"type": "assert-table-uuid", "uuid": table.metadata.uuid}],
            [{"action": "set-properties", "updates": {"icekeeper.min_input_files": "9"}}],
        )
    ]


def test_a_table_of_a_newer_format_is_not_changed(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)
    table.rewrite_document(lambda document: document.update({"format-version": 4}))
    with pytest.raises(TableUnsupported, match="format version 4 is not maintained"):
        set_settings(handle_of(table, table.catalog), {"min_input_files": "9"}, policy_of)


def test_a_refused_change_leaves_no_document_behind(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """The catalog keeps the document until the refusal is certain."""
    table = new_table(local_catalog, tmp_path)

    class Refusing(ScriptedCatalog):
        def commit(self, base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
            document = base.metadata_location.replace("00000-", "00001-")
            table.storage.write(document, b"{}")
            raise CommitRefused("not on a Sunday", left=(document,))

    with pytest.raises(StorageError, match="not on a Sunday"):
        set_settings(handle_of(table, Refusing(table.catalog)), {"min_input_files": "7"}, policy_of)
    assert len(list(tmp_path.rglob("*.metadata.json"))) == 1
    assert len(table.waits) == 3


# Settings must fit their table; a change reports the old and the new value.

MISFITS = {
    "unknown column of an order": (
        ("strategy=sort", "sort_order=idd"),
        "sort_order names column 'idd', which does not exist in the table or cannot be sorted (did you mean 'id'?)",
    ),
    "no order to sort by": (("strategy=sort",), "strategy sort needs an order and the table has none"),
    "unknown column of a z-order": (("strategy=zorder", "sort_order=id,nam"), "sort_order names column 'nam'"),
    "unknown column of a filter": (("where=idd > 3",), "policy key where cannot be 'idd > 3': the table has no column"),
    "unknown branch": (("branch=audit",), "policy key branch names 'audit', which is not a branch of this table"),
    "unknown column of statistics": (("statistics_columns=nope",), "policy key statistics_columns names 'nope'"),
    "unknown snapshot": (("snapshot_expire_ids=7",), "policy key snapshot_expire_ids names 7, which is not a snapshot"),
}


def test_a_setting_that_does_not_fit_the_table_is_refused(command: Command) -> None:
    command.table(appends=1)
    before = command.contents()
    for settings, sentence in MISFITS.values():
        answer = command("policy", "set", "ns.t", *settings)
        assert (answer.code, answer.out) == (2, "")
        assert one_sentence(answer.err).startswith(sentence)
        assert command.contents() == before


def test_a_change_is_reported_with_the_old_and_the_new_value(command: Command) -> None:
    command.table(appends=1)
    source = "table property icekeeper.min_input_files"
    answer = command("policy", "set", "ns.t", "min_input_files=9", "--json")
    change = {
        "key": "min_input_files",
        "before": {"value": 5, "source": "default"},
        "after": {"value": 9, "source": source},
    }
    assert (answer.code, answer.json["changes"]) == (0, [change])
    assert answer.err == f"ns.t: min_input_files: 5 (default) → 9 ({source})\n"
    assert command("policy", "set", "ns.t", "min_input_files=9").out == (
        "ns.t: nothing changed, it already had these settings\n"
    )
    assert command("policy", "unset", "ns.t", "min_input_files").out == (
        f"ns.t: min_input_files: 9 ({source}) → 5 (default)\n"
    )


WITH_UNITS = {
    "snapshot_retention_hours=30d": "it is a plain number of hours; write 720",
    "partition_rest_hours=90 min": "it is a plain number of hours; write 1.5",
    "target_file_size_mb=256MB": "it is a plain number of MB (2^20 bytes); write 256",
    "max_file_group_size_mb=10gb": "it is a plain number of MB (2^20 bytes); write 10240",
    "max_bytes_to_rewrite=1GiB": "it is a plain number of bytes; write 1073741824",
    "snapshot_retention_hours=1s": "write a number, for example 1.5",  # no finite decimal
    "target_file_size_mb=3d": "write a number, for example 1.5",
    "max_snapshots_to_keep=3d": "input should be a valid integer, unable to parse string as an integer",
}


def test_an_amount_with_a_unit_is_refused_with_the_number_to_write(command: Command) -> None:
    command.table(appends=0)
    for setting, sentence in WITH_UNITS.items():
        key, _, value = setting.partition("=")
        answer = command("policy", "set", "ns.t", setting)
        assert answer.code == 2
        source = f"table property icekeeper.{key}"
        assert one_sentence(answer.err) == f"policy key {key} cannot be '{value}' (from {source}): {sentence}"
