"""Copies of any row groups of any files hold the same rows, or are refused (rule: copy-only-checked-footers)."""

from __future__ import annotations

import math
import random
import tempfile
from itertools import chain, product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import CODECS
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.rows.read_task import with_lineage
from icekeeper.storage.part_plan import LEAST_PART_BYTES, Content, ObjectRange, Part, plan_parts, sent_bytes, size_of
from support.copied import (
    LINEAGE_COLUMNS,
    STORAGE,
    Input,
    entry_of,
    lineage_file,
    lineage_target,
    merged,
    mixed_fields,
    parquet_file,
    plain_file,
    resolved,
    target_of,
)
from support.examples import examples
from support.rewrites import rewritten, rows, struct, written

# Which bytes of an object a store copies and which are uploaded: every byte once and in order, within the limits.

SMALL = {"least": 5, "most_copied": 14, "most_sent": 10, "most_parts": 200}


def drawn_contents(sizes: list[tuple[int, int]]) -> list[Content]:
    """New bytes (0), and ranges of two objects that may be adjacent."""
    positions = {1: 0, 2: 1000}
    contents: list[Content] = []
    for kind, size in sizes:
        if not kind:
            contents.append(bytes(range(size)))
        else:
            contents.append(ObjectRange(f"s3://b/{kind}", "e", positions[kind], positions[kind] + size))
            positions[kind] += size + (size % 3 == 0)  # a gap follows every third range
    return contents


CONTENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=12).map(drawn_contents)


def single_bytes(contents: Any) -> list[tuple[str, int]]:
    """The origin of every byte."""
    found: list[tuple[str, int]] = []
    for content in contents:
        if isinstance(content, ObjectRange):
            found += [(content.path, place) for place in range(content.start, content.end)]
        else:
            found += [("own", byte) for byte in content]
    return found


def planned(contents: list[Content], **limits: int) -> tuple[Part, ...]:
    parts = plan_parts(contents, **limits)
    assert parts is not None
    return parts


@settings(max_examples=examples(120))
@given(CONTENTS)
def test_every_byte_is_planned_once_and_in_order(contents: list[Content]) -> None:
    parts = planned(contents, **SMALL)
    inside = chain.from_iterable([part] if isinstance(part, ObjectRange) else part for part in parts)
    assert single_bytes(inside) == single_bytes(contents)


@settings(max_examples=examples(120))
@given(CONTENTS)
def test_parts_are_within_the_limits(contents: list[Content]) -> None:
    parts = planned(contents, **SMALL)
    assert all(size_of(part) >= SMALL["least"] for part in parts[:-1])
    assert all(size_of(part) > 0 for part in parts)
    for part in parts:
        assert size_of(part) <= (SMALL["most_copied"] if isinstance(part, ObjectRange) else SMALL["most_sent"])


def fewest_sent(contents: list[Content], least: int) -> int:
    """The fewest bytes that any plan uploads, by trying every choice of copied bytes (for a few bytes only)."""
    origins = single_bytes(contents)
    if not origins:
        return 0
    best = len(origins)
    for choice in product([False, True], repeat=len(origins)):
        if any(choice[n] and origins[n][0] == "own" for n in range(len(origins))):
            continue
        # A new stretch begins where the choice changes, or where a copied byte does not follow the previous byte.
        starts = [
            n
            for n in range(len(origins))
            if n == 0
            or choice[n] != choice[n - 1]
            or (choice[n] and origins[n] != (origins[n - 1][0], origins[n - 1][1] + 1))
        ]
        lengths = [end - start for start, end in zip(starts, [*starts[1:], len(origins)], strict=True)]
        if all(length >= least for length in lengths[:-1]):
            best = min(best, choice.count(False))
    return best


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=5).map(drawn_contents))
def test_few_more_bytes_are_uploaded_than_necessary(contents: list[Content]) -> None:
    """At most twice as much as the best plan, and a short range at the end."""
    if len(single_bytes(contents)) <= 12:
        assert sent_bytes(planned(contents, least=2, most_copied=4, most_sent=4)) <= 2 * fewest_sent(contents, 2) + 1


def test_files_of_16_mb_are_copied_whole() -> None:
    """The output begins with the magic of the first file, so only the footer is uploaded."""
    sizes = [16_000_000 + number for number in range(20)]
    files = [ObjectRange(f"s3://b/{n}", "e", 0 if n == 0 else 4, size) for n, size in enumerate(sizes)]
    assert planned([*files, b"footer"]) == (*files, (b"footer",))


def test_a_short_range_is_extended_from_the_previous_range() -> None:
    least = LEAST_PART_BYTES
    first, last = ObjectRange("s3://b/1", "e", 4, 4 + 3 * least), ObjectRange("s3://b/3", "e", 4, 4 + least)
    short = ObjectRange("s3://b/2", "e", 4, 1004)
    middle = 4 + 3 * least - (least - 1000)
    assert planned([first, short, last]) == (
        ObjectRange("s3://b/1", "e", 4, middle),
        (ObjectRange("s3://b/1", "e", middle, first.end), short),
        last,
    )


def test_large_ranges_are_divided_into_a_limited_number_of_parts() -> None:
    large = ObjectRange("s3://b/1", "e", 0, 4 * 1024**4)
    parts = planned([large])
    assert len(parts) <= 5_001
    assert set(map(size_of, parts)) <= {large.size // len(parts), large.size // len(parts) + 1}
    many: list[Content] = [ObjectRange(f"s3://b/{n}", "e", 0, LEAST_PART_BYTES) for n in range(10_001)]
    assert plan_parts(many) is None
    assert plan_parts([]) == ()


# A copy of any row groups of any files has the rows, row ids and last-updated sequence numbers of the inputs, and the
# metrics of a rewrite of the rows (rule: copy-only-checked-footers, rows-keep-their-lineage).

IDS = st.none() | st.integers(0, 2**62)
STORED = st.lists(st.tuples(IDS, IDS), min_size=0, max_size=12)
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
BLOOMS = st.sampled_from([None, {"text": {"ndv": 20, "fpp": 0.1}}])
FILES = st.tuples(st.none() | STORED, st.integers(0, 12), SHAPES, BLOOMS, st.integers(0, 2**62), st.integers(0, 2**40))
CODEC_NAMES = st.sampled_from(sorted(set(CODECS) - {"lz4_raw"}))


def drawn(folder: Path, number: int, file: tuple[Any, ...], codec: str, chance: random.Random) -> Input:
    """A file of which all or some row groups are copied."""
    stored, count, options, blooms, first, sequence_number = file
    path = folder / f"{number}.parquet"
    options = {**options, "bloom_filter_options": blooms, "compression": codec.replace("uncompressed", "none")}
    if stored is None:
        made = plain_file(path, number * 12, first, sequence_number, rows=count, **options)
    else:
        columns = [row_id for row_id, _ in stored], [changed for _, changed in stored]
        made = lineage_file(path, number * 12, columns, (first, sequence_number), **options)
    footer = pq.read_metadata(path)
    numbers = [n for n in range(footer.num_row_groups) if footer.row_group(n).num_rows]
    return made if chance.random() < 0.4 else made._replace(only=[n for n in numbers if chance.random() < 0.6])


def assert_true_of_all_rows(path: str) -> None:
    """Bounds and null counts of some row groups hold for the whole file, as some readers assume
    (platform: rust-readers-need-uniform-footers)."""
    footer, table = pq.read_metadata(path), pq.read_table(path).flatten()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for column in range(footer.num_columns):
        name = groups[0].column(column).path_in_schema
        if name not in table.column_names or name == "key":  # Arrow compares uuids by bytes
            continue
        found = [group.column(column).statistics for group in groups]
        counts = [item.null_count for item in found if item is not None and item.has_null_count]
        bounds = [(item.min, item.max) for item in found if item is not None and item.has_min_max]
        values = [value for value in table[name].to_pylist() if value is not None]
        assert not counts or sum(counts) == table.num_rows - len(values)
        if bounds:
            assert min(values) == min(low for low, _ in bounds)
            assert max(values) == max(high for _, high in bounds)


@settings(max_examples=examples(20), deadline=None)
@given(files=st.lists(FILES, min_size=1, max_size=3), codec=CODEC_NAMES, keeps_ids=st.booleans(), seed=st.integers(0))
def test_copies_have_the_rows_and_the_lineage_of_their_inputs_for_every_reader(
    files: list[tuple[Any, ...]], codec: str, keeps_ids: bool, seed: int
) -> None:
    chance = random.Random(seed)
    target = lineage_target(codec=codec) if keeps_ids else target_of(codec=codec)
    with tempfile.TemporaryDirectory() as name:
        files = [file if keeps_ids else (None, *file[1:]) for file in files]
        inputs = [drawn(Path(name), number, file, codec, chance) for number, file in enumerate(files)]
        made = merged(inputs, Path(name) / "copy.parquet", target)
        wanted = [row for source in inputs for row in resolved(source)]
        if not wanted:
            assert made is None
            return
        assert isinstance(made, DataFile), str(made)
        assert made.record_count == len(wanted)
        if not keeps_ids:
            wanted = [{column: row[column] for column in row if column not in LINEAGE_COLUMNS} for row in wanted]
        assert pq.read_table(made.file_path).to_pylist() == wanted
        with duckdb.connect() as connection:
            assert connection.sql(f"SELECT * FROM '{made.file_path}'").to_arrow_table().num_rows == len(wanted)
            names = ", ".join(name for name in ("id", "text", *LINEAGE_COLUMNS) if name in wanted[0])
            found = connection.sql(f"SELECT {names} FROM '{made.file_path}'").fetchall()
        assert found == [tuple(row[column] for column in names.split(", ")) for row in wanted]
        footer = read_footer(made.file_path, STORAGE)
        assert mixed_fields(footer.metadata()) == []
        assert list(made.split_offsets or ()) == [group.file_offset for group in footer.metadata().row_groups]
        assert_true_of_all_rows(made.file_path)
        again = merged([Input(entry_of(Path(made.file_path), first_row_id=5), 5)], Path(name) / "again.parquet", target)
        assert isinstance(again, DataFile), str(again)
        assert Path(again.file_path).read_bytes() == Path(made.file_path).read_bytes()


VALUES = struct((1, "n", "int"), (2, "x", "double"), (3, "t", "string"), (4, "raw", "binary"))
ROW = st.tuples(
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    st.none() | st.text(max_size=4),
    st.none() | st.binary(max_size=4),
)
METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@settings(max_examples=examples(20), deadline=None)
@given(
    content=st.lists(ROW, min_size=1, max_size=12),
    options=SHAPES,
    mode=st.sampled_from(["none", "counts", "truncate(2)", "full"]),
    seed=st.integers(0),
)
def test_metrics_of_a_part_are_those_of_a_rewrite_of_its_rows(
    content: list[tuple[Any, ...]], options: dict[str, Any], mode: str, seed: int
) -> None:
    """They are equal, or the part is refused.  Row lineage columns have metrics, too."""
    with tempfile.TemporaryDirectory() as name:
        names = [field["name"] for field in VALUES["fields"]]
        table = rows(VALUES, dict(zip(names, map(list, zip(*content, strict=True)), strict=True)))
        path = parquet_file(Path(name) / "in.parquet", table, **options)
        full = {"write.metadata.metrics.default": "full"}
        entry = written(rewritten(VALUES, [table], Path(name), table_properties=full))
        groups = pq.read_metadata(path).num_row_groups
        only = [number for number in range(groups) if random.Random(seed + number).random() < 0.5]
        known = {metric: getattr(entry, metric) for metric in METRICS}
        part = Input(entry_of(path, first_row_id=100, **known), 7, only)
        made = merged([part], Path(name) / "copy.parquet", lineage_target(VALUES, mode=mode))
        if isinstance(made, NotCopyable):
            has_nan = any(x is not None and math.isnan(x) for _, x, _, _ in content)
            assert has_nan or not options["write_statistics"]
            return
        found = resolved(part)
        assert (made is None) == (not found)
        if made is not None:
            schema = with_lineage(VALUES)
            kept = rows(schema, {field["name"]: [row[field["name"]] for row in found] for field in schema["fields"]})
            properties = {"write.metadata.metrics.default": mode}
            rewrite = written(rewritten(schema, [kept], Path(name), table_properties=properties))
            assert [getattr(made, metric) for metric in METRICS] == [getattr(rewrite, metric) for metric in METRICS]
            assert (made.column_sizes or {}).keys() == (rewrite.column_sizes or {}).keys()
