"""Whatever a file claims, it is refused in one sentence, or its copy has the rows that Arrow reads in it (rule 129)."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from support.copied import MIXED, copied, entry_of, mixed_rows, parquet_file, target_of
from support.damaged_parquet import CHANGES, rows_of
from support.examples import examples

ROWS = 40


@cache
def original(kind: str) -> bytes:
    """A file of :data:`MIXED` by its kind; page bodies are short, so that changed bytes hit headers and indexes."""
    options: dict[str, dict[str, Any]] = {
        "page index": {},
        "Bloom filters": {"bloom_filter_options": {"text": {"ndv": 20, "fpp": 0.1}}},
        "pages of version 2": {"data_page_version": "2.0", "use_dictionary": False},
        "one row group": {"row_group_size": 1000, "write_page_index": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        return parquet_file(Path(folder) / "in.parquet", mixed_rows(0, ROWS), **options[kind]).read_bytes()


KINDS = st.sampled_from(["page index", "Bloom filters", "pages of version 2", "one row group"])


@settings(max_examples=examples(80), deadline=None)
@given(kind=KINDS, change=st.sampled_from(CHANGES), seed=st.integers(0, 2**48))
def test_no_claim_is_copied_wrongly(kind: str, change: Callable[[Path, random.Random], None], seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path, good, to = (Path(name) / f"{one}.parquet" for one in ("in", "good", "copy"))
        path.write_bytes(original(kind))
        good.write_bytes(original("page index"))
        change(path, random.Random(seed))
        claimed = entry_of(good, file_path=str(path), file_size_in_bytes=path.stat().st_size)
        try:
            made = copied([good, claimed, good], to)
        except StorageError:  # the copy is as damaged as the input, which its decoded sample has shown
            assert rows_of(path) is None
            return
        if not isinstance(made, DataFile):
            assert not to.exists()
            assert "\n" not in str(made)
            assert str(made).startswith(f"{path} ")
            return
        read, copy, whole = rows_of(path), rows_of(to), rows_of(good)
        assert whole is not None
        # Where Arrow cannot read the input, its pages are damaged, and then it cannot read the copy either.
        assert (read is None) == (copy is None)
        if read is not None and copy is not None:
            assert copy.num_rows == made.record_count == 3 * ROWS
            assert copy.equals(pa.concat_tables([whole, read.cast(whole.schema), whole]))


TEXTS = st.one_of(st.none(), st.text(max_size=5), st.just("x" * 300))
SHAPES = st.fixed_dictionaries(
    {
        "row_group_size": st.sampled_from([1, 3, 7, 1000]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "write_page_index": st.booleans(),
        "write_statistics": st.booleans(),
        "max_rows_per_page": st.sampled_from([1, 2, 1000]),
    }
)


@settings(max_examples=examples(10), deadline=None)
@given(
    files=st.lists(st.tuples(st.integers(0, 12), SHAPES), min_size=1, max_size=4),
    texts=st.lists(TEXTS, min_size=12, max_size=12),
)
def test_copies_have_the_rows_of_their_inputs_for_every_reader(
    files: list[tuple[int, dict[str, Any]]], texts: list[str | None]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = []
        for number, (count, options) in enumerate(files):
            table = mixed_rows(number * 12, count)
            table = table.set_column(1, table.schema.field(1), pa.array(texts[:count], pa.string()))
            paths.append(parquet_file(Path(name) / f"{number}.parquet", table, **options))
        made = copied(paths, Path(name) / "copy.parquet", target_of(MIXED))
        total = sum(count for count, _ in files)
        assert (made is None) == (total == 0)
        if isinstance(made, DataFile):
            assert pq.read_table(made.file_path).equals(pa.concat_tables([pq.read_table(path) for path in paths]))
            scans = (f"'{made.file_path}'", f"read_parquet({[str(path) for path in paths]})")
            with duckdb.connect() as connection:
                copy, inputs = (connection.sql(f"SELECT * FROM {scan}").to_arrow_table() for scan in scans)
            assert copy.equals(inputs)
        else:
            assert made is None, str(made)
