"""Keys reach only the inputs that one of their delete files applies to, here too (rule 7, rule 151)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.model import FileContent
from icekeeper.operations.compaction.rewrite_task import RewriteTask
from icekeeper.rows.apply_deletes import DeletedRows, deleted_rows_of
from icekeeper.rows.read_task import DeleteFile
from icekeeper.storage.storage import Storage
from support.rewrites import input_file, rows, struct, task

SCHEMA = struct((1, "id", "long"), (2, "name", "string"))
STORAGE = Storage({})


@pytest.fixture
def work(tmp_path: Path) -> RewriteTask:
    """Two inputs with the same rows, of two partitions; keys by id apply to the first, by name to both."""
    deletes = []
    for field, key in ((1, 7), (2, "b")):
        name = "id" if field == 1 else "name"
        keys = input_file(
            tmp_path / f"{name}.parquet", rows(struct((field, name, ("long", "string")[field - 1])), {name: [key]})
        )
        deletes.append(
            DeleteFile(
                path=keys.path,
                file_format="PARQUET",
                content=FileContent.EQUALITY_DELETES,
                sequence_number=2,
                record_count=1,
                equality_ids=(field,),
            )
        )
    table = rows(SCHEMA, {"id": [6, 7], "name": ["a", "a"]})
    first, second = (input_file(tmp_path / f"in-{n}.parquet", table) for n in range(2))
    inputs = [replace(first, deletes=(0, 1)), replace(second, deletes=(1,), partition_number=1)]
    return task(SCHEMA, inputs, tmp_path, deletes=tuple(deletes))


def found(work: RewriteTask) -> DeletedRows:
    deletes = deleted_rows_of(work, STORAGE)
    assert deletes is not None
    return deletes


def test_keys_of_another_partition_are_not_counted(work: RewriteTask) -> None:
    assert [found(work).keys_within(source, {}) for source in work.inputs] == [2, 1]


def test_keys_of_another_partition_match_no_row(work: RewriteTask) -> None:
    assert [found(work).match_rows_of(source, STORAGE) for source in work.inputs] == [True, False]


def test_the_keys_of_every_set_of_columns_are_looked_up(work: RewriteTask) -> None:
    first, second = work.deletes
    turned = replace(
        work, deletes=(second, first), inputs=(replace(work.inputs[0]), replace(work.inputs[1], deletes=(0,)))
    )
    assert found(turned).match_rows_of(turned.inputs[0], STORAGE)


def test_rows_as_new_as_the_delete_match_nothing(work: RewriteTask) -> None:
    newer = replace(work, inputs=tuple(replace(source, sequence_number=2) for source in work.inputs))
    assert [found(newer).keys_within(source, {}) for source in newer.inputs] == [0, 0]
    assert not found(newer).match_rows_of(newer.inputs[0], STORAGE)
