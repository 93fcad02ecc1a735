"""Settings kept with a table must fit it; what a change changed is told, from what to what."""

from __future__ import annotations

import pytest

from support.command import Command, one_sentence

MISFITS = {
    "unknown column of an order": (
        ("strategy=sort", "sort_order=idd"),
        "sort_order names column 'idd', which the table does not have or which has no order (did you mean 'id'?)",
    ),
    "no order to sort by": (("strategy=sort",), "strategy sort needs an order and the table has none"),
    "unknown column of a z-order": (("strategy=zorder", "zorder_columns=id,nam"), "zorder_columns names column 'nam'"),
    "unknown column of a filter": (("where=idd > 3",), "policy key where cannot be 'idd > 3': the table has no column"),
    "unknown branch": (("branch=audit",), "policy key branch names 'audit', which is no branch of this table"),
    "unknown column of statistics": (("statistics_columns=nope",), "policy key statistics_columns names 'nope'"),
    "unknown snapshot": (("snapshot_expire_ids=7",), "policy key snapshot_expire_ids names 7, which is no snapshot"),
}


@pytest.mark.parametrize(("settings", "sentence"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_the_table_is_refused_when_it_is_set(
    command: Command, settings: tuple[str, ...], sentence: str
) -> None:
    command.table(appends=1)
    before = command.contents()
    answer = command("policy", "set", "ns.t", *settings)
    assert (answer.code, answer.out) == (2, "")
    assert one_sentence(answer.err).startswith(sentence)
    assert command.contents() == before


NIGHTLY = (
    "schedules.nightly.interval=24h",
    "schedules.nightly.strategy=zorder",
    "schedules.nightly.zorder_columns=id,name",
)
HOURLY = ("schedules.hourly.interval=1h", "schedules.hourly.operations=compact")
TODAY = "schedules.hourly.where=id > 5"


@pytest.mark.parametrize(
    ("hourly", "is_refused"),
    [
        (("schedules.hourly.sort_order=id",), True),
        (("schedules.hourly.sort_order=id", TODAY), True),  # the night takes these, too
        (("schedules.hourly.sort_order=id", TODAY, "schedules.nightly.where=id <= 5"), False),
        (("schedules.hourly.sort_order=id", "schedules.hourly.rewrite_enabled=false"), False),
        (("schedules.hourly.strategy=zorder", "schedules.hourly.zorder_columns=id,name"), False),  # the same
        (("schedules.hourly.strategy=binpack",), False),
        ((), False),
    ],
)
def test_schedules_that_must_undo_each_other_are_refused(
    command: Command, hourly: tuple[str, ...], *, is_refused: bool
) -> None:
    """Each turn would rewrite all that the other wrote (rule 237); one that only merges leaves it."""
    command.table(appends=1)
    answer = command("policy", "set", "ns.t", *NIGHTLY, *HOURLY, *hourly)
    assert answer.code == (2 if is_refused else 0)
    if is_refused:
        assert one_sentence(answer.err).startswith(
            "schedules hourly and nightly would rewrite the same files at every turn: hourly has strategy=auto "
            "sort_order=id target_file_size_mb=256, nightly has strategy=zorder zorder_columns=id,name "
            "target_file_size_mb=256; set"
        )


def test_what_has_come_to_misfit_is_told_by_health_and_can_be_taken_away(command: Command) -> None:
    table = command.table(appends=1, properties={"icekeeper.sort_order": "name", "icekeeper.strategy": "sort"})
    assert command("policy", "set", "ns.t", "min_input_files=3").code == 0
    with table.update_schema() as update:
        update.rename_column("name", "label")
    (warning,) = command("health", "ns.t", "--json").json["warnings"]
    assert warning["kind"] == "wrong_settings"
    assert "sort_order names column 'name'" in warning["message"]
    assert command("policy", "unset", "ns.t", "strategy", "sort_order").code == 0
    assert command("health", "ns.t", "--json").json["warnings"] == []


def test_a_change_is_told_from_what_to_what(command: Command) -> None:
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
        "ns.t: nothing changed, its settings were so already\n"
    )
    assert command("policy", "unset", "ns.t", "min_input_files").out == (
        f"ns.t: min_input_files: 9 ({source}) → 5 (default)\n"
    )


def test_changes_of_schedules_are_told_and_later_ones_claim_no_loss(command: Command) -> None:
    command.table(appends=1)
    prefix = "icekeeper.schedules.nightly"
    said = ("schedules.nightly.interval=24h", "schedules.nightly.operations=compact")
    assert command("policy", "set", "ns.t", *said).out.splitlines() == [
        f"ns.t: schedules.nightly.interval: not set → 24h (table property {prefix}.interval)",
        f"ns.t: schedules.nightly.operations: not set → compact (table property {prefix}.operations)",
    ]
    assert command("policy", "set", "ns.t", *said).out == "ns.t: nothing changed, its settings were so already\n"
    other = command("policy", "set", "ns.t", "min_input_files=9")
    assert other.out == "ns.t: min_input_files: 5 (default) → 9 (table property icekeeper.min_input_files)\n"
    assert command("policy", "set", "ns.t", "schedules.nightly.interval=12h").out == (
        f"ns.t: schedules.nightly.interval: 24h (table property {prefix}.interval) → "
        f"12h (table property {prefix}.interval)\n"
    )
    gone = command("policy", "unset", "ns.t", "schedules.nightly.interval", "schedules.nightly.operations", "--json")
    assert [(change["key"], change["after"]) for change in gone.json["changes"]] == [
        ("schedules.nightly.interval", None),
        ("schedules.nightly.operations", None),
    ]


def test_schedules_that_stay_are_no_change_where_wrong_settings_are_mended(command: Command) -> None:
    scheduled = {"icekeeper.schedules.nightly.interval": "24h", "icekeeper.min_input_files": "1"}
    command.table(appends=1, properties=scheduled)
    assert command("policy", "set", "ns.t", "min_input_files=3", "schedules.nightly.operations=compact").out == (
        "ns.t: min_input_files: 1 (table property icekeeper.min_input_files) → "
        "3 (table property icekeeper.min_input_files)\n"
        "ns.t: schedules.nightly.operations: not set → compact (table property "
        "icekeeper.schedules.nightly.operations)\n"
    )


def test_the_mending_of_wrong_settings_is_told(command: Command) -> None:
    command.table(appends=1, properties={"icekeeper.min_input_file": "3", "icekeeper.min_input_files": "1"})
    assert command("policy", "reset", "ns.t").out.splitlines() == [
        "ns.t: min_input_files: 1 (table property icekeeper.min_input_files) → 5 (default)",
        "ns.t: min_input_file: 3 (table property icekeeper.min_input_file) → not set",
    ]


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


@pytest.mark.parametrize(("setting", "told"), WITH_UNITS.items(), ids=WITH_UNITS)
def test_an_amount_with_a_unit_is_told_what_to_write(command: Command, setting: str, told: str) -> None:
    command.table(appends=0)
    key, _, value = setting.partition("=")
    answer = command("policy", "set", "ns.t", setting)
    assert answer.code == 2
    source = f"table property icekeeper.{key}"
    assert one_sentence(answer.err) == f"policy key {key} cannot be '{value}' (from {source}): {told}"


WRONG_FILTERS = {
    "id =": "'id =' (from character 1 on) is no condition",
    "id = 3 and": "it ends too early",
    "id > 1 and name = us": "'name = us' (from character 12 on) is no condition",
    "name >= 2026-01-01": "'-01-01' (from character 13 on) is no condition",
    "nam = 'us'": "the table has no column 'nam' (did you mean 'name'?)",
}


@pytest.mark.parametrize(("where", "told"), WRONG_FILTERS.items(), ids=WRONG_FILTERS)
def test_a_wrong_filter_is_told_in_one_sentence_with_place_and_example(command: Command, where: str, told: str) -> None:
    command.table(appends=1)
    answer = command("maintain", "ns.t", "--engine", "local", "--dry-run", "--set", f"where={where}")
    assert answer.code == 2
    assert one_sentence(answer.err) == (
        f"policy key where cannot be '{where}': {told}; write for example \"day >= '2026-01-01' and id < 5\""
    )


def test_a_filter_that_has_come_to_misfit_is_told_by_detection_and_not_proposed(command: Command) -> None:
    """Every pass would refuse it, and every scan would propose it again."""
    table = command.table(appends=6, properties={"icekeeper.where": "name = 'a'"})
    assert [one["table"] for one in command("detect", "--json").json["proposals"]] == ["ns.t"]
    with table.update_schema() as update:
        update.rename_column("name", "label")
    document = command("detect", "--json").json
    assert document["proposals"] == []
    (skip,) = document["skipped"]
    assert skip["reason"].startswith("policy key where cannot be 'name = 'a'': the table has no column 'name'")
