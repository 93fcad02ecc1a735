"""No file is written where only the machine that writes it finds it (rule 182)."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata, require_writable
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import maintained_table

AT_S3 = "s3://bucket/t"


def table_with(location: str, properties: dict[str, str]) -> TableMetadata:
    return TableMetadata({"format-version": 2, "location": location, "properties": properties})


@pytest.mark.parametrize(
    ("location", "key", "value"),
    [
        (AT_S3, "write.data.path", "bucket/t/data"),
        (AT_S3, "write.data.path", "/data"),
        (AT_S3, "write.metadata.path", "file:///metadata"),
        (AT_S3, "write.object-storage.path", "./data"),
        ("file:///t", "write.folder-storage.path", "data"),
        ("/t", "write.metadata.path", "metadata"),
    ],
)
def test_a_folder_that_is_another_one_elsewhere_is_refused_by_its_property(location: str, key: str, value: str) -> None:
    with pytest.raises(TableUnsupported, match=f"table property {key} is '{value}', .*; set it to a whole address"):
        require_writable(table_with(location, {key: value}))


@pytest.mark.parametrize(
    ("location", "properties"),
    [
        (AT_S3, {}),
        (AT_S3, {"write.data.path": "s3a://other/data/", "write.metadata.path": "gs://other/metadata"}),
        (AT_S3, {"write.data.path": "s3://other", "write.object-storage.path": "not/asked"}),
        (AT_S3, {"write.data.path": ""}),
        ("file:///t", {"write.data.path": "/data", "write.metadata.path": "file:/metadata"}),
        ("/t", {"write.data.path": "s3://other/data"}),
    ],
)
def test_whole_addresses_are_written_to(location: str, properties: dict[str, str]) -> None:
    require_writable(table_with(location, properties))


def test_no_rows_go_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that run elsewhere would look for them in theirs."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with maintained_table(tmp_path) as table:
        table.create()
        table.fill(2)
        table.rewrite_document(lambda document: document["properties"].update({"write.data.path": "t/data"}))
        outcome = table.run(Operation.COMPACT)
        assert outcome.status is Status.REFUSED
        assert list(here.iterdir()) == []
        assert table.readers_agree() == [0, 1, 10, 11]
