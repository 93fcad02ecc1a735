"""A writer that corrupts rows is caught before the commit: by counts or by the full proof, as told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from support.maintained_table import new_table
from support.rewrites import input_file, rows, struct, task

SCHEMA = struct(
    (1, "id", "long"),
    (2, "text", "string"),
    (3, "point", struct((4, "x", "int"))),
    (5, "tags", {"type": "list", "element-id": 6, "element": "string", "element-required": False}),
)
ROWS = rows(
    SCHEMA,
    {
        "id": [1, 2, 3, 4],
        "text": ["a", "b", "c", "d"],
        "point": [{"x": 1}, None, {"x": None}, {"x": 4}],
        "tags": [["u", "v"], [], None, [None]],
    },
)


def _with(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


CORRUPTIONS: dict[str, tuple[Callable[[pa.Table], pa.Table], str, bool]] = {
    "a lost row": (lambda t: t.slice(1), "4 rows went to the writer, 3 are in what it wrote", True),
    "a row twice": (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "5 are in what it wrote", True),
    "a lost value": (lambda t: _with(t, "text", ["a", None, "c", "d"]), "column text had 4 values, 3 are in", True),
    "a lost nested value": (
        lambda t: _with(t, "point", [{"x": 1}, None, {"x": None}, {"x": None}]),
        "column point.x had 2 values, 1 are in",
        True,
    ),
    "a lost element": (
        lambda t: _with(t, "tags", [["u"], [], None, [None]]),
        "column tags.element had 2 values, 1 are in",
        True,
    ),
    "another number": (lambda t: _with(t, "id", [1, 2, 3, 5]), "column id reached from 1 to 4", True),
    "another last text": (
        lambda t: _with(t, "text", ["a", "b", "x", "d"]),
        "column text reached from b'a' to b'd'",
        True,
    ),
    "another text": (lambda t: _with(t, "text", ["a", "c", "c", "d"]), "the checksums of the rows", False),
    "swapped values": (lambda t: _with(t, "text", ["b", "a", "c", "d"]), "the checksums of the rows", False),
    "a number inside": (lambda t: _with(t, "id", [1, 3, 2, 4]), "the checksums of the rows", False),
    "an element that moved": (
        lambda t: _with(t, "tags", [["v", "u"], [], None, [None]]),
        "the checksums of the rows",
        False,
    ),
    "an empty list": (lambda t: _with(t, "tags", [["u", "v"], None, None, [None]]), "the checksums of the rows", False),
}


def corrupt(monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.Table], pa.Table]) -> None:
    """From now on Parquet files hold something else than what is written."""
    write_table = pq.ParquetWriter.write_table

    def changed(self: pq.ParquetWriter, table: pa.Table, row_group_size: int) -> None:
        write_table(self, change(table), row_group_size + 1)  # room for one more row

    monkeypatch.setattr(pq.ParquetWriter, "write_table", changed)


@pytest.mark.parametrize("level", ["counts", "full"])
@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_what_a_writer_corrupts_is_seen(name: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts see what changes a count or a bound, the checksum everything; the file stays for inspection."""
    change, problem, by_counts = CORRUPTIONS[name]
    work = task(SCHEMA, [input_file(tmp_path / "in.parquet", ROWS)], tmp_path, proof=level)
    assert rewrite_group(work).error is None
    with monkeypatch.context() as patch:
        corrupt(patch, change)
        result = rewrite_group(work)
    path = tmp_path / "out-00000-a0.parquet"
    if not by_counts and level == "counts":
        assert result.error is None
        return
    assert result.written == ()
    assert problem in (result.error or "")
    assert f"{path} was written and is kept for inspection" in (result.error or "")
    assert path.is_file()


def test_a_file_that_cannot_be_read_back_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.operations.compaction.proof.pq.read_metadata", _fails)
    result = rewrite_group(task(SCHEMA, [input_file(tmp_path / "in.parquet", ROWS)], tmp_path))
    assert result.written == ()
    assert "what was written cannot be read back" in (result.error or "")


def _fails(stream: object) -> None:
    raise pa.ArrowInvalid("Parquet magic bytes not found in footer")


@pytest.mark.parametrize(
    ("level", "status"), [("counts", Status.SUCCEEDED), ("full", Status.FAILED)], ids=["counts", "full"]
)
def test_a_pass_commits_nothing_of_a_group_that_is_disproven(
    level: str, status: Status, tmp_path: Path, local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are swapped on the way into the file: only the full proof sees it, and the table stays as it was."""
    table = new_table(local_catalog, tmp_path)
    table.append(1, part="b")
    table.append(2, part="a")
    before = table.loaded.metadata_location

    def swapped(content: pa.Table) -> pa.Table:
        return content.set_column(1, content.schema.field(1), pc.if_else(pc.equal(content["part"], "a"), "b", "a"))

    with monkeypatch.context() as patch:
        corrupt(patch, swapped)
        # A failed job's files are kept for the grace period, as those of any load.
        outcome = table.maintain("compact", proof=level, orphan_older_than_hours="24")
    (compacted,) = outcome.operations
    assert (compacted.operation, compacted.status) == (Operation.COMPACT, status)
    if status is Status.SUCCEEDED:
        return
    assert outcome.status is PassStatus.FAILED
    assert "rows were not kept: the checksums of the rows before and after writing differ" in (compacted.reason or "")
    assert table.loaded.metadata_location == before
    assert table.readers_agree() == [1, 2]
    (kept,) = (path for path in table.unreferenced() if "/compact-" in path)
    assert kept in (compacted.reason or "")
