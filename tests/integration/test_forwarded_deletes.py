"""Deletes committed during a rewrite of their files apply to the same rows in the outputs
(rule: forward-newer-position-deletes).  Another writer deletes rows, PyIceberg or DuckDB reads, hypothesis chooses."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.delete_scope import named_file
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.land import forward_deletes
from icekeeper.operations.compaction.land.forward_deletes import places_in_outputs
from icekeeper.operations.compaction.terms.rewrite_task import RowRun, Section
from icekeeper.operations.compaction.work import exchange
from icekeeper.report.outcome import PassStatus, Status
from support.deletes import (
    commit_deletes,
    create_by_region,
    equality_delete,
    position_delete,
    region_rows,
    relist,
    rows_of,
)
from support.maintained_table import NAME, MaintainedTable, compacted, local_path, maintained_table
from support.scripted_catalog import once
from support.v3 import assert_row_ids_hold, commit_files, data_files, delete_positions, lineage, table_of_version

ORDERS: dict[str, dict[str, str]] = {
    "in_order": {},
    "copied": {"min_row_group_copy_bytes": "1"},
    "sorted": {"strategy": "sort", "sort_order": "id desc"},
    "zordered": {"strategy": "zorder", "sort_order": "id,region"},
    "sorted_by_several_workers": {"strategy": "sort", "sort_order": "id desc"},
    "one_group_at_a_time": {"partial_progress": "1"},
}


@pytest.fixture(params=[2, 3])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MaintainedTable]:
    """Four files of ten rows in each of us (ids 0.., 100.., 200.., 300..) and eu (50.., …); two rows are deleted."""
    with table_of_version(tmp_path, request.param) as made:
        delete_rows(made, 5, 206)
        yield made


def delete_rows(table: MaintainedTable, *ids: int) -> None:
    """Delete these rows in a single commit, as another writer finds them at the head."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    files = {file.file_path: file for file in data_files(table)}
    for path in files:
        rows = pq.read_table(local_path(path), columns=["id"], partitioning=None).column("id").to_pylist()
        found[path] += [position for position, row_id in enumerate(rows) if row_id in ids]
    assert sum(map(len, found.values())) == len(ids)
    if table.metadata.format_version == 3:
        delete_positions(table, {path: positions for path, positions in found.items() if positions})
        return
    new = []
    for path, positions in found.items():
        for position in positions:
            content, more = position_delete(path, position, "", bounds=False)
            new.append((content, {**more, "partition": files[path].partition}))
    commit_deletes(table, new)


def deletes(table: MaintainedTable) -> list[DataFile]:
    return [file for file in table.data_files() if file.content is not FileContent.DATA]


@pytest.mark.parametrize(
    ("table", "order"),
    [*((3, order) for order in ORDERS), *((2, order) for order in ("in_order", "copied", "sorted_by_several_workers"))],
    indirect=["table"],
)
def test_rows_deleted_during_a_rewrite_are_deleted_in_the_outputs(
    table: MaintainedTable, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if order == "sorted_by_several_workers":
        monkeypatch.setattr(exchange, "RANGE_BYTES", 1)
    before, is_v3 = region_rows(table), table.metadata.format_version == 3
    ids_before = lineage(table) if is_v3 else Counter()
    table.engine.during = once(lambda: delete_rows(table, 3, 7, 109, 150, 152, 200))
    outcome = compacted(table, proof="full", **ORDERS[order])
    gone = Counter({(i, "eu" if i in (150, 152) else "us"): 1 for i in (3, 7, 109, 150, 152, 200)})
    assert outcome.metrics["compact.bins_dropped"] == 0
    assert region_rows(table) == before - gone
    table.assert_sound()
    names = {file.file_path for file in data_files(table)}
    assert {named_file(file) for file in deletes(table)} <= names
    assert outcome.metrics["compact.rows_forwarded"] == sum(file.record_count for file in deletes(table))
    if order != "one_group_at_a_time":
        assert (len(names), len(deletes(table))) == (2, 2)
        assert outcome.metrics["compact.rows_forwarded"] == 6
    if is_v3:
        assert lineage(table) == Counter(
            row for row in ids_before.elements() if (row[0], "us") not in gone and (row[0], "eu") not in gone
        )
        assert_row_ids_hold(table)
    assert not [path for path in table.files() if path.endswith(".rows")]
    table.engine.during = lambda: None
    compacted(table, rewrite_all="true")
    assert (region_rows(table), deletes(table)) == (before - gone, [])


@pytest.mark.parametrize(("table", "order"), [(2, "in_order"), (3, "sorted")], indirect=["table"])
def test_deletes_before_the_swap_are_forwarded_by_the_next_attempt(table: MaintainedTable, order: str) -> None:
    """Two deletes are committed between prepare and swap; files of the lost attempts are removed."""
    before = region_rows(table)
    ids = [[3], [4, 109]]
    table.catalog.before_commit = lambda: delete_rows(table, *ids.pop()) if ids else None
    outcome = compacted(table, **ORDERS[order])
    assert outcome.metrics["compact.bins_dropped"] == 0
    assert outcome.metrics["compact.rows_forwarded"] == 3
    assert region_rows(table) == before - Counter([(3, "us"), (4, "us"), (109, "us")])
    assert [file.record_count for file in deletes(table)] == [3]
    written = {path for path in table.files() if "forwarded-" in path}
    assert written == {str(local_path(file.file_path)) for file in deletes(table)}
    table.assert_sound()


def test_a_group_reads_the_newest_deletes_when_it_starts(table: MaintainedTable) -> None:
    """Deletes of every file are committed while the first of two groups is written; the second applies its own."""
    before, gone = region_rows(table), [(3, "us"), (109, "us"), (50, "eu"), (152, "eu")]
    table.engine.during = once(lambda: delete_rows(table, *(i for i, _ in gone)))
    outcome = compacted(table, partial_progress="1")
    assert (outcome.metrics["compact.bins"], outcome.metrics["compact.bins_dropped"]) == (2, 0)
    assert (outcome.metrics["compact.rows_forwarded"], outcome.metrics["compact.rows_deleted"]) == (2, 4)
    assert region_rows(table) == before - Counter(gone)
    assert [file.record_count for file in deletes(table)] == [2]
    table.assert_sound()


def test_rows_that_moved_to_another_partition_are_deleted_there(tmp_path: Path) -> None:
    with maintained_table(tmp_path) as table:
        table.create()
        for first in range(0, 400, 100):
            ids = range(first, first + 10)
            parts = ["even" if i % 2 == 0 else "odd" for i in ids]
            table.table.append(pa.table({"id": list(ids), "part": parts}))
        with table.table.update_spec() as spec:
            spec.add_identity("part")
        delete_rows(table, 0)
        before = Counter(table.readers_agree())
        table.engine.during = once(lambda: delete_rows(table, 3, 104, 305))
        outcome = compacted(table, rewrite_all="true")
        assert (outcome.metrics["compact.bins_dropped"], outcome.metrics["compact.rows_forwarded"]) == (0, 3)
        assert Counter(table.readers_agree()) == before - Counter([3, 104, 305])
        found = {file.partition: file.file_path for file in data_files(table)}
        assert found.keys() == {("even",), ("odd",)}
        assert {file.partition: named_file(file) for file in deletes(table)} == found
        table.assert_sound()


def test_a_reverted_delete_drops_its_group(table: MaintainedTable) -> None:
    """A delete that the outputs apply is reverted while they are written."""
    before = region_rows(table)

    def take_back() -> None:
        applied = {file.key: file.file_path for file in deletes(table)}
        if table.metadata.format_version == 3:
            commit_files(table, [], applied)
        else:
            relist(table, lambda entry: () if entry.file.key in applied else (entry,))

    table.engine.during = once(take_back)
    outcome = compacted(table)
    assert outcome.metrics["compact.bins_dropped"] == 1
    assert region_rows(table) == before + Counter([(5, "us"), (206, "us")])
    table.assert_sound()


def test_a_wrong_row_position_found_by_the_proof_drops_its_group(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position is wrong by one row: the counts add up, but the rows differ."""
    before = region_rows(table)
    right = forward_deletes.places_in_outputs

    def beside(*arguments: Any) -> dict[str, BitMap64]:
        return {path: BitMap64(place + 1 for place in places) for path, places in right(*arguments).items()}

    monkeypatch.setattr(forward_deletes, "places_in_outputs", beside)
    table.engine.during = once(lambda: delete_rows(table, 3))
    outcome = compacted(table, proof="full")
    assert (outcome.metrics["compact.bins"], outcome.metrics["compact.bins_dropped"]) == (1, 1)
    assert "the rows found in the outputs differ from the deleted rows of the inputs" in outcome.summary
    assert region_rows(table) == before - Counter([(3, "us")])
    table.assert_sound()


def test_a_delete_file_is_kept_while_other_files_need_it(tmp_path: Path) -> None:
    """A delete file names files of two groups, which two commits replace."""
    with maintained_table(tmp_path) as table:
        create_by_region(table, 4)
        before = region_rows(table)
        us, eu = (next(f.file_path for f in data_files(table) if f.partition == (region,)) for region in ("us", "eu"))
        both, more = position_delete(us, 1, "us", bounds=False)
        content = pa.concat_tables([both, position_delete(eu, 2, "us", bounds=False)[0]])
        table.engine.during = once(lambda: commit_deletes(table, [(content, more)]))
        seen: list[int] = []
        table.catalog.after_commit = lambda: seen.append(len(deletes(table)))
        outcome = compacted(table, partial_progress="1")
        # A reader applies it only in its own partition: the group of eu has no deletes to forward.
        assert (outcome.metrics["compact.bins_dropped"], outcome.metrics["compact.rows_forwarded"]) == (0, 1)
        gone = before - region_rows(table)
        assert len(gone) == 1
        assert next(iter(gone))[1] == "us"
        table.assert_sound()


def test_an_unreadable_delete_drops_only_its_groups(table: MaintainedTable) -> None:
    before = region_rows(table)

    def writer_commits() -> None:
        known = {file.file_path for file in deletes(table)}
        delete_rows(table, 3)
        (new,) = {file.file_path for file in deletes(table)} - known
        kept[new] = local_path(new).read_bytes()
        local_path(new).write_bytes(b"PAR1 cut")

    kept: dict[str, bytes] = {}
    table.engine.during = once(writer_commits)
    outcome = compacted(table)
    assert (outcome.metrics["compact.bins"], outcome.metrics["compact.bins_dropped"]) == (1, 1)
    assert outcome.status is Status.SUCCEEDED
    for path, data in kept.items():
        local_path(path).write_bytes(data)
    assert region_rows(table) == before - Counter([(3, "us")])
    table.assert_sound()


@pytest.mark.parametrize("when", ["between two commits of a pass", "after a pass"])
def test_deletes_committed_after_the_rewrite_are_reported(table: MaintainedTable, when: str) -> None:
    """Their writer does not check whether its data files still exist."""
    before, first = region_rows(table), {file.file_path: file for file in data_files(table)}

    def delete_late() -> None:
        path = min(first.keys() - {file.file_path for file in data_files(table)})
        late.append(path)
        region = str(first[path].partition[0])
        if table.metadata.format_version == 3:
            delete_positions(table, {path: [1]}, under=(region,))
        else:
            commit_deletes(table, [position_delete(path, 1, region)])

    late: list[str] = []
    if when == "between two commits of a pass":
        table.catalog.after_commit = once(delete_late)
    assert compacted(table, partial_progress="1").metrics["compact.deletes_late"] == 0
    if when == "after a pass":
        delete_late()
    assert region_rows(table) == before
    outcome = compacted(table)
    assert (outcome.metrics["compact.deletes_late"], outcome.metrics["compact.delete_files_removed"]) == (1, 1)
    assert f"names {late[0]}" in outcome.summary
    assert (region_rows(table), deletes(table)) == (before, [])


@pytest.mark.parametrize("table", [2], indirect=True)
def test_a_pass_that_loses_most_groups_is_partial_and_health_reports_it(table: MaintainedTable) -> None:
    for first in (400, 500):
        table.table.append(rows_of(first, 10, "asia"))

    def writer_commits() -> None:
        known = {file.file_path for file in deletes(table)}
        delete_rows(table, 3, 53)
        for path in {file.file_path for file in deletes(table)} - known:
            local_path(path).write_bytes(b"PAR1 cut")

    table.engine.during = once(writer_commits)
    outcome = table.maintain("compact,rewrite_manifests")
    compact = outcome.operations[0]
    assert (outcome.status, compact.status) == (PassStatus.PARTIAL, Status.FAILED)
    assert compact.metrics["compact.bytes_dropped"] > 0
    assert re.match(
        r"most bins were overtaken by other commits; 2 bins of \S+ \S+ rewritten in vain: "
        r"cannot forward the deletes of its inputs: .*delete-.*\.parquet",
        compact.reason or "",
    )
    assert table.runtime.afresh.health(NAME).warnings["failing"] == (
        "compact failed in the last pass; icekeeper history says why"
    )
    (record,) = table.state.history(identity_of(table.catalog, table.loaded))
    assert (record.status, record.metrics["compact.bins_dropped"]) == ("partial", 2)


@pytest.mark.parametrize("table", [2], indirect=True)
def test_positions_are_forwarded_beside_equality_deletes_before_and_after(table: MaintainedTable) -> None:
    """Deletes that the rewrite applies shift the positions of forwarded rows; newer deletes apply to the outputs."""
    commit_deletes(table, [equality_delete(i, "us") for i in (0, 4, 101, 102, 305)])
    before, gone = region_rows(table), (3, 6, 103, 309)

    def writer_commits() -> None:
        commit_deletes(table, [equality_delete(107, "us")])
        delete_rows(table, *gone)

    table.engine.during = once(writer_commits)
    outcome = compacted(table)
    assert (outcome.metrics["compact.bins_dropped"], outcome.metrics["compact.rows_forwarded"]) == (0, 4)
    assert region_rows(table) == before - Counter((i, "us") for i in (*gone, 107))


# Positions of rows in the outputs, compared with a list of rows.


@st.composite
def rewrites(
    draw: st.DrawFn,
) -> tuple[dict[str, int], list[list[tuple[str, int, int]]], dict[str, BitMap64], list[int]]:
    """Rows by input, the runs of each section, the omitted rows, and the number of files of each section."""
    inputs = {f"in-{i}": draw(st.integers(0, 12)) for i in range(draw(st.integers(1, 4)))}
    runs = []
    for path, rows in inputs.items():
        cuts = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=2))})
        runs += [(path, start, stop - start) for start, stop in pairwise(cuts)]
    runs = draw(st.permutations(runs))
    cut = draw(st.integers(0, len(runs)))
    sections = [list(part) for part in (runs[:cut], runs[cut:]) if part]
    left_out = {
        path: BitMap64(draw(st.lists(st.integers(0, rows - 1), max_size=rows)) if rows else [])
        for path, rows in inputs.items()
    }
    return inputs, sections, left_out, [draw(st.integers(1, 3)) for _ in sections]


@given(rewrites(), st.randoms(use_true_random=False))
def test_positions_equal_those_in_a_list_of_all_rows(rewrite: Any, chance: random.Random) -> None:
    inputs, sections, left_out, cuts = rewrite
    outputs: list[tuple[str, list[tuple[str, int]]]] = []
    counts: list[int] = []
    for runs, count in zip(sections, cuts, strict=True):
        rows = [(path, at) for path, first, n in runs for at in range(first, first + n) if at not in left_out[path]]
        size = -(-len(rows) // count) if rows else 1
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        counts.append(len(parts))
        outputs += [(f"out-{len(outputs) + number}", part) for number, part in enumerate(parts)]
    live = [(path, at) for path, n in inputs.items() for at in range(n) if at not in left_out[path]]
    wanted: dict[str, BitMap64] = defaultdict(BitMap64)
    for path, at in chance.sample(live, chance.randint(0, len(live))):
        wanted[path].add(at)
    found = places_in_outputs(
        [Section(n, tuple(RowRun(*run) for run in runs)) for n, runs in zip(counts, sections, strict=True)],
        [(path, len(rows)) for path, rows in outputs],
        left_out,
        wanted,
    )
    expected = {
        path: BitMap64(i for i, (source, at) in enumerate(rows) if at in wanted[source]) for path, rows in outputs
    }
    assert found == {path: places for path, places in expected.items() if places}


def test_outputs_that_lack_rows_have_no_positions() -> None:
    section = Section(1, (RowRun("in", 0, 5),))
    with pytest.raises(MetadataUnreadable, match="5 rows went into outputs that have 4"):
        places_in_outputs([section], [("out", 4)], {}, {"in": BitMap64([1])})
