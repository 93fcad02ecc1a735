"""A store copies the row groups of a v3 table, whose rows keep their ids: the two columns are sent behind them."""

from __future__ import annotations

import io
import uuid
from dataclasses import replace

import pyarrow.parquet as pq

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.merge_files import copyable_file
from icekeeper.rows.read_task import with_lineage
from icekeeper.storage.storage import Storage
from support.copied import FLAT, large_file, merged_by_the_store, requests_of, stored_entry, target_of


def test_rows_keep_their_ids_in_what_the_store_copies(seaweedfs: SeaweedFSServer) -> None:
    """Of the second file one row group of two is copied: its rows count on from their position."""
    seaweedfs.create_table_bucket("store-copies-with-ids")
    properties = seaweedfs.catalog_properties("store-copies-with-ids")
    storage, folder = Storage(properties), f"{properties['warehouse']}ns/t{uuid.uuid4().hex}/data"
    target = target_of(with_lineage(FLAT))
    inputs = []
    for number, (rows, first_row_id) in enumerate([(700_000, 5_000), (1_500_000, 900_000)]):
        entry = stored_entry(storage, f"{folder}/{number}.parquet", large_file(0, rows, number))
        entry = replace(entry, first_row_id=first_row_id)
        file = copyable_file(entry, target, storage, 7 + number)
        assert isinstance(file, CopyableFile)
        inputs.append((entry, file if number == 0 else file.only([1])))

    with requests_of(storage) as requests:
        made = merged_by_the_store(storage, inputs, f"{folder}/new.parquet", target)

    assert isinstance(made, DataFile)
    assert requests.count("UploadPartCopy") >= 1
    table = pq.read_table(io.BytesIO(storage.read(made.file_path)))
    copied = inputs[1][1].row_count
    skipped = 1_500_000 - copied
    assert table.num_rows == 700_000 + copied
    assert table["id"].to_pylist() == [*range(700_000), *range(skipped, 1_500_000)]
    assert table["_row_id"].to_pylist() == [*range(5_000, 705_000), *range(900_000 + skipped, 2_400_000)]
    changes = table["_last_updated_sequence_number"].to_pylist()
    assert changes == [7] * 700_000 + [8] * copied
