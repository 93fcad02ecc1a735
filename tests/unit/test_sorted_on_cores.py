"""Sorted files are the same on any number of cores: rows are taken, and columns encoded, side by side (rule 160)."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from icekeeper.machine.resources import on_cores
from icekeeper.operations.compaction import write_file as row_group_writer
from icekeeper.operations.compaction.clustering.sort_keys import row_taker
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.policy import Strategy
from support.copied import MIXED, mixed_rows
from support.rewrites import input_file, task, written


@pytest.mark.parametrize("cores", [1, 3])
def test_taken_rows_are_those_that_arrow_takes(cores: int) -> None:
    (batch,) = mixed_rows(0, 90).combine_chunks().to_batches()
    numbers = pa.array(random.Random(5).sample(range(90), 40))
    with on_cores(cores), row_taker() as taken:
        assert taken(batch, numbers).equals(batch.take(numbers), check_metadata=True)
        assert taken(batch, numbers.slice(3, 0)).num_rows == 0


@pytest.mark.parametrize("strategy", [Strategy.SORT, Strategy.ZORDER])
def test_a_sorted_file_has_the_same_bytes_on_any_number_of_cores(strategy: Strategy, tmp_path: Path) -> None:
    inputs = [input_file(tmp_path / f"in-{number}.parquet", mixed_rows(number * 60)) for number in range(3)]
    recipe = ClusterRecipe(strategy, (KeyColumn(2), KeyColumn(1)), 2**30, 2**30)
    found = []
    for cores in (1, 3, 4):
        with on_cores(cores), mock.patch.object(row_group_writer, "_WORTH_THREADS_BYTES", 0):
            file = written(rewrite_group(task(MIXED, inputs, tmp_path, recipe=recipe)))
        found.append((Path(file.file_path).read_bytes(), file))
    assert found[0] == found[1] == found[2]
