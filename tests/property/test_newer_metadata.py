"""Which metadata file continues the state that a catalog names, and which others may (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.repair.newer_metadata import newest_chain
from support.examples import examples
from support.tables import new_document

HOUR_MS = 3_600_000
BASE = new_document("s3://b/t", 2)


def path_of(number: int) -> str:
    return f"s3://b/t/metadata/{number:05d}.metadata.json"


def document(line: list[int], log_length: int, **more: Any) -> TableMetadata:
    """The file at the end of a line of files, which names at most ``log_length`` files before it."""
    *before, own = line
    log = [{"timestamp-ms": n * HOUR_MS, "metadata-file": path_of(n)} for n in before[-log_length:]]
    return TableMetadata({**BASE, "last-updated-ms": own * HOUR_MS, "metadata-log": log, **more})


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[int, list[int]], int, int]:
    """The line of each file from the first file on, the file that the catalog names, and the length of logs."""
    lines = {1: [1]}
    for number in range(2, draw(st.integers(2, 8)) + 1):
        lines[number] = [*lines[draw(st.sampled_from(sorted(lines)))], number]
    return lines, draw(st.sampled_from(sorted(lines))), draw(st.sampled_from([1, 2, 9]))


def searched(lines: Mapping[int, list[int]], current: int, log_length: int) -> tuple[str | None, Mapping[str, str]]:
    metadata = {n: document(line, log_length) for n, line in lines.items()}
    table = LoadedTable(TableName(("ns",), "t"), metadata[current], path_of(current), "", {})
    known = {str(entry["metadata-file"]) for entry in metadata[current].metadata_log} | {path_of(current)}
    return newest_chain(table, {path_of(n): found for n, found in metadata.items() if path_of(n) not in known})


@given(trees())
@settings(max_examples=examples(300))
def test_only_a_chain_without_branches_is_found_free_of_rivals(tree: tuple[dict[int, list[int]], int, int]) -> None:
    lines, current, log_length = tree
    tip, rivals = searched(lines, current, log_length)
    after = {number for number, line in lines.items() if current in line and number != current}
    if tip is not None and not rivals:
        newest = next(number for number in after if path_of(number) == tip)
        assert after == set(lines[newest][lines[newest].index(current) + 1 :])
    if log_length == 9:  # every file names all before it
        is_chain = any(after == set(lines[n][lines[n].index(current) + 1 :]) for n in after)
        assert (tip is None) is (not after)
        assert is_chain or bool(rivals) or not after
        others = lines.keys() - after - {*lines[current]}
        if is_chain and all(lines[n][-2] in lines[current][:-1] for n in others):  # they lost their swaps
            assert rivals == {}


def test_files_of_other_tables_and_places_do_not_count_and_damaged_ones_are_rivals() -> None:
    table = LoadedTable(TableName(("ns",), "t"), document([1], 9), path_of(1), "", {})
    others: dict[str, TableMetadata | None] = {
        path_of(2): document([1, 2], 9, **{"table-uuid": "another"}),
        path_of(3): document([1, 3], 9, location="s3://b/copy"),
    }
    assert newest_chain(table, others) == (None, {})
    assert newest_chain(table, {**others, path_of(4): None}) == (None, {path_of(4): "it cannot be read"})
