"""Files of attempts: no two have one name, all of one output lie together, and one line records them all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.locations import ObjectStoreLocationProvider

from icekeeper.engines.spark_tasks import in_attempt
from icekeeper.errors import StorageError
from icekeeper.operations.compaction.rewrite_task import Layout, OutputNames
from icekeeper.storage.paths import (
    ATTEMPTS_PER_RUN,
    MAX_ATTEMPTS,
    RUNS,
    PathSet,
    PlannedFile,
    is_repeated,
    planned_file,
    stem_of,
)

HOME = "s3://bucket/db/t/data"
LAYOUTS = {
    "plain": OutputNames(HOME, "s", "a=1"),
    "hashed": OutputNames(HOME, "s", "a=1", Layout.HASHED),
    "hashed elsewhere": OutputNames(HOME, "s", "a=1", Layout.HASHED, "db/t"),
    "flat": OutputNames(HOME, "s", "a=1", Layout.HASHED_FLAT),
}


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_the_files_of_all_attempts_lie_together(names: OutputNames) -> None:
    """Whatever the layout hashes, the attempt is no part of it."""
    found = [replace(names, attempt=attempt).path(7) for attempt in range(names.attempts)]
    first = found[0].removesuffix("-a0.parquet")
    assert found == [f"{first}-a{attempt}.parquet" for attempt in range(ATTEMPTS_PER_RUN)]
    assert list(names.file(7).paths) == found


def test_the_hash_is_that_of_the_name_without_the_attempt() -> None:
    hashed = ObjectStoreLocationProvider(HOME, {"write.data.path": HOME}).new_data_location("a=1/s-00007.parquet")
    names = replace(LAYOUTS["hashed"], attempt=2)
    assert names.path(7) == hashed.removesuffix(".parquet") + "-a2.parquet"


def test_one_line_records_the_files_of_all_attempts() -> None:
    file = PlannedFile(f"{HOME}/s-00000", "avro", 8)
    assert file.record == f"{HOME}/s-00000-a[0-7].avro"
    assert planned_file(file.record) == file
    assert list(file.paths) == [f"{HOME}/s-00000-a{attempt}.avro" for attempt in range(8)]


@pytest.mark.parametrize(
    "record",
    ["s3://b/t/data/compact-1-00000-6f1c-00000.parquet", "s3://b/t/data/x-a3.parquet", "s3://b/t/x-a[0-3]", "folder/"],
)
def test_a_record_of_an_earlier_version_is_a_path(record: str) -> None:
    assert planned_file(record) is None
    assert PathSet([record]).may_contain(record)


def test_an_attempt_that_cleaning_would_not_try_writes_nothing() -> None:
    names = LAYOUTS["plain"]
    with pytest.raises(StorageError, match="begun more than 4 times, and nobody would find files of further attempts"):
        replace(names, attempt=ATTEMPTS_PER_RUN).path()
    assert replace(names, attempt=ATTEMPTS_PER_RUN, attempts=MAX_ATTEMPTS).path().endswith("-a4.parquet")


@given(st.integers(0, RUNS - 1), st.integers(0, 50), st.integers(0, RUNS - 1), st.integers(0, 50))
def test_attempts_of_all_runs_write_different_files_or_none(run: int, number: int, other: int, another: int) -> None:
    """However often Spark begins a task, in whatever run of ours."""

    class Task:
        def __init__(self, attempt: int = 0) -> None:
            self.attempt = attempt

        def in_attempt(self, attempt: int) -> Task:
            return Task(attempt)

    first, second = in_attempt(Task(), run, number).attempt, in_attempt(Task(), other, another).attempt
    assert (first == second) == ((run, number) == (other, another)) or first == second == MAX_ATTEMPTS
    assert (first < MAX_ATTEMPTS) == (number < ATTEMPTS_PER_RUN)
    assert in_attempt("no task that writes", run, number) == "no task that writes"


# -- what a record protects


def test_a_record_protects_every_attempt_whatever_its_number_and_ending() -> None:
    held = PathSet([PlannedFile(f"{HOME}/a=1/s-00000", "parquet").record])
    for name in ("s-00000-a0.parquet", "s-00000-a3.parquet", "s-00000-a12.parquet", "s-00000-a1.avro"):
        assert held.may_contain(f"{HOME}/a=1/{name}")
        assert held.may_contain(f"s3a://bucket/db/t/data/a%3D1/{name}")
    for name in ("s-00000.parquet", "s-00000-1-a0.parquet", "s-0000-a0.parquet", "s-00000-a0.parquet.crc", "s-00000-a"):
        assert not held.may_contain(f"{HOME}/a=1/{name}")
    assert not held.may_contain(f"{HOME}/a=2/s-00000-a0.parquet")


def test_a_record_without_a_folder_protects_its_name_in_every_folder_below() -> None:
    held = PathSet([PlannedFile.anywhere_below(HOME, "s-00000", "parquet").record])
    for folder in ("", "/a=1", "/0101/1100/0011/01011010/db/t/a=1/b=2"):
        assert held.may_contain(f"{HOME}{folder}/s-00000-a1.parquet")
        assert not held.may_contain(f"{HOME}{folder}/s-00001-a1.parquet")
    assert not held.may_contain("s3://bucket/db/t/s-00000-a1.parquet")
    assert PlannedFile.anywhere_below(HOME, "s-00000", "parquet").paths == ()


names = st.text("as0-[].", min_size=1, max_size=6)


@given(names, names, st.integers(0, 12))
def test_no_stem_protects_the_files_of_another(one: str, other: str, attempt: int) -> None:
    path = f"{HOME}/{other}-a{attempt}.parquet"
    assert stem_of(path) == f"{HOME}/{other}"
    assert PathSet([PlannedFile(f"{HOME}/{one}", "parquet").record]).may_contain(path) == (one == other)


def test_a_file_whose_own_name_looks_like_a_record_is_still_protected() -> None:
    assert PathSet([f"{HOME}/x-a[0-3].parquet"]).may_contain(f"{HOME}/x-a[0-3].parquet")


def test_a_later_attempt_is_known_by_its_files() -> None:
    assert is_repeated(["s-a0.parquet", "s-a1.parquet"])
    assert not is_repeated(["s-a0.parquet", "s.parquet", "s-a0-b1.parquet"])
