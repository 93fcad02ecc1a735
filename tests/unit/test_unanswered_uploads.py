"""An object that may still appear: nothing else is written under its name (rule 168)."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from icekeeper.errors import StorageError
from icekeeper.storage.multipart import NotAssembled, assemble, may_copy_ranges
from icekeeper.storage.part_plan import CopiedRange, OwnBytes, Part, SentPart
from support.paper_s3 import PaperS3, failing, failure, storage_over

TO = "s3://bucket/t/new"
PARTS: tuple[Part, ...] = (CopiedRange("s3a://other/t/a b", '"etag"', 2, 6), SentPart((OwnBytes(b"end"),)))
UNKNOWN = [
    failure(503, "SlowDown"),
    failure(500, "InternalError"),
    # The request before it, which boto3 has repeated, has completed the upload.
    failure(404, "NoSuchUpload"),
    ReadTimeoutError(endpoint_url="http://store"),
    EndpointConnectionError(endpoint_url="http://store"),
]


@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__ + str(error)[-40:])
def test_a_completion_without_an_answer_is_an_error(error: Exception) -> None:
    client = PaperS3(failing("complete", error))
    storage = storage_over(client)
    with pytest.raises(StorageError, match="s3://bucket/t/new"):
        assemble(storage, TO, PARTS)
    assert client.calls[-1] == "abort"
    assert may_copy_ranges(storage, TO)


@pytest.mark.parametrize("call", ["upload_part_copy", "upload_part", "complete_multipart_upload"])
def test_an_answer_without_its_etag_tells_nothing(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some stores answer so; it fails neither the worker nor, before the last step, the copy by another way."""
    client = PaperS3()
    real = getattr(client, call)

    def silent(**asked: Any) -> dict[str, Any]:
        real(**asked)
        return {}

    monkeypatch.setattr(client, call, silent)
    if call != "complete_multipart_upload":
        made = assemble(storage_over(client), TO, PARTS)
        assert made == NotAssembled(TO, "failed: the store did not tell the ETag of what it made")
        return
    with pytest.raises(StorageError, match="did not tell the ETag"):
        assemble(storage_over(client), TO, PARTS)
