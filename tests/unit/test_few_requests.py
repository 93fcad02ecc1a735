"""One request where several would tell no more: a listing that says whether it is allowed, a footer without a size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError

from icekeeper.errors import StorageError
from icekeeper.rows.file_rows import read_parquet_footer
from icekeeper.storage.s3_reads import ObjectEnd
from icekeeper.storage.storage import Storage

WHERE = "s3://bucket/t/metadata"


class Listings:
    """Answers to listings, by what was asked; or the codes with which they are refused."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self.answers, self.asked = list(answers), 0

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        self.asked += 1
        found = self.answers.pop(0)
        if isinstance(found, str):
            raise ClientError({"Error": {"Code": found}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "ListObjectsV2")
        return found


def storage_with(client: Any) -> Storage:
    storage = Storage({})
    storage.__dict__["s3"] = client
    return storage


def test_a_listing_tells_by_itself_that_it_is_not_allowed() -> None:
    client = Listings("AccessDenied")
    storage = storage_with(client)
    assert storage.list_if_allowed(WHERE) is None
    assert storage.list_if_allowed(WHERE) is None
    assert not storage.can_list(WHERE)
    assert client.asked == 1


def test_one_that_is_allowed_is_not_asked_for_again() -> None:
    client = Listings({"Contents": [{"Key": "t/metadata/a", "Size": 3}]})
    storage = storage_with(client)
    assert [found.path for found in storage.list_if_allowed(WHERE) or ()] == [f"{WHERE}/a"]
    assert storage.can_list(WHERE)
    assert client.asked == 1


@pytest.mark.parametrize("answers", [["InvalidAccessKeyId"], [{"IsTruncated": True}, "AccessDenied"]])
def test_a_listing_that_fails_or_breaks_off_is_no_empty_one(answers: list[Any]) -> None:
    """Files below a folder that may not be listed are not known: they must not count as absent."""
    with pytest.raises(StorageError):
        storage_with(Listings(*answers)).list_if_allowed(WHERE)


def test_a_footer_takes_one_request_and_a_long_one_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    read_end = Storage.read_end

    def noted(self: Storage, path: str, length: int) -> ObjectEnd:
        lengths.append(length)
        return read_end(self, path, length)

    monkeypatch.setattr(Storage, "read_end", noted)
    for columns, requests in ((3, 1), (1500, 2)):
        path = str(tmp_path / f"{columns}.parquet")
        pq.write_table(pa.table({f"column {i}": [1, 2] for i in range(columns)}), path)
        lengths.clear()
        assert read_parquet_footer(path, Storage({})).equals(pq.read_metadata(path))
        assert len(lengths) == requests


@pytest.mark.parametrize("damaged", [b"", b"PAR1", b"PAR1" * 3, b"x" * 100, b"PAR1" + b"\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file_is_an_error(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(damaged)
    with pytest.raises((pa.ArrowException, OSError)):
        read_parquet_footer(str(tmp_path / "f"), Storage({}))
