"""What a deletion checks of other tables and newer heads before it deletes files."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion import other_tables as limited_looks
from icekeeper.deletion import referenced_paths
from icekeeper.deletion.neighbours import StrayMetadata, is_past, refuse_other_head, without_authority
from icekeeper.deletion.other_tables import LimitedLooks
from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.errors import MetadataUnreadable, OperationRefused, StorageError
from icekeeper.machine.clock import in_limited_time
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import render_document
from icekeeper.model import TableName
from icekeeper.pass_context.metadata_files import newer_metadata
from icekeeper.state.claims import CutOff
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import authority, merged_spelling, normalise
from icekeeper.storage.storage import Storage
from support.scans import PreparedCatalog
from support.tables import new_document

# How long a pass may read other tables, even if many of them hang.

CATALOG = PreparedCatalog({})
NOW_MS = 1_000_000_000_000


class Looks:
    """Looks with a time limit; each hangs until its time is over."""

    def __init__(self, folder: Path, limit_s: int, patch: pytest.MonkeyPatch) -> None:
        self.state = SqliteStateStore(folder / "state.db")
        self.limits: list[float] = []
        policy = SimpleNamespace(detection_timeout_s=limit_s)
        self.context = cast("Any", SimpleNamespace(state=self.state, policy=policy, clock=lambda: NOW_MS))
        self.looks = LimitedLooks(self.context, CATALOG)
        self.patch = patch

    def hang(self, name: str) -> str:
        def over(work: Callable[[], object], limit_s: float, name: str) -> None:
            self.limits.append(limit_s)
            raise TimeoutError

        with self.patch.context() as patch:
            patch.setattr(limited_looks, "in_limited_time", over)
            with pytest.raises(StorageError) as caught:
                self.looks.look(TableName(("ns",), name), lambda: None)
        return str(caught.value)

    def cuts(self) -> list[CutOff]:
        return list(self.state.cut_offs.of_catalog(CATALOG.id))


def test_many_hanging_tables_shorten_the_time_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function ends after 15 minutes; a table with a short time limit does not count as hanging."""
    looks = Looks(tmp_path, 300, monkeypatch)
    for number in range(20):
        reason = looks.hang(f"t{number}")
    assert looks.limits == [300.0] * 16 + [5.0] * 4
    assert reason == "ns.t19 is not read: 19 other tables took too long"
    assert len(looks.cuts()) == 16
    short = Looks(tmp_path / "short", 59, monkeypatch)
    assert short.hang("t") == "ns.t is not read: reading it did not end within detection_timeout_s 59"
    assert short.cuts() == []


def test_a_cut_off_table_is_not_read_until_later_and_a_timely_look_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(tmp_path, 300, monkeypatch)
    name = TableName(("ns",), "t")
    looks.hang("t")
    again = LimitedLooks(looks.context, CATALOG)
    with pytest.raises(StorageError, match=r"^ns\.t is not read: reading it .*; it is tried again after "):
        again.look(name, lambda: pytest.fail("it waits"))
    looks.context.clock = lambda: NOW_MS + 3 * 3_600_000
    assert LimitedLooks(looks.context, CATALOG).look(name, lambda: 7) == 7
    assert looks.cuts() == []


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("of the store")])
def test_errors_of_the_work_are_raised(error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        in_limited_time(fails, 30, "t")
    assert caught.value is error


# Metadata files in the store that the catalog does not show.

STORAGE = Storage({})


def write(folder: Path, name: str, at_s: int) -> str:
    """Write a metadata file of this age whose properties contain its name."""
    path = folder / "metadata" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render_document(TableMetadata(new_document(folder.as_uri(), 2, properties={"name": name}))))
    os.utime(path, (at_s, at_s))
    return path.as_uri()


def table(folder: Path, current: str, *log: str) -> LoadedTable:
    entries = [{"timestamp-ms": 1, "metadata-file": path} for path in log]
    document = new_document(folder.as_uri(), 2, **{"metadata-log": entries})
    return LoadedTable(TableName(("ns",), "t"), TableMetadata(document), current, current, {})


def names(found: LoadedTable) -> set[str]:
    return {metadata.properties["name"] for metadata in newer_metadata(STORAGE, found)}


def test_unknown_metadata_files_that_are_not_older_than_the_current_file_are_read(tmp_path: Path) -> None:
    logged = write(tmp_path, "00001-b.metadata.json", 2_000)
    current = write(tmp_path, "00002-c.metadata.json", 3_000)
    write(tmp_path, "00000-a.metadata.json", 1_000)
    write(tmp_path, "00003-d.metadata.json", 3_000)
    write(tmp_path, "00004-e.metadata.json", 4_000)
    (tmp_path / "metadata" / "00005-f.metadata.json").write_bytes(b"{torn")
    (tmp_path / "metadata" / "00005-f.avro").write_bytes(b"no metadata file")
    assert names(table(tmp_path, current, logged)) == {"00003-d.metadata.json", "00004-e.metadata.json"}


def test_only_the_youngest_files_are_read_if_the_current_file_is_elsewhere(tmp_path: Path) -> None:
    assert names(table(tmp_path, (tmp_path / "metadata/00000-a.metadata.json").as_uri())) == set(), "no such folder"
    for number in range(40):
        write(tmp_path, f"{number:05d}-a.metadata.json", 1_000 + number)
    found = names(table(tmp_path, "file:///elsewhere/00040-x.metadata.json"))
    assert found == {f"{number:05d}-a.metadata.json" for number in range(24, 40)}


# Which metadata files beside a table's own show that its catalog entry is not the newest.

FOLDER = "s3://b/t/metadata"
HOUR_MS = 3_600_000


def path(number: int, name: str = "x") -> str:
    return f"{FOLDER}/{number:05d}-{name}.metadata.json"


def document(number: int, log: list[str], snapshots: list[int]) -> TableMetadata:
    """A state of the table; state ``n`` dates from hour ``n``."""
    raw: dict[str, Any] = {
        "format-version": 2,
        "location": "s3://b/t",
        "table-uuid": "u",
        "last-updated-ms": number * HOUR_MS,
        "metadata-log": [
            {"metadata-file": file, "timestamp-ms": (number - len(log) + place) * HOUR_MS}
            for place, file in enumerate(log)
        ],
        "snapshots": [{"snapshot-id": i, "timestamp-ms": i * HOUR_MS, "sequence-number": i} for i in snapshots],
    }
    return TableMetadata(raw)


def table_at(number: int = 5, log: list[int] | None = None, snapshots: list[int] | None = None) -> LoadedTable:
    known = [path(i) for i in (range(number) if log is None else log)]
    metadata = document(number, known, [1, 2, 3, 4, 5] if snapshots is None else snapshots)
    return LoadedTable(TableName(("ns",), "t"), metadata, path(number), "token", {})


def stray(
    number: int, log: list[str], snapshots: list[int], name: str = "x", *, made: int | None = None, late_ms: int = 0
) -> StrayMetadata:
    """A stray metadata file; ``made`` is the hour of its state, by default its number."""
    raw = document(number if made is None else made, log, snapshots).document
    late = {"last-updated-ms": raw["last-updated-ms"] + late_ms}
    return StrayMetadata(path(number, name), TableMetadata({**raw, **late}))


HUNDREDS = table_at(200, log=list(range(100, 200)), snapshots=[200])
TAKEN_OVER = [f"{FOLDER}/v{number}.metadata.json" for number in (4, 6, 8)]
SPARED: dict[str, tuple[LoadedTable, list[StrayMetadata]]] = {
    "a file that follows on the entry": (table_at(), [stray(6, [path(i) for i in range(6)], [1, 2, 3, 4, 5, 6])]),
    "swaps that crashed, each of which began at the entry": (
        table_at(),
        [stray(6, [path(5)], [5, 6], name) for name in ("a", "b", "c")],
    ),
}
PAST: dict[str, tuple[LoadedTable, StrayMetadata]] = {
    # Files of a crashed commit are orphans once the table has advanced.
    "a swap that lost against later commits": (table_at(8), stray(6, [path(5)], [5, 61], "lost")),
    "metadata without new snapshots": (table_at(), stray(4, [path(3)], [1, 2, 3, 4], "again")),
    "a swap that lost before the log begins": (table_at(6, log=[3, 4, 5]), stray(3, [path(2)], [2, 31], "lost")),
    # Its snapshots have expired, so the table no longer knows them.
    "metadata that a catalog left out of its log": (
        table_at(6, log=[0, 1, 4, 5], snapshots=[6]),
        stray(3, [path(2)], [1, 2, 3]),
    ),
    # Another catalog with other names and numbers took the table over.
    "metadata of a former catalog": (
        LoadedTable(TableName(("ns",), "t"), document(9, TAKEN_OVER, [9]), path(0), "token", {}),
        StrayMetadata(f"{FOLDER}/v7.metadata.json", document(7, [f"{FOLDER}/v5.metadata.json"], [7])),
    ),
    # Iceberg tolerates a minute between consecutive states.
    "a swap of a writer whose clock is ahead by less than a minute": (
        HUNDREDS,
        stray(100, [path(99)], [99], "lost", late_ms=59_000),
    ),
}
OTHER_HEADS: dict[str, tuple[LoadedTable, StrayMetadata]] = {
    **{
        f"a file that follows on {log[-1]}": (table_at(), stray(7, log, [5, 6, 7]))
        for log in ([path(5), path(6)], [path(6)], [path(7, "other")])
    },
    # Maintenance has since advanced the entry, which was stale at 5.
    "a diverged head beside commits of the entry": (
        table_at(8),
        stray(7, [path(5), path(6, "theirs")], [5, 61, 71], "theirs"),
    ),
    # It only set properties, and expiry would delete all of its files.
    "a head without new snapshots that follows on an unknown file": (
        table_at(8),
        stray(5, [path(3), path(4, "theirs")], [1, 2, 3], "theirs"),
    ),
    # Its number is smaller than all in the log, but the table was moved since.
    "a head that diverged before the log begins": (HUNDREDS, stray(52, [path(51, "theirs")], [1, 51], made=201)),
    # Its base has left the log; a lost swap would be as old as the beginning of the log.
    "a head that diverged just before the log begins": (
        HUNDREDS,
        stray(100, [path(99, "theirs")], [1, 51], "theirs", made=201),
    ),
}


@pytest.mark.parametrize(("entry", "strays"), SPARED.values(), ids=SPARED)
def test_a_swap_that_crashed_keeps_its_files(entry: LoadedTable, strays: list[StrayMetadata]) -> None:
    assert refuse_other_head(entry, strays) == strays


@pytest.mark.parametrize(("entry", "found"), PAST.values(), ids=PAST)
def test_metadata_of_past_states_keeps_nothing(entry: LoadedTable, found: StrayMetadata) -> None:
    assert refuse_other_head(entry, [found]) == []


@pytest.mark.parametrize(("entry", "found"), OTHER_HEADS.values(), ids=OTHER_HEADS)
def test_another_head_refuses_every_deletion(entry: LoadedTable, found: StrayMetadata) -> None:
    name = re.escape(found.path.rpartition("/")[2])
    with pytest.raises(OperationRefused, match=rf"{name}.*metadata of ns\.t made from metadata that its"):
        refuse_other_head(entry, [found])


@pytest.mark.parametrize(
    ("file", "modified_hour", "past"),
    [
        (path(1), 1, True),
        (path(1), 9, False),
        (path(1), None, False),
        (path(3), 1, False),
        (path(6), 1, False),
        (path(4), 4, False),
        (f"{FOLDER}/0b9e3b1c.gz.metadata.json", 1, True),
        (f"{FOLDER}/0b9e3b1c-x.gz.metadata.json", 4, False),
    ],
    ids=["old", "young", "unknown age", "in the log", "newer", "beside the log", "no number", "no number, young"],
)
def test_only_metadata_older_than_the_whole_log_certainly_belongs_to_the_past(
    file: str, modified_hour: int | None, *, past: bool
) -> None:
    modified_ms = None if modified_hour is None else modified_hour * HOUR_MS
    assert is_past(table_at(5, log=[3, 4]), file, modified_ms) is past


# A set of hashed paths: it never misses a referenced path, in any spelling.

HOME = "s3://b/t"
SEGMENTS = st.sampled_from(["data", "a b", "a%20b", "%41", "A", "..", ".", "", "é", "\udcff"])
PATHS = st.builds(
    str.__add__,
    st.sampled_from(["s3://b/t/", "s3a://b/t/", "s3://other/t/", "hdfs://h:1/t/", "/t/", "file:///t/"]),
    st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join),
)


@given(st.lists(PATHS, max_size=30), st.lists(PATHS, max_size=10))
def test_referenced_paths_equal_a_set_of_normalised_paths(added: list[str], queried: list[str]) -> None:
    kept = ReferencedPaths(HOME, added)
    keys = set(map(_key, added))
    elsewhere = {without_authority(key) for key in keys if authority(key) != authority(HOME)}
    for path in [*added, *queried]:
        assert (path in kept) == (_key(path) in keys)
        assert kept.has_prefix_mismatch(path) == (without_authority(_key(path)) in elsewhere)
    assert len(kept) == len(keys)
    listed = [ListedObject(path, 1, 1) for path in queried]
    assert kept.unreferenced(listed) == [found for found in listed if _key(found.path) not in keys]


@given(st.lists(PATHS, max_size=8), st.lists(PATHS, max_size=8))
def test_expected_paths_that_no_listing_shows_are_missing(expected: list[str], listed: list[str]) -> None:
    kept, home = ReferencedPaths(HOME), f"{HOME}/"
    kept.expect(expected)
    objects, here, keys = [ListedObject(p, 1, 1) for p in listed], set(map(_key, listed)), set(map(_key, expected))
    assert kept.unreferenced(objects) == [found for found in objects if _key(found.path) not in keys]
    assert len(kept.unlisted()) == len({key for key in keys - here if key.startswith(home)})


def test_paths_that_were_read_before_an_error_are_referenced() -> None:
    def paths() -> Iterator[str]:
        yield from (f"{HOME}/data/{number}" for number in range(10_003))
        raise MetadataUnreadable("a manifest is damaged")

    kept = ReferencedPaths(HOME)
    with pytest.raises(MetadataUnreadable):
        kept.update(paths())
    assert len(kept) == 10_003


def _key(path: str) -> str:
    return merged_spelling(normalise(path))


def test_referenced_paths_remain_correct_while_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sorted repeatedly, queried in between, one by one and in parts, and freed of duplicates."""
    monkeypatch.setattr(referenced_paths, "_UNSORTED", 10)
    monkeypatch.setattr(referenced_paths, "_AT_ONCE", 30)
    order, kept, added = random.Random(1), ReferencedPaths(HOME), set[str]()
    listed = [ListedObject(f"{HOME}/data/{n}", 1, 1) for n in range(200)]
    for _ in range(50):
        some = [f"{HOME}/data/{order.randrange(200)}" for _ in range(7)]
        kept.update(some)
        added.update(some)
        assert len(kept) == len(added)
        assert all((found.path in kept) == (found.path in added) for found in listed)
        assert kept.unreferenced(listed) == [found for found in listed if found.path not in added]


def test_a_path_has_the_same_hash_in_every_process() -> None:
    assert path_hash("s3://b/t/data/f.parquet") == 6152792432115594036
