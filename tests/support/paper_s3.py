"""A simulated S3: multipart uploads, ranges of an object, and calls that fail as a test requires."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.storage.storage import Storage


def failure(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Call")


class PaperS3:
    """The objects and calls of an upload; ``fails`` gets the name and number of each call and may raise an error."""

    def __init__(self, fails: Callable[[str, int], None] = lambda call, number: None) -> None:
        self.objects: dict[str, bytes] = {"other/t/a b": b"0123456789"}
        self.etag = '"etag"'
        """The ETag of every object; like moto, it ignores conditions of requests
        (platform: moto-lets-pass)."""
        self.parts: dict[int, bytes] = {}
        self.calls: list[str] = []
        self.open_uploads = 0
        self.meta = type("Meta", (), {"endpoint_url": "http://store"})
        self._fails = fails
        self._lock = threading.Lock()

    def _called(self, name: str) -> None:
        with self._lock:
            self.calls.append(name)
            number = self.calls.count(name)
        self._fails(name, number)

    def create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._called("create")
        self.open_uploads += 1
        return {"UploadId": "1"}

    def upload_part_copy(self, **request: Any) -> dict[str, Any]:
        self._called("copy")
        assert request["CopySourceIfMatch"] == '"etag"'
        data = self._range(request["CopySource"], request["CopySourceRange"])
        return {"CopyPartResult": {"ETag": self._keep(request["PartNumber"], data)}}

    def upload_part(self, **request: Any) -> dict[str, Any]:
        self._called("send")
        return {"ETag": f'"{self._keep(request["PartNumber"], request["Body"])}"'}

    def get_object(self, **request: Any) -> dict[str, Any]:
        self._called("get")
        return {"Body": io.BytesIO(self._range(request, request["Range"])), "ETag": self.etag}

    def put_object(self, **request: Any) -> None:
        self._called("put")
        body = request["Body"]
        self.objects[f"{request['Bucket']}/{request['Key']}"] = body.read() if hasattr(body, "read") else bytes(body)

    def _range(self, address: dict[str, str], byte_range: str) -> bytes:
        first, _, last = byte_range.removeprefix("bytes=").partition("-")
        return self.objects[f"{address['Bucket']}/{address['Key']}"][int(first) : int(last) + 1]

    def _keep(self, number: int, data: bytes) -> str:
        assert self.open_uploads == 1
        self.parts[number] = data
        return hashlib.md5(data).hexdigest()

    def complete_multipart_upload(self, **request: Any) -> dict[str, Any]:
        self._called("complete")
        named = request["MultipartUpload"]["Parts"]
        self.objects["bucket/t/new"] = b"".join(self.parts[part["PartNumber"]] for part in named)
        self.open_uploads -= 1
        etags = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in named)
        return {"ETag": f'"{hashlib.md5(etags).hexdigest()}-{len(named)}"'}

    def abort_multipart_upload(self, **_: Any) -> None:
        self._called("abort")
        self.open_uploads -= 1
        self.parts.clear()


def storage_over(client: Any) -> Storage:
    storage = Storage({})
    storage.__dict__.update(s3=client, _boto_may_read=True)
    return storage


def failing(name: str, error: BaseException, number: int = 1) -> Callable[[str, int], None]:
    def fail(call: str, count: int) -> None:
        if (call, count) == (name, number):
            raise error

    return fail
