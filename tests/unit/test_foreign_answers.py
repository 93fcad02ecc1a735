"""Answers of success that a proxy gives for a store, the state or a catalog: nothing is believed (rule 169)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from icekeeper.catalogs.glue import GLUE
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.table import DynamoTable, open_table
from icekeeper.state.identity import TableAddress
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage

PROPERTIES = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
PAGES = [b"", b"<html><body>Sign in</body></html>"]
TO = "s3://bucket/t/new"
UPLOAD = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
LISTED = (
    b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<IsTruncated>%s</IsTruncated><NextContinuationToken>on</NextContinuationToken>"
    b"<Contents><Key>t/%s</Key><Size>1</Size></Contents></ListBucketResult>"
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


def answering(client: Any, bodies: Callable[[str], bytes], **headers: str) -> None:
    """Have requests answered with status 200, each with what ``bodies`` gives for its operation."""

    def answer(event_name: str, **_: Any) -> AWSResponse:
        found = AWSResponse("http://127.0.0.1:1", 200, headers, None)
        found._content = bodies(event_name.rpartition(".")[2])
        return found

    client.meta.events.register("before-send", answer)


def store(bodies: Callable[[str], bytes], **headers: str) -> Storage:
    made = Storage({**PROPERTIES, "s3.region": "us-east-1"})
    answering(made.s3, bodies, **headers)
    return made


def written_in_parts(storage: Storage) -> None:
    with storage.translated(TO), bounded_output(storage, TO, 40) as sink:
        sink.write(bytes(50))


@pytest.mark.parametrize("page", PAGES, ids=["empty", "page"])
def test_what_a_page_answers_is_not_written(page: bytes) -> None:
    with pytest.raises(StorageError, match=f"{TO} failed with NoETag: .* look for a proxy"):
        store(lambda operation: page).write(TO, b"metadata")
    store(lambda operation: page, ETag='"of the object"').write(TO, b"metadata")


@pytest.mark.parametrize("page", PAGES, ids=["empty", "page"])
@pytest.mark.parametrize(
    ("answered", "lacks"),
    [
        ("CreateMultipartUpload", "InitiateMultipartUploadResult"),
        ("CompleteMultipartUpload", "CompleteMultipartUploadResult"),
    ],
)
def test_an_upload_in_parts_that_a_page_answers_is_none(answered: str, lacks: str, page: bytes) -> None:
    told = {"CreateMultipartUpload": UPLOAD, answered: page}
    with pytest.raises(StorageError, match=f"{TO} failed with No{lacks}"):
        written_in_parts(store(lambda operation: told.get(operation, b""), ETag='"of a part"'))


def test_a_part_that_a_page_answers_is_not_sent() -> None:
    with pytest.raises(StorageError, match=f"{TO} failed with NoETag"):
        written_in_parts(store(lambda operation: UPLOAD))


@pytest.mark.parametrize("page", PAGES, ids=["empty", "page"])
def test_a_page_does_not_end_a_listing(page: bytes) -> None:
    """Files that were not listed could be signs that others are needed (rule 83)."""
    answers = iter((LISTED % (b"true", b"a"), page, page, page))
    with pytest.raises(StorageError, match="s3://bucket/t failed with NoListBucketResult"):
        list(store(lambda operation: next(answers)).list_folder("s3://bucket/t"))
    answers = iter((LISTED % (b"true", b"a"), page, LISTED % (b"false", b"b")))  # it may pass
    found = [one.path for one in store(lambda operation: next(answers)).list_folder("s3://bucket/t")]
    assert found == ["s3://bucket/t/a", "s3://bucket/t/b"]


def state(body: bytes) -> DynamoTable:
    made = open_table(TableAddress("icekeeper", region="us-east-1", endpoint="http://127.0.0.1:1", profile=None))
    answering(made.client, lambda operation: body)
    return made


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda table: table.get("pin", "1"), id="an item that is not there"),
        pytest.param(lambda table: list(table.query("pins")), id="no items"),
        pytest.param(lambda table: table.put({"pk": "pin", "sk": "1"}), id="an item that is written"),
        pytest.param(lambda table: table.change("lease", "t", lambda found: {"holder": "us"}), id="a lease"),
    ],
)
@pytest.mark.parametrize("page", [*PAGES, b"[]"], ids=["empty", "page", "list"])
def test_the_state_believes_no_page(
    page: bytes, asked: Callable[[DynamoTable], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(StorageError, match=r"state table icekeeper cannot be used: .*look for a proxy"):
        asked(state(page))
    assert state(b"{}").get("pin", "1") is None


@pytest.mark.parametrize("page", [*PAGES, b"{}"], ids=["empty", "page", "object"])
def test_a_catalog_of_aws_believes_no_page(page: bytes) -> None:
    """Else Glue would seem to point nowhere after a commit, whose outcome nobody knew any more (rule 64)."""
    keys = {"client.access-key-id": "a", "client.secret-access-key": "b", "client.region": "us-east-1"}
    glue, tables = GLUE.connect(keys).repeating, S3_TABLES.connect(keys).repeating
    answering(glue, lambda operation: page)
    answering(tables, lambda operation: page)
    arn = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
    requests: list[tuple[Callable[..., Any], dict[str, str]]] = [
        (glue.get_table, {"DatabaseName": "ns", "Name": "t"}),
        (glue.get_tables, {"DatabaseName": "ns"}),
        (glue.get_databases, {}),
        (tables.list_tables, {"tableBucketARN": arn}),
        (tables.get_table_metadata_location, {"tableBucketARN": arn, "namespace": "ns", "name": "t"}),
    ]
    for ask, about in requests:
        with pytest.raises(ClientError, match="the answer is not one of the service"):
            ask(**about)
