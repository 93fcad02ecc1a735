"""Answers that no store or catalog has given, or that refuse: nothing is believed (rule: trust-only-own-answers)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from icekeeper.catalogs.glue import GLUE
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.table import DynamoTable, open_table
from icekeeper.state.identity import TableAddress
from icekeeper.storage import s3
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import DeleteReport, Storage

# Answers of success that a proxy gives for a store, the state or a catalog: nothing is believed
# (rule: trust-only-own-answers).

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
    """Files that were not listed could be signs that others are needed (rule: unreadable-deletes-less)."""
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
    """Else Glue would seem to point nowhere after a commit, whose outcome nobody knew any more
    (rule: metadata-decides-over-answers)."""
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
        with pytest.raises(ClientError, match="the answer does not come from the service"):
            ask(**about)


# An answer to a deletion that is no store's: nothing counts as gone by it (rule: trust-only-own-answers).

PATHS = ("s3://bucket/a", "s3://bucket/b")
RESULT = b'<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</DeleteResult>'


def deleted_with(client: Any) -> DeleteReport:
    storage = Storage({})
    storage.__dict__["s3"] = client
    return storage.delete(PATHS)


def answered(*bodies: bytes) -> DeleteReport:
    """Both files' fate when requests are answered with status 200 and these bodies in turn, the last again."""
    client = s3.s3_client({**PROPERTIES, "s3.region": "us-east-1"})
    left = list(bodies)

    def answer(**_: Any) -> AWSResponse:
        found = AWSResponse("http://127.0.0.1:1", 200, {"Content-Type": "text/html"}, None)
        found._content = left.pop(0) if len(left) > 1 else left[0]
        return found

    client.meta.events.register("before-send.s3.DeleteObjects", answer)
    return deleted_with(client)


@pytest.mark.parametrize(
    ("body", "is_read"),
    [(b"", True), (PAGES[1], True), (b"<!doctype html><p>busy<br>", False), (RESULT[:-9], False)],
    ids=["empty", "page", "page that is no XML", "cut off"],
)
def test_what_tells_nothing_of_the_deletion_deletes_nothing(body: bytes, is_read: bool) -> None:
    told = answered(body)
    assert (told.deleted, set(told.transient)) == ((), set(PATHS))
    if is_read:
        assert told.failed["s3://bucket/a"] == (
            "failed with NoDeleteResult: the answer does not come from a store, so the request counts as failed; "
            "look for a proxy that answers in place of the store"
        )


def test_a_result_without_errors_is_a_success() -> None:
    assert answered(b"", RESULT % b"").deleted == PATHS
    denied = b"<Error><Key>a</Key><Code>AccessDenied</Code></Error>"
    assert answered(RESULT % denied).deleted == ("s3://bucket/b",)
    assert report({"Errors": None}).deleted == PATHS


# What a store answers to a batch of deletions: no file counts as gone that may still be there
# (rule: trust-only-own-answers).


def report(*answers: dict[str, Any]) -> Any:
    client = Mock()
    client.delete_objects.side_effect = answers
    return deleted_with(client)


def test_a_locked_object_is_told_and_the_others_are_gone() -> None:
    told = report({"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "object lock"}]})
    assert (told.deleted, told.failed) == (
        ("s3://bucket/b",),
        {"s3://bucket/a": "was refused by the store (AccessDenied: object lock)"},
    )


@pytest.mark.parametrize("entry", [{}, {"Key": "%61"}, {"Key": ""}], ids=["no key", "another spelling", "empty"])
def test_an_error_that_names_no_key_of_ours_is_one_of_all(entry: dict[str, str]) -> None:
    """It broke the operation, and what was deleted before came into no journal."""
    told = report({"Errors": [{**entry, "Code": "AccessDenied"}]})
    assert (told.deleted, told.failed.keys()) == ((), set(PATHS))
    busy = {"Errors": [{**entry, "Code": "SlowDown"}]}
    assert report(busy, {}).deleted == PATHS
    assert report(*[busy] * s3.DELETE_ATTEMPTS).transient == set(PATHS)


# What a store that has moved, is busy, or takes the keys no more answers: each call fails, in one sentence.

FILE, FOLDER = "s3://bucket/t/f", "s3://bucket/t"
RENEW = "; sign in again, or name a profile or role, whose keys are renewed"
CORRECT = "; the bucket is in another region or store: correct s3.region or s3.endpoint"
PAGE = (
    b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>on</NextContinuationToken>"
    b"<Contents><Key>t/a</Key><Size>1</Size></Contents></ListBucketResult>"
)


def refusing_store(*answers: tuple[int, bytes], **of: bytes) -> Storage:
    """Answers with these in turn, the last again; requests of operations in ``of`` with status 200 and this."""
    left = list(answers)

    def answer(event_name: str, **_: Any) -> AWSResponse:
        operation = event_name.rpartition(".")[2]
        if operation in of:
            status, body = 200, of[operation]
        else:
            status, body = left.pop(0) if len(left) > 1 else left[0]
        found = AWSResponse("http://127.0.0.1:1", status, {"ETag": '"1"', "Location": "http://127.0.0.1:2/"}, None)
        found._content = b"" if event_name.endswith("HeadObject") else body
        return found

    made = Storage({**PROPERTIES, "s3.region": "us-east-1"})
    made.s3.meta.events.register("before-send.s3", answer)
    return made


def error(code: str, message: str = "") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def upload(storage: Storage) -> None:
    with storage.translated(FILE), bounded_output(storage, FILE, 4) as sink:
        sink.write(bytes(9))


CALLS: list[Callable[[Storage], object]] = [
    lambda storage: storage.write(FILE, b"x"),
    lambda storage: storage.read(FILE),
    lambda storage: list(storage.list(FOLDER)),
    lambda storage: storage.list_if_allowed(FOLDER),
    lambda storage: storage.can_list(FOLDER),
    lambda storage: storage.can_delete(FOLDER),
    upload,
]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, error("ExpiredToken", "The provided token has expired."), f"ExpiredToken: .* has expired{RENEW}"),
        (403, error("ExpiredToken"), f"ExpiredToken{RENEW}"),
        (301, b"", f"301: Moved Permanently{CORRECT}"),
        (307, error("TemporaryRedirect"), f"TemporaryRedirect{CORRECT}"),
        (503, error("SlowDown", "Reduce your rate"), "SlowDown: Reduce your rate"),
        (409, error("OperationAborted"), "OperationAborted"),
        (400, error(""), "an error without a code"),
    ],
    ids=["expired", "expired without words", "moved", "moved for now", "busy", "met another", "no code"],
)
def test_each_call_fails_in_one_sentence(status: int, body: bytes, told: str) -> None:
    for call in CALLS:
        with pytest.raises(StorageError, match=f"failed with {told}$"):
            call(refusing_store((status, body)))
    with pytest.raises(StorageError, match=f"{FILE} failed with {status}"):  # an answer to HEAD has no body
        refusing_store((status, body)).status(FILE)
    report = refusing_store((status, body)).delete([FILE])
    assert (report.deleted, list(report.failed)) == ((), [FILE])


@pytest.mark.parametrize("body", [error("InternalError"), error("SlowDown", "We failed")])
def test_an_error_with_status_200_is_one(body: bytes) -> None:
    """S3 answers so where it has begun to answer before it knew: copies and completions of uploads."""
    with pytest.raises(StorageError, match=r"failed with (InternalError|SlowDown: We failed)$"):
        upload(refusing_store((200, b""), CreateMultipartUpload=UPLOAD, CompleteMultipartUpload=body))
    client = refusing_store((200, body)).s3
    copied = {"Bucket": "bucket", "Key": "t/f", "CopySource": "bucket/t/g", "UploadId": "1", "PartNumber": 1}
    with pytest.raises(client.exceptions.ClientError):
        client.upload_part_copy(**copied)


def test_keys_that_expire_amid_a_listing_do_not_end_it() -> None:
    """No file is judged by what was listed until then (rule: unreadable-deletes-less)."""
    storage = refusing_store((200, PAGE), (400, error("ExpiredToken")))
    listed = storage.list_folder(FOLDER)
    assert next(listed).path == f"{FOLDER}/a"
    with pytest.raises(StorageError, match=f"{FOLDER} failed with ExpiredToken{RENEW}"):
        next(listed)


def test_an_error_of_one_key_may_lack_words() -> None:
    told = b"<DeleteResult><Error><Key>t/f</Key><Code>InternalError</Code><Message/></Error></DeleteResult>"
    assert refusing_store((200, told)).delete([FILE]).transient == {FILE}
    told = b"<DeleteResult><Error><Key>t/f</Key><Code/><Message/></Error></DeleteResult>"
    assert refusing_store((200, told)).delete([FILE]).failed == {FILE: "failed with an error without a code"}
