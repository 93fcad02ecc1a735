"""``verify`` on statistics files: what the table says of one is what its footer says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.puffin import PuffinBlob, encode_blobs
from icekeeper.metadata.statistics import StatisticsFile, statistics_by_snapshot, statistics_entry
from icekeeper.verification.checks import Problem, ProblemKind, statistics_problems
from support.tables import new_document

PATH = "s3://b/t/metadata/1.stats"
BLOBS = [(PuffinBlob("kind", (n,), 0, 0, {"ndv": "3"}, snapshot_id=1, sequence_number=4), b"blob") for n in (1, 2)]
PUFFIN = encode_blobs(BLOBS, {})


def told(change: Callable[[dict[str, Any]], object] = lambda entry: None) -> StatisticsFile:
    """What the table says, changed."""
    entry = statistics_entry(1, PATH, PUFFIN)
    change(entry)
    (file,) = statistics_by_snapshot(TableMetadata(new_document("s3://b/t", 2, statistics=[entry]))).values()
    return file


def problems(file: StatisticsFile, data: bytes = PUFFIN.data) -> list[tuple[ProblemKind, str]]:
    found: list[Problem] = list(statistics_problems(file, data[-file.footer_size :]))
    assert {problem.path for problem in found} <= {PATH}
    return [(problem.kind, problem.detail) for problem in found]


def test_a_file_as_it_should_be() -> None:
    assert problems(told()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda blob: blob.update(type="other"),
        lambda blob: blob.update(fields=[9]),
        lambda blob: blob.update({"snapshot-id": 9}),
        lambda blob: blob.update({"sequence-number": 9}),
        lambda blob: blob.update(properties={"ndv": "4"}),
    ],
)
def test_every_part_of_a_blob_is_compared(change: Callable[[dict[str, Any]], object]) -> None:
    found = problems(told(lambda entry: change(entry["blob-metadata"][0])))
    assert [kind for kind, _ in found] == [ProblemKind.STATISTICS] * 2
    assert found[0][1].startswith("the table says that it holds a blob ")
    assert found[1][1] == "it holds a blob kind of fields [1] that the table does not know so"


def test_a_blob_that_the_table_does_not_name() -> None:
    found = problems(told(lambda entry: entry["blob-metadata"].pop()))
    assert found == [(ProblemKind.STATISTICS, "it holds a blob kind of fields [2] that the table does not know so")]


def test_a_footer_of_another_size() -> None:
    longer = replace(told(), footer_size=PUFFIN.footer_size + 2)
    said = f"the table says that its footer has {PUFFIN.footer_size + 2} bytes, it has {PUFFIN.footer_size}"
    assert problems(longer) == [(ProblemKind.WRONG_SIZE, said)]
    assert problems(replace(told(), footer_size=PUFFIN.footer_size - 2))[0][0] is ProblemKind.UNREADABLE_METADATA


def test_a_blob_that_reaches_into_the_footer() -> None:
    data = PUFFIN.data.replace(b'"length": 4', b'"length": 9')
    found = problems(told(), data)
    assert found == [(ProblemKind.STATISTICS, "a blob kind reaches into the footer")] * 2


def test_a_compressed_footer_is_legal_but_not_looked_into() -> None:
    data = bytearray(PUFFIN.data)
    data[-8] = 1
    assert problems(told(lambda entry: entry["blob-metadata"].clear()), bytes(data)) == []
