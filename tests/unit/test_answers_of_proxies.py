"""An answer to a deletion that is no store's: nothing counts as gone by it (rule 150)."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from icekeeper.storage import s3
from icekeeper.storage.local_files import unlink
from icekeeper.storage.s3_objects import DeleteReport, delete_objects

PATHS = ("s3://bucket/a", "s3://bucket/b")
RESULT = b'<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</DeleteResult>'
PROPERTIES = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}


def answered(*bodies: bytes) -> DeleteReport:
    """Both files' fate when requests are answered with status 200 and these bodies in turn, the last again."""
    client = s3.s3_client({**PROPERTIES, "s3.region": "us-east-1"})
    left = list(bodies)

    def answer(**_: Any) -> AWSResponse:
        found = AWSResponse("http://127.0.0.1:1", 200, {"Content-Type": "text/html"}, None)
        found._content = left.pop(0) if len(left) > 1 else left[0]
        return found

    client.meta.events.register("before-send.s3.DeleteObjects", answer)
    return delete_objects(PATHS, lambda path: None, unlink, lambda: client, {})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


@pytest.mark.parametrize("body", [b"", b"<html><body>Sign in</body></html>"], ids=["empty", "page"])
def test_what_tells_nothing_of_the_deletion_deletes_nothing(body: bytes) -> None:
    told = answered(body)
    assert (told.deleted, set(told.transient)) == ((), set(PATHS))
    assert told.failed["s3://bucket/a"] == (
        "failed with NoDeleteResult: the answer is not one of a store, so that the request counts as failed; "
        "look for a proxy that answers in the place of the store"
    )


@pytest.mark.parametrize("body", [b"<!doctype html><p>busy<br>", RESULT[:-9]], ids=["page that is no XML", "cut off"])
def test_what_is_no_xml_deletes_nothing(body: bytes) -> None:
    told = answered(body)
    assert (told.deleted, set(told.transient)) == ((), set(PATHS))


def test_a_quiet_result_without_errors_is_a_success() -> None:
    assert answered(b"", RESULT % b"").deleted == PATHS
    denied = b"<Error><Key>a</Key><Code>AccessDenied</Code></Error>"
    assert answered(RESULT % denied).deleted == ("s3://bucket/b",)
