"""Every pair of damages of a table: after repairs every row that is left is read once, or nothing is lost.

Two damages hit the same file or two files.  A repair of the first may show the second, so repairs are repeated.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from support.command import Command, local_path, rows
from support.damaged_table import Damaged, Record, edit_avro, entry, read_avro, state_length

EVERYTHING = ("--repair-file-metrics", "--drop-missing", "--keep", "1", "--yes", "--json")
ELSEWHERE = "s3a://old-bucket/t/data/"
Damage: TypeAlias = Callable[[Damaged, int], None]


def edit(table: Damaged, number: int, change: Callable[[list[Record]], object]) -> None:
    """Change a manifest that every snapshot since lists."""
    edit_avro(local_path(table.manifests[number]), change)
    for snapshot in table.table.snapshots():
        edit_avro(local_path(snapshot.manifest_list), lambda listed: state_length(listed, table.manifests[number]))


def first_entry(table: Damaged, number: int) -> Record:
    found: Record = read_avro(local_path(table.manifests[number]))[0]
    return found


def stated(**values: Any) -> Damage:
    """The first entry of a manifest states these values of its file."""
    return lambda table, number: edit(table, number, lambda entries: entries[0]["data_file"].update(values))


def listed(**values: Any) -> Damage:
    """The manifest list states these values of a manifest."""
    return lambda table, number: table.edit_list(lambda found: entry(found, table.manifests[number]).update(values))


def listed_twice(table: Damaged, number: int) -> None:
    edit(table, number, lambda entries: entries.append(entries[0]))


def listed_in_two_manifests(table: Damaged, number: int) -> None:
    """By another writer, as an existing file; manifests are in the list from the newest on."""
    sequence = 3 - number
    own = {"status": 0, "snapshot_id": table.snapshot_id, "sequence_number": sequence, "file_sequence_number": sequence}
    twin = {**first_entry(table, number), **own}
    edit(table, (number + 1) % 3, lambda entries: entries.append(twin))


def more_nulls(table: Damaged, number: int) -> None:
    def change(entries: list[Record]) -> None:
        for pair in entries[0]["data_file"]["null_value_counts"]:
            pair["value"] += 1

    edit(table, number, change)


def gone(table: Damaged, number: int) -> None:
    local_path(str(first_entry(table, number)["data_file"]["file_path"])).unlink(missing_ok=True)


def in_another_folder(table: Damaged, number: int) -> None:
    path = local_path(str(first_entry(table, number)["data_file"]["file_path"]))
    backup = path.parent.parent / "backup" / path.name
    backup.parent.mkdir(exist_ok=True)
    if path.exists():
        shutil.move(path, backup)


def at_another_address(table: Damaged, number: int) -> None:
    def change(entries: list[Record]) -> None:
        for found in entries:
            file = found["data_file"]
            file["file_path"] = ELSEWHERE + str(file["file_path"]).rpartition("/")[2]

    edit(table, number, change)


NO_FILES = dict.fromkeys(("added_files_count", "existing_files_count", "added_rows_count", "existing_rows_count"), 0)
KINDS: dict[str, Damage] = {
    "listed twice": listed_twice,
    "listed in two manifests": listed_in_two_manifests,
    "row count": stated(record_count=7),
    "size": stated(file_size_in_bytes=77),
    "split offsets": stated(split_offsets=[9, 4]),
    "null counts": more_nulls,
    "gone": gone,
    "in another folder": in_another_folder,
    "hidden manifest": listed(**NO_FILES),
    "rows in the list": listed(added_rows_count=99),
    "sequence number in the list": listed(min_sequence_number=50),
    "at another address": at_another_address,  # last, because the other damages need the path
}
# These entries describe another file than that which is found, so a person has to decide.
MISDESCRIBED = ("row count", "size", "split offsets", "null counts")
LEFT = {*((kind, "in another folder") for kind in MISDESCRIBED), ("size", "at another address")}
LEFT |= {("gone", "at another address")}  # that store does not answer


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("is_same_file", [True, False])
@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(KINDS, 2)))
def test_a_pair_of_damages_is_mended_or_loses_nothing(
    command: Command, first: str, second: str, is_same_file: bool, version: str
) -> None:
    table = Damaged(command, {"format-version": version})
    KINDS[first](table, 0)
    KINDS[second](table, 0 if is_same_file else 1)
    repairs = [command("repair", "ns.t", *EVERYTHING) for _ in range(3)]
    lost = sum(mend["rows_lost"] for answer in repairs for mend in answer.json["mends"])
    if is_same_file and (first, second) in LEFT:
        assert (repairs[-1].code, lost) == (1, 0)
        return
    assert repairs[-1].json["summary"] == "nothing to repair", repairs
    assert command("verify", "ns.t", "--json").json["ok"]
    gone_rows = 3 if "gone" in (first, second) else 0
    stated_rows = 7 if is_same_file and (first, second) == ("row count", "gone") else gone_rows
    assert (lost, len(rows(command))) == (stated_rows, 9 - gone_rows)
